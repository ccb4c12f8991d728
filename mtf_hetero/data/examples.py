"""Examples: a training and a test set, their order, and the parts of each batch that a pipeline makes.

The seed and the numbers of the epoch and the batch decide all, so that all processors read parts of the same batches.
"""

import abc
import dataclasses
from collections.abc import Callable, Iterator
from typing import ClassVar

import numpy as np

from mtf_hetero._compat import tf
from mtf_hetero._support.numbers import check_number
from mtf_hetero.data.augmentation import Augmentation, Turns
from mtf_hetero.data.source import TEST, TRAIN

CACHED_BYTES = 2**30  # of decoded images, or of stored slabs, that a pipeline keeps in memory


@dataclasses.dataclass(frozen=True)
class Slab:
    """A part of a batch of images or volumes.

    Args:
      places: places in the batch, from 0 on; None: all.
      begin: its first [depth, height, width, channels] in each volume, or [height, width, channels] in each image;
        None: that of the whole one.
      size: its extent, in the same order; None: to the end.
    """

    places: tuple[int, ...] | None = None
    begin: tuple[int, ...] | None = None
    size: tuple[int, ...] | None = None

    @property
    def box(self) -> tuple[slice, ...]:
        """Slices of an image, along each dimension."""
        assert self.begin is not None and self.size is not None
        return tuple(slice(begin, begin + size) for begin, size in zip(self.begin, self.size, strict=True))


