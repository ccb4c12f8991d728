"""The cores that this process may use, and the number of operations that a worker runs on them at once."""

import os

OPERATIONS = 8  # at least so many run at once on a worker: with fewer, long ones would delay a message


def usable_cores() -> list[int]:
    """Return the numbers of the cores."""
    return sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else list(range(os.cpu_count() or 1))
