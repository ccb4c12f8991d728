"""A guard of the worker processes of a LocalCluster: it starts, pins, limits and always ends them.

It runs as a process of its own, between the training process and the workers, because something has to be left to
clean up when the training process is killed. It takes one JSON command a line on its standard input and answers each
with one line. Where the input ends, or its parent is gone, it ends the workers and removes their control groups and
the directory of their logs, which is its argument. Where it is itself killed, the kernel ends the workers
(PR_SET_PDEATHSIG).

The standard library alone is used: it starts in a tenth of a second, and is run by its path.
"""

import ctypes
import dataclasses
import json
import os
import re
import select
import shutil
import signal
import subprocess
import sys
import time
import types
from collections.abc import Iterator, Sequence

QUOTA_V1 = "a CPU quota of the kernel (cgroup v1)"
QUOTA_V2 = "a CPU quota of the kernel (cgroup v2)"
AFFINITY = "its cores alone"
DUTY_CYCLE = "stop and continue signals, because no control group can be made here"
_PR_SET_PDEATHSIG = 1  # of linux/prctl.h
_QUOTA_PERIOD_US = 20_000  # short, so that a step is slowed evenly; the kernel's own is 100 ms
_LEAST_QUOTA_US = 1_000  # the kernel takes no less
_DUTY_PERIOD_SECONDS = 0.04
_PARENT_CHECK_SECONDS = 1.0  # between two looks at the parent, which may be gone while the input is open


@dataclasses.dataclass(frozen=True)
class ParentGroup:
    """A control group that may get subgroups: version 1 or 2 of the kernel's interface, and its directory."""

    version: int
    directory: str


def quota_us(cores: float) -> tuple[int, int]:
    """Return (quota, period) in microseconds for a number of cores."""
    period = max(_QUOTA_PERIOD_US, round(_LEAST_QUOTA_US / cores))
    return max(_LEAST_QUOTA_US, round(cores * period)), period


def quota_settings(version: int, cores: float | None) -> dict[str, str]:
    """Return {file of a control group: its text} for a limit of cores; None: no limit."""
    quota, period = (-1, _QUOTA_PERIOD_US) if cores is None else quota_us(cores)
    if version == 1:
        return {"cpu.cfs_period_us": f"{period}", "cpu.cfs_quota_us": f"{quota}"}
    return {"cpu.max": f"{'max' if cores is None else quota} {period}"}


def parent_groups(mountinfo: str, membership: str, controller: str = "cpu") -> Iterator[ParentGroup]:
    """Yield groups with a controller: the group of the process first, then its parents.

    Args:
      mountinfo: the text of /proc/self/mountinfo.
      membership: the text of /proc/self/cgroup.
      controller: such as "memory"; of version 2 a group may have any of them.
    """
    for line in mountinfo.splitlines():
        fields, _, rest = line.partition(" - ")
        kind, _, options = rest.split(" ", 2)
        root, mount = fields.split(" ")[3:5]
        is_v1 = kind == "cgroup" and controller in options.split(",")
        if not is_v1 and kind != "cgroup2":
            continue
        pattern = rf"^\d+:(?:[^:\n]*,)?{controller}(?:,[^:\n]*)?:(.*)$" if is_v1 else r"^0::(.*)$"
        match = re.search(pattern, membership, re.MULTILINE)
        path = os.path.relpath(match[1], root) if match else "."
        parts = [] if path == "." or path.startswith("..") else path.split("/")
        for count in range(len(parts), -1, -1):
            yield ParentGroup(1 if is_v1 else 2, os.path.join(mount, *parts[:count]))


def make_group(parent: ParentGroup, name: str, cores: float) -> str | None:
    """Make a control group with a limit of cores; returns its directory, or None: the kernel refuses."""
    directory = os.path.join(parent.directory, name)
    values = quota_settings(parent.version, cores)
    try:
        os.mkdir(directory)
    except OSError:
        return None
    try:
        if not all(os.path.exists(os.path.join(directory, file)) for file in values):
            _write(os.path.join(parent.directory, "cgroup.subtree_control"), "+cpu")
        for file, value in values.items():
            _write(os.path.join(directory, file), value)
    except OSError:
        os.rmdir(directory)
        return None
    return directory


def _write(path: str, text: str) -> None:
    with open(path, "r+", encoding="ascii") as file:  # makes no file: the kernel made all files of the group
        file.write(text)


def join_new_group(parents: Sequence[ParentGroup], name: str, cores: float, pid: int) -> tuple[str, int] | None:
    """Put a process into a new group under the first parent that allows it; returns (directory, version), or None."""
    for parent in parents:
        directory = make_group(parent, name, cores)
        if directory is None:
            continue
        try:
            _write(os.path.join(directory, "cgroup.procs"), str(pid))
        except OSError:
            os.rmdir(directory)
            continue
        return directory, parent.version
    return None


@dataclasses.dataclass
class _Worker:
    process: subprocess.Popen[bytes]
    cpus: list[int]
    group: str | None = None
    version: int = 0  # of the kernel's interface to the group
    run_fraction: float = 1.0  # running part of each period, if it is stopped and continued
    stopped: bool = False
    next_seconds: float = 0.0


