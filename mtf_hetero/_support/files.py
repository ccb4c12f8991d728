"""Files that are either complete or not there, and that several processes may change at once.

Every file that the programs write is written here, or is checked by `check_place` first: a device, a pipe or a link
that lies at its place is neither replaced nor followed. tests/test_structure.py finds writers that do without.
"""

import contextlib
import errno
import os
import pathlib
import secrets
import stat
import tempfile
from collections.abc import Iterator

MOST_BYTES = 2**26  # of a file that is read as a whole
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
    """Raises PlaceError unless a file may be written at a path: nothing is there, or a regular file."""
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
    """Opens a file and gives its descriptor; neither follows a symbolic link nor waits for a pipe.

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
    """Opens a file as `open_regular` does; the caller closes the descriptor.

    Raises:
      OSError: as of `open_regular`.
    """
    check_place(path)
    descriptor = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o666)
    try:
        _check_mode(os.fstat(descriptor).st_mode, path)  # it may have changed since it was checked
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


@contextlib.contextmanager
def replaced(path: str | os.PathLike) -> Iterator[pathlib.Path]:
    """Gives a path to write a file to, and then moves it to its place, with its directory made if need be.

    A reader finds what was there before, or the whole new file. After an error nothing is left of the new one.

    Raises:
      OSError: it cannot be written, or no regular file is at its place; what was there before is as it was.
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


def read_text(path: str | os.PathLike, most_bytes: int = MOST_BYTES) -> str:
    """Returns the text of a file; waits for no pipe, and reads no device.

    Raises:
      ValueError: it cannot be read, is no regular file, is too large, or is not text; the message says which.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        with open(descriptor, "rb") as file:
            _check_mode(os.fstat(descriptor).st_mode, path)
            data = file.read(most_bytes + 1)
    except OSError as error:
        raise ValueError(error.strerror or str(error)) from error
    if len(data) > most_bytes:
        raise ValueError(f"it has more than {most_bytes:,} bytes")
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise ValueError("it is not text") from error


def write_text(path: str | os.PathLike, text: str) -> None:
    """Writes a file, with its directory: whoever reads it finds what was there before or all of the text.

    Raises:
      OSError: as of `replaced`.
    """
    write_bytes(path, text.encode())


def write_bytes(path: str | os.PathLike, data: bytes) -> None:
    """Writes a file as `write_text` does.

    Raises:
      OSError: as of `replaced`.
    """
    path = pathlib.Path(path)
    check_place(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    try:
        with open(new, "xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())  # else a power failure may leave the name without the content
        check_place(path)
        new.replace(path)
    except BaseException:
        new.unlink(missing_ok=True)
        raise


@contextlib.contextmanager
def new_directory(path: str | os.PathLike) -> Iterator[pathlib.Path]:
    """Gives a directory to write to, beside its place, and then moves it there; after an error nothing is left.

    Raises:
      OSError: it cannot be written, or something is at its place.
    """
    path = pathlib.Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".writing_{path.name}_", dir=path.parent) as temporary:
        made = pathlib.Path(temporary) / "new"
        made.mkdir()
        yield made
        made.rename(path)


def sync(path: str | os.PathLike) -> None:
    """Waits until a file, or the names in a directory, are on the disk."""
    descriptor = os.open(path or os.curdir, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # of a file system that cannot wait for a directory
            raise
    finally:
        os.close(descriptor)
