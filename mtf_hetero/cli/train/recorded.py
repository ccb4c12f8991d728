"""Record a run's network and data in its directory, so that both may be deleted after the training.

MODEL_DIR/network.json has the shape of the images, the statistics by which they are normalised, and the classes or the
targets; MODEL_DIR/model.keras is a copy of a Keras model, as it was when the training began.
"""

import dataclasses
import json
import os
import pathlib
import shutil
from collections.abc import Mapping
from typing import Any, NoReturn

from mtf_hetero import data
from mtf_hetero._support import loading, schema
from mtf_hetero._support.files import write_text
from mtf_hetero.cli.train import config_file
from mtf_hetero.cli.train.config import Config
from mtf_hetero.models.registry import Model, is_keras

NAME, MODEL = "network.json", "model.keras"
_FORMAT = 1  # a later version reads this file, or refuses it by this number
_FILE = schema.Record(
    {
        "format": schema.Number(integer=True, least=_FORMAT, most=_FORMAT),
        "model": schema.Text(least=1),
        "dataset": schema.Text(least=1),
        "images": schema.Table(schema.Anything()),  # for images or for volumes
    }
)
_CONTENT = ("train_size", "test_size", "digest")  # of a user's own images, which may change
_VOLUMES = schema.Record({"manifest": schema.Table(schema.Anything())})
_IMAGES = schema.Record(
    {
        "image_shape": schema.Many(schema.Number(integer=True, least=1, most=2**20), least=3, most=3),
        "classes": schema.Number(integer=True, least=1, most=2**31 - 1),
        "class_names": schema.Many(schema.Text()),
        "mean": schema.Many(schema.Number()),
        "deviation": schema.Many(schema.Number(above=0)),
        "train_size": schema.Number(integer=True, least=0),
        "test_size": schema.Number(integer=True, least=0),
        "digest": schema.Text(),
    },
    optional=_CONTENT,
)


@dataclasses.dataclass(frozen=True, eq=False)
class Record:
    """The record of a run."""

    directory: str
    model: str
    dataset: str
    images: Mapping[str, Any]

    def kept_model(self, config: Config) -> str | None:
        """Return the path of the copy of a configuration's Keras model; None: no copy exists."""
        path = os.path.join(self.directory, MODEL)
        is_same = self.model == config_file.full_path(config, "model")
        return path if is_keras(config.model) and is_same and os.path.isfile(path) else None

    def recorded_data(self, config: Config) -> data.Dataset | data.Volumes | None:
        """Return the recorded set without its images or volumes; None: the configuration names another set."""
        if self.dataset != config_file.full_path(config, "dataset"):
            return None
        if "manifest" in self.images:
            return data.Volumes(self.dataset, data.Manifest.of_json(self.images["manifest"]))
        shape, classes = self.images["image_shape"], self.images["classes"]
        return self.with_recorded_statistics(
            data.Dataset(self.dataset, shape, classes, 0, 0, _no_images, self.class_names)
        )

    @property
    def class_names(self) -> tuple[str, ...]:
        """Names of the classes; none: unknown."""
        return tuple(self.images.get("class_names", ()))

    def with_recorded_statistics(self, dataset: data.Dataset) -> data.Dataset:
        """Return a set with the statistics of the run, if it has the same number of channels."""
        mean, deviation = (self.images.get(name, ()) for name in ("mean", "deviation"))
        if len(mean) != dataset.image_shape[-1]:
            return dataset
        return dataclasses.replace(dataset, known_statistics=(tuple(mean), tuple(deviation)))

    def with_change_note(self, dataset: data.Dataset) -> data.Dataset:
        """Return the run's set, with a note if it has changed."""
        if self.images.get("digest", dataset.digest) == dataset.digest:
            return dataset
        train, test = self.images["train_size"], self.images["test_size"]
        note = (
            f"warning: {dataset.name} has changed since this run began with {train:,} training and {test:,} test "
            "images; training continues with the present images"
        )
        return dataclasses.replace(dataset, notes=(*dataset.notes, note))


def _no_images(split: str) -> NoReturn:
    raise ValueError(f"there are no {split} images where the data set is not; give it with --dataset")


def save(config: Config, model: Model, dataset: data.Dataset | data.Volumes, directory: str) -> None:
    """Write the record of a run, which replaces an earlier one.

    Raises:
      OSError: it cannot be written.
    """
    names = {name: config_file.full_path(config, name) for name in ("model", "dataset")}
    if isinstance(dataset, data.Volumes):
        images: dict[str, Any] = {"manifest": dataclasses.asdict(dataset.manifest)}
    else:
        mean, deviation = (part.tolist() for part in dataset.statistics)
        images = {name: getattr(dataset, name) for name in ("image_shape", "classes", "class_names")}
        images |= {"mean": mean, "deviation": deviation}
        if dataset.digest:
            images |= {name: getattr(dataset, name) for name in _CONTENT}
    if is_keras(config.model):
        from mtf_hetero.models import keras_models

        for left in pathlib.Path(directory).glob(f".writing_{MODEL}_*"):  # left by a killed run
            shutil.rmtree(left, ignore_errors=True)
        keras_models.keep(model, os.path.join(directory, MODEL))
    text = json.dumps({"format": _FORMAT, **names, "images": images}, indent=1)
    write_text(os.path.join(directory, NAME), f"{text}\n")


def load(directory: str | None) -> Record | None:
    """Read the record of a directory; None: it has none, as after a run of an earlier version.

    Raises:
      ValueError: the record is damaged.
    """
    path = pathlib.Path(directory or "", NAME)
    if directory is None or not path.is_file():
        return None
    try:
        value = _FILE.read(loading.load(path))
        if "manifest" in value["images"]:
            data.Manifest.of_json(_VOLUMES.read(value["images"], "images")["manifest"])
        else:
            value["images"] = _read_images(value["images"])
        return Record(directory, value["model"], value["dataset"], value["images"])
    except ValueError as error:
        raise ValueError(f"{path} cannot be read: {error}; delete it, and name --model and --dataset") from error


def explain_mismatch(config: Config) -> tuple[str, str]:
    """Return why a checkpoint in --model_dir has other variables, with {path} for the checkpoint, and the remedy."""
    record, dataset = load(config.model_dir), config_file.full_path(config, "dataset")
    if record is not None and record.dataset != dataset:
        why = f"--dataset is {dataset!r}, but --model_dir holds {{path}}, which was trained on {record.dataset!r}"
        return why, "choose another directory, or that data set"
    return (
        "--model_dir holds {path}, which this model, data set and optimizer cannot resume",
        "choose another directory",
    )


def _read_images(value: object) -> dict[str, Any]:
    """Read the facts that `save` wrote about a set of images."""
    images = _IMAGES.read(value, "images")
    channels, names = images["image_shape"][-1], images["class_names"]
    for name in ("mean", "deviation"):
        if len(images[name]) != channels:
            raise ValueError(f"images.{name} has {len(images[name])} numbers for {channels} channels")
    if names and len(names) != images["classes"]:
        raise ValueError(f"images.class_names has {len(names)} names for {images['classes']} classes")
    return images
