"""One run at a time in a model directory: a lock that the kernel releases with the process that holds it."""

import contextlib
import dataclasses
import errno
import fcntl
import os
import socket
import threading
from collections.abc import Iterator

from mtf_hetero._support.files import PlaceError, take_descriptor

LOCK = "run.lock"


@dataclasses.dataclass
class _Held:
    descriptor: int
    thread: int
    count: int = 1


_held: dict[str, _Held] = {}
_guard = threading.Lock()


@contextlib.contextmanager
def run_lock(directory: str) -> Iterator[None]:
    """Holds the lock of a model directory, which is made if need be. A thread may take it again while it holds it.

    The file `run.lock` stays; it says who holds the lock, and of itself locks nothing.

    Args:
      directory: the model directory.

    Raises:
      ValueError: another process, or another thread of this one, holds it, or the directory cannot be written to.
    """
    key = os.path.realpath(directory)
    with _guard:
        held = _held.get(key)
        if held is not None and held.thread == threading.get_ident():
            held.count += 1
        elif held is not None:
            raise ValueError(_taken(directory, f"another thread of this process, {os.getpid()},"))
        else:
            held = _held[key] = _Held(_take(directory), threading.get_ident())
    try:
        yield
    finally:
        with _guard:
            held.count -= 1
            if not held.count:
                del _held[key]
                os.close(held.descriptor)


def _take(directory: str) -> int:
    if "://" in directory:
        raise ValueError(
            f"model_dir is {directory!r}; it must be a local path: mount the directory, and give the mount"
        )
    try:
        os.makedirs(directory, exist_ok=True)
        descriptor = take_descriptor(os.path.join(directory, LOCK), os.O_RDWR | os.O_CREAT)
    except OSError as error:
        if isinstance(error, PlaceError):
            raise ValueError(
                f"model_dir is {directory!r}, and its file {LOCK} cannot be used: {error.strerror}; remove {LOCK} if "
                "no training runs there"
            ) from error
        raise ValueError(
            f"model_dir is {directory!r}, which cannot be written to: {error.strerror}; choose another directory"
        ) from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"process {os.getpid()} on {socket.gethostname()}\n".encode(), 0)
    except OSError as error:
        if error.errno not in (errno.EWOULDBLOCK, errno.EACCES):
            os.close(descriptor)
            raise ValueError(
                f"model_dir is {directory!r}, which cannot be locked: {error.strerror}; choose another directory"
            ) from error
        holder = os.pread(descriptor, 1000, 0).decode(errors="replace").strip()
        os.close(descriptor)
        raise ValueError(_taken(directory, holder or "another process")) from error
    return descriptor


def _taken(directory: str, holder: str) -> str:
    return f"model_dir is {directory!r}, where {holder} is training; wait until it ends, or choose another directory"
