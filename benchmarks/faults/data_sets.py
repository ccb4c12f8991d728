"""Damaged data sets: one line that names the file, exit code 2, and what was trained before is kept."""

import json
import pathlib
import signal
from collections.abc import Callable
from typing import Any

from benchmarks.faults import fault
from benchmarks.faults.damage import DAMAGES
from benchmarks.faults.fault import DATA, TRAIN, Fault, Outcome, Scene
from benchmarks.process import Process

_VOLUMES = (
    "--model=cosmoflow_small",
    "--batch_size=2",
    "--layout=spatial",
    "--mesh_shape=depth:2",
    "--devices=cpu:0,cpu:1",
    "--train_epochs=2",
)
_CUT, _FLIPPED, _EMPTIED, _MISSING = "truncated", "byte in the middle flipped", "emptied", "deleted"
_TRAIN_IMAGES, _TEST_IMAGES = (f"mnist-{split}.tfrecord-00000-of-00001" for split in ("train", "test"))
_TRAIN_VOLUMES, _TEST_VOLUMES = "train-00000.tfrecord", "test-00000.tfrecord"
_MANIFEST = "manifest.json"
_IMAGES = (  # name, file, damage
    ("cut off", _TRAIN_IMAGES, _CUT),
    ("a byte flipped", _TRAIN_IMAGES, _FLIPPED),
    ("an empty shard", _TRAIN_IMAGES, _EMPTIED),
    ("a missing shard", _TRAIN_IMAGES, _MISSING),
    ("a byte of the test set flipped", _TEST_IMAGES, _FLIPPED),
    ("a missing shard of the test set", _TEST_IMAGES, _MISSING),
    ("description cut off", "dataset_info.json", _CUT),
)
_OF_VOLUMES = (
    ("cut off", _TRAIN_VOLUMES, _CUT),
    ("a byte flipped", _TRAIN_VOLUMES, _FLIPPED),
    ("an empty file", _TRAIN_VOLUMES, _EMPTIED),
    ("a missing file", _TRAIN_VOLUMES, _MISSING),
    ("a byte of the test set flipped", _TEST_VOLUMES, _FLIPPED),
    ("manifest cut off", _MANIFEST, _CUT),
    ("no manifest", _MANIFEST, _MISSING),
)

Damage = Callable[[pathlib.Path], None]


def _of_images(scene: Scene, name: str, damage: Damage) -> Outcome:
    """Damages a file of the prepared set, and trains on; in the directory is a checkpoint of before."""
    images = scene.shared.copy_sets(scene.directory / "sets") / "images"
    scene.copy_model()
    (path,) = images.rglob(name)
    damage(path)
    return scene.train(12, "--dataset=mnist", f"--data_dir={images}")


def _of_volumes(scene: Scene, name: str, damage: Damage) -> Outcome:
    volumes = scene.shared.copy_sets(scene.directory / "sets") / "volumes"
    damage(volumes / name)
    return fault.run([*TRAIN, *_VOLUMES, f"--dataset={volumes}", f"--model_dir={scene.model_dir}"])


def _of_another_format(path: pathlib.Path) -> None:
    content = json.loads(path.read_text(encoding="utf-8"))
    path.write_text(json.dumps({**content, "format": "something else"}), encoding="utf-8")


def _archive_that_is_none(scene: Scene) -> Outcome:
    archive = scene.directory / "mnist.tar"
    archive.write_bytes(b"no archive" * 100)
    return fault.run([*DATA, "prepare", "mnist", f"--from={archive}", f"--data_dir={scene.directory / 'data'}"])


def _interrupt_simulation(scene: Scene, number: int) -> Outcome:
    with Process([*DATA, "simulate", str(scene.directory / "set"), "--train=5000", "--size=32"]) as process:
        while not any(scene.directory.iterdir()) and process.wait_briefly():
            pass
        process.send(number)
        outcome = fault.end(process, 30)
    left = ", ".join(sorted(path.name for path in scene.directory.iterdir()))
    outcome.kept = left or "nothing half-made"
    outcome.fail(f"left behind: {left}", unless=not left)
    return outcome


def _write_over_a_set(scene: Scene) -> Outcome:
    volumes = scene.shared.copy_sets(scene.directory / "sets") / "volumes"
    before = {path.name: path.read_bytes() for path in volumes.iterdir()}
    outcome = fault.run([*DATA, "simulate", str(volumes), "--train=1", "--size=16"])
    same = before == {path.name: path.read_bytes() for path in volumes.iterdir()}
    outcome.kept = "the set that was there" if same else ""
    outcome.fail("the set that was there was changed", unless=same)
    return outcome


def _interrupted(name: str, **expected: Any) -> Fault:
    done = f"{name} while a set is simulated"
    return Fault(done, done, _interrupt_simulation, (signal.Signals[name],), **expected)


FAULTS = (
    *(
        Fault(
            f"images: {name}",
            f"`{file}` {kind}",
            _of_images,
            (file, DAMAGES[kind]),
            says=file if "tfrecord" in file else "mnist",
        )
        for name, file, kind in _IMAGES
    ),
    *(
        Fault(f"volumes: {name}", f"`{file}` of volumes {kind}", _of_volumes, (file, DAMAGES[kind]), says=file)
        for name, file, kind in _OF_VOLUMES
    ),
    Fault(
        "volumes: another format",
        f"`{_MANIFEST}` of another format",
        _of_volumes,
        (_MANIFEST, _of_another_format),
        says=_MANIFEST,
    ),
    Fault("an archive that is none", "an archive of MNIST that is none", _archive_that_is_none, says="mnist.tar"),
    Fault("a set that is there", "a set simulated where one is", _write_over_a_set, says="volumes"),
    _interrupted("SIGTERM", exit_code=143, lines=(0, 1)),
    _interrupted("SIGINT", exit_code=130, says="stopped: "),
)
