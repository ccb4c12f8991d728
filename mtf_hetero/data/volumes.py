"""Volumes, and input pipelines in which each processor reads only its own slab of each volume.

A volume is stored plane by plane (`_volumes_files`), so that a slab of depth is one range of bytes. This is the
parallel input of Oyama et al. 2021: no processor reads a complete sample, and slabs are cached in memory while it has
room. The pipelines consist of TensorFlow's own operations and run on the worker itself.
"""

import dataclasses
import functools
import os
import pathlib
from collections.abc import Callable
from typing import ClassVar

import numpy as np

from mtf_hetero._compat import tf
from mtf_hetero.data import _volumes_files as files
from mtf_hetero.data.augmentation import Augmentation, Turns
from mtf_hetero.data.examples import Examples, Slab
from mtf_hetero.data.records import assert_readable, cached, readable_records

_PARALLEL_READS = 2  # each holds a slab as stored, as decoded and as float32
_DAMAGED = "it is missing, damaged or cut off; copy the set again"


@dataclasses.dataclass(frozen=True, eq=False)
class Volumes(Examples):
    """A training and a test set of volumes of one size, with labels or targets.

    A batch is (features, labels): features["image"] is float32 [batch, depth, height, width, channels], normalised with
    the mean and the standard deviation of the training volumes; features["weight"] is float32 [batch], 1 for a volume
    and 0 for padding. Labels are int32 [batch, depth, height, width], or the targets, float32 [batch, targets], which
    are normalised as well.

    A pipeline may make only a slab of each batch. It reads the planes of that slab only, and keeps them as they are
    stored. If height, width or channels are split too, it reads complete planes and cuts them.

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
        return super().__str__() + ", simulated" * self.is_simulated

    @property
    def name(self) -> str:
        """The directory."""
        return self.directory

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

    def as_stored(self) -> "Volumes":
        """Return the same volumes with their stored numbers, not normalised."""
        channels = self.image_shape[3]
        manifest = dataclasses.replace(self.manifest, mean=(0.0,) * channels, deviation=(1.0,) * channels)
        return dataclasses.replace(self, manifest=manifest)

    @property
    def statistics(self) -> tuple[np.ndarray, np.ndarray]:
        """Mean and standard deviation per channel of all training volumes."""
        return np.array(self.manifest.mean), np.array(self.manifest.deviation)

    def _changes(self, augment: Augmentation | bool | None) -> Turns | None:
        return Turns(is_square=self.image_shape[1] == self.image_shape[2]) if augment else None

    def _read(
        self,
        split: str,
        chosen: tf.data.Dataset,
        slab: Slab,
        changes: Turns | None,
        kept_bytes: int,
    ) -> tf.data.Dataset:
        read = _slab_reader(self, split, slab, changes, kept_bytes)

        def example(index: tf.Tensor, turn: tf.Tensor, weight: tf.Tensor) -> tuple[dict[str, tf.Tensor], tf.Tensor]:
            image, label = read(index, turn)
            return {"image": image, "weight": weight}, label

        count = chosen.element_spec[0].shape[0]
        examples = chosen.unbatch().map(example, num_parallel_calls=_PARALLEL_READS)
        return examples.batch(count, drop_remainder=True)


def load_volumes(directory: str | os.PathLike) -> Volumes:
    """Find a set of volumes that `mtf-hetero data convert` or `simulate`, or write_volumes, has made.

    Raises:
      ValueError: the set or a file is missing, or a file is damaged or cut off.
    """
    manifest = files.load_manifest(directory)
    return Volumes(os.path.abspath(pathlib.Path(directory).expanduser()), manifest)


def _slab_reader(
    volumes: Volumes, split: str, slab: Slab, changes: Turns | None, kept_bytes: int
) -> Callable[[tf.Tensor, tf.Tensor], tuple[tf.Tensor, tf.Tensor]]:
    """Return a function from a volume's index and turn, int32 [4], to its slab and its labels or targets."""
    manifest, planes = volumes.manifest, volumes.manifest.planes
    depth, height, width, channels = planes.shape
    cut = slab.box
    first, count = cut[0].start, cut[0].stop - cut[0].start
    slabs = 2 if changes and count < depth else 1  # of a volume: that of the mirrored one too
    kept = kept_bytes // (slabs * count * planes.record_bytes)
    records = cached(functools.partial(_stored_planes, volumes, split, count), kept * depth)
    mean, deviation = (part.astype(np.float32)[cut[3]] for part in volumes.statistics)
    target_mean, target_deviation = (
        np.array(part, np.float32) for part in (manifest.target_mean, manifest.target_deviation)
    )

    def field(stored: tf.Tensor, begin: int, size: int, dtype: str) -> tf.Tensor:
        return tf.io.decode_raw(tf.strings.substr(stored, begin, size), tf.as_dtype(dtype))

    def turned(x: tf.Tensor, turn: tf.Tensor) -> tf.Tensor:
        if changes is None:
            return x
        exchanged = [0, 2, 1, 3][: x.shape.rank]
        if changes.is_square:
            x = tf.cond(turn[3] > 0, lambda: tf.transpose(x, exchanged), lambda: x)
        return tf.reverse(x, tf.where(turn[:3] > 0)[:, 0])

    def read(index: tf.Tensor, turn: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        begin = first if changes is None else tf.where_v2(turn[0] > 0, depth - first - count, first)
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
