"""The part of its machine that a process may use: the time of cores, and memory.

A container, a Slurm step or a service often has less than the machine. Its limits are those of its control groups.
"""

import os
import pathlib
import re
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, TypeAlias

from mtf_hetero.cluster import runtime
from mtf_hetero.cluster.emulation import guard

if TYPE_CHECKING:
    from mtf_hetero._compat import tf

Read: TypeAlias = Callable[[str], str]  # from the name of a file to its text; "" without the file


def read_here(name: str) -> str:
    """Return the text of a file of this machine."""
    try:
        return pathlib.Path(name).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def reader(device: str, session: "tf.Session") -> Read:
    """Return a function that reads files of a worker's machine.

    Args:
      device: a CPU of the worker.
      session: in the default graph.
    """
    tf = runtime.load()
    absent = tf.errors.NotFoundError, tf.errors.PermissionDeniedError, tf.errors.FailedPreconditionError
    with tf.device(device):
        fed = tf.placeholder(tf.string, [])  # TensorFlow folds a constant name: it reads the file on this machine
        text = tf.io.read_file(fed)

    def read(name: str) -> str:
        try:
            return session.run(text, {fed: name}).decode()
        except absent:
            return ""

    return read


def processors(read: Read) -> tuple[int, int] | None:
    """Return the number of cores of the machine, and of those that a process may run on; None: not Linux."""
    of_machine = len(re.findall(r"^processor\s*:", read("/proc/cpuinfo"), re.MULTILINE))
    allowed = re.search(r"^Cpus_allowed_list:\s*(\S+)$", read("/proc/self/status"), re.MULTILINE)
    if not of_machine or allowed is None:
        return None
    ranges = [part.split("-") for part in allowed[1].split(",")]
    return of_machine, sum(int(last[-1]) - int(last[0]) + 1 for last in ranges)


def cores(read: Read = read_here) -> float | None:
    """Return the cores whose time a process is granted, as a number; None: no limit."""
    limits = []
    for group in groups("cpu", read):
        if group.version == 1:
            texts = [read(os.path.join(group.directory, f"cpu.cfs_{part}_us")) for part in ("quota", "period")]
        else:
            texts = read(os.path.join(group.directory, "cpu.max")).split()
        numbers = [int(text) for text in texts if text.strip().isdecimal()]  # no limit is "-1" or "max"
        if len(numbers) == 2:
            limits.append(numbers[0] / numbers[1])
    return min(limits, default=None)


def memory_bytes(read: Read = read_here) -> int | None:
    """Return the memory that a process may use: the machine's, or less; None: not Linux."""
    total = re.search(r"^MemTotal:\s+(\d+) kB$", read("/proc/meminfo"), re.MULTILINE)
    if total is None:
        return None
    files = {1: "memory.limit_in_bytes", 2: "memory.max"}
    texts = [read(os.path.join(group.directory, files[group.version])) for group in groups("memory", read)]
    return min([int(total[1]) * 1024, *(int(text) for text in texts if text.strip().isdecimal())])


def groups(controller: str, read: Read = read_here) -> Iterator[guard.ParentGroup]:
    """Yield the groups of a process with a controller, as `guard.parent_groups` does."""
    return guard.parent_groups(read("/proc/self/mountinfo"), read("/proc/self/cgroup"), controller)
