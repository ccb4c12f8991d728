"""Dataset: labelled images, and the input pipelines that feed them to a model in batches of one size."""

import dataclasses
import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import ClassVar

import numpy as np

from mtf_hetero._compat import tf
from mtf_hetero.data.augmentation import Augmentation
from mtf_hetero.data.examples import Examples, Slab, made_ahead, read_here
from mtf_hetero.data.listing import join_names
from mtf_hetero.data.records import unreadable_as_value_error
from mtf_hetero.data.source import TEST, TRAIN, Source

STATISTICS_IMAGES = 10_000  # whose mean and deviation normalise all; of own photos, fewer: see own.py
_READ, _READ_BYTES = 500, 2**26  # images and bytes at a time, for the statistics


@dataclasses.dataclass(frozen=True, eq=False)
class Dataset(Examples):
    """A set of images of one size with a label each, divided into a training and a test set.

    A batch is (features, labels): features["image"] is float32 [batch, height, width, channels], normalised with the
    mean and the standard deviation of the training images; features["weight"] is float32 [batch], 1 for an image and
    0 for padding; labels are int32 [batch].

    A pipeline may make only a slab of each batch. It reads and decodes only the images at the places of the slab. If
    complete batches are read for several epochs, a set of up to `cached_bytes` is decoded once and kept in memory.

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
    scale: ClassVar[float] = 255.0

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
        text = super().__str__()
        return f"{text}, {self.classes} classes: {join_names(self.class_names)}" if self.digest else text

    @property
    def test_names(self) -> Sequence[str]:
        """Names of the files of the test set; none: no files."""
        return self.source(TEST).names

    def as_stored(self) -> "Dataset":
        """Return the same images with their stored numbers, not normalised."""
        channels = self.image_shape[2]
        return dataclasses.replace(self, known_statistics=((0.0,) * channels, (1 / 255,) * channels))

    @functools.cached_property
    def statistics(self) -> tuple[np.ndarray, np.ndarray]:
        """Mean and standard deviation per channel of up to 10,000 training images, scaled to [0, 1]."""
        if self.known_statistics is not None:
            mean, deviation = map(np.array, self.known_statistics)
            return mean, deviation
        channels = self.image_shape[2]
        counts = np.zeros([channels, 256], np.int64)
        with tf.Graph().as_default(), unreadable_as_value_error():
            indices = tf.data.Dataset.range(min(self.train_size, self.statistics_images))
            at_once = max(min(_READ, _READ_BYTES // math.prod(self.image_shape)), 1)
            for images, _ in read_here(made_ahead(self.source(TRAIN).read(indices).batch(at_once))):
                pixels = images.reshape(-1, channels)
                counts += [np.bincount(pixels[:, channel], minlength=256) for channel in range(channels)]
        values = np.arange(256) / 255.0
        mean = counts @ values / counts.sum(1)
        deviation = np.sqrt(np.maximum(counts @ np.square(values) / counts.sum(1) - np.square(mean), 0.0))
        return mean, np.where(deviation > 0, deviation, 1.0)

    def _changes(self, augment: Augmentation | bool | None) -> Augmentation | None:
        return Augmentation() if augment is True else augment or None

    def _read(
        self,
        split: str,
        chosen: tf.data.Dataset,
        slab: Slab,
        changes: Augmentation | None,
        kept_bytes: int,
    ) -> tf.data.Dataset:
        source, indices = self.source(split), chosen.map(lambda index, drawn, weight: index)
        count = indices.element_spec.shape[0]
        # A slice reads no images but its own, which it would otherwise not need
        if slab.places is None and not source.keeps and source.size * math.prod(self.image_shape) <= kept_bytes:
            everything = source.read(tf.data.Dataset.range(source.size)).batch(source.size, drop_remainder=True)
            images = tf.data.Dataset.zip((indices, everything.cache().repeat())).map(
                lambda indices, example: tuple(tf.gather(part, indices) for part in example)
            )
        else:
            images = source.read(indices.unbatch(), kept_bytes).batch(count, drop_remainder=True)
        normalise = self.normaliser()

        def finish(
            chosen: tuple[tf.Tensor, ...], example: tuple[tf.Tensor, tf.Tensor]
        ) -> tuple[dict[str, tf.Tensor], tf.Tensor]:
            _, drawn, weight = chosen
            image = normalise(example[0])
            image = image if changes is None else changes.apply(image, drawn)
            return {"image": image[(slice(None), *slab.box)], "weight": weight}, tf.cast(example[1], tf.int32)

        return tf.data.Dataset.zip((chosen, images)).map(finish)
