"""After training on volumes: regression and segmentation, divided in space, on one device, in TensorFlow and Keras."""

import json
import shutil
from typing import Any

import keras
import numpy as np
import pytest
from keras import layers
from serving import run_signature
from small_volumes import labelled
from training_runs import call, read_test, run

from mtf_hetero import data, tf
from mtf_hetero.cli.after import evaluate, export, predict
from mtf_hetero.data.preparing.cosmology import write_universes

DEPTH = {"devices": "cpu:0,cpu:1", "layout": "spatial", "mesh_shape": "depth:2", "list_speed": "2,1"}
NAMES = {"targets": ["targets"], "probabilities": ["class", "logits", "probabilities"]}


def stored_volumes(directory):
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


OF_KERAS = {"regressing": regressing, "segmenting": segmenting}
TARGETS, CLASSES = ["cosmoflow_small", "regressing"], ["unet3d_small", "segmenting"]


def write_set(model, directory):
    if model in TARGETS:
        write_universes(directory, train=5, test=3, size=16)
    else:
        labelled(directory)


@pytest.mark.full
@pytest.mark.usefixtures("toys")
@pytest.mark.parametrize("model", TARGETS + CLASSES)
def test_divided_volumes_are_as_on_one_device_and_served(model, tmp_path, capfd):
    """The set of volumes is not needed to export."""
    kind = "targets" if model in TARGETS else "probabilities"
    write_set(model, tmp_path / "set")
    options = {"model": model, "recompute": "all"}
    if model in OF_KERAS:
        OF_KERAS[model]().save(tmp_path / "my.keras")
        options = {"model": tmp_path / "my.keras"}
    options |= {"dataset": tmp_path / "set", "batch_size": 2, "max_steps": 3, "optimizer": "sgd"}
    own = {"model_dir": tmp_path / "run"}
    assert run(**options | own | DEPTH) == 0
    reported, found = read_test(tmp_path / "run"), {}
    for place, flags in {"one": {}, "divided": DEPTH}.items():
        capfd.readouterr()
        assert call(evaluate, **own, **flags) == 0
        check_metrics(json.loads(capfd.readouterr().out), reported, kind)
        assert call(predict, **own, **flags, output=tmp_path / f"{place}.npz") == 0
        with np.load(tmp_path / f"{place}.npz") as arrays:
            found[place] = dict(arrays)
    assert list(found["one"]) == NAMES[kind]
    volumes = stored_volumes(tmp_path / "set")
    shutil.rmtree(tmp_path / "set")
    assert call(export, **own, output=tmp_path / "served") == 0
    (results,) = run_signature(tmp_path / "served", volumes, name="volumes", counts=[3])
    for name, value in found["one"].items():
        assert len(value) == 3
        for other in (found["divided"], results):
            np.testing.assert_allclose(other[name], value, atol=1e-4, err_msg=name)
    if model in OF_KERAS:
        check_keras_file(tmp_path, volumes, found["one"][kind])


@pytest.mark.full
@pytest.mark.parametrize(("model", "name"), [("cosmoflow_small", "targets"), ("unet3d_small", "logits")])
def test_a_network_for_volumes_becomes_a_keras_file(model, name, tmp_path):
    write_set(model, tmp_path / "set")
    options = {"model": model, "dataset": tmp_path / "set", "devices": "cpu:0", "batch_size": 2, "max_steps": 1}
    assert run(**options, model_dir=tmp_path / "run") == 0
    assert call(predict, model_dir=tmp_path / "run", output=tmp_path / "p.npz") == 0
    with np.load(tmp_path / "p.npz") as arrays:
        check_keras_file(tmp_path, stored_volumes(tmp_path / "set"), arrays[name])


def check_metrics(result, reported, kind):
    """Assert that a test agrees with the one that the run has reported, and its counts of voxels with each other."""
    metrics = result["metrics"]
    if kind == "probabilities":
        voxels = [row["examples"] for row in result["classes"]]
        assert voxels == [sum(row) for row in result["confusion_matrix"]]
        right = sum(row["right"] for row in result["classes"])
        assert metrics["accuracy"] == pytest.approx(right / sum(voxels))
    assert metrics == pytest.approx(reported, abs=2e-4)


def check_keras_file(directory, volumes, expected):
    """Assert that Keras predicts the same with the exported model."""
    assert call(export, model_dir=directory / "run", output=directory / "out.keras") == 0
    restored: Any = keras.saving.load_model(directory / "out.keras")
    outputs = np.asarray(restored(volumes))
    manifest = json.loads((directory / "run" / "network.json").read_text())["images"]["manifest"]
    if manifest["planes"]["targets"]:
        outputs = outputs * np.float32(manifest["target_deviation"]) + np.float32(manifest["target_mean"])
    np.testing.assert_allclose(outputs, expected, rtol=1e-4, atol=1e-4)
