"""Hybrid parallelism: what is split, that nothing changes by it, and that nothing travels further than it must."""

import functools
import itertools
import math

import numpy as np
import pytest
from oracle import ONCE, check, one_device
from tiers import parametrize

from mtf_hetero import Layout, mtf, tf
from mtf_hetero.cli.train import program as network
from mtf_hetero.cost import traffic
from mtf_hetero.layouts import LAYOUTS
from mtf_hetero.layouts.hybrid import batch_sizes, hybrid
from mtf_hetero.models import MODELS

TOY = {"stages": ((5,), (7, 5)), "head": (9, 7)}
BATCH = (3, 5)


def feed_images(feed, batch, size=4):
    dims = {**network.batch_shape(batch), "height": size, "width": size, "channels": 3}
    return feed("images", mtf.Shape([mtf.Dimension(name, n) for name, n in dims.items()]))


def program(rounds=None, batch=BATCH, classes=4, **config):
    def build(feed):
        config_ = {**TOY, **config, "dense_rounds": rounds}
        logits = MODELS["vgg11"].build(feed_images(feed, batch), classes=classes, **config_)
        *examples, last = logits.shape.dims
        labels = mtf.one_hot(feed("labels", examples, below=classes), last, dtype=feed.dtype)
        loss = mtf.layers.softmax_cross_entropy_with_logits(logits, labels, last)
        return {"logits": logits, "loss": mtf.reduce_mean(loss)}

    return build


def make_graph(build):
    """The mtf graph of a program, in the default graph."""
    graph = mtf.Graph()
    mesh = mtf.Mesh(graph, "mesh")

    def feed(name, shape, below=None):
        shape = mtf.convert_to_shape(shape)
        dtype = tf.float32 if below is None else tf.int32
        return mtf.import_tf_tensor(mesh, tf.zeros(shape.to_integer_list, dtype), shape, name=name)

    feed.dtype = tf.float32
    build(feed)
    return graph


def make_layout(build, mesh_shape, shares=None, **kwargs):
    with tf.Graph().as_default():
        return hybrid(make_graph(build), mesh_shape=mesh_shape, shares=shares, **kwargs)


LAYOUTS_TRIED = [
    ("data:1;model:2", None),
    ("data:2;model:1", {"data": [2, 1]}),
    ("data:2;model:2", None),
    ("data:2;model:3", {"data": [2, 1], "model": [3, 1, 1]}),
    ("data:3;model:4", {"model": [4, 3, 2, 1]}),
]


@functools.cache
def whole_on_one_device():
    return one_device(program(), exports=False)


@parametrize(("mesh_shape", "shares"), LAYOUTS_TRIED[2:4], first=LAYOUTS_TRIED[3:4])
@pytest.mark.parametrize("rounds", [None, (2, 2, 1)])
def test_nothing_changes(rounds, mesh_shape, shares):
    """Forward, gradients and a step, with and without rounds, against one device without."""
    layout = make_layout(program(rounds), mesh_shape, shares)
    check(program(rounds), layout, reference=whole_on_one_device(), **ONCE)


@pytest.mark.full
@pytest.mark.parametrize("rounds", [None, (2, 2, 1), (5,), (1, 4)])
def test_nothing_changes_whatever_the_inputs_are(rounds):
    layouts = [make_layout(program(rounds), *tried) for tried in LAYOUTS_TRIED]
    check(program(rounds), *layouts, reference=one_device(program()))


def test_one_group():
    build = program(batch=(7,), head=(9,))
    layouts = [make_layout(build, "all:3", shares) for shares in (None, {"all": [1, 2, 4]})]
    for layout in layouts:
        assert layout.axis_name_of("batch") == layout.axis_name_of("dense1/units") == "all"
    check(build, *layouts, **ONCE)


@parametrize("rounds", [None, (2, 3)], first=[(2, 3)])
def test_many_inputs_are_split_rather_than_many_units(rounds):
    build = program(rounds, head=(3, 6), stages=((5,), (12,)), classes=3)
    layout = make_layout(build, "data:2;model:2")
    assert layout.axis_name_of("dense1/inputs") == "model" and layout.axis_name_of("dense1/units") is None
    assert layout.axis_name_of("dense1/outputs") == layout.axis_name_of("dense2/inputs") == "model"
    whole = one_device(program(head=(3, 6), stages=((5,), (12,)), classes=3), exports=False)
    check(build, layout, reference=whole, **ONCE)


