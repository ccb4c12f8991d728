"""A training run in pieces: the loss and the seconds of every step, and a test after each piece."""

import abc
import contextlib
import dataclasses
import math
import os
import time
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from mtf_hetero import data, tf
from mtf_hetero.cli.train.config import Config
from mtf_hetero.cli.train.prepare import place, prepare
from mtf_hetero.cluster.devices import shorten
from mtf_hetero.estimator.summaries import LOSS_COLLECTION_KEY
from mtf_hetero.placement.placing import split_dims


class _StepHook(tf.train.SessionRunHook):
    """Keeps the loss and the seconds of every step."""

    def __init__(self) -> None:
        self.losses: list[float] = []
        self.seconds: list[float] = []
        self._begin = 0.0

    def begin(self) -> None:
        self._loss = tf.get_collection(LOSS_COLLECTION_KEY)[-1]

    def before_run(self, run_context: Any) -> Any:
        self._begin = time.perf_counter()
        return tf.train.SessionRunArgs(self._loss)

    def after_run(self, run_context: Any, run_values: Any) -> None:
        self.seconds.append(time.perf_counter() - self._begin)
        self.losses.append(float(run_values.results))


def _epochs(dataset: str, data_dir: str | None, images: int) -> int:
    """Return the epochs of a data set that have at least some number of images."""
    return -(-images // data.load(dataset, data_dir).train_size)


def _in_float64(batches: Any) -> Any:
    """Return the same batches, or slices of one batch, with images of float64."""

    def cast(features: Any, labels: Any) -> tuple[Any, Any]:
        images = tf.nest.map_structure(lambda image: tf.cast(image, tf.float64), features["image"])
        return {**features, "image": images}, labels

    return cast(*batches) if isinstance(batches, tuple) else batches.map(cast)


class LearningRun:
    """A run of `mtf-hetero train` with these settings, those of mtf_hetero.cli.train.config.Config.

    Without train_epochs they are as many as max_steps take.

    Raises:
      ValueError: settings that do not fit together, or data that is not there.
    """

    def __init__(self, **config: Any) -> None:
        if "train_epochs" not in config:
            images = config["max_steps"] * config["batch_size"]
            config["train_epochs"] = _epochs(config["dataset"], config["data_dir"], images)
        self._config = Config(**config)
        self._stack = contextlib.ExitStack()
        self._run = place(prepare(self._config, self._stack))

    def close(self) -> None:
        """End the workers, if there are any."""
        self._stack.close()

    def describe(self) -> dict[str, Any]:
        """Return the devices, the layout, and how it divides the dimensions."""
        run = self._run
        return {
            "devices": [shorten(device) for device in run.devices],
            "notes": [shorten(note) for note in run.notes],
            "train_epochs": self._config.train_epochs,
            "layout": [list(rule) for rule in run.layout.rules],
            "sizes": {
                f"{name} of {size}": list(run.layout.split(name, size))
                for name, size in split_dims(run.graph, run.layout)
            },
            "parameters": sum(v.size for v in run.graph.trainable_variables),
            "test_images": run.dataset.test_size,
        }

    def train_to(self, step: int) -> dict[str, list[float]]:
        """Trains until this step; returns the loss and the seconds of each step on the way."""
        hook = _StepHook()
        self._run.estimator.train(self._run.train_input, hooks=[hook], max_steps=step)
        return {"losses": hook.losses, "seconds": hook.seconds}

    def test(self, batches: int | None = None) -> Any:
        """Accuracy on the test images, or on the first batches of them."""
        dataset, batch_size = self._run.dataset, self._config.batch_size
        results = self._run.estimator.evaluate(lambda: dataset.test_input_fn(batch_size), steps=batches)
        return float(results["accuracy"])

    def losses_in_float64(self, model: str, dataset: str, steps: int, model_dir: str) -> list[float]:
        """Return the losses of another model that is trained in float64, laid out alike on the same devices."""
        config = dataclasses.replace(
            self._config,
            model=model,
            dataset=dataset,
            train_epochs=_epochs(dataset, self._config.data_dir, steps * self._config.batch_size),
            max_steps=steps,
            model_dir=model_dir,
            local_cluster=None,
            workers=",".join(self._run.cluster.workers) or None,
        )
        run, hook = place(prepare(config, self._stack)), _StepHook()
        run.estimator.train(lambda: _in_float64(run.train_input()), hooks=[hook], max_steps=steps)
        return hook.losses


class VolumeRun(LearningRun, abc.ABC):
    """A run on a set of volumes that it makes itself, where the data set is to be, by the arguments `made_by`."""

    def __init__(self, made_by: Mapping[str, Any], **config: Any) -> None:
        if not os.path.exists(config["dataset"]):
            self.make(config["dataset"], **made_by)
        super().__init__(**{**config, "devices": tuple(config["devices"])})

    @abc.abstractmethod
    def make(self, directory: str, **made_by: Any) -> None:
        """Make the set."""

    @property
    def volumes(self) -> data.Volumes:
        """The set."""
        assert isinstance(self._run.dataset, data.Volumes)
        return self._run.dataset

    def describe(self) -> dict[str, Any]:
        """Describe the run as LearningRun does, with the numbers of volumes."""
        sizes = {"train_volumes": self.volumes.train_size, "test_volumes": self.volumes.test_size}
        return {**super().describe(), **sizes, "unit": "volumes"}

    def test(self, batches: int | None = None) -> dict[str, float | None]:
        """Metrics of the whole test set; None for what is no number."""
        metrics = {name: float(value) for name, value in self._run.test().items()}
        return {name: value if math.isfinite(value) else None for name, value in metrics.items()}

    def predictions(self, key: str) -> np.ndarray:
        """Return the network's predictions for the test volumes, in the order of the set."""
        predicted = self._run.estimator.predict(self._run.test_input, predict_keys=[key])
        return np.stack([volume[key] for volume in predicted][: self.volumes.test_size])


def read(volumes: data.Volumes, split: str) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield the volumes of a split, as they were before they were normalised, and their labels or targets."""
    mean, deviation = (np.array(part) for part in (volumes.manifest.mean, volumes.manifest.deviation))
    targets = [np.array(part) for part in (volumes.manifest.target_mean, volumes.manifest.target_deviation)]
    with tf.Graph().as_default():
        batches = volumes.test_input_fn(1) if split == "test" else volumes.train_input_fn(1, 1)
        iterator = tf.data.make_initializable_iterator(batches)
        features, label = iterator.get_next()
        with tf.Session(config=tf.ConfigProto(device_count={"GPU": 0})) as session:
            session.run([tf.tables_initializer(), iterator.initializer])
            with contextlib.suppress(tf.errors.OutOfRangeError):
                while True:
                    image, target = session.run([features["image"][0], label[0]])
                    yield image * deviation + mean, target * targets[1] + targets[0] if volumes.targets else target
