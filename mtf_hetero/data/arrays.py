"""Images in a NumPy archive, .npz, with the arrays of Keras's data sets, or with x and y only.

Each machine reads the archive itself, with TensorFlow's own operations, and keeps its images in memory.
"""

import dataclasses
import hashlib
import struct
import zipfile
from collections.abc import Callable, Sequence
from typing import IO

import numpy as np

from mtf_hetero._compat import tf
from mtf_hetero.data.dataset import Dataset
from mtf_hetero.data.listing import choose_test
from mtf_hetero.data.pictures import crop_and_resize, or_else
from mtf_hetero.data.records import assert_usable
from mtf_hetero.data.source import TEST, TRAIN, CompressedConstant, Source

_NAMES = "class_names"
_GZIP_HEAD = b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\xff"
_LOCAL_HEAD = struct.Struct("<26xHH")  # length of a member's name, length of its extra field
_CHUNK_BYTES = 2**20  # of a member that is read only for its checksum, so that it is never in memory as a whole
_CHANNELS = (1, 3, 4)  # of grey images, of colours, and of colours with transparency
_OTHER = (
    "it is missing, or not the file that the training process has; each worker needs the same file at the same path"
)


@dataclasses.dataclass(frozen=True)
class _Images:
    """An array of images within an archive.

    Args:
      path: of the archive.
      name: of the array.
      shape: [images, height, width, channels].
      head: the bytes of the array's file before the images.
      member: of the archive.
      offset: where its bytes begin in the archive.
    """

    path: str
    name: str
    shape: tuple[int, ...]
    head: bytes
    member: zipfile.ZipInfo
    offset: int

    def tensor(self) -> tf.Tensor:
        """Return the images, uint8 [images, height, width, channels]."""
        member, size = self.member, len(self.head)

        def npy(path: tf.Tensor) -> tf.Tensor:
            stored = tf.strings.substr(tf.io.read_file(path), self.offset, member.compress_size)
            if member.compress_type == zipfile.ZIP_DEFLATED:  # gzip's format without head and tail
                tail = struct.pack("<II", member.CRC, member.file_size % 2**32)
                stored = tf.io.decode_compressed(tf.strings.join([_GZIP_HEAD, stored, tail]), "GZIP")
            return stored

        content = or_else(tf.constant(self.path), npy, "")
        same = tf.equal(tf.strings.substr(tf.strings.join([content, self.head]), 0, size), self.head)
        with tf.control_dependencies([assert_usable(same & tf.not_equal(content, ""), self.path, _OTHER)]):
            pixels = tf.strings.substr(content, size, member.file_size - size)
        return tf.reshape(tf.io.decode_raw(pixels, tf.uint8), self.shape)


