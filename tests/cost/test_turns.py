"""The predicted step of a layout with slots."""

import math

import numpy as np
import pytest

from mtf_hetero import Layout, layers, mtf, tf
from mtf_hetero.cost import memory
from mtf_hetero.cost.links import Link
from mtf_hetero.cost.machines import Machine, Machines
from mtf_hetero.cost.model import Model

FAST = Link(1e-9, 1e15)
BLOCKS, WIDTH, BATCH = 4, 64, 64
NAMES = ("s0/batch", "s1/batch")


def images(width):
    shape = mtf.Shape([mtf.Dimension(NAMES[0], BATCH), width])
    return mtf.import_tf_tensor(
        mtf.Mesh(mtf.Graph(), "mesh"), tf.constant(np.zeros(shape.to_integer_list, np.float32)), shape
    )


def train(x):
    """The graph that trains all variables, whose loss is a mean of squares."""
    graph = x.graph
    loss = mtf.reduce_mean(mtf.square(x))
    variables = graph.trainable_variables
    gradients = mtf.gradients([loss], [variable.outputs[0] for variable in variables])
    mtf.optimize.SgdOptimizer(0.01).apply_grads(gradients, variables)
    return graph


def build(*, joins=False):
    """A step of residual blocks, in two stages; with joins, each block is normalized over the whole batch."""
    width, hidden = mtf.Dimension("width", WIDTH), mtf.Dimension("hidden", 2 * WIDTH)
    x = images(width)
    for block in range(BLOCKS):
        if block == BLOCKS // 2:
            x = mtf.rename_dimension(x, *NAMES)
        batch = x.shape.dims[0]
        into = mtf.get_variable(x.mesh, f"in{block}", mtf.Shape([width, hidden]))
        out = mtf.get_variable(x.mesh, f"out{block}", mtf.Shape([hidden, width]))
        y = mtf.einsum([mtf.relu(mtf.einsum([x, into], [batch, hidden])), out], x.shape)
        x += y - mtf.reduce_mean(y, reduced_dim=batch) if joins else y
    return train(x)


def build_cut_at_products():
    """A step whose large tensor is sent, so that the gradient of the first weight reads what comes back."""
    width, hidden = mtf.Dimension("width", 2), mtf.Dimension("hidden", 64 * WIDTH)
    x = images(width)
    y = mtf.einsum([x, mtf.get_variable(x.mesh, "into", mtf.Shape([width, hidden]))], [x.shape.dims[0], hidden])
    y = mtf.relu(mtf.rename_dimension(y, *NAMES))
    out = mtf.get_variable(x.mesh, "out", mtf.Shape([hidden, width]))
    return train(mtf.einsum([y, out], [y.shape.dims[0], width]))


def machines(*speeds, link=FAST):
    """Devices that are busy with products alone."""
    return Machines(
        tuple(Machine(f"cpu:{n}", 1e9 * speed, 1e15, operation_seconds=0.0) for n, speed in enumerate(speeds)), link
    )


