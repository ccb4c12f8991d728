"""A training run on volumes in pieces: loss and seconds of every step, the metrics of the test set, and predictions."""

import abc
import math
import os
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from benchmarks.frameworks.learning import LearningRun
from mtf_hetero import data, tf


class VolumeRun(LearningRun, abc.ABC):
    """What `python -m models.train` does with these settings, on a set that it makes itself.

    Args:
      made_by: arguments of `make`.
      **config: as in models.config.Config; the data set is where the set is to be.
    """

    def __init__(self, made_by: Mapping[str, Any], **config: Any) -> None:
        if not os.path.exists(config["dataset"]):
            self.make(config["dataset"], **made_by)
        super().__init__(**{**config, "devices": tuple(config["devices"])})

    @abc.abstractmethod
    def make(self, directory: str, **made_by: Any) -> None:
        """Makes the set."""

    @property
    def volumes(self) -> data.Volumes:
        """The set."""
        assert isinstance(self._run.dataset, data.Volumes)
        return self._run.dataset

    def describe(self) -> dict[str, Any]:
        """As LearningRun's, with the numbers of volumes."""
        sizes = {"train_volumes": self.volumes.train_size, "test_volumes": self.volumes.test_size}
        return {**super().describe(), **sizes, "unit": "volumes"}

    def test(self, batches: int | None = None) -> dict[str, float | None]:
        """Metrics of the whole test set; None for what is no number."""
        metrics = {name: float(value) for name, value in self._run.test().items()}
        return {name: value if math.isfinite(value) else None for name, value in metrics.items()}

    def predictions(self, key: str) -> np.ndarray:
        """What the network predicts for each test volume, in the order of the set."""
        predicted = self._run.estimator.predict(self._run.test_input, predict_keys=[key])
        return np.stack([volume[key] for volume in predicted][: self.volumes.test_size])


def read(volumes: data.Volumes, split: str) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """The volumes of a split, as they were before they were normalised, and their labels or targets."""
    mean, deviation = (np.array(part) for part in (volumes.manifest.mean, volumes.manifest.deviation))
    targets = [np.array(part) for part in (volumes.manifest.target_mean, volumes.manifest.target_deviation)]
    with tf.Graph().as_default():
        batches = volumes.test_input_fn(1) if split == "test" else volumes.train_input_fn(1, 1)
        iterator = tf.data.make_initializable_iterator(batches)
        features, label = iterator.get_next()
        with tf.Session(config=tf.ConfigProto(device_count={"GPU": 0})) as session:
            session.run([tf.tables_initializer(), iterator.initializer])
            while True:
                try:
                    image, target = session.run([features["image"][0], label[0]])
                except tf.errors.OutOfRangeError:
                    return
                yield image * deviation + mean, target * targets[1] + targets[0] if volumes.targets else target
