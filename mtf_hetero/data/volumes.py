"""Volumes, and input pipelines in which each processor reads only its own slab of each volume.

A volume is stored plane by plane (`_volumes_files`), so that a slab of depth is one range of bytes. This is the
parallel input of Oyama et al. 2021: no processor reads a complete sample, and slabs are cached in memory while it has
room. The pipelines consist of TensorFlow's own operations and run on the worker itself.
"""

import dataclasses
import functools
import os
import pathlib
from collections.abc import Callable, Sequence
from typing import ClassVar

import numpy as np

from mtf_hetero._compat import mtf, tf
from mtf_hetero._support.numbers import check_number
from mtf_hetero.data import _volumes_files as files
from mtf_hetero.data import order
from mtf_hetero.data.dataset import CACHED_BYTES
from mtf_hetero.data.laid_out import deal, places_in
from mtf_hetero.data.records import assert_readable, readable_records
from mtf_hetero.data.records import cached as cached_strings
from mtf_hetero.data.source import TEST, TRAIN
from mtf_hetero.layout import Layout

_PARALLEL_READS = 2  # each holds a slab as stored, as decoded and as float32
_DAMAGED = "it is missing, damaged or cut off; copy the set again"


@dataclasses.dataclass(frozen=True)
class Slab:
    """A part of a batch of volumes.

    Args:
      places: places in the batch, from 0 on; None: all.
      begin: its first [depth, height, width, channels] in each volume.
      size: its extent, in the same order; None: to the end.
    """

    places: tuple[int, ...] | None = None
    begin: tuple[int, ...] = (0, 0, 0, 0)
    size: tuple[int, ...] | None = None


