"""Placement by `mtf_hetero.keras.fit`: rules that name nothing are refused, and the choice is printed."""

import json
import re

import keras
import numpy as np
import pytest
import tiers
from dense_steps import step

import mtf_hetero.keras
from mtf_hetero import Layout, tf
from mtf_hetero.cost import machines
from mtf_hetero.keras import counting
from mtf_hetero.planner import plan as plan_lib
from mtf_hetero.planner import planning

DEVICES = ("cpu:0", "cpu:1")


def compiled():
    model = keras.Sequential(
        [keras.Input((6,)), keras.layers.Dense(8, name="hidden"), keras.layers.Dense(3, name="out")]
    )
    model.compile("sgd", "mse")
    return model


def fit(model=None, **options):
    rng = np.random.default_rng(0)
    options = {"verbose": 0, "batch_size": 8, "devices": DEVICES, **options}
    return mtf_hetero.keras.fit(model or compiled(), rng.normal(size=(16, 6)), rng.normal(size=(16, 3)), **options)


@pytest.mark.parametrize(
    ("layout", "message"),
    [
        ("hidden/kernel:all", "names dimension 'hidden/kernel', .*; the nearest is 'hidden/kernel/1'$"),
        ("batch:al", "layout rule batch:al names mesh axis 'al', .* the mesh all:2 .*; the nearest is 'all'$"),
        (
            "batch:all;hiden/kernel/1:all",
            "dimension 'hiden/kernel/1', which no tensor of the graph has; the dimensions are h",
        ),
        ("batch:all;dense9/kernel/1:all", "dimension 'dense9/kernel/1', which no tensor of the graph has"),
        (Layout("all:2", "bacth:all"), "rule bacth:all names dimension 'bacth', .*; the nearest is 'batch'$"),
        (Layout("all:2", "batch:all;q:all", sizes={"q": [1, 2]}), "dimension 'q', which no tensor of the graph has"),
    ],
)
def test_a_rule_that_names_nothing_is_refused(layout, message):
    with pytest.raises(ValueError, match=message) as caught:
        fit(layout=layout)
    assert "\n" not in str(caught.value)


def test_on_one_device_too():
    with pytest.raises(ValueError, match="names dimension 'hidden/kernel'"):
        fit(layout="hidden/kernel:all", devices="cpu:0")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"rules": {"hiden": "all"}, "sizes": {}, "extents": {}},
            "rule hiden:all names dimension 'hiden', which no tensor .*; plan an",
        ),
        ({"rules": {"batch": "al"}, "sizes": {}}, "names mesh axis 'al', .*; the nearest is 'all'; plan anew$"),
        ({"rules": {"batch": "all"}, "sizes": {"bach": [1, 1]}}, "sizes name dimension 'bach', .*nearest is 'batch'"),
        ({"shares": {"alll": [2, 1]}}, "shares name mesh axis 'alll', .*; the nearest is 'all'; plan anew$"),
    ],
)
def test_a_plan_that_names_nothing_is_refused(change, message, tmp_path):
    devices = tuple(machines.Machine(name, speed, speed / 10) for name, speed in zip(DEVICES, (6e10, 5e10)))
    plan = planning.find(step(batch=32, inputs=64, units=(256, 128))[0], machines.Machines(devices))
    path = tmp_path / "plan.json"
    path.write_text(json.dumps(json.loads(plan_lib.dumps(plan)) | change))
    with pytest.raises(ValueError, match=message) as caught:
        fit(layout=path)
    assert "\n" not in str(caught.value)


def test_what_was_chosen_is_said(capsys):
    """It prints like Keras, and nothing if Keras is silent."""
    fit(verbose=2)
    out = capsys.readouterr().out
    assert re.search(r"^Layout: cpu:0 alone; .*shares the cores of cpu:0; chosen in \d+ s$", out, re.MULTILINE)
    fit(verbose=0)
    assert "Layout" not in capsys.readouterr().out
    fit(verbose=2, layout="batch")
    assert "Layout" not in capsys.readouterr().out  # nothing was chosen


