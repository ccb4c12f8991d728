"""Keras models in training, by Keras and by mtf_hetero.keras.fit, which take steps when they are told to."""

import os
import resource
import threading
import time
from typing import Any

import keras
import numpy as np

import mtf_hetero.keras
from benchmarks.cases.keras_fit import COMPILED, KERAS
from mtf_hetero import tf
from mtf_hetero.cluster import LocalCluster

_CLASSES = 10
_BATCHES = 2  # of images, over and over
_FOREVER = 10**6  # steps of an epoch


class KerasFit:
    """A model of keras.applications in training.

    Args:
      network: a function of keras.applications.
      pixels: height and width of the images.
      batch_size: images of a step.
      way: KERAS, COMPILED, or anything else: mtf_hetero.
      seed: of weights and images.
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
        cores: list[int] | None = None,
        fractions: list[float] | None = None,
    ) -> None:
        if cores is not None:
            os.sched_setaffinity(0, cores)
        self._local = None if fractions is None else LocalCluster(fractions)
        options: dict[str, Any] = {"devices": ["cpu:0"], "layout": "batch"}
        if self._local is not None:
            options = {"workers": ",".join(self._local.__enter__().workers), "layout": "auto", "measure_seconds": 300.0}
        keras.utils.set_random_seed(seed)
        rng = np.random.default_rng(seed)
        images = rng.standard_normal((_BATCHES * batch_size, pixels, pixels, 3)).astype("float32")
        labels = rng.integers(0, _CLASSES, len(images))
        self._data = tf.data.Dataset.from_tensor_slices((images, labels)).batch(batch_size).repeat()
        make = getattr(keras.applications, network)
        base = make(weights=None, include_top=False, input_shape=images.shape[1:], pooling="avg")
        for layer in base.layers:
            if hasattr(layer, "rate"):
                layer.rate = 0.0  # what dropout drops is each framework's own
        self._model = keras.Model(base.inputs, keras.layers.Dense(_CLASSES, name="head")(base.outputs[0]))
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        compile_options: dict[str, Any] = {"jit_compile": way == COMPILED}
        self._model.compile(keras.optimizers.SGD(1e-3, momentum=0.9), loss, **compile_options)
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
        callback = keras.callbacks.LambdaCallback(
            on_train_batch_begin=lambda batch, logs: self._turns.acquire(),
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
        """Takes steps; returns their seconds, and the mean loss of the epoch so far after each."""
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
        """Ends the workers."""
        if self._local is not None:
            self._local.close()
