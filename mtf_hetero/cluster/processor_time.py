"""The time for which a process has work: what Linux counts of it, computing and waiting for a processor.

A quota, another user or a slower processor makes it longer; a wait for another worker does not. To read it takes a
worker about 3 ms, and a step is not traced for it.
"""

import dataclasses
import glob
import itertools
import os
import re
import sys
import time
from collections.abc import Sequence

from mtf_hetero._compat import tf
from mtf_hetero.cluster import granted
from mtf_hetero.cluster.emulation import guard

_THREADS = "/proc/self/task/*/schedstat"
_COUNTS = "/proc/self/stat", "/proc/self/status", "/proc/stat", "/proc/self/cgroup"
_MOUNTS = "/proc/self/mountinfo"
_TICKS_PER_SECOND = 100  # of Linux, in the files that users read
_NS_PER_SECOND = 10**9
_PROCESS = re.compile(r"\d+ \(.*\)(.*)")
_ALLOWED = re.compile(r"Cpus_allowed_list:\s*(\S+)")
_CORE = re.compile(r"cpu(\d+) (.*)")
_GROUP = re.compile(r"\d+:[^:]*:/")
_THROTTLED = re.compile(r"throttled_(usec|time) (\d+)")  # of versions 2 and 1 of control groups
_THROTTLED_PER_SECOND = {"usec": 10**6, "time": _NS_PER_SECOND}
_LISTED_SECONDS = 60.0  # threads are kept for as long: to list them takes a worker 40 ms
_LEAST_PART = 0.02  # of the computing time, of a thread that is said to compute: a shorter one tells mostly its wake-up
_BUFFER_BYTES = 512  # of each file of a line or a few; TensorFlow takes 256 KiB by default
_MOST_LINES = 2**16  # of all files in one batch
IS_COUNTED = sys.platform == "linux"


@dataclasses.dataclass
class Counts:
    """The counters of Linux for a process, in seconds from some moment on.

    Args:
      threads: {name: seconds for which it computed, and waited for a processor} of some threads.
      computing: of all threads, also of those that have ended.
      cores: the numbers of those that the process may use.
      busy: {number of a core: seconds for which any process used it}.
      groups: the lines that name its control groups.
      throttled: while a quota stopped the process, added up over the cores.
    """

    threads: dict[str, tuple[float, float]] = dataclasses.field(default_factory=dict)
    computing: float = 0.0
    cores: set[int] = dataclasses.field(default_factory=set)
    busy: dict[int, float] = dataclasses.field(default_factory=dict)
    groups: list[str] = dataclasses.field(default_factory=list)
    throttled: float = 0.0

    @classmethod
    def read(cls, names: Sequence[str], lines: Sequence[str]) -> "Counts":
        """Read lines of the schedstat file of some threads, those of `_COUNTS`, and of the cpu.stat files of groups.

        Args:
          names: of the threads.
          lines: one for each thread, then the others.
        """
        counts = cls()
        for name, line in zip(names, lines, strict=False):
            computing, waiting, _ = map(int, line.split())
            counts.threads[name] = computing / _NS_PER_SECOND, waiting / _NS_PER_SECOND
        for line in lines[len(names) :]:
            counts._add(line)
        return counts

    def _add(self, line: str) -> None:
        if match := _PROCESS.match(line):
            self.computing = sum(map(int, match[1].split()[11:13])) / _TICKS_PER_SECOND
        elif match := _ALLOWED.match(line):
            ranges = [part.partition("-")[::2] for part in match[1].split(",")]
            self.cores = {core for first, last in ranges for core in range(int(first), int(last or first) + 1)}
        elif match := _CORE.match(line):
            user, nice, system, _idle, _waiting, *other = map(int, match[2].split()[:8])
            self.busy[int(match[1])] = sum([user, nice, system, *other]) / _TICKS_PER_SECOND
        elif _GROUP.match(line):
            self.groups.append(line)
        elif match := _THROTTLED.match(line):
            self.throttled += int(match[2]) / _THROTTLED_PER_SECOND[match[1]]

    def outside(self) -> float:
        """Return for how long other processes, or a quota, took the cores."""
        return sum(self.busy.get(core, 0.0) for core in self.cores) - self.computing + self.throttled


class WorkClock:
    """Adds up for how long a process had work, per core.

    That is its computing time, stretched as that of the thread that computes most: by its wait for a processor. The
    waits of all threads are not added, because several threads wait at once when a quota is used up. Threads wait for
    each other too. So it is not stretched by more than other processes and a quota took.
    """

    def __init__(self) -> None:
        self._last: Counts | None = None
        self._stretch, self._seconds = 1.0, 0.0

    def add(self, now: Counts) -> float | None:
        """Return the seconds since the first call; None: this is the first one.

        Args:
          now: with threads that compute. If others did since the last call, the stretch stays as it was.
        """
        last, self._last = self._last, now
        if last is None:
            return None
        before = [last.threads.get(name, (0.0, 0.0)) for name in now.threads]
        used = [(c - c0, w - w0) for (c, w), (c0, w0) in zip(now.threads.values(), before, strict=True)]
        (most, wait), computing = max(used, default=(0.0, 0.0)), now.computing - last.computing
        if most > _LEAST_PART * computing:
            self._stretch = 1.0 + wait / most
        outside = max(now.outside() - last.outside(), 0.0)
        self._seconds += min(computing * self._stretch, computing + outside) / max(len(now.cores), 1)
        return self._seconds


