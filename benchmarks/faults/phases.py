"""Workers that are killed in each phase of a training and started again: it ends by itself, with the same results.

    python -m benchmarks.run phases

The training is one of the programs of `phase_programs`. It comes to a point of a phase, kills workers, and says so on
its standard output. This process starts the workers again, or does what else belongs to the phase. Results are losses,
tests and the weights at the end, in float64.
"""

import contextlib
import dataclasses
import itertools
import math
import pathlib
import queue
import re
import signal
import socket
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from benchmarks.faults.workers import Worker
from benchmarks.process import Process, TooLateError

TRAIN, FILE, FIT, FUNCTION = "train", "file", "fit", "function"
PROGRAMS: Mapping[str, str] = {
    TRAIN: "`train`",
    FILE: "`train --model=FILE.keras`",
    FIT: "`keras.fit`",
    FUNCTION: "`function`",
}
LAYOUTS, UNDISTURBED = ("batch", "filters"), "undisturbed"
TRACING, FIRST, MIDDLE, TEST, SAVE, MOVE, NOWHERE = "tracing", "first", "middle", "test", "save", "move", "nowhere"
STEPS, TOLERANCE = 16, 1e-9
_FILE_TOLERANCE = 1e-6  # whose outputs become float32, as the images are
_LIMIT_SECONDS, _STOPPED_SECONDS, _DELAY_SECONDS = 180.0, 60.0, 0.05
_OF_PROGRAM = re.compile(r"W(?!0000|ARNING: All log)|warning: |error: |stopped: ")  # lines that are no native ones
_WAIT_SECONDS = {True: 60, False: 3}  # for a worker that returns, or does not


@dataclasses.dataclass(frozen=True)
class Phase:
    """A phase, and what happens there.

    Args:
      text: for the reader.
      point: at which the training kills.
      kills: indices of the workers that it kills.
      returns: whether they are started again.
      workers: their number.
      missing: the programs without this phase.
    """

    text: str
    point: str = MIDDLE
    kills: tuple[int, ...] = (1,)
    returns: bool = True
    workers: int = 2
    missing: tuple[str, ...] = ()


PHASES: Mapping[str, Phase] = {
    UNDISTURBED: Phase("nothing happens", NOWHERE, ()),
    "tracing": Phase("while the step is lowered", TRACING),
    "first": Phase("in the first step", FIRST),
    "middle": Phase("in the sixth step", MIDDLE),
    "validation": Phase("in a validation", TEST, missing=(FUNCTION,)),
    "save": Phase("while values are fetched for a save", SAVE),
    "rebalance": Phase("in the pause of a change of the shares", MOVE),
    "twice": Phase("in the sixth step, and after its return again"),
    "second": Phase("in the sixth step; another one when the first has returned", workers=3),
    "all": Phase("all workers, in the sixth step", kills=(0, 1)),
    "lost in tracing": Phase("while the step is lowered, for ever", TRACING, returns=False),
    "lost": Phase("in the sixth step, for ever", returns=False),
    "lost in validation": Phase("in a validation, for ever", TEST, returns=False, missing=(FUNCTION,)),
    "stopped": Phase("SIGSTOP of the training process for 60 s", kills=()),
    "delay": Phase("50 ms each way to and from a worker, nothing killed", NOWHERE, ()),
}