def load_arrays(path: str, *, size: Sequence[int], seed: int) -> Dataset:
    """Open an archive with x_train, y_train, x_test and y_test, or with x and y.

    The images are uint8 [images, height, width] or [images, height, width, channels], the labels whole numbers from 0
    on, [images] or [images, 1]. An array `class_names` may name them. With x and y only, one image in five of each
    class is for the test.

    Args:
      path: of the archive.
      size: height and width to which images are resized; none: they stay as they are.
      seed: of the choice of test images.

    Raises:
      ValueError: one line with the array and its fault.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            return _open(path, archive, size, seed)
    except (OSError, EOFError, zipfile.BadZipFile, NotImplementedError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ValueError(f"{path} cannot be read as an archive of numpy.savez: {reason}; save it again") from error


def _open(path: str, archive: zipfile.ZipFile, size: Sequence[int], seed: int) -> Dataset:
    arrays = {name.removesuffix(".npy") for name in archive.namelist()}
    divided = {f"{array}_{split}" for array in "xy" for split in (TRAIN, TEST)}
    if not divided <= arrays and not {"x", "y"} <= arrays:
        raise ValueError(
            f"{path} has the arrays {', '.join(sorted(arrays)) or 'none'}; it needs x_train, y_train, x_test and "
            "y_test, or x and y"
        )
    suffixes = {TRAIN: "_train", TEST: "_test"} if divided <= arrays else {TRAIN: "", TEST: ""}
    images = {split: _find_images(path, archive, f"x{suffix}") for split, suffix in suffixes.items()}
    labels = {split: _read_labels(path, archive, f"y{suffix}", images[split]) for split, suffix in suffixes.items()}
    if images[TRAIN].shape[1:] != images[TEST].shape[1:] and not size:
        sizes = [" x ".join(map(str, images[split].shape[1:])) for split in (TRAIN, TEST)]
        raise ValueError(f"{path} has training images of {sizes[0]} and test images of {sizes[1]}; give --image_size")
    chosen = {split: np.arange(len(part)) for split, part in labels.items()}
    if divided <= arrays:
        _check_labels(path, labels, suffixes)
    else:
        is_test = np.array(choose_test([str(i) for i in chosen[TRAIN]], labels[TRAIN].tolist(), seed))
        _check_labels(path, {TRAIN: labels[TRAIN][~is_test], TEST: labels[TEST][is_test]}, suffixes)
        chosen = {TRAIN: np.flatnonzero(~is_test), TEST: np.flatnonzero(is_test)}
    names = _names(path, archive, int(labels[TRAIN].max()) + 1)
    height, width = size or images[TRAIN].shape[1:3]
    shape = height, width, images[TRAIN].shape[3]
    return Dataset.of_sources(
        path,
        shape,
        names,
        {split: _source(images[split], labels[split], chosen[split], shape) for split in images},
        _digest(archive, sorted({f"{array}{suffix}" for array in "xy" for suffix in suffixes.values()}), seed),
    )


def _find_images(path: str, archive: zipfile.ZipFile, name: str) -> _Images:
    """Find the images of an array, and check their shape, their type and their checksum."""
    member = archive.getinfo(f"{name}.npy")
    with archive.open(member) as file:
        shape, in_columns, dtype = _read_head(path, name, file)
        head_bytes = file.tell()
        while file.read(_CHUNK_BYTES):
            pass  # zipfile compares the checksum at the end
    if dtype != np.uint8 or len(shape) not in (3, 4) or not all(shape):
        raise ValueError(
            f"{path}: {name} is {dtype} {list(shape)}; it must be uint8 [images, height, width] or [images, height, "
            "width, channels], with values from 0 to 255"
        )
    if len(shape) == 4 and shape[1] in _CHANNELS and shape[3] not in _CHANNELS:
        raise ValueError(
            f"{path}: {name} is {list(shape)}, which is [images, channels, height, width]; the channels must be last: "
            f"save numpy.ascontiguousarray({name}.transpose(0, 2, 3, 1))"
        )
    if in_columns and len(shape) > 1:
        raise ValueError(f"{path}: {name} is in Fortran's order; save numpy.ascontiguousarray({name})")
    with archive.open(member) as file, open(path, "rb") as whole:
        head = file.read(head_bytes)
        whole.seek(member.header_offset)
        lengths = _LOCAL_HEAD.unpack(whole.read(_LOCAL_HEAD.size))
    offset = member.header_offset + _LOCAL_HEAD.size + sum(lengths)
    return _Images(path, name, shape if len(shape) == 4 else (*shape, 1), head, member, offset)


def _read_head(path: str, name: str, file: IO[bytes]) -> tuple[tuple[int, ...], bool, np.dtype]:
    try:
        version = np.lib.format.read_magic(file)
        read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        return read(file)
    except ValueError as error:
        raise ValueError(f"{path}: {name} is not an array that numpy.savez wrote ({error}); save it again") from error


def _read(path: str, archive: zipfile.ZipFile, name: str) -> np.ndarray:
    with archive.open(f"{name}.npy") as file:
        try:
            return np.lib.format.read_array(file, allow_pickle=False)
        except ValueError as error:
            raise ValueError(f"{path}: {name} is not an array of numbers or text ({error}); save it again") from error


def _read_labels(path: str, archive: zipfile.ZipFile, name: str, images: _Images) -> np.ndarray:
    labels = _read(path, archive, name)
    count = images.shape[0]
    if labels.dtype.kind not in "iu" or labels.shape not in ((count,), (count, 1)):
        raise ValueError(
            f"{path}: {name} is {labels.dtype} {list(labels.shape)}; it must be whole numbers, one for each of the "
            f"{count} images of {images.name}"
        )
    return labels.ravel().astype(np.int64)


def _check_labels(path: str, labels: dict[str, np.ndarray], suffixes: dict[str, str]) -> None:
    """Raise ValueError if a class from 0 to the highest has no training image, or a test image has no class."""
    for split, part in labels.items():
        if part.min(initial=0) < 0:
            raise ValueError(
                f"{path}: y{suffixes[split]} has the label {part.min()} at index {part.argmin()}; labels count from 0"
            )
    known = np.unique(labels[TRAIN])
    missing = np.flatnonzero(known != np.arange(len(known)))
    if len(missing) or len(known) < 2:
        number = int(missing[0]) if len(missing) else len(known)
        raise ValueError(
            f"{path}: no training image has the label {number}, and the highest is {known.max(initial=0)}; number the "
            "classes from 0 on without a gap, two or more"
        )
    if labels[TEST].max(initial=0) >= len(known):
        raise ValueError(
            f"{path}: y{suffixes[TEST]} has the label {labels[TEST].max()} at index {labels[TEST].argmax()}, but the "
            f"training images have 0 to {len(known) - 1}; correct it"
        )


def _names(path: str, archive: zipfile.ZipFile, classes: int) -> tuple[str, ...]:
    names = tuple(map(str, range(classes)))
    if f"{_NAMES}.npy" in archive.namelist():
        names = tuple(map(str, _read(path, archive, _NAMES).ravel().tolist()))
        if len(names) != classes:
            raise ValueError(f"{path}: {_NAMES} has {len(names)} names for {classes} classes; give each class a name")
    return names


def _digest(archive: zipfile.ZipFile, names: Sequence[str], seed: int) -> str:
    """Return a digest of the arrays' checksums, and of the seed if it chooses the test images."""
    told = [(name, archive.getinfo(f"{name}.npy").CRC) for name in names]
    told += [("seed", seed)] if "x" in names else []
    return hashlib.blake2b(repr(told).encode(), digest_size=16).hexdigest()


def _source(images: _Images, labels: np.ndarray, chosen: np.ndarray, shape: Sequence[int]) -> Source:
    places, classes = CompressedConstant(chosen.astype(np.int32)), CompressedConstant(labels[chosen].astype(np.int32))

    def reader(kept_bytes: int) -> Callable[[tf.Tensor], tuple[tf.Tensor, tf.Tensor]]:
        all_images, label_of, place_of = images.tensor(), classes.lookup(), places.lookup()

        def example(index: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            image = tf.gather(all_images, place_of(index))
            is_fitted = tuple(shape) != images.shape[1:]
            return crop_and_resize(image, shape[:2]) if is_fitted else image, label_of(index)

        return example

    return Source(len(chosen), reader, keeps=True)
