"""Faults of the model directory, the disk below it, and what else a run is given: standard streams, a loss."""

import contextlib
import functools
import os
import pathlib
import shutil
import signal
import stat
import subprocess
from collections.abc import Iterator
from typing import Any

from benchmarks.faults import checkpoints, fault
from benchmarks.faults.damage import DAMAGES
from benchmarks.faults.fault import ENDLESS, LENET, TRAINED_STEPS, Fault, Outcome, Shared
from benchmarks.faults.processes import TRAIN, Process

_LAST = TRAINED_STEPS[-1]
_MORE = _LAST + 6
_FILE_LIMIT_BYTES = 200_000  # a checkpoint of LeNet and its momentum has 500 KB
_DISK_BYTES = 64_000_000
_LEFT_BYTES = (300_000, 6_500_000)  # less than the graph of LeNet takes; enough for it, its events and two checkpoints
_STATE = "checkpoint"


def _flags(model_dir: pathlib.Path, steps: int) -> list[str]:
    return [*TRAIN, *LENET, "--train_epochs=100000", f"--model_dir={model_dir}", f"--max_steps={steps}"]


def _resumes(outcome: Outcome, model_dir: pathlib.Path) -> Outcome:
    """Adds to an outcome what is wrong where the run does not go on, now that nothing is in its way."""
    goal = (checkpoints.newest(model_dir) or 0) + 6
    resumed = fault.run(_flags(model_dir, goal))
    newest = checkpoints.newest(model_dir)
    if resumed.exit_code != 0 or newest != goal:
        said = " | ".join(resumed.lines[-2:])
        outcome.failures.append(f"not resumable: exit code {resumed.exit_code}, newest checkpoint {newest}: {said}")
    return outcome


def _two_in_one_directory(directory: pathlib.Path, shared: Shared) -> Outcome:
    model_dir = directory / "model"
    with Process([*TRAIN, *LENET, *ENDLESS, f"--model_dir={model_dir}"]) as first:
        first.await_line("step 30 of")
        outcome = fault.run(_flags(model_dir, _MORE))
        outcome.pid = first.pid
        first.send(signal.SIGTERM)
        if first.wait(60) != 143:
            outcome.failures.append("the first run did not end as SIGTERM demands")
    return fault.keep(outcome, model_dir, {}, 30)


def _file_limit(directory: pathlib.Path, shared: Shared) -> Outcome:
    model_dir = shared.copy_model(directory / "model")
    before = checkpoints.digests(model_dir)
    limit = ["prlimit", f"--fsize={_FILE_LIMIT_BYTES}"]
    if shutil.which(limit[0]) is None:
        return Outcome(skipped="this machine has no prlimit")
    outcome = fault.keep(fault.run(_flags(model_dir, _MORE), wrapper=limit), model_dir, before, _LAST)
    return _resumes(outcome, model_dir)


@contextlib.contextmanager
def _small_disk(place: pathlib.Path) -> Iterator[bool]:
    """A file system of its own in a directory; False where none can be mounted."""
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={_DISK_BYTES}", "tmpfs", str(place)]
    if shutil.which("mount") is None or subprocess.run(mount, capture_output=True).returncode != 0:
        yield False
        return
    try:
        yield True
    finally:
        subprocess.run(["umount", "--lazy", str(place)], check=True)


def _disk_full(left_bytes: int, directory: pathlib.Path, shared: Shared) -> Outcome:
    with _small_disk(directory / "disk") as mounted:
        if not mounted:
            return Outcome(skipped="only root can mount a small disk")
        model_dir = shared.copy_model(directory / "disk" / "model")
        ballast = directory / "disk" / "ballast"
        free = os.statvfs(model_dir)
        ballast.write_bytes(bytes(free.f_bavail * free.f_frsize - left_bytes))
        flags = [*TRAIN, *LENET, *ENDLESS, f"--model_dir={model_dir}"]
        outcome = fault.keep(fault.run(flags), model_dir, {}, _LAST)
        ballast.unlink()
        return _resumes(outcome, model_dir)


def _read_only(directory: pathlib.Path, shared: Shared) -> Outcome:
    """A model directory with checkpoints, mounted so that it cannot be written to; but for root, a mode does that."""
    model_dir = shared.copy_model(directory / "model")
    before = checkpoints.digests(model_dir)
    if os.getuid() != 0:
        model_dir.chmod(stat.S_IRUSR | stat.S_IXUSR)
        outcome = fault.run(_flags(model_dir, _MORE))
        model_dir.chmod(stat.S_IRWXU)
        return fault.keep(outcome, model_dir, before, _LAST)
    mounting = f'mount --bind "{model_dir}" "{model_dir}" && mount -o remount,bind,ro "{model_dir}"'
    if shutil.which("unshare") is None or subprocess.run(["unshare", "-m", "true"], capture_output=True).returncode:
        return Outcome(skipped="nothing can be mounted here")
    wrapper = ["unshare", "-m", "sh", "-c", f'{mounting} && exec "$@"', "sh"]
    return fault.keep(fault.run(_flags(model_dir, _MORE), wrapper=wrapper), model_dir, before, _LAST)


def _of_another_model(directory: pathlib.Path, shared: Shared) -> Outcome:
    model_dir = shared.copy_model(directory / "model")
    before = checkpoints.digests(model_dir)
    flags = [*_flags(model_dir, _MORE), "--optimizer=adam"]
    return fault.keep(fault.run(flags), model_dir, before, _LAST)


