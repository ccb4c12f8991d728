"""The files of a set of volumes: the place of each plane, the manifest, and the writer.

A set is a directory with manifest.json, train-00000.tfrecord and so on. Each plane of one depth is a record: the image
[height, width, channels], behind it the labels [height, width] as uint8, or the targets of the volume as float32, all
little-endian. All records of a set are of one length. So a plane is found without an index, the planes of a slab are
one range of bytes, and TensorFlow checks the CRC-32C of each plane that it reads.
"""

import contextlib
import dataclasses
import json
import math
import os
import pathlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from mtf_hetero._support import loading
from mtf_hetero._support.files import new_directory, read_text, write_text
from mtf_hetero._support.schema import Anything, Flag, Many, Number, Record, Table, Text
from mtf_hetero.data.source import FRAMING_BYTES, TEST, TRAIN

if TYPE_CHECKING:
    from mtf_hetero._compat import tf

MANIFEST = "manifest.json"
FILE_SUFFIX = ".tfrecord"
DTYPES = ("uint8", "int8", "uint16", "int16", "int32", "float16", "float32")
SPLITS = (TRAIN, TEST)
_MOST_FILES = 100_000  # their names have five digits
FILE_BYTES = 2**28  # a larger file has one volume
SIMULATION = "2LPT, cloud in cell; Eisenstein and Hu 1998 without wiggles"  # the method of `mtf-hetero data simulate`
_FORMAT = "mtf_hetero volumes 1"
_TARGET_BYTES = 4  # float32

_COUNT = Number(integer=True, least=0, most=2**40)
_NUMBERS = Many(Number())
_DEVIATIONS = Many(Number(above=0))
_TARGETS = Many(Text(least=1))
SCHEMA = Record(
    {
        "planes": Record(
            {
                "shape": Many(Number(integer=True, least=1, most=2**20), least=4, most=4),
                "dtype": Text(DTYPES),
                "labelled": Flag(),
                "targets": _TARGETS,
            }
        ),
        "train_size": _COUNT,
        "test_size": _COUNT,
        "volumes_per_file": Number(integer=True, least=1, most=2**40),
        "classes": Number(integer=True, least=0, most=256),  # labels are uint8
        "mean": _NUMBERS,
        "deviation": _DEVIATIONS,
        "target_mean": _NUMBERS,
        "target_deviation": _DEVIATIONS,
        "provenance": Table(Anything()),
    }
)

Block = tuple[np.ndarray, np.ndarray | None]  # planes of an image, and of its labels


def file_prefix(directory: str, split: str) -> str:
    """Return the beginning of the path of each file of a split; five digits and FILE_SUFFIX follow."""
    return os.path.join(directory, f"{split}-")


@dataclasses.dataclass(frozen=True)
class Planes:
    """The content of a record: a plane of a volume.

    Args:
      shape: (depth, height, width, channels) of a volume.
      dtype: one of DTYPES, that of the image.
      labelled: whether each voxel has a label.
      targets: names of the numbers that belong to each volume.

    Raises:
      ValueError: there is no such volume.
    """

    shape: tuple[int, int, int, int]
    dtype: str
    labelled: bool = False
    targets: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if len(self.shape) != 4 or min(self.shape) < 1:
            raise ValueError(f"shape is {self.shape}; it must be (depth, height, width, channels), each at least 1")
        if self.dtype not in DTYPES:
            raise ValueError(f"dtype is {self.dtype!r}; it must be one of {', '.join(DTYPES)}")
        if self.labelled == bool(self.targets):
            raise ValueError("a volume must have either labels or targets; give one of the two")
        _TARGETS.read(self.targets, "targets")

    @property
    def image_bytes(self) -> int:
        """Size of the image of a plane."""
        return math.prod(self.shape[1:]) * np.dtype(self.dtype).itemsize

    @property
    def label_bytes(self) -> int:
        """Size of the labels of a plane."""
        return self.shape[1] * self.shape[2] if self.labelled else 0

    @property
    def target_bytes(self) -> int:
        """Size of the targets, which each plane repeats."""
        return _TARGET_BYTES * len(self.targets)

    @property
    def record_bytes(self) -> int:
        """Bytes from the beginning of a plane in a file to the next plane."""
        return self.image_bytes + self.label_bytes + self.target_bytes + FRAMING_BYTES


