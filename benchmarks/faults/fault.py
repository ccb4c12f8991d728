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
from benchmarks.process import Process, TooLateError

TRAIN, WORKER, PROFILE, DATA = (("-m", "mtf_hetero", name) for name in ("train", "worker", "profile", "data"))
LENET = (
    "--model=lenet",
    "--batch_size=20",
    "--optimizer=momentum",
    "--learning_rate_schedule=constant",
    "--log_steps=10",  # the faults wait for these lines
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
    """Things that several faults need and none changes; each is made in its directory on first use."""

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
            process.succeed(_MAKING_SECONDS, f"{' '.join(arguments)} failed")

    def copy_model(self, to: pathlib.Path) -> pathlib.Path:
        """Return a copy of a model directory with a checkpoint of each of TRAINED_STEPS."""
        with self._lock:
            return shutil.copytree(self._model, to, dirs_exist_ok=True)

    def copy_sets(self, to: pathlib.Path) -> pathlib.Path:
        """Return a copy of `images`, a prepared set by the name of mnist, and `volumes`."""
        with self._lock:
            return shutil.copytree(self._sets, to)


@dataclasses.dataclass
class Outcome:
    """The outcome of a fault."""

    exit_code: int | None = None  # None where the process did not end in time
    out: Sequence[str] = ()  # lines of the standard output
    lines: Sequence[str] = ()  # lines of the standard error that are no progress of training
    seconds: float = 0.0
    kept: str = ""  # what is still there, in words
    failures: list[str] = dataclasses.field(default_factory=list)  # what else is not as it has to be
    pid: int = 0  # the process that the line has to name
    skipped: str = ""  # why it could not be done here

    def fail(self, message: str, *, unless: Any = False) -> None:
        """Add a failure."""
        self.failures += [] if unless else [message]

    @property
    def last_line(self) -> str:
        """The last line of the standard error."""
        return self.lines[-1] if self.lines else ""


@dataclasses.dataclass
class Scene:
    """The scene of a fault: a directory of its own, empty at first."""

    directory: pathlib.Path
    shared: Shared
    before: Mapping[str, str] = dataclasses.field(default_factory=dict)  # digests of what must stay as it is

    def __post_init__(self) -> None:
        self.model_dir = self.directory / "model"

    def copy_model(self, to: pathlib.Path | None = None) -> None:
        """Put a model directory there, with a checkpoint of each of TRAINED_STEPS, which are to stay as they are."""
        self.model_dir = self.shared.copy_model(to or self.model_dir)
        self.before = checkpoints.digests(self.model_dir)

    def start(self, *flags: str) -> Process:
        """Start an endless training."""
        return Process([*TRAIN, *LENET, *ENDLESS, f"--model_dir={self.model_dir}", *flags])

    def train(self, steps: int, *flags: str, at_least: int = 0, **options: Any) -> Outcome:
        """Trains to a step; the newest whole checkpoint must be of the step `at_least` or a later one."""
        return self.keep(run([*self._command(steps), *flags], **options), at_least)

    def _command(self, steps: int) -> list[str]:
        return [*TRAIN, *LENET, "--train_epochs=100000", f"--model_dir={self.model_dir}", f"--max_steps={steps}"]

    def keep(self, outcome: Outcome, at_least: int = 0) -> Outcome:
        """Add to an outcome which checkpoints are whole, and what was lost."""
        changed = checkpoints.changed(self.before, self.model_dir)
        whole = sorted(checkpoints.intact_steps(self.model_dir))
        newest = max(whole, default=0)
        outcome.kept = f"steps {', '.join(map(str, whole))}" if whole else "no checkpoint"
        outcome.fail(f"changed or lost: {', '.join(changed)}", unless=not changed)
        outcome.fail(f"the newest whole checkpoint is of step {newest}, not of {at_least}", unless=newest >= at_least)
        return outcome

    def resume(self, outcome: Outcome) -> Outcome:
        """Add to an outcome what is wrong where the run does not go on, now that nothing is in its way."""
        goal = (checkpoints.newest(self.model_dir) or 0) + 6
        resumed = run(self._command(goal))
        newest = checkpoints.newest(self.model_dir)
        said = " | ".join(resumed.lines[-2:])
        how = f"exit code {resumed.exit_code}, newest checkpoint {newest}: {said}"
        outcome.fail(f"not resumable: {how}", unless=resumed.exit_code == 0 and newest == goal)
        return outcome


@dataclasses.dataclass(frozen=True)
class Fault:
    """A fault."""

    name: str  # its own, within its part
    done: str  # what is done, in words
    carry_out: Callable[..., Outcome]  # does it, at a Scene
    args: Sequence[Any] = ()  # of `carry_out`, after the Scene
    exit_code: int | tuple[int, ...] = 2  # the one that is documented, or several
    says: str = ""  # what the last line of the standard error has to contain; "{pid}" stands for the outcome's
    out: str = ""  # what the standard output has to contain
    lines: tuple[int, int] = (1, 1)  # of the standard error, (fewest, most); it says nothing but these

    def judge(self, directory: pathlib.Path, shared: Shared) -> dict[str, Any]:
        """Carries it out; returns what a row holds."""
        directory.mkdir(parents=True)
        begin = time.monotonic()
        try:
            outcome = self.carry_out(Scene(directory, shared), *self.args)
            failures = [] if outcome.skipped else [*outcome.failures, *self._failures(outcome)]
        except (TooLateError, RuntimeError, OSError) as error:
            outcome = Outcome(seconds=time.monotonic() - begin)
            failures = [f"{type(error).__name__}: {error}"]
        return {
            "done": self.done,
            "exit_code": outcome.exit_code,
            "line": outcome.last_line.replace(str(directory), _HERE)[:_LINE_LENGTH],
            "lines": len(outcome.lines),
            "seconds": outcome.seconds,
            "kept": outcome.kept,
            "skipped": outcome.skipped,
            "failures": [failure.replace(str(directory), _HERE) for failure in failures],
        }

    def _failures(self, outcome: Outcome) -> list[str]:
        codes = self.exit_code if isinstance(self.exit_code, tuple) else (self.exit_code,)
        last, count = outcome.last_line, len(outcome.lines)
        says = self.says.replace("{pid}", str(outcome.pid))
        code = f"exit code {outcome.exit_code}, not {' or '.join(map(str, codes))}"
        others = " | ".join(outcome.lines[:-1])[:_LINE_LENGTH] or last
        wanted = " to ".join(map(str, sorted(set(self.lines))))
        wrong = {
            code if outcome.exit_code is not None else "it did not end": outcome.exit_code not in codes,
            f"{count} lines on the standard error, not {wanted}: {others}": not self.lines[0] <= count <= self.lines[1],
            f"the line does not say {says!r}": says not in last,
            "the line begins with neither error: nor stopped:": self.lines[0]
            and not last.startswith(("error: ", "stopped: ")),
            f"the standard output does not say {self.out!r}": self.out
            and not any(self.out in line for line in outcome.out),
            "a traceback": any("Traceback" in line for line in outcome.lines),
        }
        return [what for what, is_wrong in wrong.items() if is_wrong]


def run(arguments: Sequence[str], *, seconds: float = _SECONDS, **options: Any) -> Outcome:
    """Return the outcome of a process that is left alone."""
    with Process(arguments, **options) as process:
        return end(process, seconds)


def end(process: Process, seconds: float = _SECONDS) -> Outcome:
    """Return the outcome of a process that has yet to end."""
    code = process.wait(seconds)
    return Outcome(code, process.out, process.error_lines, process.seconds)


def command(name: str, arguments: Sequence[str], says: str, *, done: str = "", **expected: Any) -> Fault:
    """Return a fault that is a command line, whose "{here}" stands for its directory."""
    shown = " ".join(argument for argument in arguments if argument not in (*LENET, "-m"))

    def carry_out(scene: Scene) -> Outcome:
        return run([argument.replace("{here}", str(scene.directory)) for argument in arguments])

    return Fault(name, done or f"`{shown}`", carry_out, says=says, **expected)
