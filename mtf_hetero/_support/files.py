"""Files that are either complete or not there, and that several processes may change at once."""

import contextlib
import errno
import fcntl
import os
import pathlib
import secrets
import tempfile
from collections.abc import Iterator


def write_text(path: str | os.PathLike, text: str) -> None:
    """Writes a file, with its directory: whoever reads it finds what was there before or all of the text.

    Raises:
      OSError: it cannot be written; what was there before is as it was.
    """
    path = pathlib.Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    try:
        with open(new, "x", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())  # else a power failure may leave the name without the content
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


@contextlib.contextmanager
def locked(path: str | os.PathLike) -> Iterator[None]:
    """Keeps other processes that do the same from a file; it waits for them. The lock file beside it stays.

    Raises:
      OSError: the lock file cannot be opened or locked.
    """
    path = pathlib.Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path.with_name(f"{path.name}.lock"), "a") as lock:  # the file itself is replaced, and its lock with it
        fcntl.flock(lock, fcntl.LOCK_EX)  # until it is closed, by the end of the process too
        yield