@dataclasses.dataclass(frozen=True)
class Manifest:
    """The facts about a set that its files of planes lack.

    Args:
      planes: the content of its records.
      train_size: number of training volumes.
      test_size: number of test volumes.
      volumes_per_file: in each file of a split; the last may have fewer.
      classes: number of classes of the labels; 0 where there are targets.
      mean: per channel of the training volumes, [channels].
      deviation: the same, standard deviation; 1 where it would be 0.
      target_mean: per target, [targets].
      target_deviation: the same.
      provenance: where the volumes come from.
    """

    planes: Planes
    train_size: int
    test_size: int
    volumes_per_file: int
    classes: int
    mean: tuple[float, ...]
    deviation: tuple[float, ...]
    target_mean: tuple[float, ...]
    target_deviation: tuple[float, ...]
    provenance: Mapping[str, Any]

    def size(self, split: str) -> int:
        """Return the number of volumes of "train" or "test"."""
        return self.train_size if split == TRAIN else self.test_size

    def file_sizes(self, split: str) -> list[int]:
        """Bytes that each file of a split must have."""
        full, rest = divmod(self.size(split), self.volumes_per_file)
        volumes = [self.volumes_per_file] * full + [rest] * (rest > 0)
        return [count * self.planes.shape[0] * self.planes.record_bytes for count in volumes]

    @classmethod
    def of_json(cls, content: Mapping[str, object]) -> "Manifest":
        """Make a manifest from the JSON of its dataclasses.asdict.

        Raises:
          ValueError: a field is missing, unknown or out of range, or two fields contradict each other.
        """
        content = SCHEMA.read(content)
        manifest = cls(**{**content, "planes": Planes(**content["planes"])})
        planes, targets = manifest.planes, len(manifest.planes.targets)
        lengths = {"mean": planes.shape[3], "deviation": planes.shape[3], "target_mean": targets}
        for name, length in {**lengths, "target_deviation": targets}.items():
            if len(getattr(manifest, name)) != length:
                raise ValueError(f"{name} has {len(getattr(manifest, name))} numbers, not {length}")
        for split in SPLITS:
            if manifest.size(split) > _MOST_FILES * manifest.volumes_per_file:
                raise ValueError(f"{split}_size is {manifest.size(split)}, which are more than {_MOST_FILES:,} files")
        if bool(manifest.classes) != planes.labelled:
            raise ValueError(f"classes is {manifest.classes}, but labelled is {planes.labelled}")
        return manifest

    def save(self, directory: pathlib.Path) -> None:
        """Write the manifest into the directory of a set."""
        content = {"format": _FORMAT, **dataclasses.asdict(self)}
        write_text(directory / MANIFEST, json.dumps(content, indent=1) + "\n")


def load_manifest(directory: str | os.PathLike) -> Manifest:
    """Read the manifest of a set and check that its files are complete.

    Raises:
      ValueError: the directory has no such set, or a file is missing, damaged or cut off.
    """
    path = pathlib.Path(directory).expanduser() / MANIFEST
    remedy = "copy the set again, or make it with: mtf-hetero data convert"
    try:
        text = read_text(path)
    except ValueError as error:
        raise ValueError(f"{path} cannot be read ({error}); {remedy}") from error
    try:
        content = loading.parse_json(text)
        if not isinstance(content, dict) or content.pop("format", None) != _FORMAT:
            raise ValueError(f"it is not of the format {_FORMAT!r}")
        manifest = Manifest.of_json(content)
    except ValueError as error:
        raise ValueError(f"{path} is damaged: {error}; {remedy}") from error
    for split in SPLITS:
        for number, expected in enumerate(manifest.file_sizes(split)):
            file = f"{file_prefix(str(path.parent), split)}{number:05d}{FILE_SUFFIX}"
            actual = os.path.getsize(file) if os.path.isfile(file) else None
            if actual is None:
                raise ValueError(f"{file} is missing; {remedy}")
            if actual != expected:
                said = "is cut off at" if actual < expected else "is damaged: it ends at"
                raise ValueError(f"{file} {said} byte {actual:,}, but should have {expected:,}; {remedy}")
    return manifest


