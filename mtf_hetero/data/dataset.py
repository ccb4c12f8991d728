"""Dataset: labelled images, and the input pipelines that feed them to a model in batches of one size."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from mtf_hetero._compat import tf

TRAIN = "train"
TEST = "test"
STATISTICS_IMAGES = 10_000
SHUFFLED_IMAGES = 100_000
_READ = 500  # images at a time, for the statistics


@dataclasses.dataclass(frozen=True, eq=False)
class Dataset:
    """A set of images of one size with a label each, divided into a training and a test set.

    A batch is (features, labels): features["image"] is float32 [batch, height, width, channels], normalised with the
    mean and the standard deviation of the training images; features["weight"] is float32 [batch], 1 for an image and
    0 for padding; labels are int32 [batch].

    Args:
      name: how the user names it.
      image_shape: (height, width, channels).
      classes: number of classes.
      train_size: number of training images.
      test_size: number of test images.
      examples: from "train" or "test" to a tf.data.Dataset of (uint8 image, integer label), always in one order.
    """

    name: str
    image_shape: tuple[int, int, int]
    classes: int
    train_size: int
    test_size: int
    examples: Callable[[str], Any]

    @functools.cached_property
    def statistics(self) -> tuple[np.ndarray, np.ndarray]:
        """Mean and standard deviation per channel of the training images, scaled to [0, 1]; of 10,000 at most."""
        count, total, squares = 0, np.zeros(self.image_shape[2]), np.zeros(self.image_shape[2])
        with tf.Graph().as_default():
            batches = self.examples(TRAIN).take(STATISTICS_IMAGES).batch(_READ)
            images, _ = tf.data.make_one_shot_iterator(batches).get_next()
            with tf.Session(config=tf.ConfigProto(device_count={"GPU": 0})) as session:
                while True:
                    try:
                        scaled = session.run(images).reshape(-1, self.image_shape[2]) / 255.0
                    except tf.errors.OutOfRangeError:
                        break
                    count += len(scaled)
                    total += scaled.sum(0)
                    squares += np.square(scaled).sum(0)
        mean = total / count
        deviation = np.sqrt(np.maximum(squares / count - np.square(mean), 0.0))
        return mean, np.where(deviation > 0, deviation, 1.0)

    def train_input_fn(self, batch_size: int, epochs: int, seed: int = 0, *, start_batch: int = 0) -> Any:
        """The training set, shuffled anew each epoch; the images left over at the end of the last are dropped.

        Args:
          batch_size: images per batch.
          epochs: how often each image is seen.
          seed: of the order of the images.
          start_batch: batches to leave out at the beginning, to go on where an earlier run has stopped.

        Returns:
          A tf.data.Dataset of batches.

        Raises:
          ValueError: the batch is larger than all the data.
        """
        _check_positive(batch_size, "batch_size")
        _check_positive(epochs, "epochs")
        if batch_size > self.train_size * epochs:
            raise ValueError(
                f"batch_size is {batch_size}, but dataset {self.name!r} has {self.train_size} training images; "
                "give a smaller one"
            )
        examples = self.examples(TRAIN).shuffle(min(self.train_size, SHUFFLED_IMAGES), seed=seed).repeat(epochs)
        examples = examples.skip(start_batch * batch_size).map(lambda image, label: (image, label, 1.0))
        return self._batches(examples, batch_size)

    def test_input_fn(self, batch_size: int) -> Any:
        """The test set, each image once; the last batch is filled up with images of weight 0.

        Args:
          batch_size: images per batch.

        Returns:
          A tf.data.Dataset of batches.
        """
        _check_positive(batch_size, "batch_size")
        examples = self.examples(TEST).map(lambda image, label: (image, label, 1.0))
        padding = -self.test_size % batch_size
        if padding:
            blank = (tf.zeros(self.image_shape, tf.uint8), tf.zeros([], examples.element_spec[1].dtype), 0.0)
            examples = examples.concatenate(tf.data.Dataset.from_tensors(blank).repeat(padding))
        return self._batches(examples, batch_size)

    def _batches(self, examples: Any, batch_size: int) -> Any:
        mean, deviation = self.statistics

        def normalise(images: Any, labels: Any, weights: Any) -> Any:
            images = (tf.cast(images, tf.float32) / 255.0 - mean.astype(np.float32)) / deviation.astype(np.float32)
            return {"image": images, "weight": weights}, tf.cast(labels, tf.int32)

        options = tf.data.Options()
        options.autotune.enabled = False  # with it, closing a session was now and then seen to take a minute
        return examples.batch(batch_size, drop_remainder=True).map(normalise).prefetch(2).with_options(options)


def _check_positive(value: int, name: str) -> None:
    if value < 1:
        raise ValueError(f"{name} is {value}; it must be a positive whole number")
