"""The cores that this process may use, and what a worker does on them at once."""

import os

OPERATIONS = 8  # of a worker side by side, at least: all may be long ones when there is something to send


def usable() -> list[int]:
    """Their numbers."""
    return sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else list(range(os.cpu_count() or 1))
