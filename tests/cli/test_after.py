"""After training: evaluate, predict and export say on any layout, and on one device, what the run itself said."""

import contextlib
import functools
import json
import shutil
import signal
import sys
import types
from typing import Any

import keras
import numpy as np
import pytest
from own_sets import draw
from serving import run_signature
from sklearn import metrics as reference
from training_runs import CPUS, ONE, call, check_mistake, read_test, run

from mtf_hetero.cli.after import evaluate, export, predict, predictions
from mtf_hetero.cli.train import __main__ as train  # noqa: F401 - absl's flags are defined once
from mtf_hetero.cli.train import config_file, prepare
from mtf_hetero.cli.train.config import Config
from mtf_hetero.data import mnist5k
from mtf_hetero.estimator import saved_model

pytestmark = pytest.mark.xdist_group("after")  # one training
UNEVEN = {"devices": CPUS, "list_speed": "3,2,1"}
OTHER = {"devices": "cpu:0,cpu:1", "layout": "batch", "list_speed": "2,1"}
RULES = {"devices": CPUS, "layout": "conv1/filters:all;dense1/units:all", "list_speed": "4,1,1"}


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """The directory of three steps of LeNet on three uneven processors."""
    directory = tmp_path_factory.mktemp("trained") / "lenet"
    assert run(**ONE | UNEVEN | {"max_steps": 3, "batch_size": 30, "learning_rate": 0.05}, model_dir=directory) == 0
    return directory


@pytest.mark.parametrize(
    "place",
    [{}, OTHER, pytest.param({"local_cluster": "0.5,0.3", "list_speed": "2,1"}, marks=pytest.mark.full)],
    ids=str,
)
def test_every_layout_tests_as_the_run_did(place, trained, predicted, capfd):
    files = sorted(trained.rglob("*"))
    assert call(evaluate, model_dir=trained, **place) == 0
    result = json.loads(capfd.readouterr().out)
    expected = {"model": "lenet", "dataset": "mnist5k", "step": 3, "examples": 1000, "batch_size": 30}
    assert expected.items() <= result.items()
    assert result["checkpoint"] == f"{trained}/model.ckpt-3"
    top = result["metrics"].pop("top_5_accuracy")
    assert result["metrics"] == pytest.approx(read_test(trained), abs=1e-6)
    labels, classes = mnist5k.split("test")[1], result["classes"]
    assert top == reference.top_k_accuracy_score(labels, predicted["logits"], k=5)
    assert result["confusion_matrix"] == reference.confusion_matrix(labels, predicted["class"]).tolist()
    assert [row["examples"] for row in classes] == [100] * 10 and result["not_finite"] == 0
    assert [row["right"] for row in classes] == np.diag(result["confusion_matrix"]).tolist()
    assert sorted(trained.rglob("*")) == files  # it was only read


@pytest.mark.full
def test_a_network_is_computed_in_the_type_of_its_training(tmp_path, capfd):
    assert run(**ONE | OTHER | {"max_steps": 3}, compute_dtype="bfloat16", model_dir=tmp_path / "run") == 0
    losses = {}
    for dtype in ("", "float32"):
        capfd.readouterr()
        assert call(evaluate, model_dir=tmp_path / "run", **({"compute_dtype": dtype} if dtype else {})) == 0
        losses[dtype] = json.loads(capfd.readouterr().out)["metrics"]["loss"]
    rounding = abs(losses[""] - losses["float32"])
    assert 1e-6 < rounding < 0.01 * losses["float32"]
    assert abs(losses[""] - read_test(tmp_path / "run")["loss"]) < 0.1 * rounding


def test_no_lost_worker_is_waited_for(trained):
    config = Config(**config_file.load(str(trained / "config.yaml")))
    with contextlib.ExitStack() as stack:
        restored = prepare.restore(config, stack, str(trained / "model.ckpt-3"))
        assert restored.estimator.config.wait_for_workers is False


