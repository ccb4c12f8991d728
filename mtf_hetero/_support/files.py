"""Files that are complete or absent, and that several processes may change at once.

This module writes every file of the programs, or `check_place` checks its place first. A device, a pipe or a link at
that place is neither replaced nor followed. tests/project/test_structure.py finds other writers.
"""

import contextlib
import errno
import os
import pathlib
import stat
import tempfile
from collections.abc import Iterator

MOST_BYTES = 2**26  # of a file that is read at once
_KINDS = {
    stat.S_IFBLK: "a device",
    stat.S_IFCHR: "a device",
    stat.S_IFDIR: "a directory",
    stat.S_IFIFO: "a pipe",
    stat.S_IFLNK: "a symbolic link",
    stat.S_IFSOCK: "a socket",
}


class PlaceError(OSError):
    """No regular file is at the place where a file is to be written."""


def check_place(path: str | os.PathLike) -> None:
    """Raise PlaceError unless the path is free or a regular file."""
    try:
        mode = os.lstat(path).st_mode
    except (FileNotFoundError, NotADirectoryError):
        return
    _check_mode(mode, path)


def _check_mode(mode: int, path: str | os.PathLike) -> None:
    if not stat.S_ISREG(mode):
        kind = _KINDS.get(stat.S_IFMT(mode), "something else")
        raise PlaceError(errno.EINVAL, f"it is {kind}, not a regular file", os.fspath(path))


@contextlib.contextmanager
def open_regular(path: str | os.PathLike, flags: int) -> Iterator[int]:
    """Open a file and give its descriptor, without following a symbolic link or waiting for a pipe.

    Raises:
      PlaceError: it is no regular file.
      OSError: it cannot be opened.
    """
    descriptor = take_descriptor(path, flags)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def take_descriptor(path: str | os.PathLike, flags: int) -> int:
    """Open a file as `open_regular` does; the caller closes the descriptor.

    Raises:
      OSError: as `open_regular` raises it.
    """
    check_place(path)
    descriptor = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o666)
    try:
        _check_mode(os.fstat(descriptor).st_mode, path)  # the file may have changed since the check
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


@contextlib.contextmanager
def new_file(path: str | os.PathLike) -> Iterator[pathlib.Path]:
    """Give a temporary path for a file, and then move the file to its place. Its directory is made if it is missing.

    A reader finds the old file or the complete new file. After an error the new file is deleted.

    Raises:
      OSError: it cannot be written, or its place holds no regular file. The old file stays as it is.
    """
    path = pathlib.Path(path)
    check_place(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".writing_{path.name}_", dir=path.parent) as temporary:
        new = pathlib.Path(temporary) / f"new{path.suffix}"
        yield new
        sync(new)  # else a power failure may leave the name without the content
        check_place(path)
        new.replace(path)


def read_text(path: str | os.PathLike) -> str:
    """Return the text of a file, without waiting for a pipe or reading a device.

    Raises:
      ValueError: it cannot be read, is no regular file, is too large, or is not text; the message says which.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        with open(descriptor, "rb") as file:
            _check_mode(os.fstat(descriptor).st_mode, path)
            data = file.read(MOST_BYTES + 1)
    except OSError as error:
        raise ValueError(error.strerror or str(error)) from error
    if len(data) > MOST_BYTES:
        raise ValueError(f"it has more than {MOST_BYTES:,} bytes")
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise ValueError("it is not text") from error


def write_text(path: str | os.PathLike, text: str) -> None:
    """Write a text file, with its directory. A reader finds the old file or the complete new text.

    Raises:
      OSError: as of `new_file`.
    """
    write_bytes(path, text.encode())


def write_bytes(path: str | os.PathLike, data: bytes) -> None:
    """Write bytes like `write_text`.

    Raises:
      OSError: as of `new_file`.
    """
    with new_file(path) as new:
        new.write_bytes(data)


@contextlib.contextmanager
def new_directory(path: str | os.PathLike) -> Iterator[pathlib.Path]:
    """Give a temporary directory, and then move it to its place. After an error it is deleted.

    Raises:
      OSError: it cannot be written, or its place is taken.
    """
    path = pathlib.Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".writing_{path.name}_", dir=path.parent) as temporary:
        made = pathlib.Path(temporary) / "new"
        made.mkdir()
        yield made
        made.rename(path)


def sync(path: str | os.PathLike) -> None:
    """Wait until a file, or the names in a directory, are on the disk."""
    descriptor = os.open(path or os.curdir, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # some file systems cannot sync a directory
            raise
    finally:
        os.close(descriptor)
