"""The cost model: any layout of a step, on any devices, without lowering it."""

import math

import pytest
from dense_steps import step

from mtf_hetero import Layout, mtf, tf
from mtf_hetero.cost import Link, Machine, Machines, Model
from mtf_hetero.cost.transfers import of_step
from mtf_hetero.layout import CannotSplitError
from mtf_hetero.planner.planning import find

FAST, SLOW = Machine("a", 6e10, 1e10), Machine("b", 2e10, 3e9)
PAIR = Machines((FAST, SLOW), Link(1e-5, 1e9))


@pytest.fixture(scope="module")
def graph():
    with tf.Graph().as_default():
        yield step(batch=64)[0]


def test_shares_cost_what_their_sizes_cost(graph):
    model = Model(graph, PAIR)
    shares, sizes = (
        Layout("all:2", "batch:all", shares={"all": [3, 1]}),
        Layout("all:2", "batch:all", sizes={"batch": [48, 16]}),
    )
    assert model.exact(shares) == sizes
    for ask in (model.seconds, model.bytes_held, model.sent):
        assert ask(shares) == ask(sizes)


def test_what_it_answers_is_what_others_count(graph):
    model, layout = Model(graph, PAIR), Layout("all:2", "batch:all", sizes={"batch": [48, 16]})
    assert model.sent(layout) == of_step(model.operations, layout)
    held = model.bytes_held(layout)
    assert len(held) == 2 and held[0] > held[1] > 0
    assert model.timeline(layout).seconds == model.seconds(layout)
    assert find(graph, PAIR).seconds <= model.seconds(layout)


def test_limits_of_memory(graph):
    layout = Layout("all:2", "batch:all", sizes={"batch": [48, 16]})
    held = Model(graph, PAIR).bytes_held(layout)
    for spare, fits in ((0, True), (-1, False)):
        limits = {"a": held[0] + spare, "b": held[1]}
        assert (Model(graph, PAIR.with_memory(limits)).memory_use(layout) <= 1) is fits


def test_other_devices_share_the_step(graph):
    layout = Layout("all:2", "batch:all", sizes={"batch": [48, 16]})
    other = Machines((SLOW, FAST), Link(1e-6, 1e10))
    assert Model(graph, PAIR).on(other).seconds(layout) == Model(graph, other).seconds(layout)
    three = Machines((FAST, SLOW, Machine("c", 1e10, 1e9)))
    thirds = Layout("all:3", "batch:all", shares={"all": [6, 2, 1]})
    model = Model(graph, three)
    assert Model(graph, PAIR).on(three, model.crowds).seconds(thirds) == model.seconds(thirds)


def test_a_layout_is_predicted_once_for_all_limits_of_memory(graph):
    model = Model(graph, PAIR)
    whole, slots = Layout("all:2", "batch:all"), Layout("all:4", "batch:all", slots={"all": [2, 2]})
    for layout in map(model.exact, (whole, slots)):
        predicted = model.timeline(layout)
        assert model.on(PAIR.with_memory({"a": 1e6})).timeline(layout) is predicted
        other = Machines(PAIR.devices, Link(1e-6, 1e10))
        assert model.on(other).timeline(layout) == Model(graph, other).timeline(layout) != predicted


def test_what_cannot_be_split_takes_forever():
    with tf.Graph().as_default():
        graph = mtf.Graph()
        mesh = mtf.Mesh(graph, "mesh")
        image, filters = (mtf.Dimension(*dim) for dim in (("channels", 3), ("filters", 4)))
        space = [mtf.Dimension(*dim) for dim in (("batch", 8), ("height", 6), ("width", 6))]
        x = mtf.import_tf_tensor(mesh, tf.zeros([8, 6, 6, 3]), mtf.Shape([*space, image]))
        window = [mtf.Dimension(name, 3) for name in ("window_height", "window_width")]
        shape = mtf.Shape([*window, image, filters])
        kernel = mtf.get_variable(mesh, "kernel", shape, initializer=tf.zeros_initializer())
        mtf.Conv2dOperation(x, kernel, [1, 1, 1, 1], "SAME")
        model = Model(graph, PAIR)
        layout = Layout("all:2", "window_height:all", sizes={"window_height": [2, 1]})
        with pytest.raises(CannotSplitError, match="the window of a convolution cannot be split"):
            model.timeline(layout)
        assert math.isinf(model.seconds(layout)) and math.isinf(model.sequential_seconds(model.operations, layout))


def test_a_graph_without_operations():
    with tf.Graph().as_default(), pytest.raises(ValueError, match="the graph has no operation; build a training step"):
        Model(mtf.Graph(), PAIR)
