"""Lock a model directory for one run at a time. The kernel releases the lock when the process ends."""

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
class _Lock:
    descriptor: int
    thread: int
    count: int = 1


_locks: dict[str, _Lock] = {}
_guard = threading.Lock()


@contextlib.contextmanager
def run_lock(directory: str) -> Iterator[None]:
    """Hold the lock of a model directory, which is made if it is missing. A thread may lock it again.

    The file `run.lock` stays. It names the process with the lock, and its existence alone locks nothing.

    Raises:
      ValueError: another process or thread has the lock, or the directory cannot be written to.
    """
    key = os.path.realpath(directory)
    with _guard:
        own = _locks.get(key)
        if own is not None and own.thread == threading.get_ident():
            own.count += 1
        elif own is not None:
            raise ValueError(_say_who_trains(directory, f"another thread of this process, {os.getpid()},"))
        else:
            own = _locks[key] = _Lock(_take(directory), threading.get_ident())
    try:
        yield
    finally:
        with _guard:
            own.count -= 1
            if not own.count:
                del _locks[key]
                os.close(own.descriptor)


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
        raise ValueError(_say_who_trains(directory, holder or "another process")) from error
    return descriptor


def _say_who_trains(directory: str, holder: str) -> str:
    return f"model_dir is {directory!r}, where {holder} is training; wait until it ends, or choose another directory"
