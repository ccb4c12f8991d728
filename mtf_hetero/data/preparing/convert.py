"""Convert volumes from HDF5, NumPy and NIfTI files to a set that pipelines read slab by slab.

For HDF5, .npy and uncompressed NIfTI files, only one block of planes is in memory.
"""

import contextlib
import csv
import dataclasses
import functools
import itertools
import math
import os
import pathlib
import shutil
import zipfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from types import EllipsisType
from typing import TYPE_CHECKING, Protocol

import numpy as np

from mtf_hetero._support import extras
from mtf_hetero._support.units import bytes_text
from mtf_hetero.data._volumes_files import DTYPES, Block, Manifest, Planes, write_volumes
from mtf_hetero.data.source import TEST, TRAIN

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

_BLOCK_BYTES = 2**25  # of planes that are read at a time: a volume may be larger than the memory
_STORED_AS = {"float64": "float32", "bool": "uint8"}
_AXES = {3: "DHW", 4: "DHWC", 5: "NDHWC"}
_NIFTI_AXES = {3: "WHD", 4: "WHDC"}  # x, y, z: the planes are the axial ones
_HDF5, _NIFTI = (".h5", ".hdf5", ".hdf"), (".nii", ".nii.gz")
_DAMAGED = (
    *(OSError, EOFError, KeyError, RuntimeError, ValueError, zipfile.BadZipFile, zlib.error),
    *(csv.Error, MemoryError, OverflowError),
)

Window = tuple[slice, slice, slice]  # of depth, height and width


@dataclasses.dataclass(frozen=True)
class Options:
    """Options for reading the files.

    Args:
      key: the array of an HDF5 or .npz file with the volumes; None: the only possible one.
      axes: a letter per axis of the array: N for volumes, D, H, W and C for depth, height, width and channels; None:
        DHW, DHWC or NDHWC, and of NIfTI files WHD or WHDC.
      labels: one file for each file of volumes, or the key in those files; (): no labels.
      threshold: labels above it become 1, others 0; None: labels are classes from 0 on.
      targets: a .csv file with a line of names and one line per volume, or the key in the files of volumes.
      cube: (depth, height, width) of the blocks that are cut from the middle of volumes, as many as fit in; None:
        volumes are not cut.
      test: number of the last volumes, after the cut, for testing.
    """

    key: str | None = None
    axes: str | None = None
    labels: tuple[str, ...] = ()
    threshold: float | None = None
    targets: str | None = None
    cube: tuple[int, int, int] | None = None
    test: int = 0


def convert(
    directory: str | os.PathLike, paths: Sequence[str], options: Options | None = None, *, progress: bool = False
) -> Manifest:
    """Write a set of volumes from files. Cubes of one volume inherit its targets.

    Args:
      directory: the place of the set, which must not exist yet.
      paths: .h5, .hdf5, .npy, .npz, .nii and .nii.gz files, each with one volume or with several of one size.
      options: for reading them.
      progress: whether to show a bar.

    Returns:
      The manifest of the set.

    Raises:
      ValueError: a file is missing, damaged or cut off, or the files and the options do not fit together.
    """
    options = options or Options()
    with contextlib.ExitStack() as stack:
        opened = [open_arrays(path, stack) for path in paths]
        images = [_array(path, arrays, options.key, options.axes) for path, arrays in zip(paths, opened, strict=True)]
        labels = _label_arrays(options, paths, opened, images, stack)
        names, targets = _targets(options, paths, opened, images)
        planes = _check(options, images, labels, names)
        begins = _begins(images[0].shape[:3], planes.shape[:3])
        count = sum(image.count for image in images) * math.prod(map(len, begins))
        _check_room(directory, count * planes.shape[0] * planes.record_bytes)
        depths, heights, widths = ([slice(begin, begin + axis.step) for begin in axis] for axis in begins)
        windows = list(itertools.product(depths, heights, widths))
        volumes = [(file, number) for file, image in enumerate(images) for number in range(image.count)]
        samples = list(itertools.product(range(len(volumes)), windows))
        train_size = _train_size(options.test, len(samples), len(windows))
        provenance = {"files": [pathlib.Path(path).name for path in paths], **dataclasses.asdict(options)}
        with (
            write_volumes(directory, planes, provenance=provenance) as writer,
            extras.progress_bar(
                total=len(samples), desc="volumes", unit="volume", disable=None if progress else True, leave=False
            ) as bar,
        ):
            for place, (volume, window) in enumerate(samples):
                file, number = volumes[volume]
                blocks = _blocks(images[file], labels[file] if labels else None, number, window, planes, options)
                writer.add(TRAIN if place < train_size else TEST, blocks, targets[volume])
                bar.update()
        return writer.manifest(provenance)


