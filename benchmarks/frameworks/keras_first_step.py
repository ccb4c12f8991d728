"""The first step of a Keras model, by Keras and by mtf_hetero.keras.fit: how long `fit` takes until it is done."""

import time
from collections.abc import Mapping
from typing import Any

import keras

from benchmarks.frameworks import keras_steps


class FirstStep:
    """A compiled Keras model, and one batch."""

    def __init__(self, network: str, way: str, batch_size: int, pixels: int, layers: int, seed: int) -> None:
        self._way, self._batch_size = way, batch_size
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
        options = {"batch_size": self._batch_size, "verbose": 0, "callbacks": callbacks}
        keras_steps.fit(self._model, self._way, self._x, self._y, **options)
        return found
