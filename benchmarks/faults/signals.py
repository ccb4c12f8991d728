"""Signals at the training binary: it saves, says how to resume and ends with 128 and the signal's number."""

import functools
import pathlib
import signal
import time
from typing import Any

from benchmarks.faults import checkpoints, fault
from benchmarks.faults.fault import ENDLESS, LENET, Fault, Outcome, Shared
from benchmarks.faults.processes import TRAIN, Process
from benchmarks.faults.workers import Worker, about_workers, train_on

_SIGNALS = {signal.SIGINT: 130, signal.SIGTERM: 143, signal.SIGHUP: 129}
_TRIES = 3
_END_SECONDS = 60.0
_PAUSES_SECONDS = (0.05, 0.5)  # between two signals


def _start(directory: pathlib.Path, *flags: str) -> Process:
    return Process([*TRAIN, *LENET, *ENDLESS, f"--model_dir={directory / 'model'}", *flags])


def _early(number: int, directory: pathlib.Path, shared: Shared) -> Outcome:
    with _start(directory) as process:
        process.await_file("libtensorflow")
        process.send(number)
        return fault.end(process, _END_SECONDS)


def _before_the_first_step(number: int, directory: pathlib.Path, shared: Shared) -> Outcome:
    model_dir = shared.copy_model(directory / "model")
    before = checkpoints.digests(model_dir)
    with _start(directory) as process:
        process.await_line("^mesh ", of="out")
        process.send(number)
        return fault.keep(fault.end(process, _END_SECONDS), model_dir, before)


def _in_the_middle(number: int, directory: pathlib.Path, shared: Shared, *, pauses: tuple[float, ...] = ()) -> Outcome:
    with _start(directory) as process:
        process.await_line("step 30 of")
        process.send(number)
        for pause in pauses:
            time.sleep(pause)
            process.send(number)
        outcome = fault.keep(fault.end(process, _END_SECONDS), directory / "model", {}, 0 if pauses else 30)
    newest = checkpoints.newest(directory / "model")
    if pauses or newest is None:
        return outcome
    resumed = fault.run([*TRAIN, *LENET, *ENDLESS, f"--model_dir={directory / 'model'}", f"--max_steps={newest}"])
    if not any(f"trained to step {newest} before" in line for line in resumed.out):
        outcome.failures.append(f"the run cannot be resumed from step {newest}: {' | '.join(resumed.lines[-2:])}")
    return outcome


def _after_a_worker_was_lost(number: int, directory: pathlib.Path, shared: Shared) -> Outcome:
    with Worker() as first, Worker() as second, train_on(directory, first, second) as process:
        seen = process.await_line("step 10 of")
        second.kill()
        seen = process.await_line("is gone", after=seen)
        second.restart()
        process.await_line("step .* of", after=seen + 1)
        process.send(number)
        outcome = about_workers(fault.end(process, _END_SECONDS))
    return fault.keep(outcome, directory / "model", {}, 1)


def _faults() -> list[Fault]:
    found = []
    for number, code in _SIGNALS.items():
        name = signal.Signals(number).name
        expected: Any = {"exit_code": code, "says": "stopped: "}
        for when, done, carry_out in (
            ("while it starts", f"{name} while TensorFlow is imported", _early),
            ("before the first step", f"{name} once training has said what it is about to do", _before_the_first_step),
            ("in the middle", f"{name} at step 30; then resumed", _in_the_middle),
        ):
            found.append(Fault(f"{name} {when}", done, functools.partial(carry_out, number), **expected))
        twice = functools.partial(_in_the_middle, number, pauses=_PAUSES_SECONDS[:1])
        found.append(
            Fault(f"{name} twice", f"{name} at step 30, and again {_PAUSES_SECONDS[0]} s later", twice, **expected)
        )
    later = functools.partial(_in_the_middle, signal.SIGTERM, pauses=_PAUSES_SECONDS)
    done = "SIGTERM three times, while the checkpoint is saved"
    found.append(Fault("SIGTERM three times", done, later, exit_code=143, says="stopped: "))
    for number in range(1, _TRIES + 1):
        name = f"SIGTERM after a worker was lost and came back, try {number}"
        carry_out = functools.partial(_after_a_worker_was_lost, signal.SIGTERM)
        done = "kill -9 of a worker, which is started again; SIGTERM once training goes on"
        found.append(Fault(name, done, carry_out, exit_code=143, says="stopped: "))
    return found


FAULTS = tuple(_faults())