@contextlib.contextmanager
def _reading(path: str, errors: "type[Exception] | tuple[type[Exception], ...]" = _DAMAGED) -> Iterator[None]:
    try:
        yield
    except errors as error:
        size = os.path.getsize(path) if os.path.isfile(path) else 0
        raise ValueError(
            f"{path} cannot be read, or is damaged or cut off; it ends at byte {size:,} ({error}); get it again"
        ) from error


def check_path(path: str) -> None:
    """Raise ValueError unless the path is a file that `convert` can read."""
    if not os.path.isfile(path):
        raise ValueError(f"{path} does not exist; give .h5, .npy, .npz or .nii files that do")
    if not path.endswith((*_HDF5, *_NIFTI, ".npy", ".npz")):
        raise ValueError(f"{path} is of no known format; give .h5, .hdf5, .npy, .npz, .nii or .nii.gz files")


class _Indexed(Protocol):
    """An array, or a data set of a file, that is read where it is indexed."""

    @property
    def shape(self) -> tuple[int, ...]: ...

    def __getitem__(self, index: tuple[slice, ...] | EllipsisType, /) -> "ArrayLike": ...


def open_arrays(path: str, stack: contextlib.ExitStack) -> Mapping[str, _Indexed]:
    """Return the arrays of a file by their keys. Indexing an array reads it.

    Args:
      path: a file that `convert` can read.
      stack: closes the file.

    Raises:
      ValueError: the file is missing, damaged, cut off or of another kind, or its reader is not installed.
    """
    check_path(path)
    if path.endswith(_HDF5):
        h5py = extras.import_package("h5py", extra="volumes", user=path)
        with _reading(path):
            datasets: dict[str, _Indexed] = {}
            file = stack.enter_context(h5py.File(path, "r"))
            file.visititems(
                lambda name, item: datasets.update({name: item}) if isinstance(item, h5py.Dataset) else None
            )
            return {name: values for name, values in datasets.items() if values.shape is not None}  # None: a null one
    if path.endswith(_NIFTI):
        nibabel = extras.import_package("nibabel", extra="volumes", user=path)
        with _reading(path, Exception):  # nibabel and NumPy raise many kinds of errors for a damaged head
            values = nibabel.load(path).dataobj
            return {"": np.asanyarray(values) if path.endswith(".gz") else values}  # gzip has no random access
    with _reading(path, Exception):
        if path.endswith(".npy"):
            return {"": np.load(path, mmap_mode="r")}
        return stack.enter_context(np.load(path))


@dataclasses.dataclass(frozen=True, eq=False)
class _Array:
    """An array of one or more volumes in a file.

    Args:
      path: the file.
      values: an array that can be indexed with slices.
      axes: a letter for each axis.
    """

    path: str
    values: _Indexed
    axes: str

    def _extent(self, axis: str) -> int:
        return self.values.shape[self.axes.index(axis)] if axis in self.axes else 1

    @property
    def count(self) -> int:
        """Number of volumes."""
        return self._extent("N")

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """(depth, height, width, channels) of a volume."""
        return self._extent("D"), self._extent("H"), self._extent("W"), self._extent("C")

    @functools.cached_property
    def dtype(self) -> str:
        """Type of the values that are read; a NIfTI file may scale them."""
        return self.read(0, (slice(0, 1), slice(0, 1), slice(0, 1))).dtype.name

    def read(self, volume: int, window: Window) -> np.ndarray:
        """Read a part of a volume, [depth, height, width, channels]."""
        wanted = {"N": slice(volume, volume + 1), **dict(zip("DHW", window, strict=True))}
        with _reading(self.path):
            part = np.asarray(self.values[tuple(wanted.get(axis, slice(None)) for axis in self.axes)])
        part = part.transpose([self.axes.index(axis) for axis in "NDHWC" if axis in self.axes])
        return part.reshape(*(bounds.stop - bounds.start for bounds in window), self.shape[3])


