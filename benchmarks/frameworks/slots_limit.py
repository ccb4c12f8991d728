"""A Keras model of residual blocks on workers whose memory is limited: on one of them, or in stages with slots."""

from collections.abc import Sequence
from typing import Any

import keras
import numpy as np

import mtf_hetero.keras
from benchmarks.frameworks.chief import short_errors
from benchmarks.frameworks.memory_limit import MemoryLimit
from benchmarks.frameworks.slots import ALONE
from mtf_hetero import tf
from mtf_hetero.cluster import LocalCluster
from mtf_hetero.cost import memory


class LimitedSlots:
    """A model, and the workers that may train it.

    Args:
      limits: bytes that each worker may take once it is up; () for no limits.
    """

    def __init__(
        self,
        blocks: int,
        width: int,
        hidden: int,
        batch_size: int,
        fractions: Sequence[float],
        limits: Sequence[float],
        seed: int,
    ) -> None:
        keras.utils.set_random_seed(seed)
        x = inputs = keras.Input([width])
        for _ in range(blocks):
            y = keras.layers.Dense(hidden, activation="relu")(x)
            x = keras.layers.Add()([x, keras.layers.Dense(width)(y)])
        self._model = keras.Model(inputs, keras.layers.Dense(1)(x))
        self._model.compile(keras.optimizers.Adam(1e-5), "mse", jit_compile=False)
        self._x = np.random.default_rng(seed).standard_normal([batch_size, width]).astype("float32")
        self._y = np.ones([batch_size, 1], "float32")
        self._fractions = list(fractions)
        self._local = LocalCluster(self._fractions, return_memory=True)
        self._cluster = self._local.__enter__()
        self._peaks = memory.ProcessPeaks(self._local.pids)
        limited = zip(self._local.pids, self._local.groups, limits, strict=False)
        self._limits = [MemoryLimit(pid, round(size), group) for pid, group, size in limited]

    def close(self) -> None:
        """End the workers."""
        self._local.close()
        for limit in self._limits:
            limit.close()

    def predict(self, way: str, slots: int) -> dict[str, Any]:
        """Return the bytes that each worker needs, from the lowered graph; no worker is used."""

        @tf.compat.v2.function
        def step(x: Any, y: Any) -> Any:
            return self._model.train_step((x, y))

        devices = [f"cpu:{number}" for number, _ in enumerate(self._fractions)]
        options = {"devices": devices, **self._options(way, slots)}
        with mtf_hetero.function(step, (tf.constant(self._x), tf.constant(self._y)), **options) as divided:
            estimates = memory.estimate_layout(divided.build, divided.layout)
        return {"predicted_bytes": [estimate.peak for estimate in estimates]}

    def run(self, way: str, slots: int, steps: int) -> dict[str, Any]:
        """Train; return the loss of each step, and the peak of each worker's memory.

        Raises:
          RuntimeError: a worker ended.
        """
        losses: list[float] = []

        def keep(batch: int, logs: Any) -> None:
            losses.append(float(logs["loss"]))
            if not batch:  # the values of the variables, before the first step, take memory of their own
                self._peaks.restart()

        callback = keras.callbacks.LambdaCallback(on_train_batch_end=keep)
        data = tf.data.Dataset.from_tensors((self._x, self._y)).repeat(steps)
        options = {"workers": self._cluster, "wait_for_workers": False, **self._options(way, slots)}
        with short_errors():
            mtf_hetero.keras.fit(self._model, data, verbose=0, callbacks=[callback], **options)
        limits = [limit.by for limit in self._limits]
        return {"losses": losses, "peak_bytes": list(self._peaks.read()), "limits": limits}

    def _options(self, way: str, slots: int) -> dict[str, Any]:
        layout = "batch" if way == ALONE else "stages"
        return {"layout": layout, "slots": slots, "list_speed": self._fractions}
