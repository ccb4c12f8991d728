"""The planner predicts of imported steps what their lowered graphs send and hold."""

import collections
import functools

import pytest
import tiers
from image_steps import CONVOLUTIONS, NETWORKS
from steps import STEPS

from mtf_hetero import Layout, Lowering, UnevenMeshImpl, tf
from mtf_hetero.cost import Link
from mtf_hetero.cost.machines import Machine, Machines
from mtf_hetero.cost.transfers import of_step
from mtf_hetero.graph import assign_layers, list_layers, live_operations, names
from mtf_hetero.importer import step as step_lib
from mtf_hetero.importer.divided import Traced
from mtf_hetero.layouts import LAYOUTS
from mtf_hetero.layouts.rules import Rules
from mtf_hetero.mesh import traffic
from mtf_hetero.planner.planning import find

DEVICES = [f"/job:worker/task:{number}/device:CPU:0" for number in range(3)]
SHARES = {"all": [4, 2, 1]}
MACHINES = Machines(
    tuple(Machine(name, speed, 10 * speed, operation_seconds=0.0) for name, speed in zip("abc", (4e6, 2e6, 1e6))),
    Link(latency_seconds=1e-9, bytes_per_second=1e12),
)


@functools.cache
def trace_program(name):
    """The program of a step of tests/programs."""
    step, _, inputs = EVERY[name]()
    return Traced(step).program(inputs[0])


def make_layout(graph, way):
    """A layout by a recipe, by the planner, or by a rule."""
    if way == "plan":
        return find(graph, MACHINES).layout
    if way in LAYOUTS:
        return LAYOUTS[way](graph, mesh_shape="all:3", shares=SHARES)
    return Layout("all:3", [(name, "all") for name in way.split(";")], SHARES)


def lowered(program, way):
    """The step, the layout, its lowering, and what a session runs."""
    program.is_staged = way == "stages"
    step = step_lib.build(program)
    layout = make_layout(step.graph, way)
    lowering = Lowering(step.graph, {step.mesh: UnevenMeshImpl.from_layout(layout, DEVICES[: layout.size])})
    fetches = [lowering.export_to_tf_tensor(x) for x in step.results]
    return step, layout, lowering, [*fetches, *map(lowering.lowered_operation, step.updates)]


CASES = [
    *(("convolutional", way) for way in ("filters", "plan", "sequential/dense/kernel/1")),
    *(("transformer", way) for way in ("filters", "plan", "attention/query/kernel/1", "words/embeddings/0")),
    *(("LSTM", way) for way in ("filters", "plan")),
    *(("tape", way) for way in ("batch", "w/1")),
    *(("network", way) for way in ("spatial", "hybrid", "plan")),
    ("unet", "spatial"),
    *((name, "stages") for name in ("convolutional", "transformer", "LSTM", "network", "unet")),
    *(("multiplied", way) for way in ("before/kernel/3", "it/height")),
    ("groups", "before/kernel/3_0"),
]
EVERY = {**STEPS, **CONVOLUTIONS, **{name: step for name, (step, _) in NETWORKS.items()}}


@tiers.parametrize(("name", "way"), CASES, first=[("convolutional", "filters"), ("tape", "batch")])
def test_bytes(name, way):
    program = trace_program(name)
    with tf.Graph().as_default():
        step, layout, _, fetches = lowered(program, way)
        predicted = of_step(step.graph, layout, fetched=step.results)
        counted = traffic.sends(fetches, graph=step.graph)
    number = {device: pnum for pnum, device in enumerate(DEVICES)}
    expected = collections.Counter()
    for send in counted:
        if {send.source, send.target} <= number.keys() and send.bytes:
            expected[number[send.source], number[send.target], send.bytes] += 1
    found = collections.Counter((t.source, t.target, t.bytes) for t in predicted if t.bytes)
    assert found == expected
    assert found or layout.size == 1


def test_seeds_are_never_split():
    """The states of seed generators are never split, not even by a plan."""
    program = trace_program("convolutional")
    (state,) = (v.before.name for v in program.variables if "seed_generator" in v.before.name)
    with tf.Graph().as_default():
        graph = step_lib.build(program).graph
        assert f"{state}/0" in names.dimension_names(next(v for v in graph.all_variables if v.name == state))
        assert f"{state}/0" not in names.extents(live_operations(graph))
        assert not Rules(graph, "all:2", None, None).allow([f"{state}/0"])
    with tf.Graph().as_default():
        made = step_lib.build(program)
        mesh_impl = UnevenMeshImpl.from_layout(Layout("all:2", f"{state}/0:all"), DEVICES[:2])
        with pytest.raises(
            NotImplementedError, match=f"cannot be split along dimension '{state}/0', .*; remove the rule"
        ):
            Lowering(made.graph, {made.mesh: mesh_impl})


def test_convolutions_of_one_pixel_are_layers():
    """Recipes and plans see a convolution whose kernel has no height and no width."""
    program = trace_program("multiplied")
    with tf.Graph().as_default():
        graph = step_lib.build(program).graph
        found = {layer.outputs[0] for layer in list_layers(graph)}
        owners = set(assign_layers(live_operations(graph), graph.trainable_variables).values())
    assert "before/kernel/3" in found
    assert {"before", "it"} <= owners