def _state_file(damage: str, directory: pathlib.Path, shared: Shared) -> Outcome:
    """Damages the file that says which checkpoint is the last, and asks for the step that has been reached."""
    model_dir = shared.copy_model(directory / "model")
    before = checkpoints.digests(model_dir)
    if damage == "naming nothing":
        (model_dir / _STATE).write_text('model_checkpoint_path: "model.ckpt-99"\n', encoding="utf-8")
    else:
        DAMAGES[damage](model_dir / _STATE)
    return fault.keep(fault.run(_flags(model_dir, _LAST)), model_dir, before, _LAST)


def _newest_cut_off(directory: pathlib.Path, shared: Shared) -> Outcome:
    model_dir = shared.copy_model(directory / "model")
    damaged = model_dir / f"model.ckpt-{_LAST}.index"
    DAMAGES["truncated"](damaged)
    before = {name: digest for name, digest in checkpoints.digests(model_dir).items() if f"-{_LAST}." not in name}
    outcome = fault.keep(fault.run(_flags(model_dir, _MORE)), model_dir, before, _MORE)
    named = [line for line in outcome.lines if f"model.ckpt-{_LAST}" in line]
    outcome.failures += [] if len(named) == 1 else [f"{len(named)} lines name model.ckpt-{_LAST}, not 1"]
    outcome.lines = [line for line in outcome.lines if line not in named]
    return outcome


def _all_cut_off(directory: pathlib.Path, shared: Shared) -> Outcome:
    model_dir = shared.copy_model(directory / "model")
    for path in model_dir.glob("model.ckpt-*"):
        DAMAGES["truncated"](path)
    before = checkpoints.digests(model_dir)
    return fault.keep(fault.run(_flags(model_dir, _MORE)), model_dir, before)


def _not_a_number(directory: pathlib.Path, shared: Shared) -> Outcome:
    model_dir = shared.copy_model(directory / "model")
    before = checkpoints.digests(model_dir)
    return fault.keep(fault.run([*_flags(model_dir, 60), "--learning_rate=1e30"]), model_dir, before, _LAST)


def _working_directory(directory: pathlib.Path, shared: Shared) -> Outcome:
    model_dir = directory / "model"
    return fault.keep(fault.run(_flags(model_dir, 3), cwd="/proc"), model_dir, {}, 3)


def _closed(stream: str, directory: pathlib.Path, shared: Shared) -> Outcome:
    """Trains with a standard stream closed, as by `<&-`."""
    model_dir = directory / "model"
    wrapper = ["sh", "-c", f'exec "$@" {stream}', "sh"]
    return fault.keep(fault.run(_flags(model_dir, 3), wrapper=wrapper), model_dir, {}, 3)


def _head(directory: pathlib.Path, shared: Shared) -> Outcome:
    """Trains into a pipe whose reader takes one line and leaves."""
    model_dir = directory / "model"
    wrapper = ["bash", "-c", 'set -o pipefail; "$@" | head -n 1', "bash"]
    return fault.keep(fault.run(_flags(model_dir, 3), wrapper=wrapper), model_dir, {}, 3)


_GOES_ON: Any = {"exit_code": 0, "lines": (0, 0)}
_STATE_DAMAGES = ("truncated", "emptied", "deleted", "byte in the middle flipped", "naming nothing")

FAULTS = (
    Fault("two runs in one directory", "a second run in a model directory in use", _two_in_one_directory, says="{pid}"),
    Fault(
        "a limit to a file's size",
        f"no file may have more than {_FILE_LIMIT_BYTES // 1000} KB; then resumed",
        _file_limit,
        exit_code=1,
    ),
    *(
        Fault(
            f"a full disk, {left / 1e6:g} MB left",
            f"a disk with {left / 1e6:g} MB left; then resumed",
            functools.partial(_disk_full, left),
            exit_code=1,
        )
        for left in _LEFT_BYTES
    ),
    Fault("read only", "a model directory that cannot be written to", _read_only, says="cannot be written to"),
    Fault("another model's", "a model directory of another optimizer", _of_another_model, says="cannot resume"),
    *(
        Fault(
            f"state file {damage}",
            f"the file `{_STATE}` {damage}",
            functools.partial(_state_file, damage),
            exit_code=0,
            lines=(0, 1),
            out=f"trained to step {_LAST} before",
        )
        for damage in _STATE_DAMAGES
    ),
    Fault("the newest checkpoint cut off", "its index cut off", _newest_cut_off, **_GOES_ON),
    Fault("all checkpoints cut off", "every file of every checkpoint cut off", _all_cut_off, says="model"),
    Fault("a loss that is not a number", "--learning_rate=1e30", _not_a_number, exit_code=1, says="not a number"),
    Fault("working directory", "a working directory that cannot be written to", _working_directory, **_GOES_ON),
    Fault("no standard input", "standard input closed", functools.partial(_closed, "<&-"), **_GOES_ON),
    Fault("no standard output", "standard output closed", functools.partial(_closed, ">&-"), **_GOES_ON),
    Fault("no standard error", "standard error closed", functools.partial(_closed, "2>&-"), **_GOES_ON),
    Fault("head", "`| head -n 1`", _head, exit_code=(0, 1, 141), lines=(0, 1), says=""),
)