def test_a_checkpoint_and_a_file_of_flags(trained, tmp_path, capfd):
    place = {"checkpoint": trained / "model.ckpt-0", "config": trained / "config.yaml"}
    place |= {"output": tmp_path / "results" / "metrics.json", "confusion_matrix": tmp_path / "confusion.svg"}
    assert call(evaluate, **place) == 0
    lines = capfd.readouterr().out.splitlines()
    assert lines[0] == "lenet, step 0, on mnist5k" and lines[-1] == f"confusion matrix: {tmp_path}/confusion.svg"
    assert "class  images  accuracy  most often taken for" in lines
    assert (tmp_path / "confusion.svg").read_text().startswith("<?xml")
    result = json.loads((tmp_path / "results" / "metrics.json").read_text())
    assert result["step"] == 0
    assert result["metrics"]["loss"] != pytest.approx(read_test(trained)["loss"])


def test_a_terminal_gets_the_table(trained, capfd, monkeypatch):
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    assert call(evaluate, model_dir=trained, top=3) == 0
    lines = capfd.readouterr().out.splitlines()
    assert lines[1].startswith("test accuracy: ") and lines[3].startswith("top_3_accuracy: ")
    assert len(lines) == 16 and max(map(len, lines)) <= 80


@pytest.fixture(scope="module")
def predicted(trained, tmp_path_factory):
    """Return the predictions of one plain device for the test set."""
    path = tmp_path_factory.mktemp("predicted") / "predictions.npz"
    assert call(predict, model_dir=trained, output=path) == 0
    with np.load(path) as arrays:
        return dict(arrays)


def test_every_layout_predicts_the_same(trained, predicted, tmp_path, capfd):
    assert predicted["logits"].shape == (1000, 10) and predicted["class"].dtype == np.int64
    np.testing.assert_allclose(predicted["probabilities"].sum(1), 1, atol=1e-5)
    np.testing.assert_array_equal(predicted["class"], predicted["logits"].argmax(1))
    assert call(predict, model_dir=trained, output=tmp_path / "p.jsonl", keys="class,logits", **OTHER) == 0
    assert capfd.readouterr().out == f"class, logits of 1,000 images: {tmp_path}/p.jsonl\n"
    rows = [json.loads(line) for line in (tmp_path / "p.jsonl").read_text().splitlines()]
    assert [row["example"] for row in rows] == list(range(1000))
    assert set(rows[0]) == {"example", "class", "logits"}
    np.testing.assert_allclose([row["logits"] for row in rows], predicted["logits"], atol=1e-5)
    accuracy = np.mean(predicted["class"] == mnist5k.split("test")[1])
    assert accuracy == pytest.approx(read_test(trained)["accuracy"], abs=1e-6)


def test_images_of_the_users_own(trained, predicted, tmp_path):
    np.save(tmp_path / "images.npy", mnist5k.split("test")[0][:37])
    options = {"model_dir": trained, "input": tmp_path / "images.npy", "output": tmp_path / "p.npz", "keys": "logits"}
    assert call(predict, **options, **RULES) == 0
    with np.load(tmp_path / "p.npz") as arrays:
        assert list(arrays) == ["logits"]
        np.testing.assert_allclose(arrays["logits"], predicted["logits"][:37], atol=1e-5)


def same(found, expected):
    """Asserts that outputs differ by less than 1e-6 of the largest."""
    assert np.abs(np.asarray(found) - expected).max() < 1e-6 * np.abs(expected).max()


@pytest.fixture(scope="module")
def keras_file(trained, tmp_path_factory):
    """LeNet as a Keras file."""
    path = tmp_path_factory.mktemp("exported") / "lenet.keras"
    assert call(export, model_dir=trained, output=path) == 0
    return path


def test_a_keras_file_and_a_saved_model_normalise_their_images(trained, keras_file, predicted, tmp_path, capfd):
    images = mnist5k.split("test")[0].astype(np.float32)
    model: Any = keras.saving.load_model(keras_file)
    same(model(images), predicted["logits"])
    assert [layer.name for layer in model.layers[:3]] == ["images", "input_normalization", "conv1"]
    capfd.readouterr()
    assert call(export, model_dir=trained, output=tmp_path / "lenet" / "1", batch_size=50) == 0
    said = f"{tmp_path}/lenet/1: a SavedModel of step 3, serving_default(images=float32 [None, 28, 28, 1])\n"
    assert capfd.readouterr().out == said
    (found,) = run_signature(tmp_path / "lenet" / "1", images, counts=[1000])
    same(found["logits"], predicted["logits"])
    for name in ("probabilities", "class"):
        np.testing.assert_allclose(found[name], predicted[name], atol=1e-5, err_msg=name)


