"""Keras models in training, by Keras and by mtf_hetero.keras.fit, which take steps when they are told to."""

import os
import resource
import threading
import time
from typing import Any

import keras

import mtf_hetero.keras
from benchmarks.cases.keras_fit import COMPILED, KERAS
from benchmarks.frameworks import keras_steps
from mtf_hetero import tf
from mtf_hetero.cluster import LocalCluster

_BATCHES = 2  # of examples, over and over
_FOREVER = 10**6  # steps of an epoch


class KerasFit:
    """A model in training.

    Args:
      way: KERAS, COMPILED, or anything else: mtf_hetero.
      steps_per_call: Keras's `steps_per_execution`.
      list_speed: of the workers; None: "auto" finds a layout.
      cores: numbers of the cores that it may use; None: all.
      fractions: cores of each worker of a cluster on this machine; None: this process trains.
    """

    def __init__(
        self,
        network: str,
        pixels: int,
        batch_size: int,
        way: str,
        seed: int,
        layers: int = 6,
        steps_per_call: int = 1,
        list_speed: list[float] | None = None,
        cores: list[int] | None = None,
        fractions: list[float] | None = None,
    ) -> None:
        if cores is not None:
            os.sched_setaffinity(0, cores)
        self._local = None if fractions is None else LocalCluster(fractions)
        options: dict[str, Any] = {"devices": ["cpu:0"], "layout": "batch"}
        if self._local is not None:
            options = {"workers": ",".join(self._local.__enter__().workers)}
            found = {"layout": "batch", "list_speed": list_speed, "rebalance": "off"}
            options |= {"layout": "auto", "measure_seconds": 300.0} if list_speed is None else found
        self._model, x, y = keras_steps.make(network, _BATCHES * batch_size, pixels, layers, seed)
        self._model.steps_per_execution = steps_per_call
        self._data = tf.data.Dataset.from_tensor_slices((x, y)).batch(batch_size).repeat()
        if way == COMPILED:
            self._model.compile(self._model.optimizer, self._model.loss, jit_compile=True)
        fit = self._model.fit if way in (KERAS, COMPILED) else self._fit
        self._options = {} if way in (KERAS, COMPILED) else options
        self._turns, self._taken = threading.Semaphore(0), threading.Semaphore(0)
        self._losses: list[float] = []
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._train, args=(fit,), daemon=True)
        self._thread.start()

    def _fit(self, data: Any, **options: Any) -> Any:
        return mtf_hetero.keras.fit(self._model, data, **options)

    def _train(self, fit: Any) -> None:
        def wait(batch: int, logs: Any) -> None:
            self._turns.acquire()

        callback = keras.callbacks.LambdaCallback(
            on_train_batch_begin=wait,
            on_train_batch_end=lambda batch, logs: self._step_taken(float(logs["loss"])),
        )
        try:
            fit(self._data, steps_per_epoch=_FOREVER, verbose=0, callbacks=[callback], **self._options)
        except BaseException as error:
            self._error = error
            self._taken.release()

    def _step_taken(self, loss: float) -> None:
        self._losses.append(loss)
        self._taken.release()

    def run(self, steps: int) -> dict[str, Any]:
        """Take steps, or calls of several; return their seconds, and the mean loss of the epoch so far after each."""
        begin, cpu, first = time.perf_counter(), time.process_time(), len(self._losses)
        for _ in range(steps):
            self._turns.release()
            self._taken.acquire()
            if self._error is not None:
                raise self._error
        return {
            "wall_seconds": time.perf_counter() - begin,
            "cpu_seconds": time.process_time() - cpu,
            "max_memory_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
            "losses": self._losses[first:],
        }

    def close(self) -> None:
        """End the workers."""
        if self._local is not None:
            self._local.close()
