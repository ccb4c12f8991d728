"""A time limit for all code that runs inside a `with` statement: measurements, searches, trials.

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
    """Limit the code inside to some seconds, or to the rest of an outer limit if that is shorter."""
    token = _END.set(min(_END.get(), time.monotonic() + seconds))
    try:
        yield
    finally:
        _END.reset(token)


def seconds_left() -> float:
    """Return the seconds until the limit: negative after it, infinity without one."""
    return _END.get() - time.monotonic()


def check() -> None:
    """Raise OutOfTimeError if the limit has passed."""
    if seconds_left() <= 0:
        raise OutOfTimeError
