"""Signals at the training binary: it saves, says how to resume and ends with 128 and the signal's number."""

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


def _early(scene: Scene, number: int) -> Outcome:
    with scene.start() as process:
        process.await_file("libtensorflow")
        process.send(number)
        return fault.end(process, _END_SECONDS)


def _before_the_first_step(scene: Scene, number: int) -> Outcome:
    scene.copy_model()
    with scene.start() as process:
        process.await_line("^mesh ", of="out")
        process.send(number)
        return scene.keep(fault.end(process, _END_SECONDS))


def _in_the_middle(scene: Scene, number: int, *pauses: float) -> Outcome:
    with scene.start() as process:
        process.await_line("^step 30/")
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
    said = any(f"trained to step {newest} before" in line for line in resumed.out)
    outcome.fail(f"the run cannot be resumed from step {newest}: {' | '.join(resumed.lines[-2:])}", unless=said)
    return outcome


_ONCE = (
    ("while it starts", "{} while TensorFlow is imported", _early),
    ("before the first step", "{} once training has said what it is about to do", _before_the_first_step),
    ("in the middle", "{} at step 30; then resumed", _in_the_middle),
)
_FIRST_PAUSE = _PAUSES_SECONDS[0]
_TERM: Any = {"exit_code": 143, "says": "stopped: "}
_LOST = "kill -9 of a worker, which is started again; SIGTERM once training goes on"
_LATER = "SIGTERM three times, while the checkpoint is saved"


def _faults(number: signal.Signals, code: int) -> list[Fault]:
    name, expected = number.name, {"exit_code": code, "says": "stopped: "}
    twice = f"{name} at step 30, and again {_FIRST_PAUSE} s later"
    return [
        *(Fault(f"{name} {when}", done.format(name), act, (number,), **expected) for when, done, act in _ONCE),
        Fault(f"{name} twice", twice, _in_the_middle, (number, _FIRST_PAUSE), **expected),
    ]


FAULTS = (
    *(one for number, code in _SIGNALS.items() for one in _faults(number, code)),
    Fault("SIGTERM three times", _LATER, _in_the_middle, (signal.SIGTERM, *_PAUSES_SECONDS), **_TERM),
    *(
        Fault(
            f"SIGTERM after a worker was lost and came back, try {i}",
            _LOST,
            disturb,
            (restart, signal.SIGTERM),
            **_TERM,
        )
        for i in range(1, _TRIES + 1)
    ),
)
