"""A Keras model on batches of many lengths: how long epochs take, by Keras and by mtf_hetero.keras.fit."""

import resource
import time
from collections.abc import Iterator
from typing import Any

import keras
import numpy as np

from benchmarks.frameworks import keras_steps

_CLASSES, _CHANNELS, _SHORTEST = 3, 6, 20


class Shapes:
    """Two small convolutions of sequences, compiled; each length has one batch in an epoch."""

    def __init__(self, way: str, batch_size: int, lengths: int, seed: int) -> None:
        keras.utils.set_random_seed(seed)
        self._way, self._batch_size, self._lengths, self._seed = way, batch_size, lengths, seed
        inputs = keras.Input((None, _CHANNELS))
        x = keras.layers.Conv1D(8, 3, padding="same", activation="relu")(inputs)
        x = keras.layers.Conv1D(8, 3, padding="same", activation="relu")(x)
        x = keras.layers.GlobalAveragePooling1D()(x)
        self._model = keras.Model(inputs, keras.layers.Dense(_CLASSES, activation="softmax")(x))
        self._model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])

    def _batches(self) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        rng = np.random.default_rng(self._seed)
        while True:
            for length in range(_SHORTEST, _SHORTEST + self._lengths):
                x = rng.standard_normal((self._batch_size, length, _CHANNELS)).astype("float32")
                yield x, rng.integers(0, _CLASSES, self._batch_size)

    def run(self) -> dict[str, Any]:
        """Take two epochs, and return their seconds, their losses, and the most memory that the process had."""
        begin, cpu = time.perf_counter(), time.process_time()
        options: dict[str, Any] = {"steps_per_epoch": self._lengths, "epochs": 2, "shuffle": False, "verbose": 0}
        history = keras_steps.fit(self._model, self._way, self._batches(), **options)
        return {
            "wall_seconds": time.perf_counter() - begin,
            "cpu_seconds": time.process_time() - cpu,
            "losses": history.history["loss"],
            "peak_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        }
