"""Keras models of volumes in the binaries, and networks for volumes that become Keras files."""

import json
import shutil
from typing import Any

import keras
import numpy as np
import pytest
from keras import layers
from small_volumes import labelled
from training_runs import call, restored_logging, run  # noqa: F401 - one is a fixture

from mtf_hetero import data, tf
from mtf_hetero.cli.after import evaluate, export, predict
from mtf_hetero.data.preparing.cosmology import write_universes

pytestmark = pytest.mark.usefixtures("restored_logging")
DEPTH = {"devices": "cpu:0,cpu:1", "layout": "spatial", "mesh_shape": "depth:2", "list_speed": "2,1"}
TRAINING = {"batch_size": 2, "max_steps": 2, "optimizer": "sgd"}


def stored(directory):
    """The test volumes, as they are stored."""
    dataset = data.load_volumes(directory)
    with tf.Graph().as_default(), tf.Session() as session:
        batch = tf.data.make_one_shot_iterator(dataset.test_input_fn(dataset.test_size)).get_next()
        image = session.run(batch)[0]["image"]
    return image * np.float32(dataset.manifest.deviation) + np.float32(dataset.manifest.mean)


def segmenting():
    volumes = keras.Input((None, None, None, 1))
    x = layers.Conv3D(4, 3, padding="same", name="one", use_bias=False)(volumes)
    x = layers.ReLU()(layers.BatchNormalization(name="norm")(x))
    return keras.Model(volumes, layers.Conv3D(3, 1, activation="softmax", name="head")(x))


def regressing():
    volumes = keras.Input((16, 16, 16, 1))
    x = layers.AveragePooling3D(4)(layers.Conv3D(4, 3, padding="same", activation="relu", name="one")(volumes))
    return keras.Model(volumes, layers.Dense(3, name="head")(layers.Flatten()(x)))


def check(tmp_path, capfd, model, kind):
    """Trains, and asserts that Keras predicts with what is exported as `predict` does; without the data set, too."""
    assert run(**TRAINING | DEPTH | {"model": model, "dataset": tmp_path / "set", "model_dir": tmp_path / "run"}) == 0
    row = json.loads((tmp_path / "run" / "metrics.jsonl").read_text().splitlines()[-1])
    capfd.readouterr()
    assert call(evaluate, model_dir=tmp_path / "run") == 0
    metrics = json.loads(capfd.readouterr().out)["metrics"]
    assert metrics["loss"] == pytest.approx(row["loss"], rel=1e-4)
    volumes = stored(tmp_path / "set")
    assert call(predict, model_dir=tmp_path / "run", output=tmp_path / "p.npz") == 0
    shutil.rmtree(tmp_path / "set")
    assert call(export, model_dir=tmp_path / "run", output=tmp_path / "out.keras") == 0
    restored: Any = keras.saving.load_model(tmp_path / "out.keras")
    outputs = np.asarray(restored(volumes))
    with np.load(tmp_path / "p.npz") as arrays:
        if kind == "targets":
            manifest = json.loads((tmp_path / "run" / "network.json").read_text())["images"]["manifest"]
            outputs = outputs * np.float32(manifest["target_deviation"]) + np.float32(manifest["target_mean"])
        np.testing.assert_allclose(outputs, arrays[kind], rtol=1e-4, atol=1e-4)


@pytest.mark.full
@pytest.mark.parametrize("model", ["my.keras", "unet3d_small"])
def test_segmentation(model, tmp_path, capfd):
    labelled(tmp_path / "set")
    segmenting().save(tmp_path / "my.keras")
    kind = "probabilities" if model == "my.keras" else "logits"
    check(tmp_path, capfd, tmp_path / model if model == "my.keras" else model, kind)


@pytest.mark.full
@pytest.mark.parametrize("model", ["my.keras", "cosmoflow_small"])
def test_regression(model, tmp_path, capfd):
    write_universes(tmp_path / "set", train=5, test=3, size=16)
    regressing().save(tmp_path / "my.keras")
    check(tmp_path, capfd, tmp_path / model if model == "my.keras" else model, "targets")
