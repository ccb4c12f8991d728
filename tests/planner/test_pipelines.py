"""Plans that are pipelines: found, shown, saved, and exact."""

import dataclasses

import oracle
import pytest

from mtf_hetero import mtf, tf
from mtf_hetero.cost.links import Link
from mtf_hetero.cost.machines import Machine, Machines
from mtf_hetero.planner import choice, show, verdict
from mtf_hetero.planner import plan as plan_lib
from mtf_hetero.planner.pipelines import Pipelines
from mtf_hetero.planner.planning import Planner, find

BATCH, LAYERS = 30, 6
SLOW = Link(1e-6, 1e5)


def program(feed):
    """Dense layers of one width; in each the batch has another name."""
    width, hidden = mtf.Dimension("width", 48), mtf.Dimension("hidden", 48)
    x = feed("x", mtf.Shape([mtf.Dimension("batch", BATCH), width]))
    options = {"initializer": tf.random_normal_initializer(stddev=0.1, seed=1), "dtype": mtf.VariableDType(feed.dtype)}
    for number in range(LAYERS):
        x = mtf.rename_dimension(x, x.shape.dims[0].name, f"layer{number}/batch")
        kernel = mtf.get_variable(feed.mesh, f"layer{number}", mtf.Shape([width, hidden]), **options)
        y = mtf.einsum([x, kernel], mtf.Shape([x.shape.dims[0], hidden]))
        x = mtf.tanh(mtf.rename_dimension(y, "hidden", "width"))
    return {"y": x, "loss": mtf.reduce_mean(mtf.square(x))}


@pytest.fixture(scope="module")
def graph():
    with tf.Graph().as_default():
        graph = mtf.Graph()
        loss = program(oracle.Feed(mtf.Mesh(graph, "mesh"), tf.float32))["loss"]
        variables = graph.trainable_variables
        gradients = mtf.gradients([loss], [variable.outputs[0] for variable in variables])
        mtf.optimize.MomentumOptimizer(0.1, 0.9).apply_grads(gradients, variables)
        yield graph


def machines(*speeds, memory_bytes=None):
    """Devices, by the number of products of two that they make in a microsecond."""
    return Machines(
        tuple(Machine(f"cpu:{n}", 1e6 * speed, 1e15, memory_bytes, 0.0) for n, speed in enumerate(speeds)), SLOW
    )


def test_a_slow_link_makes_a_pipeline(graph):
    """The layers are divided in proportion to the speeds; each device has the batch of its own layers alone."""
    found = find(graph, machines(2, 1))
    assert found.layout.slots and set(found.devices) == {"cpu:0", "cpu:1"} and found.seconds < 0.85 * found.alone[1]
    sizes = found.layout.without_slots().sizes
    assert {tuple(sorted(each)) for name, each in sizes if "/" in name} == {(0, BATCH)}
    owned = {name: sum(each[n] > 0 for dim, each in sizes if "/" in dim) for n, name in enumerate(found.devices)}
    assert owned == {"cpu:0": 4, "cpu:1": 2}


def test_a_fast_link_makes_none(graph):
    fast = dataclasses.replace(machines(2, 1), link=Link(1e-9, 1e15))
    assert not find(graph, fast).layout.slots


def test_results(graph):
    """Each step on the planned pipeline is that of one device."""
    oracle.check(program, find(graph, machines(2, 1)).layout, kinds=(oracle.MIXED,))


def test_ends_of_runs_are_moved_as_long_as_that_helps(graph):
    model = Planner(graph).unsampled_model(machines(3, 1, 1))
    (_, first), *_, (_, last) = Pipelines(model).list_fast(1e9)
    assert last.seconds <= first.seconds


def test_what_fits_no_device_is_divided_among_stages(graph):
    """A device holds the weights of its own layers: no device has the memory for all of them."""
    whole = max(find(graph, machines(1)).memory_bytes)
    found = find(graph, machines(1, 1, memory_bytes=int(0.7 * whole)))
    assert found.layout.slots and not found.alone_fits and max(found.memory_bytes) <= 0.7 * whole


def test_what_a_plan_says(graph):
    plan = find(graph, machines(2, 1))
    assert verdict.sentence(plan).startswith(f"Pipeline of {plan.parts} parts of the batch over ")
    assert choice.describe_split(plan) == f"a pipeline of {plan.parts} parts of the batch"
    table = show.turns(plan).splitlines()
    assert [line.split()[0] for line in table[1:3]] == list(plan.devices) and "layer0 to layer" in table[1]
    assert "batch on cpu:0" in show.table(plan)
    assert plan_lib.loads(plan_lib.dumps(plan)) == plan
