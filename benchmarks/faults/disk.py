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
from benchmarks.faults.fault import ENDLESS, LENET, TRAINED_STEPS, Fault, Outcome, Scene
from benchmarks.faults.processes import TRAIN

_LAST = TRAINED_STEPS[-1]
_MORE = _LAST + 6
_FILE_LIMIT_BYTES = 200_000  # a checkpoint of LeNet and its momentum has 500 KB
_DISK_BYTES = 64_000_000
_LEFT_BYTES = (300_000, 6_500_000)  # less than the graph of LeNet takes; enough for it, its events and two checkpoints
_STATE = "checkpoint"


def _two_in_one_directory(scene: Scene) -> Outcome:
    with scene.start() as first:
        first.await_line("step 30 of")
        outcome = scene.train(_MORE)
        outcome.pid = first.pid
        first.send(signal.SIGTERM)
        if first.wait(60) != 143:
            outcome.failures.append("the first run did not end as SIGTERM demands")
    return scene.keep(outcome, 30)


def _file_limit(scene: Scene) -> Outcome:
    scene.copy_model()
    limit = ["prlimit", f"--fsize={_FILE_LIMIT_BYTES}"]
    if shutil.which(limit[0]) is None:
        return Outcome(skipped="this machine has no prlimit")
    return scene.resume(scene.train(_MORE, wrapper=limit, at_least=_LAST))


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


def _disk_full(left_bytes: int, scene: Scene) -> Outcome:
    disk = scene.directory / "disk"
    with _small_disk(disk) as mounted:
        if not mounted:
            return Outcome(skipped="only root can mount a small disk")
        scene.copy_model(disk / "model")
        scene.before = {}
        ballast, free = disk / "ballast", os.statvfs(disk)
        ballast.write_bytes(bytes(free.f_bavail * free.f_frsize - left_bytes))
        outcome = scene.keep(fault.run([*TRAIN, *LENET, *ENDLESS, f"--model_dir={scene.model_dir}"]), _LAST)
        ballast.unlink()
        return scene.resume(outcome)


def _read_only(scene: Scene) -> Outcome:
    """A model directory with checkpoints, mounted so that it cannot be written to; but for root, a mode does that."""
    scene.copy_model()
    model_dir = scene.model_dir
    if os.getuid() != 0:
        model_dir.chmod(stat.S_IRUSR | stat.S_IXUSR)
        outcome = scene.train(_MORE, at_least=_LAST)
        model_dir.chmod(stat.S_IRWXU)
        return outcome
    mounting = f'mount --bind "{model_dir}" "{model_dir}" && mount -o remount,bind,ro "{model_dir}"'
    if shutil.which("unshare") is None or subprocess.run(["unshare", "-m", "true"], capture_output=True).returncode:
        return Outcome(skipped="nothing can be mounted here")
    wrapper = ["unshare", "-m", "sh", "-c", f'{mounting} && exec "$@"', "sh"]
    return scene.train(_MORE, wrapper=wrapper, at_least=_LAST)


def _state_file(damage: str, scene: Scene) -> Outcome:
    """Damages the file that says which checkpoint is the last, and asks for the step that has been reached."""
    scene.copy_model()
    if damage == "naming nothing":
        (scene.model_dir / _STATE).write_text('model_checkpoint_path: "model.ckpt-99"\n', encoding="utf-8")
    else:
        DAMAGES[damage](scene.model_dir / _STATE)
    return scene.train(_LAST, at_least=_LAST)


def _newest_cut_off(scene: Scene) -> Outcome:
    scene.copy_model()
    DAMAGES["truncated"](scene.model_dir / f"model.ckpt-{_LAST}.index")
    scene.before = {name: digest for name, digest in scene.before.items() if f"-{_LAST}." not in name}
    outcome = scene.train(_MORE, at_least=_MORE)
    named = [line for line in outcome.lines if f"model.ckpt-{_LAST}" in line]
    outcome.failures += [] if len(named) == 1 else [f"{len(named)} lines name model.ckpt-{_LAST}, not 1"]
    outcome.lines = [line for line in outcome.lines if line not in named]
    return outcome


