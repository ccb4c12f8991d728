"""The link between two devices. Pure, no TensorFlow."""

import dataclasses
import math
import numbers
from typing import Any


def is_number(x: Any) -> bool:
    """Return whether something is a finite real number, and no bool."""
    return isinstance(x, numbers.Real) and not isinstance(x, bool) and math.isfinite(x)


@dataclasses.dataclass(frozen=True)
class Link:
    """A link from one device to another.

    Args:
      latency_seconds: of a message, before any byte.
      bytes_per_second: bandwidth.

    Raises:
      ValueError: a latency below zero, or a bandwidth that is not positive.
    """

    latency_seconds: float
    bytes_per_second: float

    def __post_init__(self) -> None:
        if not (is_number(self.latency_seconds) and self.latency_seconds >= 0):
            raise ValueError(f"latency_seconds of a link is {self.latency_seconds!r}; it must be zero or more")
        if not (is_number(self.bytes_per_second) and self.bytes_per_second > 0):
            raise ValueError(f"bytes_per_second of a link is {self.bytes_per_second!r}; it must be greater than zero")

    def seconds(self, message_bytes: float) -> float:
        """Seconds for a message."""
        return self.latency_seconds + message_bytes / self.bytes_per_second
