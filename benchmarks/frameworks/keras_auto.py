"""`layout="auto"` of mtf_hetero.keras.fit on two unequal workers: what it chooses, and how long it takes."""

import contextlib
import io
import re
import time
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np

import mtf_hetero.keras
from mtf_hetero.cluster import LocalCluster

_CLASSES = 10


class Auto:
    """A compiled Keras model, and data for a training of so many announced steps, which ends after the first."""

    def __init__(self, network: str, batch_size: int, steps: int, fractions: Sequence[float], seed: int) -> None:
        self._local = LocalCluster(list(fractions))
        self._cluster = self._local.__enter__()
        keras.utils.set_random_seed(seed)
        self._steps, self._batch_size = steps, batch_size
        self._model = _lenet() if network == "LeNet" else _vgg11()
        self._model.compile(keras.optimizers.SGD(1e-3), keras.losses.SparseCategoricalCrossentropy(from_logits=True))
        rng = np.random.default_rng(seed)
        self._x = rng.standard_normal((batch_size, *self._model.input_shape[1:])).astype("float32")
        self._y = rng.integers(0, _CLASSES, batch_size)

    def run(self) -> dict[str, Any]:
        """Call fit, and return the seconds until its first step was done, and what it said."""
        found: dict[str, Any] = {}
        begin = time.perf_counter()

        def stop(batch: int, logs: Any) -> None:
            found["wall_seconds"] = time.perf_counter() - begin
            self._model.stop_training = True

        said = io.StringIO()
        with contextlib.redirect_stdout(said):
            mtf_hetero.keras.fit(
                self._model,
                self._x,
                self._y,
                epochs=self._steps,
                batch_size=self._batch_size,
                verbose=2,
                workers=",".join(self._cluster.workers),
                layout="auto",
                callbacks=[keras.callbacks.LambdaCallback(on_train_batch_end=stop)],
            )
        line = re.search(r"^Layout: (.*)$", said.getvalue(), re.MULTILINE)
        return {**found, "said": line[1] if line else ""}

    def close(self) -> None:
        """End the workers."""
        self._local.__exit__(None, None, None)


def _lenet() -> Any:
    layers = keras.layers
    return keras.Sequential(
        [
            keras.Input((28, 28, 1)),
            layers.Conv2D(6, 5, padding="same", activation="relu"),
            layers.AveragePooling2D(2),
            layers.Conv2D(16, 5, activation="relu"),
            layers.AveragePooling2D(2),
            layers.Flatten(),
            layers.Dense(120, activation="relu"),
            layers.Dense(84, activation="relu"),
            layers.Dense(_CLASSES),
        ]
    )


def _vgg11() -> Any:
    """With batch norm, for images of 32 x 32."""
    layers = keras.layers
    x = inputs = keras.Input((32, 32, 3))
    for filters in (64, 0, 128, 0, 256, 256, 0, 512, 512, 0, 512, 512, 0):
        if filters:
            x = layers.Conv2D(filters, 3, padding="same", use_bias=False)(x)
            x = layers.ReLU()(layers.BatchNormalization()(x))
        else:
            x = layers.MaxPooling2D(2)(x)
    x = layers.Dense(512, activation="relu")(layers.Flatten()(x))
    return keras.Model(inputs, layers.Dense(_CLASSES)(x))
