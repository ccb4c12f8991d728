"""Keras models in the binaries: trained on uneven layouts, resumed, tested and exported from the run's directory."""

import functools
import json
import os
import re
import shutil
import subprocess
import sys
from typing import Any

import keras
import numpy as np
import pytest
from import_oracle import begins_of_old
from keras import layers
from serving import run_signature
from tiny_keras import tiny
from training_runs import CPUS, DATASETS, FAST, call, check_mistake, read_test, run, variables

from mtf_hetero import data, tf
from mtf_hetero.cli import plan
from mtf_hetero.cli.after import evaluate, export, predict
from mtf_hetero.data import mnist5k
from mtf_hetero.data.source import source_of_arrays
from mtf_hetero.importer import pieces

pytestmark = pytest.mark.xdist_group("train keras")  # one training
OTHER = {"devices": "cpu:0,cpu:1", "layout": "batch", "list_speed": "2,1"}
PLAIN_KERAS = """
import json, sys
import keras
import numpy as np

model = keras.saving.load_model(sys.argv[1])
images, labels = np.load(sys.argv[2]), np.load(sys.argv[3])
outputs = model.predict(images)
assert not [name for name in sys.modules if name.split(".")[0] in ("mtf_hetero", "mesh_tensorflow", "models")]
print(json.dumps({"accuracy": float(np.mean(outputs.argmax(1) == labels)), "sum": float(outputs[0].sum())}))
"""


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A directory of three steps and then two on another layout, by which time the file is not there any more."""
    directory = tmp_path_factory.mktemp("keras")
    weights = tiny(directory / "my.keras")
    options = FAST | {"model": directory / "my.keras", "model_dir": directory / "run", "learning_rate": 0.05}
    assert run(**options | {"max_steps": 3, "list_speed": "3,2,1"}) == 0
    first = tf.train.load_checkpoint(str(directory / "run" / "model.ckpt-0"))
    for name, value in weights.items():
        np.testing.assert_array_equal(first.get_tensor(name).reshape(value.shape), value, err_msg=name)
    (directory / "my.keras").unlink()
    assert run(**options | OTHER | {"max_steps": 5}) == 0
    return directory / "run", weights


def test_what_is_trained(trained):
    directory, weights = trained
    found = variables(directory)
    assert found["global_step"] == 5
    assert not [name for name in found if "slot" in name and "frozen" in name]
    np.testing.assert_array_equal(found["frozen/kernel"], weights["frozen/kernel"])
    for name in ("conv/kernel", "conv/bias", "norm/gamma", "norm/moving_mean", "norm/moving_variance", "head/bias"):
        assert np.abs(found[name] - weights[name].reshape(found[name].shape)).max() > 1e-4, name
    graph = (directory / "model.ckpt-5.meta").read_bytes()
    assert all(array.tobytes() not in graph for array in weights.values())  # a graph is written with each checkpoint
    recorded = json.loads((directory / "network.json").read_text())
    assert (recorded["model"], recorded["dataset"]) == (f"{directory.parent}/my.keras", "mnist5k")
    assert recorded["images"]["image_shape"] == [28, 28, 1] and recorded["images"]["classes"] == 10


@pytest.mark.full
def test_the_first_step_is_compared_with_keras(tmp_path, monkeypatch, capsys):
    """A model with dropout, batch norm and slices that are turned is exact; a slice that is read wrong ends the run."""
    inputs = keras.Input((28, 28, 1))
    h = layers.BatchNormalization()(layers.Conv2D(6, 3, strides=4, activation="relu")(inputs))
    joined = keras.ops.concatenate([h, 2 * layers.Dropout(0.3)(h)], 0)[:, ::-1]
    one, other = keras.ops.split(joined, 2, axis=0)
    keras.Model(inputs, layers.Dense(10)(layers.Flatten()(one * other))).save(tmp_path / "my.keras")
    options = FAST | {"model": tmp_path / "my.keras", "max_steps": 2, "verify": "on", "list_speed": "3,2,1"}
    assert run(**options | {"model_dir": tmp_path / "run"}) == 0
    assert "first step equals TensorFlow's, " in capsys.readouterr().out
    monkeypatch.setattr(pieces, "_begin", begins_of_old)
    assert run(**options | {"model_dir": tmp_path / "other"}) == 1
    error = capsys.readouterr().err
    assert "the first step differs from TensorFlow's: result" in error
    assert error.rstrip().endswith(
        "please report this with the program, and use --verify=off to train without the check"
    )
    assert [path.name for path in (tmp_path / "other").glob("*.index")] == ["model.ckpt-0.index"]
    assert run(**options | {"model_dir": tmp_path / "other", "verify": "off"}) == 0


@pytest.mark.full
@pytest.mark.parametrize("place", [{}, {"layout": "stages"}, {"layout": "stages", "slots": "5"}], ids=str)
def test_three_steps_are_those_of_keras(place, tmp_path, capfd):
    """Train by SGD on the same images, from the weights in the file, on three uneven processors."""
    tiny(tmp_path / "my.keras")
    model: Any = keras.saving.load_model(tmp_path / "my.keras")
    values = {"model": tmp_path / "my.keras", "max_steps": 3, "list_speed": "3,2,1", "learning_rate": 0.1}
    assert run(**FAST | values | place, model_dir=tmp_path / "run", train_epochs=1, seed=5) == 0
    assert bool(place) == bool(re.search(r"stage\d/batch +50 over all: ", capfd.readouterr().out))
    loss = keras.losses.SparseCategoricalCrossentropy()
    for features, labels in data.load("mnist5k").train_input_fn(FAST["batch_size"], 1, 5).take(3):
        with tf.GradientTape() as tape:
            value = loss(labels, model(features["image"], training=True))
        gradients = tape.gradient(value, [variable.value for variable in model.trainable_variables])
        for variable, gradient in zip(model.trainable_variables, gradients, strict=True):
            variable.assign_sub(0.1 * gradient)
    found = variables(tmp_path / "run")
    for variable in model.variables:
        expected = np.asarray(variable)
        np.testing.assert_allclose(found[variable.path].reshape(expected.shape), expected, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("place", [{}, pytest.param({"devices": CPUS, "list_speed": "4,2,1"}, marks=pytest.mark.full)])
def test_it_is_tested_as_the_run_was(place, trained, capfd):
    directory, _ = trained
    assert call(evaluate, model_dir=directory, **place) == 0
    result = json.loads(capfd.readouterr().out)
    assert (result["model"], result["step"]) == (f"{directory.parent}/my.keras", 5)
    row = read_test(directory)
    found = {name: result["metrics"][name] for name in ("accuracy", "loss")}
    assert found == pytest.approx({name: row[name] for name in found}, abs=1e-6)


@pytest.mark.full
def test_plain_keras_has_what_was_trained(trained, tmp_path, capfd):
    directory, _ = trained
    assert call(evaluate, model_dir=directory) == 0
    accuracy = json.loads(capfd.readouterr().out)["metrics"]["accuracy"]
    assert call(export, model_dir=directory, output=tmp_path / "out.keras") == 0
    said = f"{tmp_path}/out.keras: a Keras model of step 5, which takes float32 [None, 28, 28, 1]\n"
    assert capfd.readouterr().out == f"{said}It takes images as they are stored, and normalizes them itself.\n"
    images, labels = mnist5k.split("test")
    np.save(tmp_path / "images.npy", images)
    np.save(tmp_path / "labels.npy", labels)
    args = [tmp_path / name for name in ("out.keras", "images.npy", "labels.npy")]
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    done = subprocess.run(
        [sys.executable, "-c", PLAIN_KERAS, *map(str, args)],
        cwd=tmp_path,
        env=environment | {"TF_CPP_MIN_LOG_LEVEL": "2"},
        check=True,
        timeout=300,
        stdout=subprocess.PIPE,
    )
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["accuracy"] == accuracy
    assert found["sum"] == pytest.approx(1, abs=1e-5)  # its softmax is still there


def test_no_data_set_is_needed_to_predict_and_to_export(trained, tmp_path, monkeypatch):
    directory, _ = trained
    images = mnist5k.split("test")[0][:9]
    np.save(tmp_path / "images.npy", images)
    assert call(predict, model_dir=directory, input=tmp_path / "images.npy", output=tmp_path / "with.npz") == 0
    monkeypatch.setattr(data, "load", lambda *_: pytest.fail("the data set was read"))
    assert call(predict, model_dir=directory, input=tmp_path / "images.npy", output=tmp_path / "without.npz") == 0
    assert call(export, model_dir=directory, output=tmp_path / "served") == 0
    (found,) = run_signature(tmp_path / "served", images.astype(np.float32), counts=[9])
    with np.load(tmp_path / "with.npz") as with_data, np.load(tmp_path / "without.npz") as without:
        for name, value in with_data.items():
            np.testing.assert_array_equal(value, without[name], err_msg=name)
        np.testing.assert_allclose(found["probabilities"], without["probabilities"], atol=1e-5)


def test_a_directory_without_records_reads_the_data_set(trained, tmp_path):
    """The directory of a run of an earlier version."""
    shutil.copytree(trained[0], tmp_path / "run")
    (tmp_path / "run" / "network.json").unlink()
    tiny(tmp_path / "my.keras")
    options = {"model_dir": tmp_path / "run", "model": tmp_path / "my.keras"}
    np.save(tmp_path / "images.npy", mnist5k.split("test")[0][:9])
    for directory, own in ((trained[0], {}), (tmp_path / "run", options)):
        given = {"model_dir": directory, **own, "input": tmp_path / "images.npy", "keys": "logits"}
        assert call(predict, **given, output=tmp_path / f"{directory.parent.name}.npz") == 0
    arrays = [np.load(path)["logits"] for path in sorted(tmp_path.glob("*.npz"))]
    np.testing.assert_allclose(*arrays, atol=1e-6)


@functools.cache
def images32():
    """A set of 40 images of 32 x 32 pixels of 3 classes."""
    rng = np.random.default_rng(0)
    sources = {
        split: source_of_arrays(rng.integers(0, 256, (20, 32, 32, 3), np.uint8), rng.integers(0, 3, 20))
        for split in ("train", "test")
    }
    return data.Dataset("images32", (32, 32, 3), 3, 20, 20, sources.__getitem__, ("a", "b", "c"))


def constructor(*, input_shape, classes, weights):
    """A small network in the place of MobileNet."""
    assert weights is None
    x = layers.Conv2D(2, 5, strides=4)(images := keras.Input(input_shape))
    return keras.Model(images, layers.Dense(classes, activation="softmax")(layers.Flatten()(x)))


@pytest.mark.full
def test_a_constructor_of_keras_applications(tmp_path, monkeypatch, capfd):
    monkeypatch.setitem(DATASETS, "images32", images32)
    monkeypatch.setattr(keras.applications, "MobileNet", constructor)
    options = FAST | {"model": "keras:MobileNet", "dataset": "images32", "batch_size": 10, "max_steps": 1}
    assert run(**options, list_speed="2,1,1", model_dir=tmp_path / "run") == 0
    assert "keras:MobileNet: 449 parameters" in capfd.readouterr().out
    assert json.loads((tmp_path / "run" / "network.json").read_text())["images"]["class_names"] == ["a", "b", "c"]
    assert call(evaluate, model_dir=tmp_path / "run") == 0
    assert json.loads(capfd.readouterr().out)["metrics"]["accuracy"] == read_test(tmp_path / "run")["accuracy"]


def test_what_is_not_heeded_is_said(tmp_path, capfd):
    images = keras.Input((28, 28, 1))
    x = layers.Conv2D(3, 9, kernel_regularizer="l2", bias_regularizer="l1", name="conv")(images)
    x = layers.Dense(10, kernel_constraint="max_norm", name="head")(layers.GlobalAveragePooling2D()(x))
    keras.Model(images, x).save(tmp_path / "my.keras")
    assert run(**FAST | {"model": tmp_path / "my.keras"}, dry_run=True) == 0
    said = capfd.readouterr().out
    assert "\nwarning: ignoring the regularizer of conv/kernel and 1 more\n" in said
    assert "\nwarning: ignoring the constraint of head/kernel\n" in said


@pytest.mark.full
def test_it_is_planned(tmp_path, capfd):
    tiny(tmp_path / "my.keras")
    (tmp_path / "devices.yaml").write_text("devices: [{kind: RTX-3090, count: 2}]\nlink: 1Gbit/s\n")
    given = [f"--model={tmp_path}/my.keras", f"--simulate={tmp_path}/devices.yaml", "--batch_size=64"]
    assert plan.main(given) == 0
    assert capfd.readouterr().out.startswith("Use RTX-3090:0 alone: ")


def test_a_keras_that_runs_code_of_files_reads_none(tmp_path, capfd, monkeypatch):
    tiny(tmp_path / "my.keras")
    monkeypatch.setattr(keras, "__version__", "3.10.0")
    message = "my.keras' is not read by Keras 3.10.0, which may run code of a .keras file; pip install 'keras>=3.11'"
    check_mistake(capfd, message, **FAST | {"model": tmp_path / "my.keras"}, model_dir=tmp_path / "run")


def test_mistakes_give_one_line_and_exit_code_2(tmp_path, capfd):
    for name, options in {"five": {"classes": 5}, "sigmoid": {"end": "sigmoid"}, "colour": {"channels": 3}}.items():
        tiny(tmp_path / f"{name}.keras", **options)
    (tmp_path / "damaged.keras").write_bytes(b"PK no zip")
    inputs = [keras.Input((28, 28, 1)), keras.Input((28, 28, 1))]
    keras.Model(inputs, layers.Add()(inputs)).save(tmp_path / "two.keras")
    keras.Sequential([keras.Input((7,)), layers.Dense(10)]).save(tmp_path / "rows.keras")
    keras.Sequential([keras.Input((28, 28, 1)), layers.Conv2D(10, 1)]).save(tmp_path / "pixels.keras")
    tiny(tmp_path / "good.keras")
    good = {"model": tmp_path / "good.keras"}
    for values, message in [
        ({"model": "vgg"}, "a Keras model's file, such as my.keras, or one of keras.applications, such as keras"),
        ({"model": "keras:resnet50"}, "keras.applications has no 'resnet50'; write ResNet50 or ResNet50V2"),
        ({"model": "keras:ResNet50"}, "ResNet50 cannot make a model for images of 28 x 28 x 1: Input size must be"),
        ({"model": tmp_path / "none.keras"}, "none.keras' is not a file; give a file that keras.Model.save wrote"),
        ({"model": tmp_path / "damaged.keras"}, "damaged.keras' is not a Keras model, or is damaged; give a file that"),
        ({"model": tmp_path / "five.keras"}, "which has 5 outputs, but the data set has 10 classes; give a model"),
        ({"model": tmp_path / "sigmoid.keras"}, "ends in activation Sigmoid"),
        ({"model": tmp_path / "colour.keras"}, "needs images of 28 x 28 x 3, but the data set has 28 x 28 x 1"),
        ({"model": tmp_path / "two.keras"}, "has 2 inputs and 1 outputs; give a model with one of each"),
        ({"model": tmp_path / "rows.keras"}, "needs float32 [batch, 7]; give a model for images, [batch, height,"),
        ({"model": tmp_path / "pixels.keras"}, "its output is 28 x 28 x 10 for each input of 28 x 28 x 1; give a"),
        (good | {"layout": "conv3/filters:all"}, "'conv3/filters', which no tensor of the graph has"),
        (good | {"recompute": "all"}, "--recompute is given, which --model="),
        (good | {"layout": "hybrid", "dense_rounds": True}, "--dense_rounds is given, which --model="),
        (good | {"layout": "hybrid", "mesh_shape": "a:1;b:3"}, "needs a batch of one dimension, but this layout has"),
        (good | {"dataset": tmp_path}, "has no images; give a directory"),
    ]:
        check_mistake(capfd, message, **FAST | values, model_dir=tmp_path / "run")
    assert not (tmp_path / "run").exists()
    for values, message in [
        ({"output": tmp_path / "out.keras", "format": "h5"}, "argument --format: invalid choice: 'h5'"),
        ({"output": tmp_path / "out", "format": "keras"}, "out'; name a file that ends in .keras"),
        ({"output": tmp_path / "good.keras"}, "which already exists; name a new file"),
    ]:
        check_mistake(capfd, message, functools.partial(call, export), model_dir=tmp_path, **values)
