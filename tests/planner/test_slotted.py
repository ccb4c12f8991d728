"""Plans with slots, pipelines and accumulated gradients: found, shown, saved, and exact."""

import dataclasses
import math

import oracle
import pytest
import tiers

from mtf_hetero import mtf, tf
from mtf_hetero.cost.links import Link
from mtf_hetero.cost.machines import Machine, Machines
from mtf_hetero.planner import choice, show, verdict
from mtf_hetero.planner import plan as plan_lib
from mtf_hetero.planner.planning import Planner, find
from mtf_hetero.planner.slotted import Slotted

BATCH, LAYERS = 30, 6
SLOW, FAST = Link(1e-6, 1e5), Link(1e-9, 1e15)


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


def wide_program(feed):
    """Two dense layers whose activations need much more memory than their weights, and one name of the batch."""
    width, hidden = mtf.Dimension("width", 2), mtf.Dimension("hidden", 512)
    x = feed("x", mtf.Shape([mtf.Dimension("batch", BATCH), width]))
    options = {"initializer": tf.random_normal_initializer(stddev=0.1, seed=1), "dtype": mtf.VariableDType(feed.dtype)}
    into, out = (
        mtf.get_variable(feed.mesh, name, mtf.Shape(dims), **options)
        for name, dims in {"into": [width, hidden], "out": [hidden, width]}.items()
    )
    y = mtf.tanh(mtf.einsum([x, into], mtf.Shape([x.shape.dims[0], hidden])))
    y = mtf.einsum([y, out], mtf.Shape([x.shape.dims[0], width]))
    return {"y": y, "loss": mtf.reduce_mean(mtf.square(y))}


def heavy_program(feed):
    """Three layers of few weights, on many tokens of each example, and a last one of many weights, on their mean."""
    sizes = {"width": 40, "tokens": 64, "classes": 8192}
    width, tokens, classes = (mtf.Dimension(name, size) for name, size in sizes.items())
    x = feed("x", mtf.Shape([mtf.Dimension("batch", BATCH), tokens, width]))
    options = {"initializer": tf.random_normal_initializer(stddev=0.1, seed=1), "dtype": mtf.VariableDType(feed.dtype)}
    hidden = mtf.Dimension("hidden", width.size)
    for number in range(3):
        x = mtf.rename_dimension(x, x.shape.dims[0].name, f"layer{number}/batch")
        kernel = mtf.get_variable(feed.mesh, f"layer{number}", mtf.Shape([width, hidden]), **options)
        y = mtf.einsum([x, kernel], mtf.Shape([*x.shape.dims[:2], hidden]))
        x = mtf.tanh(mtf.rename_dimension(y, "hidden", "width"))
    x = mtf.rename_dimension(mtf.reduce_mean(x, reduced_dim=tokens), x.shape.dims[0].name, "last/batch")
    weights = mtf.get_variable(feed.mesh, "last", mtf.Shape([width, classes]), **options)
    y = mtf.einsum([x, weights], mtf.Shape([x.shape.dims[0], classes]))
    return {"y": y, "loss": mtf.reduce_mean(mtf.square(y))}


def train(built):
    graph = mtf.Graph()
    loss = built(oracle.Feed(mtf.Mesh(graph, "mesh"), tf.float32))["loss"]
    variables = graph.trainable_variables
    gradients = mtf.gradients([loss], [variable.outputs[0] for variable in variables])
    mtf.optimize.MomentumOptimizer(0.1, 0.9).apply_grads(gradients, variables)
    return graph


@pytest.fixture(scope="module")
def graph():
    with tf.Graph().as_default():
        yield train(program)


@pytest.fixture(scope="module")
def wide():
    with tf.Graph().as_default():
        yield train(wide_program)


