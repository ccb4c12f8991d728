"""A disk that is full, or fails, while something is written: one error that says so in a line."""

import contextlib
import errno
import logging
import os
import threading
from collections.abc import Iterator
from typing import Any

from mtf_hetero._compat import tf
from mtf_hetero._support.files import PlaceError

_DISK = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EROFS, errno.ESTALE)
_WRITER_THREAD = "EventLoggerThread"  # of a tf.summary.FileWriter


class WriteError(OSError):
    """Something could not be written, because the disk is full for instance; the message says what and why."""


@contextlib.contextmanager
def as_write_error(message_start: str, also: tuple[int, ...] = ()) -> Iterator[None]:
    """Raises WriteError in place of what Python and TensorFlow raise where a disk is full or fails.

    Args:
      message_start: the beginning of the message: "cannot write to /tmp/vgg".
      also: further numbers of the operating system's errors that count as such.
    """
    try:
        yield
    except WriteError:
        raise
    except (OSError, RuntimeError, IndexError, tf.errors.OpError) as error:  # a FileWriter raises any of them
        reason = _reason(error, (*_DISK, *also))
        if reason is None:
            raise
        raise WriteError(f"{message_start}: {reason}") from error


def _reason(error: Any, numbers: tuple[int, ...]) -> str | None:
    """The operating system's words for what has happened to the disk; None for any other error."""
    if isinstance(error, PlaceError):
        return f"{error.filename} cannot be written: {error.strerror}"
    if isinstance(error, OSError):
        return os.strerror(error.errno) if error.errno in numbers else None
    operation = getattr(error, "op", None)
    if operation is not None and operation.type not in ("SaveV2", "MergeV2Checkpoints"):
        return None  # the input, for instance, cannot be read
    return next((os.strerror(number) for number in numbers if os.strerror(number) in str(error)), None)


@contextlib.contextmanager
def quiet_summary_writers() -> Iterator[None]:
    """Keeps a FileWriter's thread from printing an error that it raises again when it is next written to."""
    previous = threading.excepthook

    def report(args: Any) -> None:
        if args.thread is None or args.thread.name != _WRITER_THREAD:
            previous(args)

    def is_something_else(record: logging.LogRecord) -> bool:  # a new one each time, for these contexts are nested
        return not str(record.msg).startswith("EventFileWriter writer thread error")

    logger = logging.getLogger("tensorflow")
    logger.addFilter(is_something_else)
    threading.excepthook = report
    try:
        yield
    finally:
        threading.excepthook = previous
        logger.removeFilter(is_something_else)
