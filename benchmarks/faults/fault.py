"""A fault as data: what is done, what has to come of it, and the judge."""

import dataclasses
import functools
import pathlib
import shutil
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from benchmarks.faults import checkpoints
from benchmarks.faults.processes import TRAIN, Process, TooLateError

LENET = (
    "--model=lenet",
    "--batch_size=20",
    "--optimizer=momentum",
    "--learning_rate_schedule=constant",
    "--devices=cpu:0",
)
ENDLESS = ("--train_epochs=100000", "--save_checkpoints_secs=1")
TRAINED_STEPS = (3, 6)  # of the checkpoints that a fault may find
_HERE = "DIR"  # a fault's directory, in rows
_LINE_LENGTH = 600
_SECONDS = 120.0
_MAKING_SECONDS = 180.0


@dataclasses.dataclass
class Shared:
    """What several faults need and none changes: made once, when it is first asked for.

    Args:
      directory: where it is to be.
    """

    directory: pathlib.Path
    _lock: Any = dataclasses.field(default_factory=threading.RLock)

    @functools.cached_property
    def _model(self) -> pathlib.Path:
        for step in TRAINED_STEPS:
            self._make([*TRAIN, *LENET, f"--max_steps={step}", f"--model_dir={self.directory / 'model'}"])
        return self.directory / "model"

    @functools.cached_property
    def _sets(self) -> pathlib.Path:
        self._make(["-m", "benchmarks.faults.sets", str(self.directory / "sets")])
        return self.directory / "sets"

    def _make(self, arguments: Sequence[str]) -> None:
        with Process(arguments) as process:
            if process.wait(_MAKING_SECONDS) != 0:
                raise RuntimeError(f"{' '.join(arguments)} failed: {' | '.join(process.said[-2:])}")

    def copy_model(self, to: pathlib.Path) -> pathlib.Path:
        """A copy of a model directory with a checkpoint of each of TRAINED_STEPS."""
        with self._lock:
            return shutil.copytree(self._model, to, dirs_exist_ok=True)

    def copy_sets(self, to: pathlib.Path) -> pathlib.Path:
        """A copy of `images`, a prepared set by the name of mnist, and `volumes`."""
        with self._lock:
            return shutil.copytree(self._sets, to)


@dataclasses.dataclass
class Outcome:
    """What came of a fault.

    Args:
      exit_code: None where the process did not end in time.
      out: lines of the standard output.
      lines: lines of the standard error that are no progress of training.
      seconds: how long it took.
      kept: what is still there, in words.
      failures: what else is not as it has to be.
      pid: the process that the line has to name.
      skipped: why it could not be done here.
    """

    exit_code: int | None = None
    out: Sequence[str] = ()
    lines: Sequence[str] = ()
    seconds: float = 0.0
    kept: str = ""
    failures: list[str] = dataclasses.field(default_factory=list)
    pid: int = 0
    skipped: str = ""


@dataclasses.dataclass
class Scene:
    """Where a fault is carried out.

    Args:
      directory: its own, empty at first.
      shared: what other faults have too.
      before: digests of the checkpoints that must stay as they are.
    """

    directory: pathlib.Path
    shared: Shared
    before: Mapping[str, str] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        self.model_dir = self.directory / "model"

    def copy_model(self, to: pathlib.Path | None = None) -> None:
        """Puts a model directory there, with a checkpoint of each of TRAINED_STEPS, which are to stay as they are."""
        self.model_dir = self.shared.copy_model(to or self.model_dir)
        self.before = checkpoints.digests(self.model_dir)

    def start(self, *flags: str) -> Process:
        """Starts an endless training."""
        return Process([*TRAIN, *LENET, *ENDLESS, f"--model_dir={self.model_dir}", *flags])

    def train(self, steps: int, *flags: str, at_least: int = 0, **options: Any) -> Outcome:
        """Trains to a step; the newest whole checkpoint must be of the step `at_least` or a later one."""
        return self.keep(run([*self._command(steps), *flags], **options), at_least)

    def _command(self, steps: int) -> list[str]:
        return [*TRAIN, *LENET, "--train_epochs=100000", f"--model_dir={self.model_dir}", f"--max_steps={steps}"]

    def keep(self, outcome: Outcome, at_least: int = 0) -> Outcome:
        """Adds to an outcome which checkpoints are whole, and what was lost."""
        after = checkpoints.digests(self.model_dir)
        changed = sorted(name for name, digest in self.before.items() if after.get(name) != digest)
        whole = sorted(checkpoints.whole(self.model_dir))
        newest = max(whole, default=0)
        outcome.kept = f"steps {', '.join(map(str, whole))}" if whole else "no checkpoint"
        outcome.failures += [f"changed or lost: {', '.join(changed)}"] if changed else []
        if newest < at_least:
            outcome.failures.append(f"the newest whole checkpoint is of step {newest}, not of {at_least}")
        return outcome

    def resume(self, outcome: Outcome) -> Outcome:
        """Adds to an outcome what is wrong where the run does not go on, now that nothing is in its way."""
        goal = (checkpoints.newest(self.model_dir) or 0) + 6
        resumed = run(self._command(goal))
        newest = checkpoints.newest(self.model_dir)
        if resumed.exit_code != 0 or newest != goal:
            said = " | ".join(resumed.lines[-2:])
            outcome.failures.append(f"not resumable: exit code {resumed.exit_code}, newest checkpoint {newest}: {said}")
        return outcome


