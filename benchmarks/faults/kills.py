"""Runs that are killed again and again, each resumed on another layout; and what became of them."""

import dataclasses
import itertools
import pathlib
import random
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from benchmarks.faults import checkpoints
from benchmarks.process import Process, TooLateError

_TRAINING = ("-m", "benchmarks.faults.training")
_QUIET = {"TF_CPP_MIN_LOG_LEVEL": "2", "CUDA_VISIBLE_DEVICES": ""}
LAYOUTS = ("three", "batch", "two", "one")  # of benchmarks.faults.training
SAVE_STEPS = 3
_PAUSE_SECONDS = 0.02  # after each step, so that a run is not over before it is killed
_STEPS_PER_KILL = 60
_WAIT_SECONDS = 90.0
_START_WINDOW_SECONDS = 1.5  # graph, session and restore take as long
_WINDOW_SECONDS = 1.0
_SOURCE = pathlib.Path(__file__).with_name("kill_at_call.c")

BEFORE_FIRST_STEP = "before the first step"
MOMENT, START, CALL, START_CALL = "moment", "start", "call", "start call"


@dataclasses.dataclass(frozen=True)
class Kill:
    """One kill.

    MOMENT: so many seconds after the first save; START: after the imports; CALL: before or after a call below the
    model directory, counted from 1 and from the run's first save on; START_CALL: from the beginning on.
    """

    kind: str
    seconds: float = 0.0
    number: int = 0
    when: str = "before"


def start(model_dir: pathlib.Path, *flags: str, environment: Mapping[str, str] | None = None) -> Process:
    """Start a training that is there to be killed."""
    return Process([*_TRAINING, str(model_dir), *flags], environment={**_QUIET, **(environment or {})})


def begun(process: Process) -> int | None:
    """Return the step at which a training began, or None."""
    steps = (int(line.split()[1]) for line in process.out if line.startswith("begun"))
    return next(steps, None)


def compile_killer(directory: pathlib.Path) -> pathlib.Path | None:
    """Return the library that kills at a call, or None where there is no C compiler."""
    compiler = shutil.which("cc")
    if compiler is None:
        return None
    library = directory / "kill_at_call.so"
    command = [compiler, "-Wno-nonnull-compare", "-shared", "-fPIC", "-o", str(library), str(_SOURCE), "-ldl"]
    subprocess.run(command, check=True, capture_output=True)
    return library