def _open_array(path: str, arrays: Mapping[str, _Indexed], key: str) -> _Indexed:
    """Return an array of a file; an archive of NumPy is read here."""
    with _reading(path, Exception):
        values = arrays[key]
        if not hasattr(values, "shape"):  # the bytes of another file
            raise ValueError(f"{key!r} is not an array")
    return values


def _look_up(path: str, arrays: Mapping[str, _Indexed], key: str, use: str = "") -> _Indexed:
    """Return an array of a file, or raise ValueError if it is missing or its values lie in another file."""
    if key not in arrays:
        raise ValueError(f"{path} has no array {key!r}{use}; it has {', '.join(arrays) or 'none'}")
    values = _open_array(path, arrays, key)
    if getattr(values, "external", None) or getattr(values, "is_virtual", False):  # HDF5 reads any file it names
        raise ValueError(
            f"{path} has the values of {key!r} in other files (an external or virtual data set of HDF5); give a file "
            "with the values themselves"
        )
    return values


def _array(path: str, arrays: Mapping[str, _Indexed], key: str | None, axes: str | None) -> _Array:
    if key is None or "" in arrays:
        candidates = [name for name in arrays if len(_open_array(path, arrays, name).shape) >= 3]
        if len(candidates) != 1:
            listed = ", ".join(candidates) or "none"
            raise ValueError(
                f"{path} has {len(candidates)} arrays of three axes or more ({listed}); name one with --key=NAME"
            )
        key = candidates[0]
    values = _look_up(path, arrays, key)
    rank = len(values.shape)
    known = _NIFTI_AXES if path.endswith(_NIFTI) else _AXES
    axes = axes or known.get(rank, "")
    if len(axes) != rank or len(set(axes)) != rank or not set("DHW") <= set(axes) <= set("NDHWC"):
        raise ValueError(
            f"{path} holds an array of the shape {tuple(values.shape)}, which does not fit the axes {axes!r}; "
            "name each of them, --axes=DHW or another order, with N for volumes and C for channels"
        )
    if 0 in values.shape:
        raise ValueError(f"{path} holds an array of the shape {tuple(values.shape)}, which is empty; give another")
    return _Array(path, values, axes)


def _label_arrays(
    options: Options,
    paths: Sequence[str],
    opened: Sequence[Mapping[str, _Indexed]],
    images: Sequence[_Array],
    stack: contextlib.ExitStack,
) -> list[_Array]:
    names, axes = options.labels, [image.axes.replace("C", "") for image in images]
    if len(names) == 1 and names[0] in opened[0]:
        return [_array(paths[i], opened[i], names[0], axes[i]) for i in range(len(paths))]
    if names and len(names) != len(paths):
        raise ValueError(
            f"--labels names {len(names)} files for {len(paths)} files of volumes; give one for each, or one key"
        )
    return [_array(names[i], open_arrays(names[i], stack), None, axes[i]) for i in range(len(names))]


def _targets(
    options: Options, paths: Sequence[str], opened: Sequence[Mapping[str, _Indexed]], images: Sequence[_Array]
) -> tuple[tuple[str, ...], np.ndarray]:
    """Return the names of the targets, and float32 [volumes, targets]."""
    count = sum(image.count for image in images)
    if options.targets is None:
        return (), np.zeros([count, 0], np.float32)
    try:
        if options.targets.endswith(".csv"):
            if os.path.exists(options.targets) and not os.path.isfile(options.targets):
                raise ValueError(f"--targets={options.targets} is not a regular file; give a .csv file")
            with _reading(options.targets), open(options.targets, newline="", encoding="utf-8-sig") as file:
                lines = [line for line in csv.reader(file) if line]
                names = tuple(name.strip() for name in lines[0]) if lines else ()
                table = np.array([[float(value) for value in line] for line in lines[1:]], np.float32)
        else:
            rows = []
            for path, arrays, image in zip(paths, opened, images, strict=True):
                values = _look_up(path, arrays, options.targets, " of targets")
                with _reading(path):
                    rows.append(np.asarray(values[...], np.float32).reshape(image.count, -1))
            table = np.concatenate(rows)
            names = tuple(f"{options.targets}{number}" for number in range(table.shape[1]))
    except TypeError as error:
        raise ValueError(f"--targets={options.targets} holds no numbers ({error}); give others") from error
    if "" in names or len(set(names)) != len(names):
        raise ValueError(
            f"--targets={options.targets} names its columns {', '.join(names)}; give each a name of its own"
        )
    if table.shape != (count, len(names)) or not names or not np.isfinite(table).all():
        raise ValueError(
            f"--targets={options.targets} holds a table of {' x '.join(map(str, table.shape))}; "
            f"give {len(names) or 'some'} finite numbers for each of the {count} volumes"
        )
    return names, table


