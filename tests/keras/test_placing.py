"""Where `mtf_hetero.keras.fit` places a model: rules that name nothing are refused, and the choice is said."""

import json

import keras
import numpy as np
import pytest

import mtf_hetero.keras
from mtf_hetero import Layout
from mtf_hetero.planner import find, machines
from mtf_hetero.planner import plan as plan_lib
from tests.planner.test_find import step

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
        ("hidden/unit:all", "rule hidden/unit:all names dimension 'hidden/unit', .*; the nearest is 'hidden/units'$"),
        ("batch:al", "layout rule batch:al names mesh axis 'al', .* the mesh all:2 .*; the nearest is 'all'$"),
        (
            "batch:all;hiden/units:all",
            "dimension 'hiden/units', which no tensor of the graph has; the dimensions are h",
        ),
        ("batch:all;dense9/units:all", "dimension 'dense9/units', which no tensor of the graph has"),
        (Layout("all:2", "bacth:all"), "rule bacth:all names dimension 'bacth', .*; the nearest is 'batch'$"),
        (Layout("all:2", "batch:all;q:all", sizes={"q": [1, 2]}), "dimension 'q', which no tensor of the graph has"),
    ],
)
def test_a_rule_that_names_nothing_is_refused(layout, message):
    with pytest.raises(ValueError, match=message) as caught:
        fit(layout=layout)
    assert "\n" not in str(caught.value)


def test_on_one_device_too():
    with pytest.raises(ValueError, match="names dimension 'hidden/unit'"):
        fit(layout="hidden/unit:all", devices="cpu:0")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"rules": {"hiden": "all"}, "sizes": {}},
            "rule hiden:all names dimension 'hiden', which no tensor .*; plan an",
        ),
        ({"rules": {"batch": "al"}, "sizes": {}}, "names mesh axis 'al', .*; the nearest is 'all'; plan anew$"),
        ({"rules": {"batch": "all"}, "sizes": {"bach": [1, 1]}}, "sizes name dimension 'bach', .*nearest is 'batch'"),
        ({"shares": {"alll": [2, 1]}}, "shares name mesh axis 'alll', .*; the nearest is 'all'; plan anew$"),
    ],
)
def test_a_plan_that_names_nothing_is_refused(change, message, tmp_path):
    devices = tuple(machines.Machine(name, speed, speed / 10) for name, speed in zip(DEVICES, (6e10, 5e10)))
    plan = find.find(step(batch=32, inputs=64, units=(256, 128))[0], machines.Machines(devices))
    path = tmp_path / "plan.json"
    path.write_text(json.dumps(json.loads(plan_lib.dumps(plan)) | change))
    with pytest.raises(ValueError, match=message) as caught:
        fit(layout=path)
    assert "\n" not in str(caught.value)