def stages(slots):
    """Each of two devices has one stage, in so many parts of the batch."""
    part, none = [BATCH // slots] * slots, [0] * slots
    sizes = {NAMES[0]: [*part, *none], NAMES[1]: [*none, *part]}
    return Layout(f"all:{2 * slots}", [(name, "all") for name in NAMES], (), sizes, {"all": [slots, slots]})


def joint(slots, device_count):
    """The last slot of the last device has all of the second stage, and waits for all slots of the first one."""
    part, none = [BATCH // slots] * slots, [0] * slots * (device_count - 1)
    sizes = {NAMES[0]: [*part, *none], NAMES[1]: [*none, *[0] * (slots - 1), BATCH]}
    rules = [(name, "all") for name in NAMES]
    return Layout(f"all:{slots * device_count}", rules, (), sizes, {"all": [slots] * device_count})


def without_slots(layout):
    """The layout of devices that have one slot each."""
    return Layout(layout.mesh_shape, layout.rules, (), layout.sizes)


def batch(*slots):
    """All devices have equal parts of the batch."""
    return Layout(f"all:{sum(slots)}", [(name, "all") for name in NAMES], (), (), {"all": slots})


@pytest.fixture(scope="module")
def graph():
    with tf.Graph().as_default():
        yield build()


def test_a_pipeline_is_filled_and_drained(graph):
    """Two stages of n slots take at most n + 1 turns of the busier device, where one device takes 2 n."""
    model = Model(graph, machines(1, 1))
    alone, before = Model(graph, machines(1)).seconds(batch(1)), math.inf
    for slots in (1, 2, 4, 8):
        timeline = model.timeline(stages(slots))
        longest = 1.01 * max(map(timeline.busy_seconds, range(2))) * (slots + 1) / slots
        assert 0.5 * alone <= timeline.seconds <= longest and timeline.seconds < 0.95 * before
        before = timeline.seconds


def test_a_pipeline_takes_as_long_in_the_reverse_order_of_devices(graph):
    """The first slots then have nothing of the first layers, and are done with these when the step begins."""
    model, there = Model(graph, machines(1, 1)), stages(4)
    back = {name: [*sizes[4:], *sizes[:4]] for name, sizes in there.sizes}
    seconds = model.seconds(Layout(there.mesh_shape, there.rules, (), back, there.slots))
    assert seconds == pytest.approx(model.seconds(there), rel=1e-6)


@pytest.mark.parametrize("placed", [stages(1), without_slots(stages(1))])
def test_no_gradient_begins_before_a_message_that_several_read(placed):
    """The gradients of a stage's last product and of its weights both read what comes from the next stage."""
    with tf.Graph().as_default():
        model = Model(build(), machines(1, 1, link=Link(1e-2, 1e15)))
    spans = model.timeline(placed).spans
    there, back = (
        next(s for s in spans if s.device == 1 and s.layer == "in2" and s.backward is way) for way in (False, True)
    )
    own = [span for span in spans if span.device == 0 and span.backward and span.end - span.begin > 1e-4]
    assert there.begin > 1e-2 and min(span.begin for span in own) > back.end + 1e-2


def test_a_device_has_as_many_slots_in_progress_as_in_the_lowered_graph(graph):
    """One on the last device, and two more on each one before it: a message takes as long as a stage."""
    assert Model(graph, machines(1, 1)).slots_in_progress(stages(8)) == (3, 1)


@pytest.mark.parametrize(
    ("built", "layout"),
    [
        (build, batch(4)),
        (build, stages(4)),
        (build, joint(4, 1)),
        (build, joint(4, 2)),
        (build_cut_at_products, stages(8)),
    ],
)
def test_the_sketch_of_memory_counts_slots_in_progress(built, layout):
    """As the estimate of the lowered graph does: within 30 %."""
    with tf.Graph().as_default():
        model = Model(built(), machines(*[1] * layout.device_count))
    estimates = memory.estimate_layout(built, model.exact(layout))
    assert model.bytes_held(layout) == pytest.approx([each.peak - each.runtime for each in estimates], rel=0.3)


def test_slots_of_one_device_take_as_long_as_the_whole(graph):
    model = Model(graph, machines(1))
    assert model.seconds(batch(8)) == pytest.approx(model.seconds(batch(1)), rel=1e-6)


@pytest.mark.parametrize("latency", [1e-6, 1e-3, 1e-1])
@pytest.mark.parametrize("layout", [batch(1, 1), stages(1)])
def test_one_slot_for_each_device_is_no_slot(graph, layout, latency):
    model = Model(graph, machines(2, 1, link=Link(latency, 1e9)))
    layout = model.exact(layout)
    assert model.seconds(layout) == pytest.approx(model.seconds(without_slots(layout)), rel=0.05)


def test_no_slot_goes_on_before_what_joins_all():
    """A mean over the batch is there once all slots have their part, so that the second stage waits for all of them."""
    with tf.Graph().as_default():
        graph = build(joins=True)
    model, alone = Model(graph, machines(1, 1)), Model(graph, machines(1)).seconds(batch(1))
    assert model.seconds(stages(8)) > 0.8 * alone


@pytest.mark.parametrize("device_count", [1, 2])
def test_a_slot_with_the_whole_batch_waits_for_all_and_all_wait_for_it(graph, device_count):
    """All slots are then in progress, and two stages do not overlap; one device takes no longer."""
    model, layout = Model(graph, machines(*[1] * device_count)), joint(4, device_count)
    assert model.slots_in_progress(layout)[0] == 4
    timeline = model.timeline(layout)
    products = [span for span in timeline.spans if span.end - span.begin > 1e-4]
    first, second = ([span for span in products if span.layer[-1] in blocks] for blocks in ("01", "23"))
    begin, end = min(span.begin for span in second), max(span.end for span in second)
    assert all(span.backward == (span.begin > begin) for span in first)
    assert all(span.end <= begin or span.begin >= end * 0.99 for span in first)
    assert timeline.seconds == pytest.approx(Model(graph, machines(1)).seconds(batch(1)), rel=0.02)


@pytest.mark.parametrize("device_count", [1, 2])
def test_no_slot_goes_on_within_an_operation_that_needs_all(device_count):
    """A batch norm is one operation: in front of it, all slots of all devices are in memory."""
    width = mtf.Dimension("width", WIDTH)
    with tf.Graph().as_default():
        x = images(width)
        y = mtf.einsum([x, mtf.get_variable(x.mesh, "w", mtf.Shape([width, mtf.Dimension("hidden", WIDTH)]))])
        model = Model(train(layers.batch_norm(y, training=True)), machines(*[1] * device_count))
    assert min(model.slots_in_progress(model.exact(batch(*[8] * device_count)))) >= 8


def test_a_device_updates_what_it_holds(graph):
    """Each device of two stages updates its own weights alone, once for all its slots."""
    slow_memory = Machines(tuple(Machine(f"cpu:{n}", 1e18, 1e6, operation_seconds=0.0) for n in range(2)), FAST)
    timeline = Model(graph, slow_memory).timeline(stages(4))
    own = [{span.layer for span in timeline.spans if span.device == device} for device in range(2)]
    assert own[0].isdisjoint({"in2", "out2", "in3", "out3"}) and own[1].isdisjoint({"in0", "out0", "in1", "out1"})


def test_messages_say_for_which_slots_they_are(graph):
    model, layout = Model(graph, machines(1, 1)), stages(4)
    between = [transfer.slots for transfer in model.sent(layout) if transfer.bytes >= 4 * BATCH // 4 * WIDTH]
    assert sorted(between) == sorted([*zip(range(4), range(4, 8)), *zip(range(4, 8), range(4))])
    assert all(transfer.slots is None for transfer in model.sent(Layout("all:2", [(NAMES[0], "all")])))


@pytest.mark.full
@pytest.mark.parametrize("joins", [False, True])
def test_steps_of_any_sizes_end(joins):
    """No slot waits for ever, whatever the others have: the simulation asserts it."""
    rng = np.random.default_rng(1)
    with tf.Graph().as_default():
        graph = build(joins=joins)
    models = [Model(graph, machines(*speeds, link=Link(1e-4, 1e8))) for speeds in ([1], [1, 0.5], [1, 0.5, 2])]
    for _ in range(40):
        counts = rng.integers(1, 5, rng.integers(1, 4)).tolist()
        parts = [np.diff([0, *np.sort(rng.integers(0, BATCH + 1, sum(counts) - 1)), BATCH]).tolist() for _ in NAMES]
        rules = [(name, "all") for name in NAMES]
        layout = Layout(f"all:{sum(counts)}", rules, (), dict(zip(NAMES, parts, strict=True)), {"all": counts})
        timeline = models[len(counts) - 1].timeline(layout)
        assert timeline.seconds >= max(map(timeline.busy_seconds, range(len(counts))))