class Examples(abc.ABC):
    """A training and a test set of examples of one size.

    A pipeline may make only a slab of each batch. It reads and decodes nothing that the slab does not need.

    Attributes:
      name: the user's name for it.
      unit: the word for several examples.
      image_shape: of the image of an example.
      train_size: number of training examples.
      test_size: number of test examples.
      statistics: mean and standard deviation per channel of training images, whose numbers are divided by `scale`.
      scale: the stored number that counts as 1.
    """

    name: str
    unit: ClassVar[str]
    image_shape: tuple[int, ...]
    train_size: int
    test_size: int
    statistics: tuple[np.ndarray, np.ndarray]
    scale: ClassVar[float] = 1.0

    def __str__(self) -> str:
        shape = " x ".join(map(str, self.image_shape))
        return f"{self.name}: {self.train_size:,} training and {self.test_size:,} test {self.unit} of {shape}"

    def train_input_fn(
        self,
        batch_size: int,
        epochs: int,
        seed: int = 0,
        *,
        start_batch: int | tf.Tensor = 0,
        augment: Augmentation | bool | None = None,
        slab: Slab | None = None,
        cached_bytes: int = CACHED_BYTES,
    ) -> tf.data.Dataset:
        """Return the training set, shuffled in each epoch, without an incomplete batch at the end of the last epoch.

        The place and the augmentation of each example depend only on batch_size, seed and the number of the batch.

        Args:
          batch_size: examples per batch.
          epochs: passes over the set.
          seed: for the order of the examples and their augmentation.
          start_batch: batches to skip at the beginning, to continue an earlier run: a whole number, or a scalar tensor,
            such as the global step, which is read when the iterator is initialised.
          augment: random changes. Images: an Augmentation; True is Augmentation(). Volumes: True mirrors them along
            depth, height and width, and exchanges height and width if they are equal; then, if depth is split, the
            slab of a mirrored volume has other planes of the file.
          slab: the part of each batch that is made; None: all of it.
          cached_bytes: memory for what this pipeline reads again in another epoch: decoded images, stored slabs of
            volumes; 0: no cache.

        Returns:
          A tf.data.Dataset of batches, or of slabs of them.

        Raises:
          ValueError: the batch is larger than all the data, or the slab is not within it.
        """
        slab, places = self._within(batch_size, slab)
        check_number(cached_bytes, "cached_bytes", zero=True, none=False)
        batches = self._shuffled(batch_size, epochs, seed, start_batch)
        wanted, changes = tf.constant(places), self._changes(augment)

        def choose(indices: tf.Tensor, number: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
            drawn = tf.zeros([batch_size], tf.int32) if changes is None else changes.draw(batch_size, seed, number)
            return tf.gather(indices, wanted), tf.gather(drawn, wanted), tf.ones_like(wanted, tf.float32)

        return made_ahead(self._read(TRAIN, batches.map(choose), slab, changes, cached_bytes if epochs > 1 else 0))

    def test_input_fn(self, batch_size: int, *, slab: Slab | None = None) -> tf.data.Dataset:
        """Return the test set, each example once. The last one, at weight 0, fills the last batch.

        Args:
          batch_size: examples per batch.
          slab: the part of each batch that is made; None: all of it.

        Returns:
          A tf.data.Dataset of batches, or of slabs of them.

        Raises:
          ValueError: there are no test examples, or the slab is not within the batch.
        """
        slab, places = self._within(batch_size, slab)
        if not self.test_size:
            raise ValueError(f"{self.name} has no test {self.unit}; make the set again with some")
        wanted = tf.constant(places, tf.int64)

        def batch(first: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
            indices, drawn = first + wanted, tf.zeros([len(places)], tf.int32)
            return tf.minimum(indices, self.test_size - 1), drawn, tf.cast(indices < self.test_size, tf.float32)

        batches = tf.data.Dataset.range(0, self.test_size, batch_size).map(batch)
        return made_ahead(self._read(TEST, batches, slab, None, 0))

    @property
    def stored_statistics(self) -> tuple[np.ndarray, np.ndarray]:
        """Mean and standard deviation per channel, which normalise stored numbers."""
        mean, deviation = self.statistics
        return self.scale * mean, self.scale * deviation

    def normaliser(self) -> Callable[[tf.Tensor], tf.Tensor]:
        """Return a function from stored images or volumes to normalised ones, float32.

        The statistics are read now: inside of a pipeline, TensorFlow would replace their errors.
        """
        mean, deviation = (part.astype(np.float32) for part in self.statistics)
        return lambda stored: (tf.cast(stored, tf.float32) / self.scale - mean) / deviation

    @abc.abstractmethod
    def _changes(self, augment: Augmentation | bool | None) -> Augmentation | Turns | None:
        """Return what changes training examples at random; None: nothing."""

    @abc.abstractmethod
    def _read(
        self,
        split: str,
        chosen: tf.data.Dataset,
        slab: Slab,
        changes: Augmentation | Turns | None,
        kept_bytes: int,
    ) -> tf.data.Dataset:
        """Read batches of (features, labels).

        features["image"] is float32 [batch, *image], normalised; features["weight"] is float32 [batch], 1 for an
        example and 0 for padding.

        Args:
          split: "train" or "test".
          chosen: batches of (index of the example, what was drawn for it, weight).
          slab: the part of each example that is made, with a begin and a size; its places are None if they are all.
          changes: of the examples, as drawn; None: none.
          kept_bytes: memory for what will be read again; 0: nothing is.
        """

    def _shuffled(self, batch_size: int, epochs: int, seed: int, start_batch: int | tf.Tensor) -> tf.data.Dataset:
        """Return batches of indices, int64 [batch], in another order in each epoch, each with its number.

        Raises:
          ValueError: so many examples cannot be read.
        """
        check_number(epochs, "epochs", none=False)
        if not tf.is_tensor(start_batch):
            check_number(start_batch, "start_batch", zero=True, none=False)
        examples = self.train_size
        if batch_size > examples * epochs:
            raise ValueError(
                f"batch_size is {batch_size}, but {self.name!r} has {examples} training {self.unit}; give a smaller one"
            )
        first_batch = tf.cast(start_batch, tf.int64)
        first_epoch, skipped = first_batch * batch_size // examples, first_batch * batch_size % examples

        def permutation(epoch: tf.Tensor) -> tf.Tensor:
            seeds = tf.stack([tf.constant(seed, tf.int64), epoch])
            keys = tf.random.stateless_uniform([examples], seeds, minval=None, maxval=None, dtype=tf.int32)
            return tf.cast(tf.argsort(keys, stable=True), tf.int64)

        indices = tf.data.Dataset.range(tf.minimum(first_epoch, epochs), epochs).map(permutation).unbatch()
        batches = indices.skip(skipped).batch(batch_size, drop_remainder=True)
        return tf.data.Dataset.zip((batches, tf.data.Dataset.range(first_batch, examples * epochs // batch_size)))

    def _within(self, batch_size: int, slab: Slab | None) -> tuple[Slab, tuple[int, ...]]:
        """Return the slab with a begin and a size, and its places in each batch."""
        check_number(batch_size, "batch_size", none=False)
        slab = slab or Slab()
        places = tuple(range(batch_size) if slab.places is None else slab.places)
        if not places or min(places) < 0 or max(places) >= batch_size:
            raise ValueError(
                f"places are {list(places)}, but a batch has {batch_size} {self.unit}; give places from 0 on in it"
            )
        begin = slab.begin or (0,) * len(self.image_shape)
        size = slab.size or tuple(extent - first for first, extent in zip(begin, self.image_shape, strict=True))
        bounds = zip(begin, size, self.image_shape, strict=True)
        if not all(begin >= 0 and size >= 1 and begin + size <= extent for begin, size, extent in bounds):
            raise ValueError(
                f"slab begins at {begin} and has the size {size}, but the {self.unit} are {self.image_shape}; "
                "give one within them"
            )
        return Slab(slab.places, begin, size), places


def made_ahead(batches: tf.data.Dataset) -> tf.data.Dataset:
    """Return the batches, of which two are made while a step runs."""
    options = tf.data.Options()
    options.autotune.enabled = False  # with it, closing a session sometimes took a minute
    return batches.prefetch(2).with_options(options)


def read_here(batches: tf.data.Dataset) -> Iterator[list[np.ndarray]]:
    """Yield the batches of a pipeline in TensorFlow's default graph, flat, in this process."""
    iterator = tf.data.make_initializable_iterator(batches)
    batch = tf.nest.flatten(iterator.get_next())
    session = tf.Session(config=tf.ConfigProto(device_count={"GPU": 0}))  # it reserves the memory of each GPU it sees
    try:
        session.run([tf.tables_initializer(), iterator.initializer])
        while True:
            yield session.run(batch)
    except tf.errors.OutOfRangeError:
        return
    finally:
        session.close()