class VolumeWriter:
    """Writes the volumes of a set one after the other, and collects the facts for its manifest.

    Args:
      directory: an empty one.
      planes: what the records are to hold.
      volumes_per_file: None: as many as take FILE_BYTES.
    """

    def __init__(self, directory: str, planes: Planes, volumes_per_file: int | None = None) -> None:
        volume_bytes = planes.shape[0] * planes.record_bytes
        self._directory, self._planes = directory, planes
        self._volumes_per_file = volumes_per_file or max(1, FILE_BYTES // volume_bytes)
        self._sizes: dict[str, int] = dict.fromkeys(SPLITS, 0)
        self._files: dict[str, tf.io.TFRecordWriter] = {}
        self._sums = np.zeros([2, planes.shape[3]])  # of the values and of their squares
        self._targets: list[np.ndarray] = []
        self._classes = 0

    def add(self, split: str, blocks: Iterable[Block], target: Sequence[float] = ()) -> None:
        """Write one volume.

        Args:
          split: "train" or "test".
          blocks: its planes in order, in pieces of any size: image [planes, height, width, channels], and labels
            [planes, height, width] or None.
          target: its targets.

        Raises:
          ValueError: the volume does not fit the set.
        """
        file = self._file(split)
        tail = np.asarray(target, "<f4")
        if tail.shape != (len(self._planes.targets),):
            raise ValueError(f"target has the shape {tail.shape}; the set has {len(self._planes.targets)} targets")
        written = 0
        for image, labels in blocks:
            self._check(image, labels)
            stored = np.ascontiguousarray(image, np.dtype(self._planes.dtype).newbyteorder("<"))
            marks = None if labels is None else np.ascontiguousarray(labels, np.uint8)
            for number, plane in enumerate(stored):
                label_bytes = b"" if marks is None else marks[number].tobytes()
                file.write(plane.tobytes() + label_bytes + tail.tobytes())
            written += len(stored)
            self._count(split, stored, marks)
        if written != self._planes.shape[0]:
            raise ValueError(f"a volume has {written} planes; those of the set have {self._planes.shape[0]}")
        self._sizes[split] += 1
        if split == TRAIN:
            self._targets.append(tail)

    def _check(self, image: np.ndarray, labels: np.ndarray | None) -> None:
        expected = self._planes.shape[1:]
        if image.shape[1:] != expected:
            raise ValueError(f"a plane has the shape {image.shape[1:]}; those of the set have {expected}")
        if (labels is not None) != self._planes.labelled:
            raise ValueError(
                f"labels are {'not ' if labels is None else ''}given, but the set has been begun otherwise"
            )
        if labels is not None and labels.shape != image.shape[:3]:
            raise ValueError(f"labels have the shape {labels.shape}, but their image {image.shape}")

    def _count(self, split: str, image: np.ndarray, labels: np.ndarray | None) -> None:
        if split == TRAIN:
            values = image.reshape(-1, image.shape[3]).astype(np.float64)
            self._sums += [values.sum(0), np.square(values).sum(0)]
        if labels is not None:
            self._classes = max(self._classes, int(labels.max()) + 1, 2)

    def _file(self, split: str) -> "tf.io.TFRecordWriter":
        number, place = divmod(self._sizes[split], self._volumes_per_file)
        if place == 0:
            if split in self._files:
                self._files.pop(split).close()
            from mtf_hetero._compat import tf  # here, so that programs can check their flags before it is loaded

            path = f"{file_prefix(self._directory, split)}{number:05d}{FILE_SUFFIX}"
            self._files[split] = tf.io.TFRecordWriter(path)
        return self._files[split]

    def close(self) -> None:
        """Close the files, which are complete then."""
        while self._files:
            self._files.popitem()[1].close()

    def manifest(self, provenance: Mapping[str, object]) -> Manifest:
        """Return the manifest of the volumes written so far.

        Raises:
          ValueError: there is no training volume.
        """
        if not self._sizes[TRAIN]:
            raise ValueError("the set has no training volume; it needs one at least")
        depth, height, width, _ = self._planes.shape
        mean, square = self._sums / (self._sizes[TRAIN] * depth * height * width)
        targets = np.stack(self._targets).astype(np.float64)
        return Manifest(
            planes=self._planes,
            train_size=self._sizes[TRAIN],
            test_size=self._sizes[TEST],
            volumes_per_file=self._volumes_per_file,
            classes=self._classes,
            mean=tuple(mean.tolist()),
            deviation=_positive(np.sqrt(np.maximum(square - np.square(mean), 0.0))),
            target_mean=tuple(targets.mean(0).tolist()),
            target_deviation=_positive(targets.std(0)),
            provenance=dict(provenance),
        )


def _positive(deviation: np.ndarray) -> tuple[float, ...]:
    return tuple(np.where(deviation > 0, deviation, 1.0).tolist())


def check_new(directory: str | os.PathLike) -> pathlib.Path:
    """Return the full path of a new set.

    Raises:
      ValueError: something already exists.
    """
    place = pathlib.Path(directory).expanduser()
    if place.exists():
        raise ValueError(f"{place} already exists; remove it or choose another directory")
    return place


@contextlib.contextmanager
def write_volumes(
    directory: str | os.PathLike,
    planes: Planes,
    *,
    provenance: Mapping[str, object],
    volumes_per_file: int | None = None,
) -> Iterator[VolumeWriter]:
    """Write a set beside its place and move it there at the end, so that an interrupted run leaves no partial set.

    Args:
      directory: where the set is to be; it must not be there yet.
      planes: what the records are to hold.
      provenance: where the volumes come from, as JSON can hold it.
      volumes_per_file: None: as many as take FILE_BYTES.

    Raises:
      ValueError: the directory already exists or cannot be written to, or no training volume was written.

    Example:
      >>> with write_volumes("noise", Planes((8, 8, 8, 1), "float32", targets=("seed",)), provenance={}) as writer:
      ...     for seed in range(4):
      ...         noise = np.random.default_rng(seed).normal(size=[8, 8, 8, 1])
      ...         writer.add("train", [(noise, None)], [seed])
    """
    from mtf_hetero._compat import tf

    place = check_new(directory)
    try:
        with new_directory(place) as made:
            with contextlib.closing(VolumeWriter(str(made), planes, volumes_per_file)) as writer:
                yield writer
            writer.manifest(provenance).save(made)
    except (OSError, tf.errors.OpError) as error:
        raise ValueError(f"{place} cannot be written ({error}); choose another directory, or make room") from error
