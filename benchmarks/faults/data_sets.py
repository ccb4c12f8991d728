"""Damaged data sets: one line that names the file, exit code 2, and what was trained before is kept."""

import functools
import json
import pathlib
import signal
from collections.abc import Callable
from typing import Any

from benchmarks.faults import fault
from benchmarks.faults.damage import DAMAGES
from benchmarks.faults.fault import Fault, Outcome, Scene
from benchmarks.faults.processes import DATA, TRAIN, Process

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
_INFO = "dataset_info.json"
_CUT, _FLIPPED, _EMPTIED, _MISSING = "truncated", "byte in the middle flipped", "emptied", "deleted"

Damage = Callable[[pathlib.Path], None]


def _of_images(name: str, damage: Damage, scene: Scene) -> Outcome:
    """Damages a file of the prepared set, and trains on; in the directory is a checkpoint of before."""
    images = scene.shared.copy_sets(scene.directory / "sets") / "images"
    scene.copy_model()
    (path,) = images.rglob(name)
    damage(path)
    return scene.train(12, "--dataset=mnist", f"--data_dir={images}")


def _of_volumes(name: str, damage: Damage, scene: Scene) -> Outcome:
    volumes = scene.shared.copy_sets(scene.directory / "sets") / "volumes"
    damage(volumes / name)
    return fault.run([*TRAIN, *_VOLUMES, f"--dataset={volumes}", f"--model_dir={scene.model_dir}"])


def _of_another_format(path: pathlib.Path) -> None:
    content = json.loads(path.read_text(encoding="utf-8"))
    path.write_text(json.dumps({**content, "format": "something else"}), encoding="utf-8")


def _write_archive_that_is_none(scene: Scene) -> Outcome:
    archive = scene.directory / "mnist.tar"
    archive.write_bytes(b"no archive" * 100)
    return fault.run([*DATA, "prepare", "mnist", f"--from={archive}", f"--data_dir={scene.directory / 'data'}"])


def _interrupt_simulation(number: int, scene: Scene) -> Outcome:
    with Process([*DATA, "simulate", str(scene.directory / "set"), "--train=5000", "--size=32"]) as process:
        while not any(scene.directory.iterdir()) and process.wait_briefly():
            pass
        process.send(number)
        outcome = fault.end(process, 30)
    left = ", ".join(sorted(path.name for path in scene.directory.iterdir()))
    outcome.kept = left or "nothing half-made"
    outcome.failures += [f"left behind: {left}"] if left else []
    return outcome


def _write_over_a_set(scene: Scene) -> Outcome:
    volumes = scene.shared.copy_sets(scene.directory / "sets") / "volumes"
    before = {path.name: path.read_bytes() for path in volumes.iterdir()}
    outcome = fault.run([*DATA, "simulate", str(volumes), "--train=1", "--size=16"])
    same = before == {path.name: path.read_bytes() for path in volumes.iterdir()}
    outcome.kept = "the set that was there" if same else ""
    outcome.failures += [] if same else ["the set that was there was changed"]
    return outcome


def _images(name: str, file: str, kind: str, says: str = "") -> Fault:
    carry_out = functools.partial(_of_images, file, DAMAGES[kind])
    return Fault(f"images: {name}", f"`{file}` {kind}", carry_out, says=says or file)


def _volumes(name: str, file: str, kind: str) -> Fault:
    carry_out = functools.partial(_of_volumes, file, DAMAGES[kind])
    return Fault(f"volumes: {name}", f"`{file}` of volumes {kind}", carry_out, says=file)


def _interrupted(name: str, **expected: Any) -> Fault:
    done = f"{name} while a set is simulated"
    return Fault(done, done, functools.partial(_interrupt_simulation, signal.Signals[name]), **expected)


_OTHER_FORMAT = functools.partial(_of_volumes, "manifest.json", _of_another_format)

FAULTS = (
    _images("cut off", _TRAIN_RECORDS, _CUT),
    _images("a byte flipped", _TRAIN_RECORDS, _FLIPPED),
    _images("an empty shard", _TRAIN_RECORDS, _EMPTIED),
    _images("a missing shard", _TRAIN_RECORDS, _MISSING),
    _images("a byte of the test set flipped", _TEST_RECORDS, _FLIPPED),
    _images("a missing shard of the test set", _TEST_RECORDS, _MISSING),
    _images("description cut off", _INFO, _CUT, "mnist"),
    _volumes("cut off", "train-00000.tfrecord", _CUT),
    _volumes("a byte flipped", "train-00000.tfrecord", _FLIPPED),
    _volumes("an empty file", "train-00000.tfrecord", _EMPTIED),
    _volumes("a missing file", "train-00000.tfrecord", _MISSING),
    _volumes("a byte of the test set flipped", "test-00000.tfrecord", _FLIPPED),
    _volumes("manifest cut off", "manifest.json", _CUT),
    _volumes("no manifest", "manifest.json", _MISSING),
    Fault("volumes: another format", "`manifest.json` of another format", _OTHER_FORMAT, says="manifest.json"),
    Fault("an archive that is none", "an archive of MNIST that is none", _write_archive_that_is_none, says="mnist.tar"),
    Fault("a set that is there", "a set simulated where one is", _write_over_a_set, says="volumes"),
    _interrupted("SIGTERM", exit_code=143, lines=(0, 1)),
    _interrupted("SIGINT", exit_code=130, says="stopped: "),
)
