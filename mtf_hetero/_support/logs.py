"""Log lines of TensorFlow's Python code, and of this package: which are shown, and in which form."""

import contextlib
import logging
import sys
from collections.abc import Iterator

from mtf_hetero._compat import tf
from mtf_hetero._support import extras

_LOGGERS = ("tensorflow", "absl")  # tf.logging's, and that of TensorFlow's libraries


@contextlib.contextmanager
def verbosity(level: int) -> Iterator[None]:
    """Logs what is of a level or above it, and then what was logged before."""
    before = tf.logging.get_verbosity()
    tf.logging.set_verbosity(level)
    try:
        yield
    finally:
        tf.logging.set_verbosity(before)


class _Console(logging.Handler):
    """Writes "warning: ..." to the standard error, above the progress bars of a terminal."""

    def emit(self, record: logging.LogRecord) -> None:
        try:
            level = "" if record.levelno <= logging.INFO else f"{record.levelname.lower()}: "
            extras.write_above_bars(f"{level}{record.getMessage()}", sys.stderr)
        except Exception:  # as of logging.StreamHandler: after SIGHUP the terminal is gone
            self.handleError(record)


@contextlib.contextmanager
def on_console() -> Iterator[None]:
    """Shows log lines as a program's own: without absl's thread number and file, and never in the middle of a bar."""
    loggers, console = [logging.getLogger(name) for name in _LOGGERS], _Console()
    before = [(logger.handlers, logger.propagate) for logger in loggers]
    for logger in loggers:
        logger.handlers, logger.propagate = [console], False
    try:
        yield
    finally:
        for logger, (handlers, propagate) in zip(loggers, before, strict=True):
            logger.handlers, logger.propagate = handlers, propagate