def test_a_history_has_the_sizes_on_each_device():
    rules = "batch:rows;hidden/kernel/1:columns"
    four, sizes = ("cpu:0", "cpu:1", "cpu:2", "cpu:3"), {"batch": [5, 3], "hidden/kernel/1": [6, 2]}
    assert fit(devices="cpu:0", layout="batch").layout == {}
    assert fit(layout="batch", list_speed=[3, 1]).layout == {"batch": {"cpu:0": 6, "cpu:1": 2}}
    of_mesh = fit(devices=four, layout=Layout("rows:2;columns:2", rules, sizes=sizes)).layout
    assert of_mesh["batch"] == {"cpu:0": 5, "cpu:1": 5, "cpu:2": 3, "cpu:3": 3}
    assert of_mesh["hidden/kernel/1"] == {"cpu:0": 6, "cpu:1": 2, "cpu:2": 6, "cpu:3": 2}


@pytest.mark.parametrize(
    ("options", "is_printed"),
    [({}, True), ({"rebalance": "off"}, False), ({"verbose": 0}, False), ({"devices": "cpu:0"}, False)],
)
def test_the_end_of_a_training_tells_its_speed(options, is_printed, capsys):
    """Rebalancing measures it; a device alone is not measured."""
    fit(**{"verbose": 2, "layout": "batch", "epochs": 10, **options})
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("Speed: ")]
    assert len(lines) == is_printed
    assert all(re.fullmatch(r"Speed: [\d,.]+ examples/s(; busy: cpu:0 \d+%, cpu:1 \d+%)?", line) for line in lines)


@tiers.on_workers
def test_a_time_limit_is_kept(workers, capsys):
    data = tf.compat.v2.data.Dataset.from_tensors((np.zeros((8, 6)), np.zeros((8, 3)))).repeat()
    stop = keras.callbacks.LambdaCallback(on_train_batch_end=lambda batch, logs: setattr(model, "stop_training", True))
    model = compiled()
    mtf_hetero.keras.fit(
        model,
        data.take(10**9).filter(lambda x, y: True),  # so that nobody knows how many there are
        workers=",".join(workers.addresses),
        devices=workers.cluster.devices[:2],
        measure_seconds=0.01,
        shuffle=False,
        callbacks=[stop],
        verbose=2,
    )
    assert "there was no time to try a split; set measure_seconds above 0.01" in capsys.readouterr().out


@pytest.mark.parametrize("value", [0, -1.0, float("nan"), float("inf"), True, "30", [30]])
def test_a_wrong_measure_seconds(value):
    with pytest.raises(ValueError, match="measure_seconds is .*; it must be a positive number$"):
        fit(measure_seconds=value)


def test_measure_seconds_where_nothing_is_measured():
    with pytest.raises(ValueError, match="measure_seconds is 5.0, which only layout='auto' and list_speed='auto' use"):
        fit(measure_seconds=5.0, layout="batch", list_speed=[2, 1])


class Images(keras.utils.PyDataset):
    def __len__(self):
        return 7


X = np.zeros((100, 3))
DATASET = tf.compat.v2.data.Dataset.from_tensor_slices(X)


@pytest.mark.parametrize(
    ("data", "options", "steps"),
    [
        (X, {}, 3 * 4),
        ((X, X), {"batch_size": 30}, 3 * 4),
        ({"a": X, "b": X}, {"batch_size": 200}, 3),
        (X, {"batch_size": 10, "initial_epoch": 1, "validation_split": 0.25}, 2 * 8),
        (X, {"initial_epoch": 5}, 0),
        (tf.zeros([100, 3]), {"batch_size": 50}, 3 * 2),
        (DATASET.batch(10), {}, 3 * 10),
        (DATASET.batch(10).repeat(), {}, None),
        (DATASET.batch(10).filter(lambda x: True), {}, None),
        (DATASET.batch(10).repeat(), {"steps_per_epoch": 5}, 15),
        (Images(), {}, 3 * 7),
        (iter([X]), {}, None),
        (iter([X]), {"steps_per_epoch": 2}, 6),
        (None, {}, None),
    ],
)
def test_the_steps_of_a_training(data, options, steps):
    assert counting.count_steps(data, {"epochs": 3, **options}) == steps
