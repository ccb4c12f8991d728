"""The first step of a Keras model, by Keras and by mtf_hetero.keras.fit: how long `fit` takes until it is done."""

import time
from collections.abc import Callable, Mapping
from typing import Any

import keras
import numpy as np

import mtf_hetero.keras
from benchmarks.cases.keras_fit import DEVICES_OF

_CLASSES = 10
_WIDTH, _HEADS, _LENGTH, _VOCABULARY = 64, 4, 32, 1000


class FirstStep:
    """A compiled Keras model, and one batch.

    Args:
      network: "Transformer", or a function of keras.applications.
      way: one of DEVICES_OF.
      batch_size: examples of the batch.
      pixels: height and width of the images of keras.applications.
      layers: of the Transformer.
      seed: of weights and examples.
    """

    def __init__(self, network: str, way: str, batch_size: int, pixels: int, layers: int, seed: int) -> None:
        keras.utils.set_random_seed(seed)
        self._rng = np.random.default_rng(seed)
        self._devices, self._batch_size = DEVICES_OF[way], batch_size
        if network == "Transformer":
            self._model, self._x = _transformer(layers), self._tokens()
            optimizer: Any = keras.optimizers.Adam(1e-3)
        else:
            self._model, self._x = _classifier(getattr(keras.applications, network), pixels), self._images(pixels)
            optimizer = keras.optimizers.SGD(1e-3, momentum=0.9)
        self._y = self._rng.integers(0, _CLASSES, batch_size)
        self._model.compile(optimizer, keras.losses.SparseCategoricalCrossentropy(from_logits=True))

    def _tokens(self) -> np.ndarray:
        return self._rng.integers(0, _VOCABULARY, (self._batch_size, _LENGTH)).astype("int32")

    def _images(self, pixels: int) -> np.ndarray:
        return self._rng.standard_normal((self._batch_size, pixels, pixels, 3)).astype("float32")

    def run(self) -> dict[str, Any]:
        """Calls fit; returns the seconds until the first step was done, and its loss."""
        found: dict[str, Any] = {}
        begin, cpu = time.perf_counter(), time.process_time()

        def note(batch: int, logs: Mapping[str, Any]) -> None:
            found["wall_seconds"] = time.perf_counter() - begin
            found["cpu_seconds"] = time.process_time() - cpu
            found["losses"] = [float(logs["loss"])]

        self._fit(
            self._x,
            self._y,
            batch_size=self._batch_size,
            verbose=0,
            callbacks=[keras.callbacks.LambdaCallback(on_train_batch_end=note)],
        )
        return found

    def _fit(self, x: Any, y: Any, **options: Any) -> None:
        if self._devices is None:
            self._model.fit(x, y, **options)
        else:
            mtf_hetero.keras.fit(self._model, x, y, devices=self._devices, layout="batch", **options)

    def close(self) -> None:
        """Nothing is left open."""


def _classifier(make: Callable[..., Any], pixels: int) -> Any:
    base = make(weights=None, include_top=False, input_shape=(pixels, pixels, 3), pooling="avg")
    return keras.Model(base.inputs, keras.layers.Dense(_CLASSES, name="head")(base.outputs[0]))


def _transformer(layers: int) -> Any:
    """An encoder of post-norm layers, and the mean over its positions."""
    inputs = keras.layers.Input((_LENGTH,), dtype="int32")
    x = keras.layers.Embedding(_VOCABULARY, _WIDTH)(inputs)
    for _ in range(layers):
        attended = keras.layers.MultiHeadAttention(_HEADS, _WIDTH // _HEADS)(x, x)
        x = keras.layers.LayerNormalization()(keras.layers.Add()([x, attended]))
        hidden = keras.layers.Dense(4 * _WIDTH, activation="relu")(x)
        x = keras.layers.LayerNormalization()(keras.layers.Add()([x, keras.layers.Dense(_WIDTH)(hidden)]))
    pooled = keras.layers.GlobalAveragePooling1D()(x)
    return keras.Model(inputs, keras.layers.Dense(_CLASSES, name="head")(pooled))
