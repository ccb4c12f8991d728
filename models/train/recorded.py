"""What a run's directory says of its network and its data, so that neither has to be there once it is trained.

MODEL_DIR/network.json has the shape of the images, the statistics by which they are normalised, and the classes or the
targets; MODEL_DIR/model.keras is a copy of a Keras model, as it was when the training began.
"""

import dataclasses
import json
import os
import pathlib
import shutil
from collections.abc import Mapping
from typing import Any

import numpy as np

from mtf_hetero import data
from mtf_hetero._support import loading, schema
from mtf_hetero._support.files import write_text
from mtf_hetero.models.registry import Model, is_keras
from mtf_hetero.models.train import config_file
from mtf_hetero.models.train.config import Config

NAME, MODEL = "network.json", "model.keras"
_FORMAT = 1
_FILE = schema.Record(
    {
        "format": schema.Number(whole=True, least=_FORMAT, most=_FORMAT),
        "model": schema.Text(least=1),
        "dataset": schema.Text(least=1),
        "images": schema.Table(schema.Anything()),  # one of two kinds
    }
)
_VOLUMES = schema.Record({"manifest": schema.Table(schema.Anything())})
_IMAGES = schema.Record(
    {
        "image_shape": schema.Many(schema.Number(whole=True, least=1, most=2**20), least=3, most=3),
        "classes": schema.Number(whole=True, least=1, most=2**31 - 1),
        "class_names": schema.Many(schema.Text()),
        "mean": schema.Many(schema.Number()),
        "deviation": schema.Many(schema.Number(above=0)),
    }
)


@dataclasses.dataclass(frozen=True, eq=False)
class RecordedImages(data.Dataset):
    """A set of images of which no image is there.

    Args:
      mean: per channel of the training images, scaled to [0, 1].
      deviation: the same.
    """

    mean: tuple[float, ...] = ()
    deviation: tuple[float, ...] = ()

    @property
    def statistics(self) -> tuple[np.ndarray, np.ndarray]:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Mean and standard deviation, as they were recorded."""
        return np.array(self.mean), np.array(self.deviation)


@dataclasses.dataclass(frozen=True, eq=False)
class Record:
    """What was recorded.

    Args:
      directory: of the run.
      model: the name of the model.
      dataset: the name of the set.
      images: what `save` says of a set of images, or of volumes.
    """

    directory: str
    model: str
    dataset: str
    images: Mapping[str, Any]

    def kept_model(self, config: Config) -> str | None:
        """Path of the copy of the Keras model that a configuration names; None: there is none."""
        path = os.path.join(self.directory, MODEL)
        is_same = self.model == config_file.in_full("model", config.model)
        return path if is_keras(config.model) and is_same and os.path.isfile(path) else None

    def data_of(self, config: Config) -> data.Dataset | data.Volumes | None:
        """The set that a configuration names, without its images or volumes; None: it names another."""
        if self.dataset != config_file.in_full("dataset", config.dataset):
            return None
        if "manifest" in self.images:
            return data.Volumes(self.dataset, data.Manifest.of_json(self.images["manifest"]))
        return RecordedImages(name=self.dataset, train_size=0, test_size=0, source=_no_images, **self.images)


def _no_images(split: str) -> Any:
    raise ValueError(f"there are no {split} images where the data set is not; give it with --dataset")


def save(config: Config, model: Model, dataset: data.Dataset | data.Volumes, directory: str) -> None:
    """Writes the record of a run, in place of that of an earlier one.

    Args:
      config: of the run.
      model: its model.
      dataset: its data.
      directory: where to.

    Raises:
      OSError: it cannot be written.
    """
    names = {name: config_file.in_full(name, getattr(config, name)) for name in ("model", "dataset")}
    if isinstance(dataset, data.Volumes):
        images: dict[str, Any] = {"manifest": dataclasses.asdict(dataset.manifest)}
    else:
        mean, deviation = (part.tolist() for part in dataset.statistics)
        images = {name: getattr(dataset, name) for name in ("image_shape", "classes", "class_names")}
        images |= {"mean": mean, "deviation": deviation}
    if is_keras(config.model):
        from mtf_hetero.models import keras_models

        for left in pathlib.Path(directory).glob(f".writing_{MODEL}_*"):  # of a run that was killed
            shutil.rmtree(left, ignore_errors=True)
        keras_models.keep(model, os.path.join(directory, MODEL))
    text = json.dumps({"format": _FORMAT, **names, "images": images}, indent=1)
    write_text(os.path.join(directory, NAME), f"{text}\n")


def load(directory: str | None) -> Record | None:
    """What is recorded in a directory; None: nothing, as of a run of an earlier version.

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


def _read_images(value: Mapping[str, Any]) -> dict[str, Any]:
    """Reads what `save` wrote about a set of images."""
    images = _IMAGES.read(value, "images")
    channels, names = images["image_shape"][-1], images["class_names"]
    for name in ("mean", "deviation"):
        if len(images[name]) != channels:
            raise ValueError(f"images.{name} has {len(images[name])} numbers for {channels} channels")
    if names and len(names) != images["classes"]:
        raise ValueError(f"images.class_names has {len(names)} names for {images['classes']} classes")
    return images
