"""A plan as a file, and what it is checked against."""

import dataclasses
import json

import pytest

from mtf_hetero.layout import Layout
from mtf_hetero.planner import plan
from mtf_hetero.planner.plan import LayerPlan, Plan, PlanError

SPLIT = {"conv1/filters": (40, 20), "dense1/units": (7, 0)}


@dataclasses.dataclass
class Dim:
    """A dimension."""

    name: str
    size: int


PLAN = Plan(
    devices=("gpu:0", "cpu:0"),
    layout=Layout("all:2", [(name, "all") for name in SPLIT], (), SPLIT),
    seconds=0.25,
    alone=("gpu:0", 0.4),
    gap=0.0,
    layers=(LayerPlan("conv1", {"conv1/filters": (40, 20)}, (0.1, 0.11), (5, 0)),),
    memory_bytes=(10, 20),
    extents={"conv1/filters": 60, "dense1/units": 7},
    provenance={"graph": "vgg"},
)
DIMS = [Dim("conv1/filters", 60), Dim("batch", 5), Dim("dense1/units", 7), Dim("dense1/units", 3)]


def test_there_and_back(tmp_path):
    path = tmp_path / "plan.json"
    plan.save(PLAN, path)
    assert plan.load(path) == PLAN
    assert json.loads(path.read_text())["sizes"] == {name: list(sizes) for name, sizes in SPLIT.items()}


def test_what_fits():
    PLAN.check(DIMS, ["gpu:0", "cpu:0"])


@pytest.mark.parametrize(
    ("dims", "devices", "problem"),
    [
        (DIMS, ["gpu:0"], "for the devices gpu:0, cpu:0, but there are gpu:0"),
        (DIMS[1:], PLAN.devices, "dimension 'conv1/filters', which no tensor of the graph has; .*; plan anew"),
        ([Dim("conv1/filters", 64), *DIMS[1:]], PLAN.devices, "of 60, but in the graph it has 64"),
    ],
)
def test_what_does_not(dims, devices, problem):
    with pytest.raises(PlanError, match=problem):
        PLAN.check(dims, devices)


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (lambda value: value.update(schema=0), "has schema 0, not 1"),
        (lambda value: value.pop("devices"), "'devices' is missing"),
        (lambda value: value["devices"].pop(), "1 devices for the mesh all:2"),
        (lambda value: value["sizes"].update({"conv1/filters": [60]}), "give one per processor"),
        (lambda value: value.update(predicted=3), "is not a plan"),
    ],
)
def test_files_that_are_none(change, problem):
    value = json.loads(plan.dumps(PLAN))
    change(value)
    with pytest.raises(PlanError, match=problem):
        plan.loads(json.dumps(value))
    with pytest.raises(PlanError, match="is not a plan"):
        plan.loads("{")
