"""The cores that this process may use, and the number of operations that a worker runs on them at once."""

import contextlib
import os
import pathlib

OPERATIONS = 8  # at least so many run at once on a worker: with fewer, long ones would delay a message


def usable_cores() -> list[int]:
    """Return the numbers of the cores."""
    return sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else list(range(os.cpu_count() or 1))


def quota(root: str = "/sys/fs/cgroup", own: str = "/proc/self/cgroup") -> float | None:
    """Return the cores whose time the control groups grant this process, as a number; None: no limit.

    Args:
      root: where the kernel shows control groups (version 2; a container sees its own as the root).
      own: the file that names the group of this process.
    """
    limits = []
    with contextlib.suppress(OSError, ValueError, IndexError):
        path = pathlib.PurePosixPath(pathlib.Path(own).read_text(encoding="utf-8").split("0::", 1)[1].splitlines()[0])
        for group in (path, *path.parents):
            with contextlib.suppress(OSError, ValueError):  # the root group has no such file; "max" is no number
                granted, period = pathlib.Path(root, *group.parts[1:], "cpu.max").read_text(encoding="utf-8").split()
                limits.append(int(granted) / int(period))
    return min(limits, default=None)