def test_the_rules_for_vgg():
    def build(feed):
        MODELS["vgg11"].build(feed_images(feed, (2, 8), size=32))

    layout = make_layout(build, "data:2;model:4", {"model": [2, 1, 1, 1]}, dense_shares=[1, 1, 1, 1])
    over = {axis: {dim for dim, a in layout.rules if a == axis} for axis in ("data", "model")}
    maps = [f"conv{stage}_{number}" for stage in (3, 4, 5) for number in (1, 2)] + ["conv1_1", "conv2_1"]
    maps += [f"pool{stage}" for stage in range(1, 6)]
    owners = [*maps, "dense1", "dense2", "dense3"]
    assert over["data"] == {"outer_batch", *(f"{owner}/outer_batch" for owner in owners)}
    dense = {"dense1/units", "dense1/outputs", "dense2/inputs", "dense2/outputs", "dense3/inputs"}
    assert over["model"] == {"batch", *(f"{owner}/batch" for owner in maps), *dense}
    assert layout.split("dense1/units", 4096) == (1024,) * 4
    assert layout.split("batch", 5) == (2, 1, 1, 1)


SAVED = {  # of the weights' memory, in per cent, by k (SplitBrain; calculated in closed form in the paper's terms)
    "vgg11": {2: 33.6, 4: 50.4, 8: 58.8, 16: 63.0, 32: 65.1},
    "vgg16": {2: 28.1, 4: 42.2, 8: 49.2, 16: 52.7, 32: 54.5},
    "vgg19": {2: 24.3, 4: 36.4, 8: 42.5, 16: 45.6, 32: 47.1},
}


@pytest.mark.parametrize("name", SAVED)
def test_weight_memory_saved(name):
    for k, expected in SAVED[name].items():
        with tf.Graph().as_default():
            graph = make_graph(lambda feed, k=k: MODELS[name].build(feed_images(feed, (1, k), size=32)))
            layout = hybrid(graph, mesh_shape=f"data:1;model:{k}")
            whole = sum(v.size for v in graph.trainable_variables)
            for pnum in (0, k - 1):
                own = sum(math.prod(layout.slice_shape(v.shape, pnum)) for v in graph.trainable_variables)
                assert 100 * (1 - own / whole) == pytest.approx(expected, abs=1), f"{name} over {k}, processor {pnum}"


@pytest.mark.full
@pytest.mark.parametrize("rounds", [None, (3, 2)])
def test_a_training_run_follows_one_device(rounds):
    """Four steps of models.network's own step, in float64."""

    def losses(layout, batch, rounds):
        with tf.Graph().as_default():
            tf.set_random_seed(1)
            tf.train.create_global_step()
            rng = np.random.default_rng(0)
            built = network.build_training(
                tf.constant(rng.standard_normal([15, 4, 4, 3])),
                tf.constant(rng.integers(0, 4, 15, dtype=np.int32)),
                build=functools.partial(MODELS["vgg11"].build, classes=4, dropout=0.0, dense_rounds=rounds, **TOY),
                optimizer=network.Optimizer("adam", 0.01),
                batch=batch,
            )
            layout = layout(built.graph)
            lowering = network.lower(built, layout, [f"cpu:{i}" for i in range(layout.size)])
            with tf.control_dependencies([lowering.lowered_operation(op) for op in built.updates]):
                fetches = [lowering.export_to_tf_tensor(built.loss), tf.no_op()]
            with tf.Session(config=tf.ConfigProto(device_count={"CPU": layout.size})) as session:
                session.run(tf.global_variables_initializer())
                session.run(tf.local_variables_initializer())
                return [session.run(fetches)[0] for _ in range(4)]

    expected = losses(lambda graph: Layout("all:1", ""), (15,), None)
    shares = {"data": [2, 1], "model": [3, 2]}
    recipe = functools.partial(LAYOUTS["hybrid"], mesh_shape="data:2;model:2", shares=shares)
    np.testing.assert_allclose(losses(recipe, BATCH, rounds), expected, rtol=1e-9)


@pytest.mark.parametrize(
    ("batch_size", "mesh_shape", "shares", "expected"),
    [
        (96, "data:2;model:2", {"data": [2, 1], "model": [1, 1]}, (3, 32)),
        (256, "data:2;model:4", None, (2, 128)),
        (20, "model:4", None, (20,)),
        (30, "data:3;model:2", {"model": [2, 1]}, (3, 10)),
    ],
)
def test_batch_sizes(batch_size, mesh_shape, shares, expected):
    assert batch_sizes(batch_size, mesh_shape, shares) == expected
    assert math.prod(expected) == batch_size


