"""Hybrid parallelism: what is split, that nothing changes by it, and that nothing travels further than it must."""

import functools
import math

import pytest
from oracle import ONCE, check, one_device
from tiers import parametrize
from zeros import Zeros, lay_out

from mtf_hetero import mtf, tf
from mtf_hetero.cli.train import program as network
from mtf_hetero.layouts.hybrid import batch_sizes, hybrid
from mtf_hetero.mesh import traffic
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


def make_layout(build, mesh_shape, shares=None, **options):
    return lay_out(build, "hybrid", training=False, mesh_shape=mesh_shape, shares=shares, **options)


LAYOUTS_TRIED = [
    ("data:1;model:2", None),
    ("data:2;model:1", {"data": [2, 1]}),
    ("data:2;model:2", None),
    ("data:2;model:3", {"data": [2, 1], "model": [3, 1, 1]}),
    ("data:3;model:4", {"model": [4, 3, 2, 1]}),
]


ONE_GROUP = program(batch=(7,), head=(9,)), "all:3", {"all": [1, 2, 4]}
MANY_INPUTS = {"head": (3, 6), "stages": ((5,), (12,)), "classes": 3}
TRIED = {  # programs, the same without rounds, and layouts
    "rounds": (program((2, 2, 1)), program(), LAYOUTS_TRIED[3:4]),
    "no rounds": (program(), program(), LAYOUTS_TRIED),
    "two rounds": (program((1, 4)), program(), LAYOUTS_TRIED),
    "one group": (ONE_GROUP[0], ONE_GROUP[0], [ONE_GROUP[1:]]),
    "many inputs": (program((2, 3), **MANY_INPUTS), program(**MANY_INPUTS), LAYOUTS_TRIED[2:3]),
}


@pytest.mark.full
@pytest.mark.parametrize("name", TRIED)
def test_nothing_changes(name):
    """Forward, gradients and a step, with and without rounds, against one device without."""
    build, whole, tried = TRIED[name]
    layouts = [make_layout(build, *each) for each in tried]
    check(build, *layouts, reference=one_device(whole, exports=False), **ONCE)


def test_one_group():
    layout = make_layout(*ONE_GROUP)
    assert layout.axis_name_of("batch") == layout.axis_name_of("dense1/units") == "all"


def test_many_inputs_are_split_rather_than_many_units():
    layout = make_layout(program((2, 3), **MANY_INPUTS), *LAYOUTS_TRIED[2])
    assert layout.axis_name_of("dense1/inputs") == "model" and layout.axis_name_of("dense1/units") is None
    assert layout.axis_name_of("dense1/outputs") == layout.axis_name_of("dense2/inputs") == "model"


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


@parametrize("name", SAVED, first=["vgg11"])
def test_weight_memory_saved(name):
    for k, expected in SAVED[name].items():
        with tf.Graph().as_default():
            graph = mtf.Graph()
            MODELS[name].build(feed_images(Zeros(graph), (1, k), size=32))
            layout = hybrid(graph, mesh_shape=f"data:1;model:{k}")
            whole = sum(v.size for v in graph.trainable_variables)
            for pnum in (0, k - 1):
                own = sum(math.prod(layout.slice_shape(v.shape, pnum)) for v in graph.trainable_variables)
                assert 100 * (1 - own / whole) == pytest.approx(expected, abs=1), f"{name} over {k}, processor {pnum}"


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
        build = functools.partial(MODELS["vgg11"].build, classes=4, dense_rounds=rounds, **config)
        made = network.Program(build, network.Optimizer("sgd", 0.01), batch=batch)
        built = made.build_training(tf.zeros([32, 8, 8, 3]), tf.zeros([32], tf.int32))
        layout = hybrid(built.graph, mesh_shape=mesh_shape)
        lowering = network.lower(built, layout, [f"/job:worker/task:{i}/device:CPU:0" for i in range(layout.size)])
        fetches = [lowering.lowered_operation(op) for op in built.updates]
        sends = traffic.sends(fetches, graph=built.graph)
    return layout, {op.name: op for op in built.graph.operations}, [s for s in sends if "chief" not in s.source]


def coordinates(layout, device):
    return layout.coordinates(tf.DeviceSpec.from_string(device).task)


TRAVELS = [
    ("data:2;model:2", (3, 3, 2)),
    ("data:1;model:3", None),
    ("data:4;model:2", None),
    ("data:2;model:4", (4, 4)),
]


@parametrize(("mesh_shape", "rounds"), TRAVELS, first=TRAVELS[:2])
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


CALCULATED = [(2, 2, None), (1, 2, (4, 4)), (4, 2, (2, 2, 2, 2)), (2, 4, None)]


@parametrize(("d", "k", "rounds"), CALCULATED, first=CALCULATED[:2])
def test_traffic_is_the_calculated(d, k, rounds):
    """Inputs, sums and logits within groups; gradients of d parts of the dense layers, and of all convolutions."""
    _, _, sends = lowered_step(f"data:{d};model:{k}", rounds)
    examples, inputs, hidden, units, classes = 32, 2 * 2 * 16, 64, 32, 4
    activations = 2 * (k - 1) * examples * (inputs + units + classes)
    dense = (inputs + 1) * hidden + (hidden + 1) * units + units * classes
    replicated = (3 * 9 + 1) * 8 + (8 * 9 + 1) * 16 + classes
    expected = 4 * (activations + 2 * (d - 1) * dense + 2 * (d * k - 1) * replicated)
    assert sum(traffic.links(sends).values()) == expected