def machines(*speeds, memory_bytes=None, link=SLOW):
    """Devices, by the number of products of two that they make in a microsecond."""
    return Machines(
        tuple(Machine(f"cpu:{n}", 1e6 * speed, 1e15, memory_bytes, 0.0) for n, speed in enumerate(speeds)), link
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
    assert not find(graph, machines(2, 1, link=FAST)).layout.slots


def test_results(graph):
    """Each step on the planned pipeline is that of one device."""
    oracle.check(program, find(graph, machines(2, 1)).layout, kinds=(oracle.MIXED,))


def test_ends_of_runs_are_moved_as_long_as_that_helps(graph):
    model = Planner(graph).space(machines(3, 1, 1)).model
    found = list(Slotted(model, is_short=False).list_fast(lambda: 1e9))
    assert len({layout for layout, _ in found}) == len(found)  # none is predicted twice
    of_devices: dict[tuple, list[float]] = {}  # {which device has the first layer and the last one: seconds}
    for layout, timeline in found:
        sizes = dict(layout.without_slots().sizes)
        ends = tuple(tuple(map(bool, sizes[f"layer{number}/batch"])) for number in (0, LAYERS - 1))
        of_devices.setdefault(ends, []).append(timeline.seconds)
    assert len(of_devices) == 6 and any(min(seconds) == seconds[-1] < seconds[0] for seconds in of_devices.values())


def test_devices_share_a_stage(graph):
    """Six layers are no four equal runs: two runs of three, each on two devices, are better balanced."""
    found = find(graph, machines(1, 1, 1, 1))
    sizes = {tuple(map(bool, each)) for name, each in found.layout.without_slots().sizes if "/" in name}
    assert found.is_pipeline and max(map(sum, sizes)) > 1
    oracle.check(program, found.layout, kinds=(oracle.MIXED,))


def test_what_fits_no_device_is_divided_among_stages(graph):
    """A device holds the weights of its own layers: no device has the memory for all of them."""
    whole = max(find(graph, machines(1)).memory_bytes)
    found = find(graph, machines(1, 1, memory_bytes=int(0.7 * whole)))
    assert found.layout.slots and not found.alone_fits and max(found.memory_bytes) <= 0.7 * whole


def test_runs_are_in_proportion_to_memory_where_it_is_short(graph):
    """The fast device has little: the slow one has most of the layers."""
    whole = max(find(graph, machines(1)).memory_bytes)
    limited = machines(2, 1).with_memory({"cpu:0": 0.4 * whole, "cpu:1": 0.85 * whole})
    model = Planner(graph).space(limited).model
    found = dict(Slotted(model, is_short=True).list_fast(lambda: math.inf))
    fitting = min((each for each in found if model.memory_use(each) <= 1), key=lambda each: found[each].seconds)
    sizes = [sizes for name, sizes in fitting.without_slots().sizes if "/" in name]
    assert [sum(map(bool, each)) for each in zip(*sizes, strict=True)] == [2, 4]
    oracle.check(program, fitting, kinds=(oracle.MIXED,))


def test_a_batch_that_fits_no_device_at_once_is_computed_in_parts(wide):
    """One device accumulates gradients, and two devices each in their part, in proportion to their speeds."""
    whole = max(find(wide, machines(1)).memory_bytes)
    alone = find(wide, machines(1, memory_bytes=int(0.5 * whole)))
    assert (alone.devices, alone.parts, alone.is_pipeline) == (("cpu:0",), 4, False)
    assert max(alone.memory_bytes) <= 0.5 * whole and not alone.alone_fits
    assert verdict.sentence(alone).startswith("Use cpu:0 alone, in 4 parts: ")
    two = find(wide, machines(2, 1, memory_bytes=int(0.4 * whole), link=FAST))
    assert dict(two.layout.without_slots().sizes)["batch"] == (20, 10) and two.parts > 1 and not two.is_pipeline
    assert verdict.sentence(two).startswith(f"Split over cpu:0-1, in {two.parts} parts: ")
    assert choice.describe_split(two) == f"batch 20+10 of 30, in {two.parts} parts"
    assert "adds up the gradients of all parts" in show.turns(two)
    for plan in (alone, two):
        assert plan_lib.loads(plan_lib.dumps(plan)) == plan
        oracle.check(wide_program, plan.layout, kinds=(oracle.MIXED,))


def test_layers_of_many_weights_wait_for_all_parts():
    """Each part would take as long as their weights take to be read."""
    with tf.Graph().as_default():
        graph = train(heavy_program)
    slow_memory = [dataclasses.replace(each, bytes_per_second=6e4) for each in machines(1, 1).devices]
    model = Planner(graph).space(Machines(tuple(slow_memory), SLOW)).model
    found = {layout: timeline.seconds for layout, timeline in Slotted(model, is_short=False).list_fast(lambda: 1e9)}
    best = min((layout for layout in found if layout.slots), key=found.__getitem__)
    sizes = {name: [size for size in sizes if size] for name, sizes in best.sizes}
    assert sizes["last/batch"] == [BATCH] and len(sizes["layer0/batch"]) > 1
    oracle.check(heavy_program, best, kinds=(oracle.MIXED,))


def test_runs_are_placed_without_parts_where_launches_take_the_time(graph):
    """Each part more would cost the launch of each operation once more."""
    launches = [dataclasses.replace(each, operation_seconds=1.0) for each in machines(1e6, 1e6).devices]
    model = Planner(graph).space(Machines(tuple(launches), FAST)).model
    found = {layout: timeline.seconds for layout, timeline in Slotted(model, is_short=False).list_fast(lambda: 1e9)}
    best = min(found, key=found.__getitem__)
    assert not best.slots and {tuple(map(bool, sizes)) for _, sizes in best.sizes} == {(True, False), (False, True)}


@tiers.parametrize("speeds", [(2, 1), (1, 1, 3)], first=[(2, 1)])
@tiers.parametrize("launch", [0.0, 1e-4, 1.0], first=[1e-4])
@pytest.mark.parametrize("make", [program, heavy_program], ids=lambda make: make.__name__)
def test_what_is_not_predicted_cannot_win(make, launch, speeds, monkeypatch):
    """Seconds that are found without the messages, or from few parts, are less than those that are predicted."""
    with tf.Graph().as_default():
        graph = train(make)
    devices = [dataclasses.replace(each, operation_seconds=launch) for each in machines(*speeds).devices]
    model = Planner(graph).space(Machines(tuple(devices), SLOW)).model
    predicted, predict = {}, Slotted._predict

    def keep(self, way):
        found = predict(self, way)
        return predicted.setdefault(found.layout, found)

    monkeypatch.setattr(Slotted, "_predict", keep)
    every = [found.seconds for _, found in Slotted(model, is_short=False).list_fast(lambda: math.inf)]
    of_layouts = dict(predicted)
    predicted.clear()
    likely = [found.seconds for _, found in Slotted(model, is_short=False).list_fast(lambda: min(every))]
    assert min(likely) == min(every) and len(predicted) < len(of_layouts)

    slotted = Slotted(model, is_short=False)
    for found in of_layouts.values():
        whole = predict(slotted, dataclasses.replace(found.way, slots=1, joint=0))
        split, split_whole = (slotted._split_seconds(each.way) for each in (found, whole))
        for device in range(len(speeds)):
            busy, busy_whole = (each.timeline.busy_seconds(device) for each in (found, whole))
            assert max(split[device], busy_whole - split_whole[device] + split[device]) <= (1 + 1e-9) * busy
        if found.way.slots > 1:
            few = predict(slotted, dataclasses.replace(whole.way, slots=4))
            least = min(slotted._least_seconds(whole, few), whole.timeline.seconds)
            assert found.timeline.seconds >= 0.98 * least  # where few parts save nothing, many may save little


@pytest.mark.parametrize("bandwidth", [1e2, 1e3, 1e5])
def test_the_runner_up_is_that_of_all_layouts(graph, bandwidth, monkeypatch):
    """The runner-up of a plan for one device is no slower for what is not predicted."""
    slow_launches = [dataclasses.replace(each, operation_seconds=0.01) for each in machines(2, 1).devices]
    devices = Machines(tuple(slow_launches), Link(1e-6, bandwidth))
    found = find(graph, devices)
    monkeypatch.setattr(Slotted, "_split_seconds", lambda self, way: [0.0, 0.0])
    every = find(graph, devices)
    assert (found.layout, found.runner_up) == (every.layout, every.runner_up)
    assert (found.devices == ("cpu:0",)) == (bandwidth < 1e5)


def test_what_a_plan_says(graph):
    plan = find(graph, machines(2, 1))
    assert verdict.sentence(plan).startswith(f"Pipeline of {plan.parts} parts of the batch over ")
    assert choice.describe_split(plan) == f"a pipeline of {plan.parts} parts of the batch"
    table = show.turns(plan).splitlines()
    assert [line.split()[0] for line in table[1:3]] == list(plan.devices) and " to layer" in table[1]
    assert "batch on cpu:0" in show.table(plan)
    assert plan_lib.loads(plan_lib.dumps(plan)) == plan