class Guard:
    """The worker processes, by index.

    Args:
      name: prefix of the names of the control groups.
      parents: where control groups may be made, by preference; none: workers are stopped and continued instead.
    """

    def __init__(self, name: str, parents: Sequence[ParentGroup]) -> None:
        self._name = name
        self._parents = parents
        self._workers: dict[int, _Worker] = {}
        self._group_count = 0
        self._libc = ctypes.CDLL(None, use_errno=True) if sys.platform == "linux" else None

    def start(self, index: int, command: Sequence[str], cpus: Sequence[int], log: str) -> dict[str, object]:
        """Start worker `index` on the given cores; its output is appended to the file `log`."""
        self._end(index)
        guard = os.getpid()

        def prepare() -> None:
            if self._libc is not None:
                self._libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
                os.sched_setaffinity(0, cpus)
            if os.getppid() != guard:
                os._exit(1)

        with open(log, "ab") as output:
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, preexec_fn=prepare
            )
        self._workers[index] = _Worker(process, list(cpus))
        return {"pid": process.pid}

    def limit(self, index: int, cores: float) -> dict[str, object]:
        """Limit worker `index` to a number of cores, at its start or in mid-run; returns the means."""
        worker = self._workers[index]
        is_whole = cores >= len(worker.cpus)
        if worker.group is not None:
            for file, value in quota_settings(worker.version, None if is_whole else cores).items():
                _write(os.path.join(worker.group, file), value)
        elif not is_whole:
            self._group_count += 1
            group = join_new_group(self._parents, f"{self._name}_{self._group_count}", cores, worker.process.pid)
            if group is not None:
                worker.group, worker.version = group
        if worker.group is None:
            worker.run_fraction, worker.next_seconds = min(cores / len(worker.cpus), 1.0), time.monotonic()
            if is_whole and worker.stopped:
                worker.stopped = False
                worker.process.send_signal(signal.SIGCONT)
        by = DUTY_CYCLE if worker.group is None else QUOTA_V1 if worker.version == 1 else QUOTA_V2
        return {"by": AFFINITY if is_whole else by, "group": worker.group}

    def status(self) -> dict[str, object]:
        """Return the exit code of each worker; None: it runs."""
        return {"codes": {index: worker.process.poll() for index, worker in self._workers.items()}}

    def cycle(self) -> float:
        """Stop and continue workers that are due; returns the seconds until the next one is due."""
        now = time.monotonic()
        wait = _PARENT_CHECK_SECONDS
        for worker in self._workers.values():
            if worker.run_fraction == 1.0 or worker.process.poll() is not None:
                continue
            if worker.next_seconds <= now:
                worker.stopped = not worker.stopped
                worker.process.send_signal(signal.SIGSTOP if worker.stopped else signal.SIGCONT)
                fraction = 1 - worker.run_fraction if worker.stopped else worker.run_fraction
                worker.next_seconds = now + fraction * _DUTY_PERIOD_SECONDS
            wait = min(wait, worker.next_seconds - now)
        return wait

    def _end(self, index: int) -> None:
        worker = self._workers.pop(index, None)
        if worker is None:
            return
        worker.process.kill()
        worker.process.wait()
        for _ in range(100):
            if worker.group is None:
                break
            try:
                os.rmdir(worker.group)
                break
            except FileNotFoundError:
                break
            except OSError:  # the kernel takes a moment to notice that it is empty
                time.sleep(0.02)

    def close(self) -> None:
        """End all workers and remove their control groups."""
        for worker in self._workers.values():
            worker.process.kill()
        for index in list(self._workers):
            self._end(index)


def _serve(guard: Guard) -> None:
    parent, received = os.getppid(), b""
    commands = {"start": guard.start, "limit": guard.limit, "status": guard.status}
    while True:
        readable, _, _ = select.select([0], [], [], guard.cycle())
        if os.getppid() != parent:
            return
        if not readable:
            continue
        new = os.read(0, 1 << 16)
        if not new:
            return
        *lines, received = (received + new).split(b"\n")
        for line in lines:
            command = json.loads(line)
            try:
                answer = commands[command.pop("do")](**command)
            except (OSError, subprocess.SubprocessError) as error:
                answer = {"error": str(error)}
            os.write(1, json.dumps(answer).encode() + b"\n")


def _leave(number: int, frame: types.FrameType | None) -> None:
    raise SystemExit(128 + number)


def main() -> None:
    """Serve the parent process until it ends."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _leave)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent's to handle
    parents: list[ParentGroup] = []
    if sys.platform == "linux" and "--no_groups" not in sys.argv:
        with (
            open("/proc/self/mountinfo", encoding="utf-8") as mounts,
            open("/proc/self/cgroup", encoding="utf-8") as membership,
        ):
            parents = list(parent_groups(mounts.read(), membership.read()))
    guard = Guard(f"mtf_hetero_{os.getpid()}", parents)
    try:
        _serve(guard)
    finally:
        for number in (signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        guard.close()
        shutil.rmtree(sys.argv[1], ignore_errors=True)


if __name__ == "__main__":
    main()
