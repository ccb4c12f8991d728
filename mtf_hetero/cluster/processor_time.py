"""The time for which a process has work: what Linux counts of it, computing and waiting for a processor.

A quota, another user or a slower processor makes it longer; a wait for another worker does not. To read it takes a
worker about a millisecond, and a step is not traced for it.
"""

import glob
import re
import sys
import time
from collections.abc import Iterable, Sequence

from mtf_hetero._compat import tf

_THREADS, _PROCESS, _STATUS = "/proc/self/task/*/schedstat", "/proc/self/stat", "/proc/self/status"
_TICKS_PER_SECOND = 100  # of Linux, in the files that users read
_CORES = re.compile(r"Cpus_allowed_list:\s*(\S+)")
_LISTED_SECONDS = 60.0
_LEAST_PART = 0.02  # of the computing time, of a thread that is said to compute: a shorter one tells mostly its wake-up
_BUFFER_BYTES = 512
_MOST_LINES = 2**16
IS_COUNTED = sys.platform == "linux"


class WorkClock:
    """Adds up for how long a process had work.

    The computing time of the process, per core, is stretched as that of the thread that computes most: by its wait for
    a processor. The waits of all threads are not added, because several threads wait at once when a quota is used up.
    It is too long where more threads compute than there are cores: they also wait for each other.
    """

    def __init__(self) -> None:
        self._last: dict[str, tuple[int, int]] = {}
        self._computing: float | None = None
        self._stretch, self._seconds = 1.0, 0.0

    def add(self, names: Sequence[str], lines: Iterable[str]) -> float | None:
        """Return the seconds since the first call; None: this is the first one.

        Args:
          names: of threads that compute; if others did since the last call, the stretch stays as it was.
          lines: of the schedstat file of each, then those of the files stat and status of the process.
        """
        now, cores, process = dict[str, tuple[int, int]](), 1, ""
        for number, line in enumerate(lines):
            if number < len(names):
                computing, waiting, _ = line.split()
                now[names[number]] = int(computing), int(waiting)
            elif number == len(names):
                process = line
            elif match := _CORES.match(line):
                ranges = [part.partition("-")[::2] for part in match[1].split(",")]
                cores = sum(int(last or first) - int(first) + 1 for first, last in ranges)
        last, self._last = self._last, now
        before, self._computing = self._computing, _computing_seconds(process)
        if before is None:
            return None
        used = [(c - last.get(name, (0, 0))[0], w - last.get(name, (0, 0))[1]) for name, (c, w) in now.items()]
        (most, wait), seconds = max(used, default=(0, 0)), self._computing - before
        if most * 1e-9 > _LEAST_PART * seconds:
            self._stretch = 1.0 + wait / most
        self._seconds += seconds * self._stretch / cores
        return self._seconds


def _computing_seconds(line: str) -> float:
    """Return the processor time of all threads of a process, also of those that have ended, by its stat file."""
    fields = line.rpartition(")")[2].split()  # its name may contain spaces
    return sum(map(int, fields[11:13])) / _TICKS_PER_SECOND


class OwnReader:
    """Reads for how long this process had work."""

    def __init__(self) -> None:
        self._clock = WorkClock()

    def read(self) -> float | None:
        """Return seconds since the first call; None: this is the first one, or the system does not count them."""
        names, lines = list[str](), list[str]()
        for name in glob.glob(_THREADS):
            try:
                with open(name, encoding="ascii") as file:
                    lines.append(file.readline())
                names.append(name)
            except OSError:  # a thread that has ended
                continue
        if not names:
            return None
        for name in (_PROCESS, _STATUS):
            with open(name, encoding="ascii", errors="replace") as file:
                lines += file
        return self._clock.add(names, lines)


class RemoteReader:
    """Reads the same of a worker, in a graph of its own device.

    Only threads that compute are read: others poll for messages, and to read a hundred takes 20 ms. To list threads
    takes a worker 40 ms, so they are kept for a minute, and until one of them has ended. Names are fed: TensorFlow
    folds what it reads of constant ones.
    """

    def __init__(self) -> None:
        self._pattern, self._names = tf.placeholder(tf.string, []), tf.placeholder(tf.string, [None])
        self._files = tf.io.matching_files(self._pattern)
        lines = tf.data.TextLineDataset(self._names, buffer_size=_BUFFER_BYTES).batch(_MOST_LINES)
        self._lines = lines.get_single_element()
        self._listed: dict[str, int] = {}  # computing time of each thread, until the next question
        self._kept: list[str] = []
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
                return self._clock.add(self._kept, self._read(session, self._kept))
        except tf.errors.NotFoundError:  # a thread has ended
            self._listed, self._until = {}, 0.0
        except (tf.errors.OpError, RuntimeError, ValueError):
            self._listed, self._until = {}, time.monotonic() + _LISTED_SECONDS
        return None

    def _read(self, session: tf.Session, names: Sequence[str]) -> list[str]:
        lines = session.run(self._lines, {self._names: [*names, _PROCESS, _STATUS]})
        return [line.decode("ascii", "replace") for line in lines]

    def _computing(self, session: tf.Session, names: Sequence[str]) -> dict[str, int]:
        lines = self._read(session, names)[: len(names)]
        return {name: int(line.split()[0]) for name, line in zip(names, lines, strict=True)}

    def _list(self, session: tf.Session) -> None:
        first, second = (session.run(self._files, {self._pattern: _THREADS}) for _ in range(2))
        names = sorted(name.decode() for name in set(first) & set(second))  # threads that list the files have ended
        self._listed = self._computing(session, names)

    def _choose(self, session: tf.Session) -> None:
        """Keep the threads that have computed since they were listed."""
        now = self._computing(session, list(self._listed))
        used = {name: now[name] - before for name, before in self._listed.items()}
        least = _LEAST_PART * sum(used.values())
        self._listed, self._kept = {}, [name for name, seconds in used.items() if seconds > least]
        self._clock = WorkClock()
        self._until = time.monotonic() + _LISTED_SECONDS