@dataclasses.dataclass(frozen=True)
class Cell:
    """A run: one of PROGRAMS on one of LAYOUTS, through one of PHASES."""

    program: str
    layout: str
    phase: str

    @property
    def name(self) -> str:
        """Its name in rows."""
        return f"{self.program}/{self.layout}/{self.phase}"

    @property
    def undisturbed(self) -> "Cell":
        """The run with whose results those of this one are compared."""
        return dataclasses.replace(self, phase=UNDISTURBED)

    @property
    def tolerance(self) -> float:
        """The largest difference of results, relative to the largest value of each array."""
        return _FILE_TOLERANCE if self.program == FILE else TOLERANCE

    def carry_out(self, directory: pathlib.Path) -> dict[str, Any]:
        """Run it in a directory for all cells, the undisturbed one before; returns what a row holds."""
        place, phase = directory / self.name, PHASES[self.phase]
        place.mkdir(parents=True)
        failures: list[str] = []
        with contextlib.ExitStack() as stack:
            workers = [stack.enter_context(Worker()) for _ in range(phase.workers)]
            addresses = [worker.address for worker in workers]
            if self.phase == "delay":
                addresses[1] = stack.enter_context(_delayed(addresses[1]))
            _write_pids(place, [workers[index] for index in phase.kills])
            arguments = ["-m", "benchmarks.faults.phase_programs", self.program, self.layout, str(place), phase.point]
            arguments += [",".join(addresses), str(_WAIT_SECONDS[phase.returns])]
            arguments += ["--twice"] if self.phase == "twice" else []
            training = stack.enter_context(Process(arguments))
            end = time.monotonic() + _LIMIT_SECONDS
            try:
                if phase.point != NOWHERE:
                    self._disturb(training, workers, place)
                code = training.wait(end - time.monotonic())
            except TooLateError as error:
                failures, code = [str(error)], training.wait(0.0)
            seconds = _LIMIT_SECONDS + time.monotonic() - end
        points = [line.removeprefix("at ") for line in training.out if line.startswith("at ")]
        lines = [line for line in training.error_lines if _OF_PROGRAM.match(line)]
        failures += self._judge(code, lines, training)
        values = {**dataclasses.asdict(self), "points": points, "exit_code": code, "seconds": seconds}
        values |= {"devices": [f"worker:{index}/cpu:0" for index in range(phase.workers)], "difference": None}
        if code == 0:
            values["difference"] = _difference(place, directory / self.undisturbed.name)
            if not values["difference"] <= self.tolerance:
                failures.append(f"results differ by {values['difference']:.1e}")
        return {**values, "lines": lines, "failures": failures}

    def _judge(self, code: int | None, lines: Sequence[str], training: Process) -> list[str]:
        """Return what is wrong with the end of a training, and its lines for the user."""
        failures = ["a traceback"] if any("Traceback" in line for line in training.err) else []
        if code != 0:
            how = "it did not end" if code is None else f"exit code {code}"
            failures.append(f"{how}: {training.last_words}")
        errors = [line for line in lines if line.startswith("error: ")]
        if errors:
            failures.append(f"errors: {' | '.join(errors)}")
        return failures

    def _disturb(self, training: Process, workers: Sequence[Worker], place: pathlib.Path) -> None:
        """Do what the training cannot do itself, once it has come to the point."""
        at = training.await_line("^at ", of="out", seconds=_LIMIT_SECONDS)
        if self.phase == "stopped":
            training.send(signal.SIGSTOP)
            time.sleep(_STOPPED_SECONDS)
            training.send(signal.SIGCONT)
        phase = PHASES[self.phase]
        for index in phase.kills if phase.returns else ():
            _restart(workers[index])
            _write_pids(place, [workers[index]])
        if self.phase == "second":
            _restart(workers[2])
        if self.phase == "twice":
            training.await_line("^at ", of="out", after=at + 1, seconds=_LIMIT_SECONDS)
            _restart(workers[1])


def list_cells() -> list[Cell]:
    """Return all runs."""
    return [
        Cell(program, layout, name)
        for program, layout in itertools.product(PROGRAMS, LAYOUTS)
        for name, phase in PHASES.items()
        if program not in phase.missing
    ]


def _restart(worker: Worker) -> None:
    worker.close()  # which kills it, unless that was done
    worker.restart()


def _write_pids(directory: pathlib.Path, workers: Sequence[Worker]) -> None:
    temporary = directory / "pids.new"
    temporary.write_text(" ".join(str(worker.pid) for worker in workers), encoding="utf-8")
    temporary.replace(directory / "pids")


def _difference(place: pathlib.Path, expected: pathlib.Path) -> float:
    """Return the largest difference of the results of two runs, relative to the largest value of each array."""
    found, wanted = (dict(np.load(path / "results.npz")) for path in (place, expected))
    if found.keys() != wanted.keys() or any(found[name].shape != wanted[name].shape for name in found):
        return math.inf
    scales = {name: max(float(np.max(np.abs(array))), 1e-3) for name, array in wanted.items()}
    return max(float(np.max(np.abs(found[name] - wanted[name]))) / scales[name] for name in wanted)


@contextlib.contextmanager
def _delayed(address: str) -> Iterator[str]:
    """Yield the address of a relay to a worker, which keeps all bytes for a while, each way."""
    listener = socket.create_server(("127.0.0.1", 0))

    def send(target: socket.socket, chunks: queue.SimpleQueue[tuple[float, bytes]]) -> None:
        with contextlib.suppress(OSError):
            while (chunk := chunks.get())[1]:
                time.sleep(max(chunk[0] - time.monotonic(), 0.0))  # the delay of the network
                target.sendall(chunk[1])
            target.shutdown(socket.SHUT_WR)

    def receive(source: socket.socket, target: socket.socket) -> None:
        chunks: queue.SimpleQueue[tuple[float, bytes]] = queue.SimpleQueue()
        threading.Thread(target=send, args=(target, chunks), daemon=True).start()
        data = b" "
        while data:
            try:
                data = source.recv(65536)
            except OSError:
                data = b""
            chunks.put((time.monotonic() + _DELAY_SECONDS, data))

    def accept() -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = listener.accept()
                server = socket.create_connection(("127.0.0.1", int(address.rpartition(":")[2])))
                for ends in ((client, server), (server, client)):
                    threading.Thread(target=receive, args=ends, daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    try:
        yield f"127.0.0.1:{listener.getsockname()[1]}"
    finally:
        listener.close()