def _quota_files(mounts: Sequence[str], groups: Sequence[str]) -> list[str]:
    """Return the names of the files that, if they exist, count for how long a quota stops a process.

    Args:
      mounts: the lines of its mountinfo file.
      groups: those of its cgroup file.
    """
    parents = guard.parent_groups("\n".join(mounts), "\n".join(groups))
    return [os.path.join(parent.directory, "cpu.stat") for parent in parents]


class OwnReader:
    """Reads for how long this process had work."""

    def __init__(self) -> None:
        self._clock = WorkClock()
        self._groups, self._quotas = list[str](), list[str]()

    def read(self) -> float | None:
        """Return seconds since the first call; None: this is the first one, or the system does not count them."""
        threads = {name: line for name in glob.glob(_THREADS) for line in _lines(name)}
        if not threads:
            return None
        files = itertools.chain(*map(_lines, (*_COUNTS, *self._quotas)))
        counts = Counts.read(list(threads), [*threads.values(), *files])
        if counts.groups != self._groups:  # at once: a process may get a quota at any moment
            self._groups, self._clock = counts.groups, WorkClock()
            self._quotas = [*filter(os.path.exists, _quota_files(_lines(_MOUNTS), counts.groups))]
            return self.read()
        return self._clock.add(counts)


def _lines(name: str) -> list[str]:
    """Return the lines of a file; none of a thread that has ended."""
    return granted.read_here(name).splitlines()


class RemoteReader:
    """Reads the same of a worker, in a graph of its own device.

    Only threads that compute are read: others poll for messages, and to read a hundred takes 20 ms. To list threads
    takes a worker 40 ms, so they are kept for a minute, and until one of them has ended. Names are fed: TensorFlow
    folds what it reads of constant ones.
    """

    def __init__(self) -> None:
        self._patterns, self._names = (tf.placeholder(tf.string, [None]) for _ in range(2))
        self._files = tf.io.matching_files(self._patterns)
        lines = tf.data.TextLineDataset(self._names, buffer_size=_BUFFER_BYTES).batch(_MOST_LINES)
        self._lines = lines.get_single_element()
        self._listed: dict[str, int] = {}  # computing time of each thread, until the next question
        self._kept: list[str] = []
        self._groups, self._quotas = list[str](), list[str]()
        self._clock = WorkClock()
        self._until = 0.0

    def read(self, session: tf.Session) -> float | None:
        """Return the seconds of a worker since some moment, another one after None.

        None: the worker does not count them, does not answer, or its threads are listed.

        Args:
          session: on the worker.
        """
        try:
            if self._listed:
                self._choose(session)
            elif time.monotonic() > self._until:
                self._list(session)
            else:
                lines = self._read(session, [*self._kept, *_COUNTS, *self._quotas])
                counts = Counts.read(self._kept, lines)
                if counts.groups == self._groups:
                    return self._clock.add(counts)
                self._groups, self._clock = counts.groups, WorkClock()
                files = _quota_files(self._read(session, [_MOUNTS]), counts.groups)
                self._quotas = sorted(self._find(session, files))
                return self.read(session)
        except tf.errors.NotFoundError:  # a thread has ended
            self._listed, self._until = {}, 0.0
        except (tf.errors.OpError, RuntimeError, ValueError):
            self._listed, self._until = {}, time.monotonic() + _LISTED_SECONDS
        return None

    def _read(self, session: tf.Session, names: Sequence[str]) -> list[str]:
        return [line.decode("ascii", "replace") for line in session.run(self._lines, {self._names: names})]

    def _find(self, session: tf.Session, patterns: Sequence[str]) -> set[str]:
        return {name.decode() for name in session.run(self._files, {self._patterns: patterns})}

    def _computing(self, session: tf.Session, names: Sequence[str]) -> dict[str, int]:
        return {name: int(line.split()[0]) for name, line in zip(names, self._read(session, names), strict=True)}

    def _list(self, session: tf.Session) -> None:
        first, second = (self._find(session, [_THREADS]) for _ in range(2))
        self._listed = self._computing(session, sorted(first & second))  # threads that list the files have ended

    def _choose(self, session: tf.Session) -> None:
        """Keep the threads that have computed since they were listed."""
        now = self._computing(session, list(self._listed))
        used = {name: now[name] - before for name, before in self._listed.items()}
        least = _LEAST_PART * sum(used.values())
        self._listed, self._kept = {}, [name for name, seconds in used.items() if seconds > least]
        self._clock = WorkClock()
        self._until = time.monotonic() + _LISTED_SECONDS
