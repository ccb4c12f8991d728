"""The first step of a Keras model, by Keras and by mtf_hetero.keras.fit: how long `fit` takes until it is done."""

import time
from collections.abc import Mapping
from typing import Any

import keras

import mtf_hetero.keras
from benchmarks.cases.keras_fit import DEVICES_OF
from benchmarks.frameworks import keras_steps


class FirstStep:
    """A compiled Keras model, and one batch.

    Args:
      network: a name that `keras_steps.make` knows.
      way: one of DEVICES_OF.
      batch_size: examples of the batch.
      pixels: height and width of the images of keras.applications.
      layers: of the Transformer.
      seed: of weights and examples.
    """

    def __init__(self, network: str, way: str, batch_size: int, pixels: int, layers: int, seed: int) -> None:
        self._devices, self._batch_size = DEVICES_OF[way], batch_size
        self._model, self._x, self._y = keras_steps.make(network, batch_size, pixels, layers, seed)

    def run(self) -> dict[str, Any]:
        """Call fit, and return the seconds until the first step was done, and its loss."""
        found: dict[str, Any] = {}
        begin, cpu = time.perf_counter(), time.process_time()

        def note(batch: int, logs: Mapping[str, Any]) -> None:
            found["wall_seconds"] = time.perf_counter() - begin
            found["cpu_seconds"] = time.process_time() - cpu
            found["losses"] = [float(logs["loss"])]

        callbacks = [keras.callbacks.LambdaCallback(on_train_batch_end=note)]
        self._fit(self._x, self._y, batch_size=self._batch_size, verbose=0, callbacks=callbacks)
        return found

    def _fit(self, x: Any, y: Any, **options: Any) -> None:
        if self._devices is None:
            self._model.fit(x, y, **options)
        else:
            mtf_hetero.keras.fit(self._model, x, y, devices=self._devices, layout="batch", **options)

    def close(self) -> None:
        """Nothing is left open."""