@dataclasses.dataclass(frozen=True)
class Fault:
    """A fault.

    Args:
      name: its own, within its part.
      done: what is done, in words.
      carry_out: does it.
      exit_code: the one that is documented, or several.
      says: what the last line of the standard error has to contain; "{pid}" stands for the outcome's.
      out: what the standard output has to contain.
      lines: how many lines the standard error may have, (fewest, most); it says nothing but these.
    """

    name: str
    done: str
    carry_out: Callable[[Scene], Outcome]
    exit_code: int | tuple[int, ...] = 2
    says: str = ""
    out: str = ""
    lines: tuple[int, int] = (1, 1)

    def judge(self, directory: pathlib.Path, shared: Shared) -> dict[str, Any]:
        """Carries it out; returns what a row holds."""
        directory.mkdir(parents=True)
        begin = time.monotonic()
        try:
            outcome = self.carry_out(Scene(directory, shared))
            failures = [] if outcome.skipped else [*outcome.failures, *self._failures(outcome)]
        except (TooLateError, RuntimeError, OSError) as error:
            outcome = Outcome(seconds=time.monotonic() - begin)
            failures = [f"{type(error).__name__}: {error}"]
        return {
            "done": self.done,
            "exit_code": outcome.exit_code,
            "line": (list(outcome.lines) or [""])[-1].replace(str(directory), _HERE)[:_LINE_LENGTH],
            "lines": len(outcome.lines),
            "seconds": outcome.seconds,
            "kept": outcome.kept,
            "skipped": outcome.skipped,
            "failures": [failure.replace(str(directory), _HERE) for failure in failures],
        }

    def _failures(self, outcome: Outcome) -> list[str]:
        codes = self.exit_code if isinstance(self.exit_code, tuple) else (self.exit_code,)
        wrong, last = [], (list(outcome.lines) or [""])[-1]
        if outcome.exit_code is None:
            wrong.append("it did not end")
        elif outcome.exit_code not in codes:
            wrong.append(f"exit code {outcome.exit_code}, not {' or '.join(map(str, codes))}")
        if not self.lines[0] <= len(outcome.lines) <= self.lines[1]:
            wanted = " to ".join(map(str, sorted(set(self.lines))))
            others = " | ".join(outcome.lines[:-1])[:_LINE_LENGTH]
            wrong.append(f"{len(outcome.lines)} lines on the standard error, not {wanted}: {others or last}")
        says = self.says.replace("{pid}", str(outcome.pid))
        if says not in last:
            wrong.append(f"the line does not say {says!r}")
        if self.lines[0] and not last.startswith(("error: ", "stopped: ")):
            wrong.append("the line begins with neither error: nor stopped:")
        if self.out and not any(self.out in line for line in outcome.out):
            wrong.append(f"the standard output does not say {self.out!r}")
        if any("Traceback" in line for line in outcome.lines):
            wrong.append("a traceback")
        return wrong


def run(arguments: Sequence[str], *, seconds: float = _SECONDS, **options: Any) -> Outcome:
    """The outcome of a process that is left alone."""
    with Process(arguments, **options) as process:
        return end(process, seconds)


def end(process: Process, seconds: float = _SECONDS) -> Outcome:
    """The outcome of a process that has yet to end."""
    code = process.wait(seconds)
    return Outcome(code, process.out, process.said, process.seconds)


def command(name: str, arguments: Sequence[str], says: str, *, done: str = "", **expected: Any) -> Fault:
    """A fault that is a command line, whose "{here}" stands for its directory."""

    def carry_out(scene: Scene) -> Outcome:
        return run([argument.replace("{here}", str(scene.directory)) for argument in arguments])

    shown = " ".join(argument for argument in arguments if argument not in (*LENET, "-m"))
    return Fault(name, done or f"`{shown}`", carry_out, says=says, **expected)
