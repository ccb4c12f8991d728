"""Holds a process to an amount of memory, by the kernel: a control group, or else a limit to its data segment."""

import contextlib
import os
import pathlib
import re
import resource
import time
from collections.abc import Iterator

_EXIT_SECONDS = 5.0


class MemoryLimit:
    """A limit to what a process takes from now on: what it holds already is not counted.

    A process that a control group holds is killed by the kernel when it needs more; one whose data segment is limited
    gets no more from its allocator.

    Args:
      pid: the process.
      size_bytes: the limit.
      group: its control group of version 2, if it has one, which `close` leaves alone.

    Attributes:
      by: what limits it, in words.
    """

    def __init__(self, pid: int, size_bytes: int, group: str | None = None) -> None:
        self.by = "a memory limit of the kernel (cgroup v2)"
        self._made: pathlib.Path | None = None
        if group is not None and _written(pathlib.Path(group) / "memory.max", size_bytes):
            return
        for parent in _parents():
            made = parent / f"mtf_hetero_memory_{pid}"
            if self._join(made, pid, size_bytes):
                self.by, self._made = "a memory limit of the kernel (cgroup v1)", made
                return
        held = int(re.findall(r"^VmData:\s+(\d+)", pathlib.Path(f"/proc/{pid}/status").read_text(), re.M)[0]) * 1024
        resource.prlimit(pid, resource.RLIMIT_DATA, (held + size_bytes, held + size_bytes))
        self.by = "RLIMIT_DATA"

    def _join(self, made: pathlib.Path, pid: int, size_bytes: int) -> bool:
        try:
            made.mkdir()
        except OSError:
            return False
        _written(made / "memory.swappiness", 0)
        if _written(made / "memory.limit_in_bytes", size_bytes) and _written(made / "cgroup.procs", pid):
            return True
        made.rmdir()
        return False

    def close(self) -> None:
        """Removes the control group that was made, once its process has ended."""
        end = time.monotonic() + _EXIT_SECONDS
        while self._made is not None and time.monotonic() < end:
            with contextlib.suppress(FileNotFoundError):
                try:
                    self._made.rmdir()
                except OSError:  # the kernel takes a moment to notice that it is empty
                    time.sleep(0.05)
                    continue
            self._made = None


def _written(file: pathlib.Path, value: int) -> bool:
    try:
        with file.open("r+", encoding="ascii") as opened:  # never makes a file: a control group has those that it has
            opened.write(str(value))
    except OSError:
        return False
    return True


def _parents() -> Iterator[pathlib.Path]:
    """Groups of version 1 with the memory controller: this process's own first, then those above it."""
    try:
        mounts = pathlib.Path("/proc/self/mountinfo").read_text(encoding="utf-8").splitlines()
        membership = pathlib.Path("/proc/self/cgroup").read_text(encoding="utf-8")
    except OSError:
        return
    for line in mounts:
        fields, _, rest = line.partition(" - ")
        kind, _, options = rest.split(" ", 2)
        group = re.search(r"^\d+:(?:[^:\n]*,)?memory(?:,[^:\n]*)?:(.*)$", membership, re.MULTILINE)
        if kind != "cgroup" or "memory" not in options.split(",") or group is None:
            continue
        root, mount = fields.split(" ")[3:5]
        place = os.path.relpath(group[1], root)
        parts = [] if place == "." or place.startswith("..") else place.split("/")
        for count in range(len(parts), -1, -1):
            yield pathlib.Path(mount, *parts[:count])