def test_what_cannot_be():
    with pytest.raises(ValueError, match="a batch of 7 has no two factors"):
        batch_sizes(7, "data:2;model:2")
    with pytest.raises(ValueError, match="needs one axis or two"):
        batch_sizes(8, "a:2;b:2;c:2")
    with pytest.raises(ValueError, match="1 batch dimensions for 2 mesh axes"):
        make_layout(program(batch=(8,)), "data:2;model:2")
    with pytest.raises(ValueError, match="'batch' of size 5 cannot be split over the 6 processors"):
        make_layout(program(), "data:2;model:6")

    def convolution(feed):
        x = feed_images(feed, (2, 2))
        mtf.layers.conv2d(x, mtf.Dimension("filters", 4), filter_size=(3, 3), name="conv")

    with pytest.raises(ValueError, match="no dense layer with a trainable kernel"):
        make_layout(convolution, "data:2;model:2")

    def unnamed(feed):
        x = feed("x", mtf.Shape([mtf.Dimension("batch", 4), mtf.Dimension("inputs", 8)]))
        mtf.layers.dense(x, mtf.Dimension("units", 6), reduced_dims=x.shape.dims[1:])

    with pytest.raises(ValueError, match="a dense layer uses dimension 'batch' of the images"):
        make_layout(unnamed, "all:2")


def lowered_step(mesh_shape, rounds=None, **config):
    """Return a training step's traffic on workers from the graph, {(source, target): bytes of each mtf operation}."""
    batch, config = (4, 8), {"stages": ((8,), (16,)), "head": (64, 32), "dropout": 0.0, **config}
    with tf.Graph().as_default():
        tf.train.create_global_step()
        built = network.build_training(
            tf.zeros([32, 8, 8, 3]),
            tf.zeros([32], tf.int32),
            build=functools.partial(MODELS["vgg11"].build, classes=4, dense_rounds=rounds, **config),
            optimizer=network.Optimizer("sgd", 0.01),
            batch=batch,
        )
        layout = hybrid(built.graph, mesh_shape=mesh_shape)
        lowering = network.lower(built, layout, [f"/job:worker/task:{i}/device:CPU:0" for i in range(layout.size)])
        fetches = [lowering.lowered_operation(op) for op in built.updates]
        sends = traffic.sends(fetches, graph=built.graph)
    return layout, {op.name: op for op in built.graph.operations}, [s for s in sends if "chief" not in s.source]


def coordinates(layout, device):
    return layout.coordinates(tf.DeviceSpec.from_string(device).task)


MESHES = ["data:2;model:2", "data:4;model:2", "data:2;model:4", "data:1;model:3"]


@parametrize(
    ("mesh_shape", "rounds"),
    itertools.product(MESHES, [None, (4, 4), (3, 3, 2)]),
    first=[("data:2;model:2", (3, 3, 2)), ("data:1;model:3", None)],
)
def test_nothing_travels_further_than_it_must(mesh_shape, rounds):
    """Activations within a group, gradients of dense weights between those that hold the same part of them."""
    layout, operations, sends = lowered_step(mesh_shape, rounds)
    kinds = set()
    for send in sends:
        (data, model), (other_data, other_model) = (coordinates(layout, d) for d in (send.source, send.target))
        dims = {name for t in operations[send.operation].outputs for name in t.shape.dimension_names}
        if any(name.rpartition("/")[2] in network.BATCH for name in dims):
            kinds.add("activation")
            assert data == other_data, send
        elif any(name.startswith("dense") for name in dims):
            kinds.add("dense")
            assert model == other_model, send
        elif dims:
            kinds.add("convolution")
    assert kinds == {"activation", "convolution", "dense"} - ({"dense"} if layout.mesh_shape[0][1] == 1 else set())


@parametrize(
    ("d", "k", "rounds"),
    [(*mesh, rounds) for mesh in [(1, 2), (2, 2), (4, 2), (2, 4)] for rounds in (None, (4, 4), (2, 2, 2, 2))],
    first=[(2, 2, None), (1, 2, (4, 4))],
)
def test_traffic_is_the_calculated(d, k, rounds):
    """Inputs, sums and logits within groups; gradients of d parts of the dense layers, and of all convolutions."""
    _, _, sends = lowered_step(f"data:{d};model:{k}", rounds)
    examples, inputs, hidden, units, classes = 32, 2 * 2 * 16, 64, 32, 4
    activations = 2 * (k - 1) * examples * (inputs + units + classes)
    dense = (inputs + 1) * hidden + (hidden + 1) * units + units * classes
    replicated = (3 * 9 + 1) * 8 + (8 * 9 + 1) * 16 + classes
    expected = 4 * (activations + 2 * (d - 1) * dense + 2 * (d * k - 1) * replicated)
    assert sum(traffic.links(sends).values()) == expected
