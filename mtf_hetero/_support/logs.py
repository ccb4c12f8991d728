"""Choose which log lines of TensorFlow's Python code and of this package are shown, and their form."""

import contextlib
import logging
import sys
from collections.abc import Iterator

from mtf_hetero._compat import tf
from mtf_hetero._support import extras

_LOGGERS = ("tensorflow", "absl")  # of tf.logging, and of TensorFlow's libraries


@contextlib.contextmanager
def log_level(level: int) -> Iterator[None]:
    """Set the log level in a context."""
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
        except Exception:  # like logging.StreamHandler: after SIGHUP the terminal is gone
            self.handleError(record)


@contextlib.contextmanager
def on_console() -> Iterator[None]:
    """Show log lines without absl's thread number and file, and above progress bars."""
    loggers, console = [logging.getLogger(name) for name in _LOGGERS], _Console()
    before = [(logger.handlers, logger.propagate) for logger in loggers]
    for logger in loggers:
        logger.handlers, logger.propagate = [console], False
    try:
        yield
    finally:
        for logger, (handlers, propagate) in zip(loggers, before, strict=True):
            logger.handlers, logger.propagate = handlers, propagate
