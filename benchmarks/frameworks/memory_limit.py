"""Holds a process to an amount of memory, by the kernel: a control group, or else a limit to its data segment."""

import contextlib
import pathlib
import re
import resource
import time

from mtf_hetero.cluster import granted

_EXIT_SECONDS = 5.0


class MemoryLimit:
    """A limit to what a process takes from now on: what it holds already is not counted. `by` says what limits it.

    A process that a control group holds is killed by the kernel when it needs more; one whose data segment is limited
    gets no more from its allocator. If the process has a control group of version 2 already, `close` leaves it alone.
    """

    def __init__(self, pid: int, size_bytes: int, group: str | None = None) -> None:
        self.by = "a memory limit of the kernel (cgroup v2)"
        self._made: pathlib.Path | None = None
        if group is not None and _try_to_write(pathlib.Path(group) / "memory.max", size_bytes):
            return
        for parent in granted.groups("memory"):
            made = pathlib.Path(parent.directory, f"mtf_hetero_memory_{pid}")
            if parent.version == 1 and self._join(made, pid, size_bytes):
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
        _try_to_write(made / "memory.swappiness", 0)
        if _try_to_write(made / "memory.limit_in_bytes", size_bytes) and _try_to_write(made / "cgroup.procs", pid):
            return True
        made.rmdir()
        return False

    def close(self) -> None:
        """Remove the control group that was made, once its process has ended."""
        end = time.monotonic() + _EXIT_SECONDS
        while self._made is not None and time.monotonic() < end:
            with contextlib.suppress(FileNotFoundError):
                try:
                    self._made.rmdir()
                except OSError:  # the kernel takes a moment to notice that it is empty
                    time.sleep(0.05)
                    continue
            self._made = None


def _try_to_write(file: pathlib.Path, value: int) -> bool:
    try:
        with file.open("r+", encoding="ascii") as opened:  # never makes a file: a control group has those that it has
            opened.write(str(value))
    except OSError:
        return False
    return True
