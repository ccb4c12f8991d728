"""Report a full or failing disk as one error, in one line."""

import contextlib
import errno
import logging
import os
import threading
from collections.abc import Iterator

from mtf_hetero._compat import tf
from mtf_hetero._support.files import PlaceError

_DISK = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EROFS, errno.ESTALE)
_WRITER_THREAD = "EventLoggerThread"  # of a tf.summary.FileWriter


class WriteError(OSError):
    """A file could not be written, for instance because the disk is full. The message has the file and the reason."""


@contextlib.contextmanager
def as_write_error(message_start: str, also: tuple[int, ...] = ()) -> Iterator[None]:
    """Raise WriteError in place of the errors of Python and TensorFlow about a full or failing disk.

    Args:
      message_start: the beginning of the message: "cannot write to /tmp/vgg".
      also: more error numbers of the operating system that count as such.
    """
    try:
        yield
    except WriteError:
        raise
    except (OSError, RuntimeError, IndexError, tf.errors.OpError) as error:  # a FileWriter may raise each kind
        reason = _reason(error, (*_DISK, *also))
        if reason is None:
            raise
        raise WriteError(f"{message_start}: {reason}") from error


def _reason(error: BaseException, numbers: tuple[int, ...]) -> str | None:
    """Return the operating system's message about the disk; None for any other error."""
    if isinstance(error, PlaceError):
        return f"{error.filename} cannot be written: {error.strerror}"
    if isinstance(error, OSError):
        return os.strerror(error.errno) if error.errno in numbers else None
    operation = getattr(error, "op", None)
    if operation is not None and operation.type not in ("SaveV2", "MergeV2Checkpoints"):
        return None  # for instance, an unreadable input
    return next((os.strerror(number) for number in numbers if os.strerror(number) in str(error)), None)


@contextlib.contextmanager
def quiet_summary_writers() -> Iterator[None]:
    """Keep a FileWriter's thread from printing an error, because the next write raises it again."""
    previous = threading.excepthook

    def report(args: threading.ExceptHookArgs) -> None:
        if args.thread is None or args.thread.name != _WRITER_THREAD:
            previous(args)

    def is_something_else(record: logging.LogRecord) -> bool:  # a new one each time, because contexts may nest
        return not str(record.msg).startswith("EventFileWriter writer thread error")

    logger = logging.getLogger("tensorflow")
    logger.addFilter(is_something_else)
    threading.excepthook = report
    try:
        yield
    finally:
        threading.excepthook = previous
        logger.removeFilter(is_something_else)
