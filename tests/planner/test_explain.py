"""The alternatives to a plan's layers: what each is said to take is what the timeline of its layout takes."""

import math

import keras
import pytest

import mtf_hetero
from mtf_hetero import tf
from mtf_hetero.cli.network import build_step
from mtf_hetero.cost.machines import Link, Machine, Machines
from mtf_hetero.cost.model import Model
from mtf_hetero.models.registry import MODELS
from mtf_hetero.planner import explain as explain_lib
from mtf_hetero.planner import left_out, show
from mtf_hetero.planner.explain import ALTERNATIVES, ONE, WHOLE, explain
from mtf_hetero.planner.planning import Planner, find
from mtf_hetero.planner.space import Space, Split

FAST, SLOW, SLOWEST = (Machine(name, rate * 1e10, rate * 2e9) for name, rate in (("a", 6), ("b", 3), ("c", 0.001)))
MACHINES = Machines((SLOWEST, SLOW, FAST), Link(1e-6, 1e11))


@pytest.fixture(scope="module")
def explained():
    """(graph, plan, its alternatives) of a small CNN, of whose three devices the plan leaves the slowest out."""
    with tf.Graph().as_default():
        graph = build_step(MODELS["lenet"], 64, "momentum")
        plan = find(graph, MACHINES)
        yield graph, plan, explain(graph, MACHINES, plan)


def timeline_seconds(graph, plan, sizes):
    """Return the time of a layout's timeline, computed again."""
    model = Model(graph, MACHINES.only([MACHINES.names.index(name) for name in plan.devices]))
    return model.seconds(Space(model).layout({name: Split(0, of_name) for name, of_name in sizes.items()}))


@pytest.mark.full
def test_the_plans_own_way_makes_no_difference(explained):
    _, plan, layers = explained
    assert plan.devices == ("b", "a") and [layer.name for layer in layers] == [
        layer.name for layer in plan.layers if layer.name != "input"
    ]
    planned = {layer.name: layer for layer in plan.layers}
    for layer in layers:
        assert layer.chosen in ALTERNATIVES and layer.seconds[layer.chosen] == 0.0
        assert layer.compute_seconds == max(planned[layer.name].seconds)
        assert layer.chosen in (planned[layer.name].kind or WHOLE, ONE)
        assert (layer.sending_seconds > 0) == any(planned[layer.name].sent_bytes)


def test_alternatives_take_what_the_timeline_says(explained):
    graph, plan, layers = explained
    split, checked = dict(plan.layout.sizes), set()
    for layer in layers:
        rest = {name: sizes for name, sizes in split.items() if name.rpartition("/")[0] != layer.name}
        for way, sizes in layer.sizes.items():
            assert layer.seconds[way] == pytest.approx(timeline_seconds(graph, plan, rest | dict(sizes)) - plan.seconds)
            checked.add(way)
        if ONE in layer.sizes and layer.chosen != ONE:
            assert all(sizes[0] == 0 for sizes in layer.sizes[ONE].values())  # the second is the fastest
    assert checked == set(ALTERNATIVES)


def test_what_is_not_possible_is_none(explained):
    _, _, layers = explained
    first = layers[0]
    assert first.name == "conv1" and first.seconds["inputs"] is None  # one channel
    assert all(layer.seconds["space"] is None for layer in layers if layer.name.startswith("dense"))


def test_the_table(explained):
    _, _, layers = explained
    lines = show.alternatives(layers).splitlines()
    assert lines[1].split()[:3] == ["layer", "ms", "ms"] and lines[0].split()[:2] == ["busy", "sends"]
    assert lines[2].startswith("conv1") and " 0 *" in lines[2] and lines[2].split().count("-") == 1
    assert "*: the plan. -: not possible," in lines[-4] and max(map(len, lines)) <= 80


@pytest.mark.full
def test_layers_that_share_the_batch_cannot_change_alone():
    convolutions = [keras.layers.Conv2D(8, 3, activation="relu"), keras.layers.Conv2D(8, 3)]
    model = keras.Sequential([keras.Input((64, 64, 3)), *convolutions])
    model.compile(loss="mse")
    images = tf.TensorSpec([256, 64, 64, 3]), tf.TensorSpec([256, 60, 60, 8])
    planned = mtf_hetero.plan(model, images, devices="2 x V100", link="nvlink")
    layers = explain(planned.graph, planned.machines, planned.plan)
    assert [layer.chosen for layer in layers] == ["batch", "batch"]
    assert all(set(layer.seconds.values()) == {0.0, None} for layer in layers)
    text = show.alternatives(layers)
    assert "No layer can be split in another way by itself" in text and "  by batch\n" in text and "+" not in text


def test_a_plan_of_one_device():
    """It has no alternatives; the layers' costs add up to the step, and the other device is said to be too slow."""
    with tf.Graph().as_default():
        graph = build_step(MODELS["lenet"], 4, "sgd")
        machines = Machines((FAST, SLOWEST), Link(1e-6, 1e11))
        planner = Planner(graph)
        plan = planner.find(machines)
        assert plan.devices == ("a",) and explain(graph, machines, plan) == ()
        layers = explain_lib.layer_costs(graph, machines, plan)
        others = left_out.devices_left_out(left_out.Search(planner, planner.find), machines, plan, seconds=0)
    assert [layer.name for layer in layers][:2] == ["conv1", "conv2"] and layers[-2].name == "dense3"
    assert math.fsum(layer.seconds for layer in layers) == pytest.approx(plan.seconds)
    assert {layer.limit for layer in layers} <= {explain_lib.ARITHMETIC, explain_lib.MEMORY, explain_lib.LAUNCHES}
    lines = show.costs(layers).splitlines()
    assert lines[0].split() == ["layer", "ms", "%", "of", "step", "limited", "by"] and " 100.0  " in lines[-1]
    assert others == ()
