"""Random sequences of faults: workers are killed, stopped, started again, added, removed, slowed down."""

import dataclasses
import os
import pathlib
import random
import signal
import time
from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.process import Process
from mtf_hetero.cluster import LocalCluster
from mtf_hetero.estimator import metrics_log

KILL, STOP, CONTINUE, RETURN, JOIN, LEAVE, QUOTA = "kill", "stop", "continue", "return", "join", "leave", "quota"
UP, KILLED, STOPPED, AWAY = "up", "killed", "stopped", "away"  # states of a worker
AFTER = {KILL: KILLED, STOP: STOPPED, CONTINUE: UP, RETURN: UP, JOIN: UP, LEAVE: AWAY, QUOTA: UP}
_BEFORE = {
    KILL: (UP, STOPPED),
    STOP: (UP,),
    CONTINUE: (STOPPED,),
    RETURN: (KILLED, STOPPED),
    JOIN: (AWAY,),
    LEAVE: (UP,),
    QUOTA: (UP,),
}
_CORES = (0.1, 0.2, 0.5)  # of a quota
_OF_CHANGES = ("step", "why", "source", "repeated_steps", "seconds_paused")
_AT_ONCE, _DELAY_SECONDS = 0.4, 3.0  # share of the happenings soon after the last one, before training continues maybe
_STUCK_SECONDS, _END_SECONDS, _POLL_SECONDS = 180.0, 300.0, 0.1


@dataclasses.dataclass(frozen=True)
class Happening:
    """A change of a worker.

    Args:
      step: after which it comes.
      seconds: that it comes later than the step, or than the last happening after the same step.
      what: KILL, for instance.
      worker: its index.
      cores: of a QUOTA.
    """

    step: int
    seconds: float
    what: str
    worker: int
    cores: float = 1.0

    def __str__(self) -> str:
        late = f"+{self.seconds:.1f} s" if self.seconds else ""
        return f"{self.step}{late} {self.what} {self.worker}{f' {self.cores:g}' if self.what == QUOTA else ''}"


def choose(rng: random.Random, *, workers: int, spare: int, count: int, steps: int) -> list[Happening]:
    """Choose what happens in a training; one worker is up at any time.

    Args:
      rng: random numbers.
      workers: number of workers at the beginning.
      spare: number of workers that may join.
      count: number of happenings.
      steps: of the training, in whose last quarter nothing happens.
    """
    states = [UP] * workers + [AWAY] * spare
    chosen: list[Happening] = []
    for step in sorted(rng.sample(range(10, max(3 * steps // 4, 11 + count)), count)):
        what, worker = rng.choice(_possible(states, rng))
        soon = bool(chosen) and rng.random() < _AT_ONCE
        states[worker] = AFTER[what]
        seconds = round(rng.uniform(0, _DELAY_SECONDS), 1) if soon else 0.0
        chosen.append(Happening(chosen[-1].step if soon else step, seconds, what, worker, rng.choice(_CORES)))
    return chosen


def _possible(states: Sequence[str], rng: random.Random) -> list[tuple[str, int]]:
    """Return one pair (what, worker) of each kind that is possible."""
    pairs = []
    for what, of in _BEFORE.items():
        workers = [worker for worker, state in enumerate(states) if state in of]
        if AFTER[what] != UP and states.count(UP) < 2:
            workers = [worker for worker in workers if states[worker] != UP]
        if workers:
            pairs.append((what, rng.choice(workers)))
    return pairs


def write_hosts(path: pathlib.Path, addresses: Sequence[str]) -> None:
    """Write a file of workers for `--workers`."""
    temporary = path.with_suffix(".new")
    temporary.write_text("".join(f"{address}\n" for address in addresses), encoding="utf-8")
    temporary.replace(path)


def restore(workers: LocalCluster, happenings: Sequence[Happening]) -> None:
    """Have all workers as they were before a sequence."""
    last = {
        happening.worker: happening.what for happening in happenings if happening.what in (KILL, STOP, CONTINUE, RETURN)
    }
    for worker, what in last.items():
        if what in (KILL, STOP):
            workers.restart(worker)
    for worker in {happening.worker for happening in happenings}:
        workers.limit(worker)


class Disturbed:
    """A training while something happens to its workers."""

    def __init__(self, workers: LocalCluster, process: Process, model_dir: pathlib.Path, hosts: pathlib.Path) -> None:
        self._workers, self._process, self._hosts = workers, process, hosts
        self._path = model_dir / metrics_log.NAME
        self._seen: set[tuple[int, float]] = set()

    @property
    def changes(self) -> list[dict[str, Any]]:
        """Return the changes of the place so far."""
        return [{name: row[name] for name in _OF_CHANGES} for row in metrics_log.read_kind(self._path, "event")]

    def carry_out(self, happenings: Sequence[Happening]) -> None:
        """Do what was chosen.

        Raises:
          RuntimeError: the training does not continue, or a worker does not start.
        """
        for happening in happenings:
            self._await_step(happening.step)
            time.sleep(happening.seconds)
            self._do(happening)

    def await_end(self) -> None:
        """Wait for the end of the training.

        Raises:
          RuntimeError: it does not end, or fails.
        """
        end = time.monotonic() + _END_SECONDS
        while self._process.wait_briefly() and time.monotonic() < end:
            self._look()
        self._process.succeed(0.0, "the training did not end")
        self._look()
        if any("Traceback" in line for line in self._process.err):
            raise RuntimeError("the training shows a traceback")

    def compare(self, expected: Mapping[int, float]) -> float:
        """Return the largest relative difference from expected losses, of repeated steps too.

        Raises:
          RuntimeError: a step is missing.
        """
        steps = {step for step, _ in self._seen}
        if steps != set(expected):
            raise RuntimeError(f"steps {sorted(set(expected) ^ steps)} were not trained, or too many")
        return max(abs(loss - expected[step]) / abs(expected[step]) for step, loss in self._seen)

    def _look(self) -> int:
        """Return the last step so far."""
        rows = metrics_log.read_kind(self._path, "train")
        self._seen |= {(row["step"], row["loss"]) for row in rows}
        return rows[-1]["step"] if rows else 0

    def _await_step(self, step: int) -> None:
        last, since = -1, time.monotonic()
        while (now := self._look()) < step:
            if now != last:
                last, since = now, time.monotonic()
            if not self._process.wait_briefly() or time.monotonic() - since > _STUCK_SECONDS:
                raise RuntimeError(f"the training is stuck at step {now}: {self._process.last_words}")
            time.sleep(_POLL_SECONDS)

    def _do(self, happening: Happening) -> None:
        worker, what = happening.worker, happening.what
        if what == RETURN:
            self._workers.restart(worker)
        elif what == QUOTA:
            self._workers.limit(worker, happening.cores)
        elif what in (JOIN, LEAVE):
            listed = set(self._hosts.read_text(encoding="utf-8").split()) ^ {self._workers.addresses[worker]}
            write_hosts(self._hosts, sorted(listed))
        else:
            number = {KILL: signal.SIGKILL, STOP: signal.SIGSTOP, CONTINUE: signal.SIGCONT}[what]
            os.kill(self._workers.pids[worker], number)
