"""The pace of copies of a training's state in memory: they take 1 % of the time."""

import contextlib
import time
from collections.abc import Iterator

_SHARE = 0.01  # of the time
_BYTES_PER_SECOND = 1e9  # of a first copy


class CopyPace:
    """The pace of copies of a state, of which each is measured."""

    def __init__(self, size_bytes: int) -> None:
        self._seconds = size_bytes / _BYTES_PER_SECOND
        self.wait()

    def wait(self) -> None:
        """Begin the time until the next copy: there is a copy of the present state."""
        self._due = time.monotonic() + self._seconds / _SHARE

    @property
    def is_due(self) -> bool:
        """Return whether it is time for a copy."""
        return time.monotonic() >= self._due

    @contextlib.contextmanager
    def measure(self) -> Iterator[None]:
        """Measure a copy, after which the time until the next one begins."""
        begin = time.monotonic()
        yield
        self._seconds = time.monotonic() - begin
        self.wait()
