"""A time limit for everything that runs inside a `with` statement, however deep: measuring, searching, trying.

Example:
  >>> with within(30.0):
  ...     check()
"""

import contextlib
import contextvars
import math
import time
from collections.abc import Iterator

_END = contextvars.ContextVar("end", default=math.inf)


class OutOfTimeError(Exception):
    """The time limit has passed."""


@contextlib.contextmanager
def within(seconds: float) -> Iterator[None]:
    """Limits what runs inside to some seconds, or to what an outer limit leaves."""
    token = _END.set(min(_END.get(), time.monotonic() + seconds))
    try:
        yield
    finally:
        _END.reset(token)


def left() -> float:
    """Seconds until the limit, which may have passed; infinity without one."""
    return _END.get() - time.monotonic()


def check() -> None:
    """Raises OutOfTimeError where the limit has passed."""
    if left() <= 0:
        raise OutOfTimeError
