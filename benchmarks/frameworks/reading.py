"""Trainings on workers whose images lie in files, in memory, or come from this process batch by batch."""

import pathlib
import tempfile
import time
from collections.abc import Iterator, Sequence
from typing import Any

import keras
import numpy as np

import mtf_hetero.keras
from benchmarks.frameworks.slow_link import LinkedCluster
from mtf_hetero import tf
from mtf_hetero.cluster import Cluster

_CLASSES = 10


class Reading:
    """Two workers, and images.

    Args:
      pixels: along a side of an image.
      images: their number.
      batch_size: images of a step.
      link: megabits per second; 0: the loopback.
      fractions: cores of each worker.
      seed: of weights and images.
    """

    def __init__(
        self, pixels: int, images: int, batch_size: int, link: int, fractions: Sequence[float], seed: int
    ) -> None:
        self._batch_size, self._seed = batch_size, seed
        self._local = LinkedCluster(fractions, link)
        self._cluster: Cluster = self._local.__enter__()
        rng = np.random.default_rng(seed)
        self._folder = tempfile.TemporaryDirectory()
        small = rng.integers(0, 255, (images, pixels // 8, pixels // 8, 3)).astype(np.uint8)
        self._images = small.repeat(8, axis=1).repeat(8, axis=2)  # of which PNG saves much, as of photos
        self._labels = rng.integers(0, _CLASSES, images)
        self._paths = [str(pathlib.Path(self._folder.name, f"{number}.png")) for number in range(images)]
        for path, image in zip(self._paths, self._images, strict=True):
            tf.io.write_file(path, tf.io.encode_png(image))

    def close(self) -> None:
        """End the workers."""
        self._local.close()
        self._folder.cleanup()

    def train(self, way: str, epochs: int) -> dict[str, Any]:
        """Train; returns the seconds, the bytes sent and the loss of each epoch."""
        keras.utils.set_random_seed(self._seed)
        model, clock = self._make_model(), _Clock()
        options: dict[str, Any] = {"epochs": epochs, "verbose": 0, "shuffle": False, "callbacks": [clock]}
        options |= {"workers": self._cluster, "layout": "batch", "verify": False, "rebalance": "off"}
        if way == "alone":
            history = mtf_hetero.keras.fit(model, self._files(), devices="worker:0/cpu:0", **options)
        elif way == "files":
            history = mtf_hetero.keras.fit(model, self._files(), **options)
        elif way == "sent":
            spec = self._files().element_spec
            sent = tf.compat.v2.data.Dataset.from_generator(self._batches, output_signature=spec).prefetch(2)
            history = mtf_hetero.keras.fit(model, sent, **options)
        else:
            history = mtf_hetero.keras.fit(model, self._images, self._labels, batch_size=self._batch_size, **options)
        return {"seconds": clock.seconds, "sent_bytes": clock.sent, "losses": history.history["loss"]}

    def _files(self) -> tf.compat.v2.data.Dataset:
        def read(path: Any, label: Any) -> Any:
            image = tf.io.decode_png(tf.io.read_file(path), channels=3)
            return tf.ensure_shape(image, self._images.shape[1:]), label

        dataset = tf.compat.v2.data.Dataset.from_tensor_slices((self._paths, self._labels))
        return dataset.map(read, num_parallel_calls=tf.compat.v2.data.AUTOTUNE).batch(self._batch_size).prefetch(2)

    def _batches(self) -> Iterator[Any]:
        yield from self._files()

    def _make_model(self) -> keras.Model:
        layers = [keras.layers.Rescaling(1 / 255), keras.layers.Conv2D(8, 3, strides=4)]
        layers += [keras.layers.GlobalAveragePooling2D(), keras.layers.Dense(_CLASSES, activation="softmax")]
        model = keras.Sequential([keras.Input(self._images.shape[1:]), *layers])
        model.compile(keras.optimizers.SGD(0.01), "sparse_categorical_crossentropy")
        return model


class _Clock(keras.callbacks.Callback):
    """Measures each epoch: its seconds, and the bytes that the processes sent to each other."""

    def __init__(self) -> None:
        super().__init__()
        self.seconds: list[float] = []
        self.sent: list[int] = []

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self._began = time.perf_counter(), _sent_bytes()

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self.seconds.append(time.perf_counter() - self._began[0])
        self.sent.append(_sent_bytes() - self._began[1])


def _sent_bytes() -> int:
    """Return the bytes that went over the loopback of this process's network so far."""
    lines = pathlib.Path("/proc/self/net/dev").read_text(encoding="utf-8").splitlines()
    (loopback,) = (line for line in lines if line.strip().startswith("lo:"))
    return int(loopback.partition(":")[2].split()[8])