def _check(options: Options, images: Sequence[_Array], labels: Sequence[_Array], names: tuple[str, ...]) -> Planes:
    """Return the planes to write."""
    first = images[0]
    for image in images[1:]:
        if (image.shape, image.dtype) != (first.shape, first.dtype):
            raise ValueError(
                f"{image.path} holds {image.dtype} volumes of {image.shape}, but {first.path} {first.dtype} of "
                f"{first.shape}; convert sets of one size and type"
            )
    for image, label in zip(images, labels, strict=False):
        if (label.shape[:3], label.shape[3], label.count) != (image.shape[:3], 1, image.count):
            raise ValueError(
                f"{label.path} holds {label.count} x {label.shape} labels for {image.count} x {image.shape} voxels of "
                f"{image.path}; give labels of the same extent"
            )
    if bool(labels) == bool(names):
        raise ValueError(f"{'both' if labels else 'neither'} --labels and --targets are given; give one of the two")
    dtype = _STORED_AS.get(first.dtype, first.dtype)
    if dtype not in DTYPES:
        raise ValueError(f"{first.path} holds {dtype}; give one of {', '.join(DTYPES)}")
    extents = first.shape[:3]
    cube = options.cube or extents
    if not all(0 < edge <= extent for edge, extent in zip(cube, extents, strict=True)):
        raise ValueError(f"--cube is {cube}, but the volumes are {extents}; give a cube that fits in")
    return Planes((*cube, first.shape[3]), dtype, bool(labels), names)


def _begins(extents: Sequence[int], cube: Sequence[int]) -> list[range]:
    """Return where the cubes in the middle of a volume begin, on each axis."""
    return [range(extent % edge // 2, extent - edge + 1, edge) for extent, edge in zip(extents, cube, strict=True)]


def _check_room(directory: str | os.PathLike, size: int) -> None:
    """Raise ValueError if the disk has no room for a set, as where a damaged file tells a huge shape."""
    place = pathlib.Path(directory).expanduser().absolute()
    free = shutil.disk_usage(next(parent for parent in place.parents if parent.is_dir())).free
    if size > free:
        raise ValueError(
            f"{place} would take {bytes_text(size)}, where {bytes_text(free)} are free; make room, or give less"
        )


def _train_size(test: int, samples: int, cubes: int) -> int:
    if not 0 <= test < samples:
        raise ValueError(f"--test is {test}, but there are {samples} volumes; leave one for training at least")
    if test % cubes and samples > cubes:
        raise ValueError(
            f"--test is {test}, which divides the {cubes} cubes of one volume between training and test; "
            f"give a multiple of {cubes}"
        )
    return samples - test


def _blocks(
    image: _Array, label: _Array | None, number: int, window: Window, planes: Planes, options: Options
) -> Iterator[Block]:
    """Read a part of a volume, a few planes at a time."""
    step = max(1, _BLOCK_BYTES // planes.image_bytes)
    for begin in range(window[0].start, window[0].stop, step):
        part = slice(begin, min(begin + step, window[0].stop)), *window[1:]
        values = image.read(number, part)
        with np.errstate(over="ignore"):  # infinity
            values = values.astype(planes.dtype, copy=False)
        if not np.isfinite(values).all():
            what = f"not finite in {planes.dtype}, from plane {begin} on"
            raise ValueError(f"{image.path} holds values that are {what}; mend or drop it")
        yield values, None if label is None else _marks(label.path, label.read(number, part)[..., 0], options)


def _marks(path: str, labels: np.ndarray, options: Options) -> np.ndarray:
    if options.threshold is not None:
        return (labels > options.threshold).astype(np.uint8)
    marks = labels.astype(np.uint8)
    if not np.array_equal(marks, labels):
        raise ValueError(
            f"{path} holds labels from {labels.min()} to {labels.max()}; they must be whole numbers from 0 to 255, "
            "or give --threshold=NUMBER"
        )
    return marks