@dataclasses.dataclass(frozen=True, eq=False)
class Volumes:
    """A training and a test set of volumes of one size, with labels or targets.

    A batch is (features, labels): features["image"] is float32 [batch, depth, height, width, channels], normalised with
    the mean and the standard deviation of the training volumes; features["weight"] is float32 [batch], 1 for a volume
    and 0 for padding. Labels are int32 [batch, depth, height, width], or the targets, float32 [batch, targets], which
    are normalised as well.

    A pipeline may make only a slab of each batch. It reads the planes of that slab only. If height, width or channels
    are split too, it reads complete planes and cuts them.

    Args:
      directory: of the files, on each worker.
      manifest: the facts about them.
    """

    directory: str
    manifest: files.Manifest
    unit: ClassVar[str] = "volumes"
    notes: ClassVar[tuple[str, ...]] = ()
    test_names: ClassVar[tuple[str, ...]] = ()

    def __str__(self) -> str:
        text = order.describe_sizes(self.directory, self.train_size, self.test_size, self.unit, self.image_shape)
        return f"{text}, simulated" if self.is_simulated else text

    @property
    def image_shape(self) -> tuple[int, int, int, int]:
        """(depth, height, width, channels)."""
        return self.manifest.planes.shape

    @property
    def classes(self) -> int:
        """Number of classes of the labels; 0 for targets."""
        return self.manifest.classes

    @property
    def targets(self) -> tuple[str, ...]:
        """Names of the targets; none for labels."""
        return self.manifest.planes.targets

    @property
    def train_size(self) -> int:
        """Number of training volumes."""
        return self.manifest.train_size

    @property
    def test_size(self) -> int:
        """Number of test volumes."""
        return self.manifest.test_size

    @property
    def is_simulated(self) -> bool:
        """Return whether `mtf-hetero data simulate` made the set."""
        return self.manifest.provenance.get("method") == files.SIMULATION

    def train_input_fn(
        self,
        batch_size: int,
        epochs: int,
        seed: int = 0,
        *,
        start_batch: int | tf.Tensor = 0,
        augment: bool = False,
        slab: Slab | None = None,
        cached_bytes: int = CACHED_BYTES,
    ) -> tf.data.Dataset:
        """Return the training set, shuffled in each epoch, without an incomplete batch at the end of the last epoch.

        The place of each volume depends only on batch_size, seed and the number of the batch. Slabs are cached in
        memory, as they are stored, up to cached_bytes.

        Args:
          batch_size: volumes per batch.
          epochs: passes over the set.
          seed: for the order of the volumes and their augmentation.
          start_batch: batches to skip at the beginning: a whole number, or a scalar tensor, such as the global step,
            which is read when the iterator is initialised.
          augment: whether volumes are mirrored at random along depth, height and width, and height and width exchanged
            if they are equal. If depth is split, the slab of a mirrored volume has other planes of the file.
          slab: the part of each batch that is made; None: all of it.
          cached_bytes: memory for this pipeline's slabs; 0: no cache.

        Returns:
          A tf.data.Dataset of batches, or of slabs of them.

        Raises:
          ValueError: the batch is larger than all the data, or the slab is not within it.
        """
        slab = self._within(batch_size, slab)
        check_number(cached_bytes, "cached_bytes", zero=True, none=False)
        batches = order.training_batches(
            self.train_size, batch_size, epochs, seed, start_batch, name=self.directory, unit="volumes"
        )
        wanted = tf.constant(slab.places)

        def choose(indices: tf.Tensor, number: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
            turns = self._draw_turns(batch_size, seed, number) if augment else tf.zeros([batch_size, 4], tf.int32)
            return tf.gather(indices, wanted), tf.gather(turns, wanted), tf.ones_like(wanted, tf.float32)

        cached = cached_bytes // self._kept_bytes(slab, mirrored=augment) if epochs > 1 else 0
        return self._batches(TRAIN, tf.data.Dataset.zip(batches).map(choose), slab, cached)

    def test_input_fn(self, batch_size: int, *, slab: Slab | None = None) -> tf.data.Dataset:
        """Return the test set, each volume once. The last volume, at weight 0, fills the last batch.

        Args:
          batch_size: volumes per batch.
          slab: the part of each batch that is made; None: all of it.

        Returns:
          A tf.data.Dataset of batches, or of slabs of them.

        Raises:
          ValueError: there are no test volumes, or the slab is not within the batch.
        """
        slab = self._within(batch_size, slab)
        if not self.test_size:
            raise ValueError(f"{self.directory} has no test volumes; make the set again with --test=COUNT")
        places = slab.places or ()

        def choose(indices: tf.Tensor, weights: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
            return indices, tf.zeros([len(places), 4], tf.int32), weights

        return self._batches(TEST, order.testing_batches(self.test_size, batch_size, places).map(choose), slab, 0)

    def as_stored(self) -> "Volumes":
        """Return the same volumes with their stored numbers, not normalised."""
        channels = self.image_shape[3]
        manifest = dataclasses.replace(self.manifest, mean=(0.0,) * channels, deviation=(1.0,) * channels)
        return dataclasses.replace(self, manifest=manifest)

    @property
    def stored_statistics(self) -> tuple[np.ndarray, np.ndarray]:
        """Mean and standard deviation per channel, which normalise stored numbers."""
        return np.array(self.manifest.mean), np.array(self.manifest.deviation)

    def normaliser(self) -> Callable[[tf.Tensor], tf.Tensor]:
        """Return a function from stored volumes to normalised ones, float32 [..., depth, height, width, channels]."""
        mean, deviation = (np.array(part, np.float32) for part in (self.manifest.mean, self.manifest.deviation))
        return lambda volumes: (tf.cast(volumes, tf.float32) - mean) / deviation

    def _batches(self, split: str, chosen: tf.data.Dataset, slab: Slab, cached: int) -> tf.data.Dataset:
        """Read batches for batches of (index, turn, weight)."""
        read = _slab_reader(self, split, slab, cached)

        def example(index: tf.Tensor, turn: tf.Tensor, weight: tf.Tensor) -> tuple[dict[str, tf.Tensor], tf.Tensor]:
            image, label = read(index, turn)
            return {"image": image, "weight": weight}, label

        examples = chosen.unbatch().map(example, num_parallel_calls=_PARALLEL_READS)
        return order.made_ahead(examples.batch(len(slab.places or ()), drop_remainder=True))

    def _draw_turns(self, batch_size: int, seed: int, number: tf.Tensor) -> tf.Tensor:
        """Draw turns [batch, 4]: mirrored along depth, height, width; height and width exchanged."""
        seeds = tf.stack([tf.constant(seed, tf.int64), -1 - number])  # seeds from 0 up order the volumes
        square = self.image_shape[1] == self.image_shape[2]
        return tf.random.stateless_uniform([batch_size, 4], seeds, 0, 2, tf.int32) * [1, 1, 1, int(square)]

    def _kept_bytes(self, slab: Slab, *, mirrored: bool) -> int:
        """Return the memory for the slabs of one volume."""
        count = (slab.size or self.image_shape)[0]
        slabs = 2 if mirrored and count < self.image_shape[0] else 1
        return slabs * count * self.manifest.planes.record_bytes

    def _within(self, batch_size: int, slab: Slab | None) -> Slab:
        """Return the slab with explicit places and size."""
        slab = slab or Slab()
        places = order.places_in_batch(batch_size, slab.places, "volumes")
        size = slab.size or tuple(extent - begin for begin, extent in zip(slab.begin, self.image_shape, strict=True))
        bounds = zip(slab.begin, size, self.image_shape, strict=True)
        if not all(begin >= 0 and size >= 1 and begin + size <= extent for begin, size, extent in bounds):
            raise ValueError(
                f"slab begins at {slab.begin} and has the size {size}, but a volume is {self.image_shape}; "
                "give one within it"
            )
        return Slab(places, slab.begin, size)


def load_volumes(directory: str | os.PathLike) -> Volumes:
    """Find a set of volumes that `mtf-hetero data convert` or `simulate`, or write_volumes, has made.

    Raises:
      ValueError: the set or a file is missing, or a file is damaged or cut off.
    """
    manifest = files.load_manifest(directory)
    return Volumes(os.path.abspath(pathlib.Path(directory).expanduser()), manifest)


def laid_out_volumes(
    make: Callable[..., tf.data.Dataset], layout: Layout, shape: mtf.Shape, devices: Sequence[str]
) -> tuple[dict[str, tuple[tf.Tensor, ...]], tuple[tf.Tensor, ...]]:
    """Make one pipeline for each host and slab of the batch, and share it among the processors that need it.

    laid_out_batches does the same for images.

    Args:
      make: called with slab=...; returns a tf.data.Dataset of (features, labels):
        `functools.partial(volumes.train_input_fn, batch_size, epochs)`.
      layout: splits the dimensions.
      shape: the mtf.Shape of the images of the whole batch, [*batch, depth, height, width, channels], however named.
      devices: one per processor.

    Returns:
      (features, labels): one tensor [*batch, ...] per processor, in place of each tensor.

    Raises:
      ValueError: the number of devices is not that of the processors, or the layout does not fit the shape.
    """
    dims = list(mtf.Shape(shape))
    layout.check(dims)
    batch = len(dims) - 4

    def make_slab(begin: Sequence[int], size: Sequence[int]) -> tf.data.Dataset:
        places = places_in([dim.size for dim in dims[:batch]], begin[:batch], size[:batch])
        return make(slab=Slab(places, tuple(begin[batch:]), tuple(size[batch:])))

    return deal(make_slab, layout, dims, batch, devices)


def _slab_reader(
    volumes: Volumes, split: str, slab: Slab, cached: int
) -> Callable[[tf.Tensor, tf.Tensor], tuple[tf.Tensor, tf.Tensor]]:
    """Return a function from a volume's index and turn, int32 [4], to its slab and its labels or targets."""
    manifest, planes = volumes.manifest, volumes.manifest.planes
    depth, height, width, channels = planes.shape
    first, count = slab.begin[0], (slab.size or planes.shape)[0]
    cut = tuple(slice(begin, begin + size) for begin, size in zip(slab.begin, slab.size or planes.shape, strict=True))
    records = cached_strings(functools.partial(_stored_planes, volumes, split, count), cached * depth)
    mean, deviation = (np.array(part, np.float32)[cut[3]] for part in (manifest.mean, manifest.deviation))
    target_mean, target_deviation = (
        np.array(part, np.float32) for part in (manifest.target_mean, manifest.target_deviation)
    )

    def field(stored: tf.Tensor, begin: int, size: int, dtype: str) -> tf.Tensor:
        return tf.io.decode_raw(tf.strings.substr(stored, begin, size), tf.as_dtype(dtype))

    def turned(x: tf.Tensor, turn: tf.Tensor) -> tf.Tensor:
        exchanged = [0, 2, 1, 3][: x.shape.rank]
        if height == width:
            x = tf.cond(turn[3] > 0, lambda: tf.transpose(x, exchanged), lambda: x)
        return tf.reverse(x, tf.where(turn[:3] > 0)[:, 0])

    def read(index: tf.Tensor, turn: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        begin = tf.where_v2(turn[0] > 0, depth - first - count, first)
        stored = records(index * depth + tf.cast(begin, tf.int64) + tf.range(count, dtype=tf.int64))
        image = tf.reshape(field(stored, 0, planes.image_bytes, planes.dtype), [count, height, width, channels])
        image = tf.cast(turned(image, turn)[:, cut[1], cut[2], cut[3]], tf.float32)
        if planes.labelled:
            marks = field(stored, planes.image_bytes, planes.label_bytes, "uint8")
            labels = tf.cast(turned(tf.reshape(marks, [count, height, width]), turn)[:, cut[1], cut[2]], tf.int32)
        else:
            labels = field(stored[0], planes.image_bytes, planes.target_bytes, "float32")
            labels = (tf.ensure_shape(labels, [len(planes.targets)]) - target_mean) / target_deviation
        return (image - mean) / deviation, labels

    return read


def _stored_planes(volumes: Volumes, split: str, count: int, numbers: tf.Tensor) -> tf.Tensor:
    """Read stored planes of one volume by their numbers in the set, string [planes], and no other byte."""
    manifest, record_bytes = volumes.manifest, volumes.manifest.planes.record_bytes
    index, first = numbers[0] // manifest.planes.shape[0], numbers[0] % manifest.planes.shape[0]
    file, place = index // manifest.volumes_per_file, index % manifest.volumes_per_file
    prefix = files.file_prefix(volumes.directory, split)
    path = tf.strings.join([prefix, tf.strings.as_string(file, width=5, fill="0"), files.FILE_SUFFIX])
    offset = (place * manifest.planes.shape[0] + first) * record_bytes
    stored = readable_records(path, offset, count).map(lambda number, record: record)
    stored = stored.concatenate(tf.data.Dataset.from_tensors(""))
    stored = stored.batch(count + 1).get_single_element()[:-1]
    complete = tf.size(stored, out_type=tf.int64)
    readable = assert_readable(tf.equal(complete, count), path, offset + complete * record_bytes, _DAMAGED)
    with tf.control_dependencies([readable]):
        return tf.ensure_shape(tf.identity(stored), [count])
