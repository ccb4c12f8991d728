"""Dataset: labelled images, and the input pipelines that feed them to a model in batches of one size."""

import dataclasses
import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import ClassVar

import numpy as np

from mtf_hetero._compat import tf
from mtf_hetero.data import order
from mtf_hetero.data.augmentation import Augmentation
from mtf_hetero.data.listing import join_names
from mtf_hetero.data.records import unreadable_as_value_error
from mtf_hetero.data.source import TEST, TRAIN, Source

STATISTICS_IMAGES = 10_000  # whose mean and deviation normalise all; of own photos, fewer: see own.py
CACHED_BYTES = 2**30  # of decoded images, or of stored slabs, that a pipeline keeps in memory
_READ, _READ_BYTES = 500, 2**26  # images and bytes at a time, for the statistics


@dataclasses.dataclass(frozen=True, eq=False)
class Dataset:
    """A set of images of one size with a label each, divided into a training and a test set.

    A batch is (features, labels): features["image"] is float32 [batch, height, width, channels], normalised with the
    mean and the standard deviation of the training images; features["weight"] is float32 [batch], 1 for an image and
    0 for padding; labels are int32 [batch].

    A pipeline may make only the images at certain places of each batch. It reads and decodes no other images.

    Args:
      name: the user's name for it.
      image_shape: (height, width, channels).
      classes: number of classes.
      train_size: number of training images.
      test_size: number of test images.
      source: returns the images of "train" or "test".
      class_names: a name for each class; none: unknown.
      digest: a digest of the images, which shows a change of the set; none: changes are not looked for.
      notes: lines for the user.
      statistics_images: the mean and deviation of so many first training images normalise all images.
      known_statistics: the mean and the deviation; None: `statistics` reads the images.
    """

    name: str
    image_shape: tuple[int, int, int]
    classes: int
    train_size: int
    test_size: int
    source: Callable[[str], Source]
    class_names: tuple[str, ...] = ()
    digest: str = ""
    notes: tuple[str, ...] = ()
    statistics_images: int = STATISTICS_IMAGES
    known_statistics: tuple[Sequence[float], Sequence[float]] | None = None

    unit: ClassVar[str] = "images"

    @classmethod
    def of_sources(
        cls,
        name: str,
        image_shape: tuple[int, int, int],
        class_names: tuple[str, ...],
        sources: Mapping[str, Source],
        digest: str = "",
        notes: tuple[str, ...] = (),
    ) -> "Dataset":
        """Return the set of the images of "train" and "test", of as many classes as have a name."""
        sizes = sources[TRAIN].size, sources[TEST].size
        return cls(name, image_shape, len(class_names), *sizes, sources.__getitem__, class_names, digest, notes)

    def __str__(self) -> str:
        text = order.describe_sizes(self.name, self.train_size, self.test_size, self.unit, self.image_shape)
        return f"{text}, {self.classes} classes: {join_names(self.class_names)}" if self.digest else text

    @property
    def test_names(self) -> Sequence[str]:
        """Names of the files of the test set; none: no files."""
        return self.source(TEST).names

    def as_stored(self) -> "Dataset":
        """Return the same images with their stored numbers, not normalised."""
        channels = self.image_shape[2]
        return dataclasses.replace(self, known_statistics=((0.0,) * channels, (1 / 255,) * channels))

    @property
    def stored_statistics(self) -> tuple[np.ndarray, np.ndarray]:
        """Mean and standard deviation per channel, which normalise stored numbers."""
        mean, deviation = self.statistics
        return 255 * mean, 255 * deviation

    @functools.cached_property
    def statistics(self) -> tuple[np.ndarray, np.ndarray]:
        """Mean and standard deviation per channel of up to 10,000 training images, scaled to [0, 1]."""
        if self.known_statistics is not None:
            mean, deviation = map(np.array, self.known_statistics)
            return mean, deviation
        channels = self.image_shape[2]
        counts = np.zeros([channels, 256], np.int64)
        with tf.Graph().as_default():
            indices = tf.data.Dataset.range(min(self.train_size, self.statistics_images))
            at_once = max(min(_READ, _READ_BYTES // math.prod(self.image_shape)), 1)
            batches = order.made_ahead(self.source(TRAIN).read(indices).batch(at_once))
            iterator = tf.data.make_initializable_iterator(batches)
            images, _ = iterator.get_next()
            config = tf.ConfigProto(device_count={"GPU": 0})  # a session reserves the memory of each GPU that it sees
            with unreadable_as_value_error(), tf.Session(config=config) as session:
                session.run(iterator.initializer)
                while True:
                    try:
                        pixels = session.run(images).reshape(-1, channels)
                    except tf.errors.OutOfRangeError:
                        break
                    counts += [np.bincount(pixels[:, channel], minlength=256) for channel in range(channels)]
        values = np.arange(256) / 255.0
        mean = counts @ values / counts.sum(1)
        deviation = np.sqrt(np.maximum(counts @ np.square(values) / counts.sum(1) - np.square(mean), 0.0))
        return mean, np.where(deviation > 0, deviation, 1.0)

    def train_input_fn(
        self,
        batch_size: int,
        epochs: int,
        seed: int = 0,
        *,
        start_batch: int | tf.Tensor = 0,
        augment: Augmentation | bool | None = None,
        places: Sequence[int] | None = None,
    ) -> tf.data.Dataset:
        """Return the training set, shuffled in each epoch, without an incomplete batch at the end of the last epoch.

        The place and the augmentation of each image depend only on batch_size, seed and the number of the batch. If
        complete batches are read for several epochs, a set of up to 1 GiB is decoded once and kept in memory.

        Args:
          batch_size: images per batch.
          epochs: passes over the set.
          seed: for the order of the images and their augmentation.
          start_batch: batches to skip at the beginning, to continue an earlier run: a whole number, or a scalar tensor,
            such as the global step, which is read when the iterator is initialised.
          augment: random changes of the images; True: those of Augmentation().
          places: places in each batch, from 0 on, whose images are made; None: all.

        Returns:
          A tf.data.Dataset of batches, or of these parts of them.

        Raises:
          ValueError: the batch is larger than all the data, or it has no such places.
        """
        chosen = order.places_in_batch(batch_size, places, "images")
        batches, numbers = order.training_batches(
            self.train_size, batch_size, epochs, seed, start_batch, name=f"dataset {self.name!r}", unit="images"
        )
        batches = batches.map(lambda indices: tf.gather(indices, chosen))
        source, bytes_of_all = self.source(TRAIN), self.train_size * math.prod(self.image_shape)
        read = source.read if epochs == 1 else source.read_often or source.read
        # a slice reads no images but its own, which it would otherwise not need
        cached = len(chosen) == batch_size and epochs > 1 and source.read_often is None and bytes_of_all <= CACHED_BYTES
        images = self._source_in_memory(batches) if cached else _batched(read, batches, len(chosen))
        normalise = self.normaliser()
        changes = Augmentation() if augment is True else augment or None

        def finish(batch: tf.Tensor, example: tuple[tf.Tensor, tf.Tensor]) -> tuple[dict[str, tf.Tensor], tf.Tensor]:
            normalised = normalise(example[0])
            if changes is not None:
                normalised = changes.apply(normalised, tf.gather(changes.draw(batch_size, seed, batch), chosen))
            return {"image": normalised, "weight": tf.ones([len(chosen)])}, tf.cast(example[1], tf.int32)

        return order.made_ahead(tf.data.Dataset.zip((numbers, images)).map(finish))

    def test_input_fn(self, batch_size: int, *, places: Sequence[int] | None = None) -> tf.data.Dataset:
        """Return the test set, each image once. Images of weight 0 fill the last batch.

        Args:
          batch_size: images per batch.
          places: those in each batch whose images are made, from 0 on; None: all.

        Returns:
          A tf.data.Dataset of batches, or of these parts of them.

        Raises:
          ValueError: the batch has no such places.
        """
        chosen = order.places_in_batch(batch_size, places, "images")
        batches = order.testing_batches(self.test_size, batch_size, chosen)
        images = _batched(self.source(TEST).read, batches.map(lambda indices, weights: indices), len(chosen))
        normalise = self.normaliser()

        def finish(
            batch: tuple[tf.Tensor, ...], example: tuple[tf.Tensor, ...]
        ) -> tuple[dict[str, tf.Tensor], tf.Tensor]:
            _, weights = batch
            real = weights > 0
            pixels = tf.where_v2(real[:, None, None, None], example[0], tf.zeros_like(example[0]))
            labels = tf.where_v2(real, example[1], tf.zeros_like(example[1]))
            return {"image": normalise(pixels), "weight": weights}, tf.cast(labels, tf.int32)

        return order.made_ahead(tf.data.Dataset.zip((batches, images)).map(finish))

    def _source_in_memory(self, batches: tf.data.Dataset) -> tf.data.Dataset:
        """Source of the training images, which are decoded once and kept in memory as one tensor."""
        everything = self.source(TRAIN).read(tf.data.Dataset.range(self.train_size))
        everything = everything.batch(self.train_size, drop_remainder=True).cache().repeat()
        return tf.data.Dataset.zip((batches, everything)).map(
            lambda indices, example: tuple(tf.gather(part, indices) for part in example)
        )

    def normaliser(self) -> Callable[[tf.Tensor], tf.Tensor]:
        """Return a function from stored images, 0 to 255, to normalised ones, float32 [..., height, width, channels].

        The statistics are read now: inside of a pipeline, TensorFlow would replace their errors.
        """
        mean, deviation = (part.astype(np.float32) for part in self.statistics)
        return lambda images: (tf.cast(images, tf.float32) / 255.0 - mean) / deviation


def _batched(
    read: Callable[[tf.data.Dataset], tf.data.Dataset], batches: tf.data.Dataset, size: int
) -> tf.data.Dataset:
    """Read batches of (images, labels) for batches of indices."""
    return read(batches.unbatch()).batch(size, drop_remainder=True)
