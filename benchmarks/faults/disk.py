"""Faults of the model directory, the disk below it, and what else a run is given: standard streams, a loss."""

import contextlib
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
from benchmarks.faults.fault import ENDLESS, LENET, TRAIN, TRAINED_STEPS, Fault, Outcome, Scene

_LAST = TRAINED_STEPS[-1]
_MORE = _LAST + 6
_FILE_LIMIT_BYTES = 200_000  # a checkpoint of LeNet and its momentum has 500 KB
_DISK_BYTES = 64_000_000
_LEFT_BYTES = (300_000, 6_500_000)  # less than the graph of LeNet takes; enough for it, its events and two checkpoints
_STATE = "checkpoint"


def _two_in_one_directory(scene: Scene) -> Outcome:
    with scene.start() as first:
        first.await_line("^step 30/")
        outcome = scene.train(_MORE)
        outcome.pid = first.pid
        first.send(signal.SIGTERM)
        outcome.fail("the first run did not end as SIGTERM demands", unless=first.wait(60) == 143)
    return scene.keep(outcome, 30)


def _file_limit(scene: Scene) -> Outcome:
    scene.copy_model()
    limit = ["prlimit", f"--fsize={_FILE_LIMIT_BYTES}"]
    if shutil.which(limit[0]) is None:
        return Outcome(skipped="this machine has no prlimit")
    return scene.resume(scene.train(_MORE, wrapper=limit, at_least=_LAST))


@contextlib.contextmanager
def _small_disk(place: pathlib.Path) -> Iterator[bool]:
    """Mount a file system in a directory; give False if none can be mounted."""
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={_DISK_BYTES}", "tmpfs", str(place)]
    if shutil.which("mount") is None or subprocess.run(mount, capture_output=True).returncode != 0:
        yield False
        return
    try:
        yield True
    finally:
        subprocess.run(["umount", "--lazy", str(place)], check=True)


def _disk_full(scene: Scene, left_bytes: int) -> Outcome:
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
    """Return a read-only model directory with checkpoints: by a mount for root, otherwise by its mode."""
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


def _state_file(scene: Scene, damage: str) -> Outcome:
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
    outcome.fail(f"{len(named)} lines name model.ckpt-{_LAST}, not 1", unless=len(named) == 1)
    outcome.lines = [line for line in outcome.lines if line not in named]
    return outcome


def _all_cut_off(scene: Scene) -> Outcome:
    scene.copy_model()
    for path in scene.model_dir.glob("model.ckpt-*"):
        DAMAGES["truncated"](path)
    scene.before = checkpoints.digests(scene.model_dir)
    return scene.train(_MORE)


def _trained_on(scene: Scene, steps: int, flag: str) -> Outcome:
    """Goes on from checkpoints with another flag."""
    scene.copy_model()
    return scene.train(steps, flag, at_least=_LAST)


def _from_scratch(scene: Scene, options: dict[str, Any], at_least: int = 3) -> Outcome:
    """Trains in an empty model directory, in a process that is started in another way."""
    return scene.train(3, at_least=at_least, **options)


def _without(stream: str, script: str) -> Fault:
    """Trains where a standard stream is closed: by way of a shell's script, in which "$@" is the command."""
    wrapper = {"wrapper": ["sh", "-c", script, "sh"]}
    return Fault(f"no standard {stream}", f"standard {stream} closed", _from_scratch, [wrapper], **_GOES_ON)


_GOES_ON: Any = {"exit_code": 0, "lines": (0, 0)}
_STATE_DAMAGES = ("truncated", "emptied", "deleted", "byte in the middle flipped", "naming nothing")
_STATE_SAYS: Any = {"exit_code": 0, "lines": (0, 1), "out": f"trained to step {_LAST} before"}
_SMALL_FILES = f"no file may have more than {_FILE_LIMIT_BYTES // 1000} KB; then resumed"
_LEFT = {left: f"{left / 1e6:g} MB left" for left in _LEFT_BYTES}
_READ_ONLY = "a model directory that cannot be written to"
_OTHER_MODEL = (_MORE, "--optimizer=adam")
_DIVERGES = (60, "--learning_rate=1e30")
_HEAD = {"wrapper": ["bash", "-c", 'set -o pipefail; "$@" | head -n 1', "bash"]}  # leaves after a line
_IN_PROC = "a working directory that cannot be written to"

FAULTS = (
    Fault("two runs in one directory", "a second run in a model directory in use", _two_in_one_directory, says="{pid}"),
    Fault("a limit to a file's size", _SMALL_FILES, _file_limit, exit_code=1),
    *(
        Fault(f"a full disk, {text}", f"a disk with {text}; then resumed", _disk_full, (left,), exit_code=1)
        for left, text in _LEFT.items()
    ),
    Fault("read only", _READ_ONLY, _read_only, says="cannot be written to"),
    Fault("another model's", "a model directory of another optimizer", _trained_on, _OTHER_MODEL, says="cannot resume"),
    *(
        Fault(f"state file {damage}", f"the file `{_STATE}` {damage}", _state_file, (damage,), **_STATE_SAYS)
        for damage in _STATE_DAMAGES
    ),
    Fault("the newest checkpoint cut off", "its index cut off", _newest_cut_off, **_GOES_ON),
    Fault("all checkpoints cut off", "every file of every checkpoint cut off", _all_cut_off, says="model"),
    Fault("a loss that is not a number", _DIVERGES[1], _trained_on, _DIVERGES, exit_code=1, says="not a number"),
    Fault("working directory", _IN_PROC, _from_scratch, [{"cwd": "/proc"}], **_GOES_ON),
    _without("input", 'exec "$@" <&-'),
    _without("output", 'exec "$@" >&-'),
    _without("error", 'exec "$@" 2>&-'),
    Fault("head", "`| head -n 1`", _from_scratch, [_HEAD, 0], exit_code=(0, 1, 141), lines=(0, 1)),
)