@pytest.mark.full
def test_a_keras_file_is_trained_further(keras_file, predicted, tmp_path, capfd):
    """Its images are not normalised twice."""
    images = mnist5k.split("test")[0].astype(np.float32)
    again = {"model": keras_file, "model_dir": tmp_path / "run", "learning_rate": 1e-30, "max_steps": 1}
    assert run(**ONE | again) == 0
    assert f"\n{keras_file} normalizes its images itself, and gets them as they are stored\n" in capfd.readouterr().out
    assert call(predict, model_dir=tmp_path / "run", output=tmp_path / "p.npz") == 0
    assert call(export, model_dir=tmp_path / "run", output=tmp_path / "again.keras") == 0
    said = f"{tmp_path}/again.keras: a Keras model of step 1, which takes float32 [None, 28, 28, 1]\n"
    assert f"{said}It takes images as they are stored, and normalizes them itself.\n" in capfd.readouterr().out
    with np.load(tmp_path / "p.npz") as arrays:
        same(arrays["logits"], predicted["logits"])
    model: Any = keras.saving.load_model(tmp_path / "again.keras")
    same(model(images), predicted["logits"])
    assert [layer.name for layer in model.layers[:3]] == ["images", "input_normalization", "conv1"]
    recorded = json.loads((tmp_path / "run" / "network.json").read_text())["images"]
    assert (recorded["mean"], recorded["deviation"]) == ([0], [1 / 255])


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_an_interrupted_export_leaves_nothing(number, code, trained, tmp_path, capfd, monkeypatch):
    monkeypatch.setattr(saved_model, "copy_variables", lambda *_: signal.raise_signal(number))
    previous = signal.signal(signal.SIGINT, signal.default_int_handler)  # where the tests run in the background
    try:
        assert call(export, model_dir=trained, output=tmp_path / "served") == code
    finally:
        signal.signal(signal.SIGINT, previous)
    assert capfd.readouterr().err.splitlines()[-1] == "stopped: nothing was written"
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk(trained, tmp_path, capfd, monkeypatch):
    def fail(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(saved_model, "copy_variables", fail)
    assert call(export, model_dir=trained, output=tmp_path / "served") == 1
    assert capfd.readouterr().err == f"error: cannot write {tmp_path}/served: No space left on device\n"
    (tmp_path / "p.npz").write_text("before")
    monkeypatch.setattr(predictions.files, "sync", fail)
    assert call(predict, model_dir=trained, output=tmp_path / "p.npz") == 1
    assert "No space left on device" in capfd.readouterr().err
    assert [path.read_text() for path in tmp_path.iterdir()] == ["before"]


def test_a_data_set_without_a_test_set_needs_inputs():
    run = types.SimpleNamespace(dataset=types.SimpleNamespace(test_size=0), config=types.SimpleNamespace(dataset="own"))
    with pytest.raises(ValueError, match="^--dataset is 'own', which has no test set; give --input$"):
        predict._read_examples(run, [])


def test_mistakes_give_one_line_and_exit_code_2(trained, tmp_path, capfd):
    (tmp_path / "empty").mkdir()
    (tmp_path / "untrained").mkdir()
    (tmp_path / "untrained" / "config.yaml").write_text("model: lenet\n")
    (tmp_path / "plain.txt").write_text("")
    (tmp_path / "text.png").write_text("no image")
    np.save(tmp_path / "small.npy", np.zeros([3, 8, 8, 1]))
    np.save(tmp_path / "objects.npy", np.array([{}], object))
    np.save(tmp_path / "nan.npy", np.full([3, 28, 28, 1], np.nan))
    own, out = {"model_dir": trained}, {"output": tmp_path / "new.npz"}
    for command, values, message in [
        (evaluate, {}, "one of the arguments --model_dir --checkpoint is required"),
        (evaluate, own | {"checkpoint": "x"}, "not allowed with argument --model_dir"),
        (evaluate, {"model_dir": tmp_path / "none"}, "none', which is not a directory; name the directory of a run"),
        (evaluate, {"model_dir": tmp_path / "empty"}, "has no config.yaml, which says what was trained there; give"),
        (evaluate, {"model_dir": tmp_path / "untrained"}, "which holds no checkpoint; train there first"),
        (evaluate, {"checkpoint": trained / "model.ckpt-9"}, "where there is no checkpoint; name one, as in"),
        (evaluate, own | {"model": "vgg11"}, "model.ckpt-3 is of another network, or of another data set: variable"),
        (evaluate, own | {"layout": "auto"}, "--layout is 'auto', which measures steps of training; give a recipe"),
        (evaluate, own | {"list_speed": "auto"}, "--list_speed is 'auto', which measures steps of training"),
        (evaluate, own | {"output": tmp_path / "plain.txt" / "x"}, "plain.txt cannot be written to; name another"),
        (evaluate, own | {"top": 1}, "--top is 1; it must be 2 or more: top-1 accuracy is `accuracy`"),
        (evaluate, own | {"top": 10}, "--top is 10, but there are 10 classes; give a smaller number"),
        (predict, own, "--output is not given; name a file that ends in .npz or .jsonl, or give images by --input"),
        (predict, own | {"input": tmp_path / "a.jpg", "keys": "class"}, "--keys is 'class' without --output"),
        (predict, own | {"input": tmp_path / "a.jpg"}, "a.jpg', where there are no images; name images (.jpeg, .jpg"),
        (predict, own | {"input": tmp_path / "empty"}, "empty', a folder without JPEG and PNG images; name images"),
        (predict, own | {"input": tmp_path / "text.png"}, "text.png is not an intact JPEG or PNG image (cannot"),
        (predict, own | out | {"keys": "file"}, "--keys names 'file', which these images do not have; remove it"),
        (predict, own | {"output": "p.csv"}, "--output is 'p.csv'; name a file that ends in .npz or .jsonl"),
        (predict, own | out | {"keys": "colour"}, "predict_keys names 'colour', which the model does not"),
        (predict, own | out | {"input": tmp_path / "plain.txt"}, "plain.txt'; name images (.jpeg, .jpg, .png), folder"),
        (predict, own | out | {"input": tmp_path / "none.npy"}, "none.npy', which cannot be read: No such file"),
        (predict, own | out | {"input": tmp_path / "objects.npy"}, "is not an array of numbers that numpy.save wrote"),
        (predict, own | out | {"input": tmp_path / "nan.npy"}, "nan.npy', which has values that are not finite, from"),
        (predict, own | out | {"input": tmp_path / "small.npy"}, "it must be one of numbers, [examples, 28, 28, 1]"),
        (export, own | {"output": tmp_path / "new", "dataset": "--"}, "argument --dataset: '--' is no value; see"),
        (export, own | {"output": tmp_path}, "which already exists; name a new directory"),
        (export, own | {"output": "x", "layout": "batch"}, "--layout is unknown"),
        (export, own | {"output": tmp_path / "new", "batch_size": 0}, "--batch_size is 0; it must be a whole number"),
    ]:
        before = sorted(tmp_path.rglob("*"))
        check_mistake(capfd, message, functools.partial(call, command), **values)
        assert sorted(tmp_path.rglob("*")) == before


def test_an_image_that_tensorflow_cannot_decode_is_one_line(trained, tmp_path, capfd):
    intact = draw(tmp_path / "pixels.png", (20, 20)).read_bytes()
    (tmp_path / "pixels.png").write_bytes(intact[:60] + bytes(len(intact) - 72) + intact[-12:])  # head and end stay
    assert call(predict, model_dir=trained, input=tmp_path / "pixels.png") == 2
    error = next(line for line in capfd.readouterr().err.splitlines() if line.startswith("error: "))
    assert error.endswith(
        "pixels.png cannot be read: TensorFlow cannot decode it, or it is cut off; replace or remove it"
    )


@pytest.mark.filterwarnings("default:.*is damaged")
def test_a_damaged_newest_checkpoint_is_named(trained, tmp_path, capfd):
    shutil.copytree(trained, tmp_path / "run")
    (tmp_path / "run" / "model.ckpt-3.index").write_bytes(b"")
    assert call(export, model_dir=tmp_path / "run", output=tmp_path / "made") == 0
    out, err = capfd.readouterr()
    assert "a SavedModel of step 0" in out
    assert f"warning: {tmp_path}/run/model.ckpt-3 is damaged (" in err and "); model.ckpt-0 is used" in err
