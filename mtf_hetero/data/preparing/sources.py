"""Find and check the files of MNIST, Fashion-MNIST and CIFAR-10 in a directory or an archive."""

import dataclasses
import gzip
import io
import pathlib
import pickle
import re
import shutil
import subprocess
import tarfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from typing import IO

import numpy as np

CIFAR_CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
CIFAR_SHAPE = (32, 32, 3)
_IDX_FILES = {
    "train": ("train-images-idx3-ubyte", "train-labels-idx1-ubyte"),
    "test": ("t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"),
}
_IDX_UINT8 = 0x08  # MNIST's format IDX: the code of unsigned bytes
_JPEG_PATH = re.compile(rf"(?:.*/)?(train|test)/({'|'.join(CIFAR_CLASSES)})/([^/]+)\.(?:jpe?g|png)", re.IGNORECASE)
_CIFAR_BATCH = re.compile(r"(?:.*/)?(data_batch_[1-9]|test_batch)(\.bin)?")
_DAMAGED = (tarfile.TarError, EOFError, zlib.error, gzip.BadGzipFile)
_GZIP_MAGIC = b"\x1f\x8b"

Files = Mapping[str, bytes]


@dataclasses.dataclass(frozen=True)
class Picture:
    """An image file: its place and its content."""

    name: str
    content: bytes


Example = tuple[np.ndarray | Picture, int]  # image, uint8 where it is an array, and label
Examples = dict[str, list[Example]]  # of "train" and "test"


def _members(stream: IO[bytes], wanted: Callable[[str], object]) -> Iterator[tuple[str, bytes]]:
    with tarfile.open(fileobj=stream, mode="r|*") as archive:
        for member in archive:
            if member.isfile() and wanted(member.name):
                data = archive.extractfile(member)
                assert data is not None  # None only for a directory
                yield member.name, data.read()