def choose_kills(count: int, calls: int, rng: random.Random) -> list[Kill]:
    """Kills before and after each of the calls of a save, up to three quarters, and others at random moments."""
    kills = [Kill(CALL, number=number + 1, when=when) for number in range(calls) for when in ("before", "after")]
    kills = rng.sample(kills, min(len(kills), count * 3 // 4))
    while len(kills) < count:
        kind = rng.choices([MOMENT, START, START_CALL], [6, 1, 1] if calls else [6, 2, 0])[0]
        window = {MOMENT: _WINDOW_SECONDS, START: _START_WINDOW_SECONDS, START_CALL: 0.0}[kind]
        kills.append(Kill(kind, rng.uniform(0, window), rng.randint(1, 10), rng.choice(["before", "after"])))
    rng.shuffle(kills)
    return kills


def count_calls(directory: pathlib.Path, library: pathlib.Path) -> list[str]:
    """Return the calls of one save below the model directory, after old checkpoints are removed: ["rename index", ...].

    They depend on the layout: those of the layout with the most.
    """
    chain = Chain(directory, library)
    chain.finish(4 * SAVE_STEPS)
    calls = []
    for number in range(len(LAYOUTS)):
        chain.finish((5 + number) * SAVE_STEPS, count=True)
        calls.append(chain.calls())
    if chain.failures:
        raise RuntimeError(f"the calls of a save could not be counted: {chain.failures[0]}")
    return max(calls, key=len)


@dataclasses.dataclass
class Chain:
    """Runs in one model directory, one after another."""

    directory: pathlib.Path  # of the chain; the model directory is in it
    killer: pathlib.Path | None  # what `compile_killer` made
    first: int = 0  # which of the layouts the first run has

    def __post_init__(self) -> None:
        self.model_dir = self.directory / "model"
        self.model_dir.mkdir(parents=True, exist_ok=True)
        self._log = self.directory / "calls"
        self._layouts = itertools.islice(itertools.cycle(LAYOUTS), self.first, None)
        self.counts: dict[str, Any] = {"kills": 0, "resumed": 0, "from_newest": 0, "from_zero": 0}
        self.hits: list[str] = []
        self.failures: list[str] = []
        self._pending = 0  # kills after which no run has begun yet
        self._newest: int | None = None

    def calls(self) -> list[str]:
        """Return the calls of the last run, and the kind of file of each."""
        lines = self._log.read_text(encoding="utf-8").splitlines() if self._log.exists() else []
        return [f"{call} {file_kind(path)}" for call, _, path in (line.partition(" ") for line in lines)]

    def kill(self, kill: Kill, steps: int) -> None:
        """Start a run to a given step, kill it, and judge its beginning."""
        environment = {}
        if kill.kind in (CALL, START_CALL):
            from_start = {"KILL_FROM_START": "1"} if kill.kind == START_CALL else {}
            environment = {**self._killer(), "KILL_AT": str(kill.number), "KILL_WHEN": kill.when, **from_start}
        with self._start(steps, environment, pause=_PAUSE_SECONDS) as process:
            try:
                if kill.kind in (MOMENT, START):
                    process.await_line("saved" if kill.kind == MOMENT else "imported", of="out", seconds=_WAIT_SECONDS)
                    time.sleep(kill.seconds)
                    process.send(signal.SIGKILL)
            except TooLateError as error:
                self.failures.append(str(error))
            code = process.wait(_WAIT_SECONDS)
        self._judge_begin(process)
        if code != -signal.SIGKILL:
            how = "did not end" if code is None else f"ended with exit code {code}"
            self.failures.append(f"a run that was to be killed {how}: {process.last_words}")
            return
        self.counts["kills"] += 1
        self._pending += 1
        self.hits.append(self._hit(kill, process))
        newest = checkpoints.newest(self.model_dir)
        if self._newest is not None and (newest is None or newest < self._newest):
            self.failures.append(f"whole checkpoint {self._newest} was lost: {self.hits[-1]}")
        self._newest = newest

    def finish(self, steps: int, *, count: bool = False) -> None:
        """Lets a run go on to its end, and judges how it began."""
        with self._start(steps, self._killer() if count else {}) as process:
            code = process.wait(4 * _WAIT_SECONDS)
        self._judge_begin(process)
        if code != 0:
            self.failures.append(f"the last run ended with exit code {code}: {process.last_words}")
        self._newest = checkpoints.newest(self.model_dir)

    def _killer(self) -> dict[str, str]:
        self._log.unlink(missing_ok=True)
        return {"LD_PRELOAD": str(self.killer), "KILL_BELOW": str(self.model_dir), "KILL_LOG": str(self._log)}

    def _start(self, steps: int, environment: dict[str, str], pause: float = 0.0) -> Process:
        options = [f"--layout={next(self._layouts)}", f"--steps={steps}", f"--save_steps={SAVE_STEPS}"]
        return start(self.model_dir, *options, f"--pause_seconds={pause}", environment=environment)

    def _judge_begin(self, process: Process) -> None:
        step = begun(process)
        if step is None or not self._pending:
            return
        whole = self._newest or 0
        self.counts["resumed"] += self._pending
        self.counts["from_newest"] += self._pending * (step == whole)
        self.counts["from_zero"] += self._pending * (step == 0 and whole > 0)
        if step != whole:
            last = self.hits[-self._pending :]
            self.failures.append(f"begun at step {step}, not {whole}, after a kill at {' and '.join(last)}")
        self._pending = 0

    def _hit(self, kill: Kill, process: Process) -> str:
        """Return the place that a kill hit, in words."""
        if kill.kind in (CALL, START_CALL):
            calls = self.calls()
            return f"{kill.when} {calls[-1]}" if len(calls) == kill.number else "no such call"
        words = [line.split()[0] for line in process.out if line.strip()]
        if "begun" not in words:
            return BEFORE_FIRST_STEP
        return "while saving" if words[-1] == "saving" else "between two saves"


def file_kind(path: str) -> str:
    """Return a file's name below a model directory without steps, numbers of parts and random letters."""
    name = re.sub(r"(_temp|tempstate|\.tmp)-?[0-9a-f]+", r"\1", path)
    return re.sub(r"(?<=-)\d+", "N", name)


def final_values(directory: pathlib.Path, steps: int) -> dict[str, Any]:
    """Return the values after so many steps of a run on one device that nothing happened to."""
    with start(directory, "--layout=one", f"--steps={steps}", f"--save_steps={steps}") as process:
        process.succeed(4 * _WAIT_SECONDS, "the run on one device failed")
    return checkpoints.values(directory, steps)


def total_steps(kills: int) -> int:
    """To which step a chain goes: more than its runs take until they are killed."""
    return _STEPS_PER_KILL * (kills + 1)


def run_chain(
    directory: pathlib.Path, library: pathlib.Path | None, kills: Sequence[Kill], expected: Any, first: int
) -> dict[str, Any]:
    """Carries out a Chain of kills, one run after another; returns what a row holds.

    The values at the end are expected to be those of a run that nothing happened to.
    """
    chain = Chain(directory, library, first)
    steps = total_steps(len(kills))
    for kill in kills:
        chain.kill(kill, steps)
    chain.finish(steps)
    error = None
    if checkpoints.newest(chain.model_dir) == steps:
        values = checkpoints.values(chain.model_dir, steps)
        if values.keys() != expected.keys():
            chain.failures.append(f"variables {sorted(values.keys() ^ expected.keys())} are there or not")
        error = max(float(np.max(np.abs(values[name] - expected[name]))) for name in values.keys() & expected.keys())
    if error is None or not error <= 1e-9:
        chain.failures.append(f"the values at the end differ by {error} from those of one device")
    return {**chain.counts, "hits": chain.hits, "steps": steps, "error": error, "failures": chain.failures}