def _all_cut_off(scene: Scene) -> Outcome:
    scene.copy_model()
    for path in scene.model_dir.glob("model.ckpt-*"):
        DAMAGES["truncated"](path)
    scene.before = checkpoints.digests(scene.model_dir)
    return scene.train(_MORE)


def _trained_on(steps: int, flag: str, scene: Scene) -> Outcome:
    """Goes on from checkpoints with another flag."""
    scene.copy_model()
    return scene.train(steps, flag, at_least=_LAST)


def _from_scratch(options: dict[str, Any], scene: Scene) -> Outcome:
    """Trains in an empty model directory, in a process that is started in another way."""
    return scene.train(3, at_least=3, **options)


def _through(shell: str, script: str) -> functools.partial[Outcome]:
    """Trains by way of a shell's script, in which "$@" is the command."""
    return functools.partial(_from_scratch, {"wrapper": [shell, "-c", script, shell]})


_GOES_ON: Any = {"exit_code": 0, "lines": (0, 0)}
_STATE_DAMAGES = ("truncated", "emptied", "deleted", "byte in the middle flipped", "naming nothing")
_STATE_SAYS: Any = {"exit_code": 0, "lines": (0, 1), "out": f"trained to step {_LAST} before"}
_SMALL_FILES = f"no file may have more than {_FILE_LIMIT_BYTES // 1000} KB; then resumed"
_LEFT = {f"{left / 1e6:g} MB left": functools.partial(_disk_full, left) for left in _LEFT_BYTES}
_OTHER_MODEL = functools.partial(_trained_on, _MORE, "--optimizer=adam")
_DIVERGES = functools.partial(_trained_on, 60, "--learning_rate=1e30")
_IN_PROC = functools.partial(_from_scratch, {"cwd": "/proc"})

FAULTS = (
    Fault("two runs in one directory", "a second run in a model directory in use", _two_in_one_directory, says="{pid}"),
    Fault("a limit to a file's size", _SMALL_FILES, _file_limit, exit_code=1),
    *(
        Fault(f"a full disk, {left}", f"a disk with {left}; then resumed", carry_out, exit_code=1)
        for left, carry_out in _LEFT.items()
    ),
    Fault("read only", "a model directory that cannot be written to", _read_only, says="cannot be written to"),
    Fault("another model's", "a model directory of another optimizer", _OTHER_MODEL, says="cannot resume"),
    *(
        Fault(
            f"state file {damage}",
            f"the file `{_STATE}` {damage}",
            functools.partial(_state_file, damage),
            **_STATE_SAYS,
        )
        for damage in _STATE_DAMAGES
    ),
    Fault("the newest checkpoint cut off", "its index cut off", _newest_cut_off, **_GOES_ON),
    Fault("all checkpoints cut off", "every file of every checkpoint cut off", _all_cut_off, says="model"),
    Fault("a loss that is not a number", "--learning_rate=1e30", _DIVERGES, exit_code=1, says="not a number"),
    Fault("working directory", "a working directory that cannot be written to", _IN_PROC, **_GOES_ON),
    Fault("no standard input", "standard input closed", _through("sh", 'exec "$@" <&-'), **_GOES_ON),
    Fault("no standard output", "standard output closed", _through("sh", 'exec "$@" >&-'), **_GOES_ON),
    Fault("no standard error", "standard error closed", _through("sh", 'exec "$@" 2>&-'), **_GOES_ON),
    Fault(  # a pipe whose reader takes one line and leaves
        "head",
        "`| head -n 1`",
        _through("bash", 'set -o pipefail; "$@" | head -n 1'),
        exit_code=(0, 1, 141),
        lines=(0, 1),
    ),
)