def _debian_members(path: pathlib.Path, wanted: Callable[[str], object]) -> Iterator[tuple[str, bytes]]:
    with subprocess.Popen(
        ["dpkg-deb", "--fsys-tarfile", str(path)], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as process:
        assert process.stdout is not None
        yield from _members(process.stdout, wanted)


def read_files(path: pathlib.Path, wanted: Callable[[str], object]) -> Files:
    """Read files of a directory tree, a tar archive, compressed or not, or a Debian package.

    Args:
      path: the directory or archive.
      wanted: whether to read a file, by its path, "train/bird/0001.jpg".

    Returns:
      {path: content}.

    Raises:
      ValueError: the path does not exist, or its content does not fit its name.
    """
    if not path.exists():
        raise ValueError(f"{path} does not exist; give a directory or a tar archive that does")
    if not path.is_dir() and not path.is_file():
        raise ValueError(f"{path} is not a regular file; give a directory or a tar archive")
    if path.suffix == ".deb" and shutil.which("dpkg-deb") is None:
        raise ValueError(f"{path} is a Debian package, and dpkg-deb is not installed; unpack it and give the directory")
    try:
        if path.is_dir():
            names = {file.relative_to(path).as_posix(): file for file in sorted(path.rglob("*")) if file.is_file()}
            return {name: file.read_bytes() for name, file in names.items() if wanted(name)}
        if path.suffix == ".deb":
            return dict(_debian_members(path, wanted))
        with path.open("rb") as stream:
            return dict(_members(stream, wanted))
    except _DAMAGED as error:
        raise ValueError(
            f"{path} cannot be read as a tar archive ({error}); get it again, or unpack it and give the directory"
        ) from error
    except OSError as error:
        raise ValueError(
            f"{path} cannot be read ({error.strerror or error}); give a directory or a tar archive that can"
        ) from error


def _idx(name: str, content: bytes, dimensions: int) -> np.ndarray:
    """Return the uint8 array of an idx file: magic number 0, 0, type, dimensions; sizes as big-endian int32."""
    if content.startswith(_GZIP_MAGIC):
        try:
            content = gzip.decompress(content)
        except _DAMAGED as error:
            raise ValueError(f"{name} is cut off or damaged ({error}); get it again") from error
    magic, header = bytes([0, 0, _IDX_UINT8, dimensions]), 4 * (1 + dimensions)
    if content[:4] != magic or len(content) < header:
        raise ValueError(
            f"{name} begins with {content[:4].hex() or 'nothing'}, but an idx file of {dimensions} dimensions with "
            f"{magic.hex()}; get it again"
        )
    shape = np.frombuffer(content, ">i4", dimensions, 4)
    if len(content) - header != np.prod(shape, dtype=np.int64):
        raise ValueError(
            f"{name} holds {len(content) - header:,} bytes of data, but its header says "
            f"{' x '.join(map(str, shape))}; get it again"
        )
    return np.frombuffer(content, np.uint8, offset=header).reshape(shape)


def _base_name(name: str) -> str:
    return pathlib.PurePosixPath(name).name.removesuffix(".gz")


def read_idx(path: pathlib.Path) -> Examples:
    """Return the images and labels of four idx files, gzipped or not, as of MNIST and its relatives.

    Args:
      path: a directory or an archive, read by `read_files`.

    Returns:
      {"train": ..., "test": ...}, each a list of (uint8 [28, 28, 1], label).

    Raises:
      ValueError: a file is missing, damaged, or does not fit the others.
    """
    known = {name for names in _IDX_FILES.values() for name in names}
    files = {_base_name(name): data for name, data in read_files(path, lambda name: _base_name(name) in known).items()}
    missing = sorted(known - set(files))
    if missing:
        raise ValueError(f"{path} has no {missing[0]}, gzipped or not; give a directory or a tar archive that holds it")
    examples: Examples = {}
    for split, (image_file, label_file) in _IDX_FILES.items():
        images, labels = _idx(image_file, files[image_file], 3), _idx(label_file, files[label_file], 1)
        if images.shape[1:] != (28, 28):
            raise ValueError(f"{image_file} holds images of {images.shape[1:]}; MNIST's are 28 x 28: give its own file")
        if len(images) != len(labels) or labels.max(initial=0) > 9:
            raise ValueError(
                f"{label_file} holds {len(labels):,} labels up to {labels.max(initial=0)} for {len(images):,} images; "
                "give files that belong together, with labels 0 to 9"
            )
        examples[split] = list(zip(images[..., None], labels.tolist(), strict=True))
    return examples


class _ArraysOnly(pickle.Unpickler):
    """Reads pickled dictionaries of arrays and lists, and refuses all other names in a pickle."""

    _ALLOWED = frozenset({"_reconstruct", "ndarray", "dtype", "encode"})

    def find_class(self, module: str, name: str) -> object:
        if name in self._ALLOWED and module.split(".")[0] in ("numpy", "_codecs"):
            return super().find_class(module, name)
        raise pickle.UnpicklingError(f"it names {module}.{name}")


def _cifar_batch(name: str, content: bytes) -> list[Example]:
    """Return the images of a file of cifar-10-binary or cifar-10-python, which store red, green and blue planes."""
    try:
        if name.endswith(".bin"):
            rows = np.frombuffer(content, np.uint8).reshape(-1, 1 + int(np.prod(CIFAR_SHAPE)))
            labels, planes = rows[:, 0], rows[:, 1:]
        else:
            table = _ArraysOnly(io.BytesIO(content), encoding="bytes").load()
            labels, planes = np.array(table[b"labels"]), np.asarray(table[b"data"], np.uint8)
        images = planes.reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)
        if len(images) != len(labels) or not np.isin(labels, range(10)).all():
            raise ValueError("its labels do not fit")
    except (ValueError, KeyError, TypeError, AttributeError, IndexError, EOFError, pickle.UnpicklingError) as error:
        raise ValueError(f"{name} is not a file of CIFAR-10, or cut off ({error}); get it again") from error
    return list(zip(images, labels.tolist(), strict=True))


def read_cifar10(path: pathlib.Path) -> Examples:
    """Return the images and labels of CIFAR-10, from JPEG or PNG files or its authors' files (binary or Python).

    Args:
      path: a directory or an archive, read by `read_files`; with {train,test}/{airplane..truck}/*.jpg, or with
        data_batch_1..5 and test_batch, each with or without .bin.

    Returns:
      {"train": ..., "test": ...}, each a list of (uint8 [32, 32, 3] or Picture, label).

    Raises:
      ValueError: the files are missing, or one is damaged.
    """
    files = read_files(path, lambda name: _JPEG_PATH.fullmatch(name) or _CIFAR_BATCH.fullmatch(name))
    examples: Examples = {"train": [], "test": []}
    for name in sorted(files):
        picture, batch = _JPEG_PATH.fullmatch(name), _CIFAR_BATCH.fullmatch(name)
        if picture:
            examples[picture[1].lower()].append((Picture(name, files[name]), CIFAR_CLASSES.index(picture[2].lower())))
        elif batch:
            examples["test" if batch[1] == "test_batch" else "train"] += _cifar_batch(name, files[name])
    if not any(examples.values()):
        raise ValueError(
            f"{path} holds no train/airplane/*.jpg and the like, nor data_batch_1; give a directory or a tar archive "
            "that does"
        )
    return examples
