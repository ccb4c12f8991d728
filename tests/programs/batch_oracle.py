"""The oracle of trainings that continue at another place: each batch has the logs of an undisturbed one by Keras."""

import functools
from collections.abc import Callable
from typing import Any

import keras
from fit_oracle import make_model, same, state
from keras_oracle import floatx

import mtf_hetero.keras
from mtf_hetero import tf


class Blind(keras.callbacks.Callback):
    """Notes the logs of each batch, and acts after some, {number: function}, without a look at weights."""

    def __init__(self, acts: dict[int, Callable[[], Any]] | None = None) -> None:
        super().__init__()
        self.logs: list[dict[str, Any]] = []
        self.acts = acts or {}

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.logs.append(dict(logs))
        self.acts.get(len(self.logs), int)()


class Undisturbed:
    """A training by Keras, once for each kind of callback, in float64.

    Args:
      compiled: makes the model.
      *data: of fit.
      **options: of fit.
    """

    def __init__(self, compiled: Callable[[], Any], *data: Any, **options: Any) -> None:
        self._compiled, self._data, self._options = compiled, data, options
        self._expected = functools.cache(self._train)

    def _train(self, kind: Any) -> tuple[Any, ...]:
        with floatx(tf.float64):
            model, callback = make_model(self._compiled), kind()
            history = model.fit(*self._data, callbacks=[callback], **self._options)
            return callback.logs, history.history, state(model)

    def check(self, kind: Any = Blind, acts: Any = None, **place: Any) -> Any:
        """Assert that `mtf_hetero.keras.fit` gives the same logs and values at a place; returns its History."""
        logs, expected, last = self._expected(kind)
        callback = kind(acts)
        with floatx(tf.float64):
            model = make_model(self._compiled)
            options = {**self._options, "callbacks": [callback]}
            history = mtf_hetero.keras.fit(model, *self._data, **options, **place)
            for found, batch in zip(callback.logs, logs, strict=True):
                same(found, batch, 1e-12)
            same(history.history, expected, 1e-12)
            same(state(model), last, 1e-9)
        return history
