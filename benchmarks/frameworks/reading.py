"""Trainings on workers whose images lie in files, in memory, or come from this process batch by batch."""

import dataclasses
import functools
import os
import time
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np

import mtf_hetero.keras
from benchmarks.frameworks.slow_link import LinkedCluster, sent_bytes
from mtf_hetero import tf
from mtf_hetero.cluster import Cluster

RATE = 0.01  # of learning
CLASSES = 10


@dataclasses.dataclass(frozen=True)
class Problem:
    """A network, and the files of its images: 0.png, 1.png, ... in a folder."""

    network: str  # "convolution", or a name in keras.applications
    pixels: int  # along a side of an image
    images: int  # their number
    batch_size: int
    folder: str
    seed: int  # of weights and images

    def draw(self) -> np.ndarray:
        """Return the images."""
        blocks = self.pixels // 8
        small = np.random.default_rng(self.seed).integers(0, 255, (self.images, blocks, blocks, 3)).astype(np.uint8)
        return small.repeat(8, axis=1).repeat(8, axis=2)  # of which PNG saves much, as of photos

    def labels(self) -> np.ndarray:
        """Return the label of each image."""
        return np.random.default_rng([self.seed, self.images]).integers(0, CLASSES, self.images)

    def path(self, number: int) -> str:
        """Return the path of an image."""
        return os.path.join(self.folder, f"{number}.png")

    def read(self, part: int = 0, parts: int = 1) -> tf.compat.v2.data.Dataset:
        """Return one of several equal parts of each batch."""

        def read(path: Any, label: Any) -> Any:
            image = tf.io.decode_png(tf.io.read_file(path), channels=3)
            return tf.ensure_shape(image, (self.pixels, self.pixels, 3)), label

        paths = [self.path(number) for number in range(part, self.images, parts)]
        dataset = tf.compat.v2.data.Dataset.from_tensor_slices((paths, self.labels()[part::parts]))
        images = dataset.map(read, num_parallel_calls=tf.compat.v2.data.AUTOTUNE)
        return images.batch(self.batch_size // parts).prefetch(2)

    def make_model(self) -> keras.Model:
        """Return the network with its initial weights."""
        keras.utils.set_random_seed(self.seed)
        shape = (self.pixels, self.pixels, 3)
        if self.network == "convolution":
            layers = [keras.layers.Conv2D(8, 3, strides=4), keras.layers.GlobalAveragePooling2D()]
            layers += [keras.layers.Dense(CLASSES, activation="softmax")]
        else:
            make = getattr(keras.applications, self.network)
            layers = [make(input_shape=shape, weights=None, classes=CLASSES)]
        return keras.Sequential([keras.Input(shape), keras.layers.Rescaling(1 / 255), *layers])


class Reading:
    """Two workers, and the images of a Problem, which are made."""

    def __init__(self, fractions: Sequence[float], link: int, **problem: Any) -> None:
        self._local = LinkedCluster(fractions, link)
        self._cluster: Cluster = self._local.__enter__()
        self._problem = Problem(**problem)
        for number, image in enumerate(self._problem.draw()):
            tf.io.write_file(self._problem.path(number), tf.io.encode_png(image))

    def close(self) -> None:
        """End the workers."""
        self._local.close()

    def run(self, way: str, epochs: int) -> dict[str, Any]:
        """Train; returns the seconds, the bytes sent and the loss of each epoch."""
        problem, clock = self._problem, _Clock()
        model = problem.make_model()
        model.compile(keras.optimizers.SGD(RATE), "sparse_categorical_crossentropy", jit_compile=False)
        options: dict[str, Any] = {"epochs": epochs, "verbose": 0, "shuffle": False, "callbacks": [clock]}
        options |= {"workers": self._cluster, "layout": "batch", "verify": False, "rebalance": "off"}
        if way == "arrays":
            options["batch_size"] = problem.batch_size
            history = mtf_hetero.keras.fit(model, problem.draw(), problem.labels(), **options)
        else:
            data = problem.read()
            if way == "alone":
                options["devices"] = "worker:0/cpu:0"
            elif way == "sent":
                made = functools.partial(iter, data)
                data = tf.compat.v2.data.Dataset.from_generator(made, output_signature=data.element_spec).prefetch(2)
            history = mtf_hetero.keras.fit(model, data, **options)
        return {"seconds": clock.seconds, "sent_bytes": clock.sent, "losses": history.history["loss"]}


class _Clock(keras.callbacks.Callback):
    """Measures each epoch: its seconds, and the bytes that the processes sent to each other."""

    def __init__(self) -> None:
        super().__init__()
        self.seconds: list[float] = []
        self.sent: list[int] = []

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self._began = time.perf_counter(), sent_bytes()

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self.seconds.append(time.perf_counter() - self._began[0])
        self.sent.append(sent_bytes() - self._began[1])
