"""Damaged data sets: one line that names the file, exit code 2, and what was trained before is kept."""

import functools
import json
import pathlib
import signal
from collections.abc import Callable

from benchmarks.faults import checkpoints, fault
from benchmarks.faults.damage import DAMAGES
from benchmarks.faults.fault import LENET, Fault, Outcome, Shared
from benchmarks.faults.processes import DATA, TRAIN, Process

_IMAGES = ("--dataset=mnist", "--max_steps=12")
_VOLUMES = (
    "--model=cosmoflow_small",
    "--batch_size=2",
    "--layout=spatial",
    "--mesh_shape=depth:2",
    "--devices=cpu:0,cpu:1",
    "--train_epochs=2",
)
_TRAIN_RECORDS = "mnist-train.tfrecord-00000-of-00001"
_TEST_RECORDS = "mnist-test.tfrecord-00000-of-00001"
_CUT, _FLIPPED, _EMPTIED, _MISSING = "truncated", "byte in the middle flipped", "emptied", "deleted"

Damage = Callable[[pathlib.Path], None]


def _find(directory: pathlib.Path, name: str) -> pathlib.Path:
    (path,) = directory.rglob(name)
    return path


def _of_images(name: str, damage: Damage, directory: pathlib.Path, shared: Shared) -> Outcome:
    """Damages a file of the prepared set, and trains on; in the directory is a checkpoint of before."""
    sets = shared.copy_sets(directory / "sets")
    model_dir = shared.copy_model(directory / "model")
    before = checkpoints.digests(model_dir)
    damage(_find(sets / "images", name))
    flags = [*LENET, *_IMAGES, f"--data_dir={sets / 'images'}", f"--model_dir={model_dir}"]
    return fault.keep(fault.run([*TRAIN, *flags]), model_dir, before)


def _of_volumes(name: str, damage: Damage, directory: pathlib.Path, shared: Shared) -> Outcome:
    sets = shared.copy_sets(directory / "sets")
    damage(sets / "volumes" / name)
    return fault.run([*TRAIN, *_VOLUMES, f"--dataset={sets / 'volumes'}", f"--model_dir={directory / 'model'}"])


def _of_another_format(path: pathlib.Path) -> None:
    content = json.loads(path.read_text(encoding="utf-8"))
    path.write_text(json.dumps({**content, "format": "something else"}), encoding="utf-8")


def _write_archive_that_is_none(directory: pathlib.Path, shared: Shared) -> Outcome:
    archive = directory / "mnist.tar"
    archive.write_bytes(b"no archive" * 100)
    return fault.run([*DATA, "prepare", "mnist", f"--from={archive}", f"--data_dir={directory / 'data'}"])


def _interrupt_simulation(number: int, directory: pathlib.Path, shared: Shared) -> Outcome:
    made = directory / "set"
    with Process([*DATA, "simulate", str(made), "--train=5000", "--size=32"]) as process:
        while not any(directory.iterdir()) and process.wait_briefly():
            pass
        process.send(number)
        outcome = fault.end(process, 30)
    left = sorted(path.name for path in directory.iterdir())
    outcome.kept = "nothing half-made" if not left else ", ".join(left)
    outcome.failures += [f"left behind: {', '.join(left)}"] if left else []
    return outcome


def _write_over_a_set(directory: pathlib.Path, shared: Shared) -> Outcome:
    sets = shared.copy_sets(directory / "sets")
    before = {path.name: path.read_bytes() for path in (sets / "volumes").iterdir()}
    outcome = fault.run([*DATA, "simulate", str(sets / "volumes"), "--train=1", "--size=16"])
    same = before == {path.name: path.read_bytes() for path in (sets / "volumes").iterdir()}
    outcome.kept = "the set that was there" if same else ""
    outcome.failures += [] if same else ["the set that was there was changed"]
    return outcome


def _images(name: str, file: str, kind: str, says: str) -> Fault:
    return Fault(name, f"`{file}` {kind}", functools.partial(_of_images, file, DAMAGES[kind]), says=says)


def _volumes(name: str, file: str, kind: str) -> Fault:
    return Fault(name, f"`{file}` of volumes {kind}", functools.partial(_of_volumes, file, DAMAGES[kind]), says=file)


FAULTS = (
    _images("images: cut off", _TRAIN_RECORDS, _CUT, _TRAIN_RECORDS),
    _images("images: a byte flipped", _TRAIN_RECORDS, _FLIPPED, _TRAIN_RECORDS),
    _images("images: an empty shard", _TRAIN_RECORDS, _EMPTIED, _TRAIN_RECORDS),
    _images("images: a missing shard", _TRAIN_RECORDS, _MISSING, _TRAIN_RECORDS),
    _images("images: a byte of the test set flipped", _TEST_RECORDS, _FLIPPED, _TEST_RECORDS),
    _images("images: a missing shard of the test set", _TEST_RECORDS, _MISSING, _TEST_RECORDS),
    _images("images: description cut off", "dataset_info.json", _CUT, "mnist"),
    _volumes("volumes: cut off", "train-00000.tfrecord", _CUT),
    _volumes("volumes: a byte flipped", "train-00000.tfrecord", _FLIPPED),
    _volumes("volumes: an empty file", "train-00000.tfrecord", _EMPTIED),
    _volumes("volumes: a missing file", "train-00000.tfrecord", _MISSING),
    _volumes("volumes: a byte of the test set flipped", "test-00000.tfrecord", _FLIPPED),
    _volumes("volumes: manifest cut off", "manifest.json", _CUT),
    _volumes("volumes: no manifest", "manifest.json", _MISSING),
    Fault(
        "volumes: another format",
        "`manifest.json` of another format",
        functools.partial(_of_volumes, "manifest.json", _of_another_format),
        says="manifest.json",
    ),
    Fault("an archive that is none", "an archive of MNIST that is none", _write_archive_that_is_none, says="mnist.tar"),
    Fault("a set that is there", "a set simulated where one is", _write_over_a_set, says="volumes"),
    Fault(
        "SIGTERM while a set is simulated",
        "SIGTERM while a set is simulated",
        functools.partial(_interrupt_simulation, signal.SIGTERM),
        exit_code=143,
        lines=(0, 1),
    ),
    Fault(
        "SIGINT while a set is simulated",
        "SIGINT while a set is simulated",
        functools.partial(_interrupt_simulation, signal.SIGINT),
        exit_code=130,
        says="stopped: ",
    ),
)
