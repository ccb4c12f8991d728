"""After training on volumes: regression and segmentation, divided in space, on one device and in plain TensorFlow."""

import dataclasses
import json

import numpy as np
import pytest
from serving import served
from small_volumes import TOYS, labelled
from training_runs import call, restored_logging, run  # noqa: F401 - one is a fixture

from mtf_hetero import data, tf
from mtf_hetero.cli.after import evaluate, export, predict
from mtf_hetero.cli.train import prepare as prepare_lib
from mtf_hetero.data.preparing.cosmology import write_universes
from mtf_hetero.models.registry import MODELS

pytestmark = pytest.mark.usefixtures("restored_logging")
DEPTH = {"devices": "cpu:0,cpu:1", "layout": "spatial", "mesh_shape": "depth:2", "list_speed": "2,1"}
NAMES = {"cosmoflow_small": ["targets"], "unet3d_small": ["class", "logits", "probabilities"]}


@pytest.fixture(autouse=True)
def toys(monkeypatch):
    toys = {name: dataclasses.replace(MODELS[name], build=build) for name, build in TOYS.items()}
    monkeypatch.setattr(prepare_lib, "MODELS", {**MODELS, **toys})


def raw_volumes(dataset, count):
    """Test volumes as they are stored."""
    with tf.Graph().as_default(), tf.Session() as session:
        batch = tf.data.make_one_shot_iterator(dataset.test_input_fn(count)).get_next()
        image = session.run(batch)[0]["image"]
    return image * np.float32(dataset.manifest.deviation) + np.float32(dataset.manifest.mean)


@pytest.mark.full
@pytest.mark.parametrize("model", list(NAMES))
def test_divided_volumes_are_as_on_one_device_and_served(model, tmp_path, capfd):
    if model == "cosmoflow_small":
        write_universes(tmp_path / "set", train=5, test=3, size=16)
    else:
        labelled(tmp_path / "set")
    options = {"model": model, "dataset": tmp_path / "set", "batch_size": 2, "max_steps": 3, "optimizer": "sgd"}
    own = {"model_dir": tmp_path / "run"}
    assert run(**options | own, **DEPTH, recompute="all") == 0
    row = json.loads((tmp_path / "run" / "metrics.jsonl").read_text().splitlines()[-1])
    reported = {name: value for name, value in row.items() if name not in ("kind", "step")}
    found = {}
    for place, flags in {"one": {}, "divided": DEPTH}.items():
        capfd.readouterr()
        assert call(evaluate, **own, **flags) == 0
        result = json.loads(capfd.readouterr().out)
        metrics = result["metrics"]
        if model == "unet3d_small":
            voxels = [row["examples"] for row in result["classes"]]
            assert voxels == [sum(row) for row in result["confusion_matrix"]]
            right = sum(row["right"] for row in result["classes"])
            assert metrics["accuracy"] == pytest.approx(right / sum(voxels))
        assert metrics.keys() == reported.keys()
        for name, value in reported.items():
            assert metrics[name] == pytest.approx(value, abs=2e-4), name
        assert call(predict, **own, **flags, output=tmp_path / f"{place}.npz") == 0
        with np.load(tmp_path / f"{place}.npz") as arrays:
            found[place] = dict(arrays)
    assert list(found["one"]) == NAMES[model]
    for name, value in found["one"].items():
        assert len(value) == 3
        np.testing.assert_allclose(found["divided"][name], value, atol=1e-4, err_msg=name)
    assert call(export, **own, output=tmp_path / "served") == 0
    volumes = raw_volumes(data.load_volumes(tmp_path / "set"), 3)
    (results,) = served(tmp_path / "served", volumes, tmp_path, name="volumes", counts=(3,))
    for name, value in found["one"].items():
        np.testing.assert_allclose(results[name], value, atol=1e-4, err_msg=name)
