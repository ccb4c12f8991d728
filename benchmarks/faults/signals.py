"""Signals at the training binary: it saves, says how to resume and ends with 128 and the signal's number."""

import functools
import signal
import time
from typing import Any

from benchmarks.faults import checkpoints, fault
from benchmarks.faults.fault import Fault, Outcome, Scene
from benchmarks.faults.workers import disturb, restart

_SIGNALS = {signal.SIGINT: 130, signal.SIGTERM: 143, signal.SIGHUP: 129}
_TRIES = 3
_END_SECONDS = 60.0
_PAUSES_SECONDS = (0.05, 0.5)  # between two signals


def _early(number: int, scene: Scene) -> Outcome:
    with scene.start() as process:
        process.await_file("libtensorflow")
        process.send(number)
        return fault.end(process, _END_SECONDS)


def _before_the_first_step(number: int, scene: Scene) -> Outcome:
    scene.copy_model()
    with scene.start() as process:
        process.await_line("^mesh ", of="out")
        process.send(number)
        return scene.keep(fault.end(process, _END_SECONDS))


def _in_the_middle(number: int, scene: Scene, *, pauses: tuple[float, ...] = ()) -> Outcome:
    with scene.start() as process:
        process.await_line("step 30 of")
        process.send(number)
        for pause in pauses:
            time.sleep(pause)
            process.send(number)
        outcome = scene.keep(fault.end(process, _END_SECONDS), 0 if pauses else 30)
    newest = checkpoints.newest(scene.model_dir)
    if pauses or newest is None:
        return outcome
    with scene.start(f"--max_steps={newest}") as process:
        resumed = fault.end(process)
    if not any(f"trained to step {newest} before" in line for line in resumed.out):
        outcome.failures.append(f"the run cannot be resumed from step {newest}: {' | '.join(resumed.lines[-2:])}")
    return outcome


def _faults() -> list[Fault]:
    faults = []
    for number, code in _SIGNALS.items():
        name = signal.Signals(number).name
        expected: Any = {"exit_code": code, "says": "stopped: "}
        for when, done, carry_out in (
            ("while it starts", f"{name} while TensorFlow is imported", _early),
            ("before the first step", f"{name} once training has said what it is about to do", _before_the_first_step),
            ("in the middle", f"{name} at step 30; then resumed", _in_the_middle),
        ):
            faults.append(Fault(f"{name} {when}", done, functools.partial(carry_out, number), **expected))
        twice = functools.partial(_in_the_middle, number, pauses=_PAUSES_SECONDS[:1])
        faults.append(
            Fault(f"{name} twice", f"{name} at step 30, and again {_PAUSES_SECONDS[0]} s later", twice, **expected)
        )
    expected = {"exit_code": 143, "says": "stopped: "}
    later = functools.partial(_in_the_middle, signal.SIGTERM, pauses=_PAUSES_SECONDS)
    faults.append(Fault("SIGTERM three times", "SIGTERM three times, while the checkpoint is saved", later, **expected))
    done = "kill -9 of a worker, which is started again; SIGTERM once training goes on"
    for number in range(1, _TRIES + 1):
        carry_out = functools.partial(disturb, restart, signal.SIGTERM)
        name = f"SIGTERM after a worker was lost and came back, try {number}"
        faults.append(Fault(name, done, carry_out, **expected))
    return faults


FAULTS = tuple(_faults())
