"""The oracle over models: every model with every layout at toy size, and training curves of the paper's networks."""

import collections
import functools
import itertools
import math

import numpy as np
import pytest
from oracle import MODEL_TOLERANCE_FLOAT32, ONCE, TOLERANCE, assert_same, check, cpu_mesh_impl, one_device, run
from tiers import parametrize
from toy_models import MESHES, PAIRS, TOY, toy_graph, toy_layout, toy_program

import mtf_hetero
from mtf_hetero import Layout, mtf, tf
from mtf_hetero.cli.train import program as network
from mtf_hetero.layouts import LAYOUTS
from mtf_hetero.models import MODELS
from mtf_hetero.models.paper import CIFAR

SMALL = ("lenet", "paper_cifar", "paper_mnist")  # on every combination; the others on a few


@pytest.mark.parametrize("name", PAIRS)
def test_every_model_on_a_layout_and_every_layout_on_models(name):
    """In pairs: each layout with several models, of all families."""
    check(toy_program(name), *(toy_layout(name, *choice) for choice in PAIRS[name]), **ONCE)


@parametrize(("recipe", "mesh"), [("filters", "three"), ("spatial", "two")], first=[("spatial", "two")])
@parametrize("name", ["paper_cifar", "resnet18", "resnet50", "vgg11"], first=["resnet18", "vgg11"])
def test_images_of_a_size_that_strides_do_not_divide(name, recipe, mesh):
    """7 -> 4 -> 2, as of images of 28 x 28."""
    check(toy_program(name, size=7), toy_layout(name, recipe, mesh, size=7), **ONCE)


def test_the_pairs_are_of_every_model_and_layout():
    assert set(PAIRS) == {name for name in MODELS if not MODELS[name].takes_volumes}
    tried = collections.Counter(recipe for choices in PAIRS.values() for recipe, _ in choices)
    assert set(tried) == set(LAYOUTS)
    assert min(tried.values()) > 2


@pytest.mark.full
@pytest.mark.parametrize("name", PAIRS)
def test_every_model_on_every_layout(name):
    choices = [(recipe, mesh) for recipe in ("batch", "even", "filters", "hybrid") for mesh in MESHES]
    if name not in SMALL:
        choices = [("batch", "two"), ("filters", "three"), ("hybrid", "two")] + [("even", "two")] * (name != "resnet50")
    choices.append(("spatial", "two"))
    layouts = [toy_layout(name, *choice) for choice in choices]
    assert all(layout.rules for layout in layouts)
    check(toy_program(name), *layouts)


@parametrize("name", SMALL, first=["lenet"])
@parametrize(
    ("dtype", "tolerance"),
    [(tf.float64, None), (tf.float32, MODEL_TOLERANCE_FLOAT32)],
    first=[(tf.float32, MODEL_TOLERANCE_FLOAT32)],
)
def test_small_models_on_two_mesh_axes(name, dtype, tolerance):
    filters = toy_layout(name, "filters", "two")
    batch = toy_layout(name, "batch", "two")
    rules = [(dim, "f") for dim, _ in filters.rules] + [(dim, "b") for dim, _ in batch.rules]
    layout = Layout("b:3;f:2", rules, {"b": [3, 1, 1], "f": [5, 2]})
    check(toy_program(name), layout, dtype=dtype, tolerance=tolerance, **ONCE)


@parametrize(
    ("name", "config"),
    [("alexnet", {"pooled": (1, 2)}), ("resnet18", {}), ("resnet34", {"training": True})],
    first=[("alexnet", {"pooled": (1, 2)})],
)
def test_models_on_a_split_height(name, config):
    """Windows that overlap, of convolutions and pools, and the moments of a batch that are spread over the mesh."""
    operations = toy_graph(name, **config).operations
    names = {dim.name for op in operations for x in op.outputs for dim in x.shape.dims}
    axes = {"batch": "b", "height": "h"}
    rules = [(dim, axes[dim.rpartition("/")[2]]) for dim in names if dim.rpartition("/")[2] in axes]
    layout = Layout("b:2;h:2", rules, {"b": [3, 2], "h": [2, 1]})
    check(toy_program(name, **config), layout, **ONCE)


def dims_of_layers(name):
    """Per layer of a toy model {batch, height, ...: (name, size)}; its units, or a pool's channels, are filters too."""
    layers = collections.defaultdict(dict)
    for dim in (dim for op in toy_graph(name).operations for x in op.outputs for dim in x.shape.dims):
        owner, _, own = dim.name.rpartition("/")
        layers[owner].setdefault(own, tuple(dim))
    layers = [dims for owner, dims in layers.items() if owner and "batch" in dims]
    return [{"filters": dims.get("units") or dims.get("channels"), **dims} for dims in layers]


@parametrize("name", ["resnet18", "vgg11"], first=["vgg11"])
def test_each_layer_its_own_way(name):
    """Batch, filters and height in turn; and the first layers by their batch, the others on the first processor."""
    layers = dims_of_layers(name)
    in_turn = [
        dims.get(own, dims["batch"]) for dims, own in zip(layers, itertools.cycle(("batch", "filters", "height")))
    ]
    assert {dim.rpartition("/")[2] for dim, _ in in_turn} >= {"batch", "height"}
    early = [dims["batch"] for dims in layers[:4]]
    late = {dim: (size, 0) for dim, size in (dims["filters"] for dims in layers[4:])}
    layouts = [
        Layout("x:3", [(dim, "x") for dim, _ in in_turn], {"x": [3, 1, 2]}),
        Layout("x:2", [(dim, "x") for dim in (*late, *(dim for dim, _ in early))], {"x": [3, 2]}, late),
    ]
    check(toy_program(name), *layouts, **ONCE)


@pytest.mark.parametrize("name", ["vgg19"])
def test_dropout_in_training_does_not_depend_on_the_layout(name):
    """Against one processor of ours: mtf's own draws other numbers."""
    program = toy_program(name, training=True)
    reference = run(program, lambda: cpu_mesh_impl(Layout("x:1", "")), tf.float64)
    dropped = np.abs(reference.slices["logits"][0] - one_device(toy_program(name)).slices["logits"][0])
    assert dropped.max() > 1e-3
    for recipe in ("batch", "filters"):
        layout = toy_layout(name, recipe, "three")
        uneven = run(program, lambda layout=layout: cpu_mesh_impl(layout), tf.float64)
        assert_same(reference, uneven, TOLERANCE[tf.float64])


def variables_after_steps(name, layout, steps=2):
    """Per processor, all variables after training steps as models.network builds them."""
    size, config = TOY[name]["size"], TOY[name]["config"]
    with tf.Graph().as_default():
        tf.set_random_seed(1)
        rng = np.random.default_rng(0)
        images = tf.constant(rng.standard_normal([5, size, size, MODELS[name].image_shape[2]]))
        config = {key: value for key, value in config.items() if key != "training"}
        built = network.build_training(
            images,
            tf.constant(rng.integers(0, 4, 5, dtype=np.int32)),
            build=functools.partial(MODELS[name].build, classes=4, **config),
            optimizer=network.Optimizer("sgd", 0.1),
        )
        lowering = network.lower(built, layout, [f"cpu:{i}" for i in range(layout.size)])
        updates = [lowering.lowered_operation(op) for op in built.updates]
        variables = {v.name: v for v in built.graph.all_variables}
        with tf.Session(config=tf.ConfigProto(device_count={"CPU": layout.size})) as session:
            session.run(tf.global_variables_initializer())
            session.run(tf.local_variables_initializer())
            for _ in range(steps):
                session.run(updates)
            held = {name: lowering.variables[v].laid_out_tensor.tensor_list for name, v in variables.items()}
            slices = session.run(held)
        return slices, {name: v.shape for name, v in variables.items()}


@parametrize("name", ["resnet18", "vgg13"], first=["vgg13"])
def test_moving_averages_and_weights_after_training_steps_are_those_of_one_device(name):
    whole, shapes = variables_after_steps(name, Layout("x:1", ""))
    moving = [v for v in whole if "/moving_" in v]
    assert len(moving) == 2 * len([v for v in whole if v.endswith("/scale")]) > 0
    assert all(np.abs(whole[v][0] - (1 if v.endswith("variance") else 0)).max() > 1e-3 for v in moving)
    for recipe in ("batch", "filters"):
        layout = toy_layout(name, recipe, "three")
        slices, _ = variables_after_steps(name, layout)
        for v, parts in slices.items():
            for pnum, part in enumerate(parts):
                begin, size = layout.slice_begin(shapes[v], pnum), layout.slice_shape(shapes[v], pnum)
                own = whole[v][0][tuple(slice(b, b + s) for b, s in zip(begin, size))]
                np.testing.assert_allclose(part, own, rtol=0, atol=1e-9, err_msg=f"{v}, processor {pnum}")


def losses(layout, optimizer, *, steps, model="paper_cifar", batch=8, dtype=tf.float32, **config):
    """The loss before each of some training steps."""
    with tf.Graph().as_default():
        tf.set_random_seed(1)
        tf.train.get_or_create_global_step()
        graph = mtf.Graph()
        mesh = mtf.Mesh(graph, "mesh")
        rng = np.random.default_rng(0)
        height, width, channels = MODELS[model].image_shape
        shape = [("batch", batch), ("height", height), ("width", width), ("channels", channels)]
        pixels = rng.standard_normal([s for _, s in shape]).astype(dtype.as_numpy_dtype)
        logits = MODELS[model].build(mtf.import_tf_tensor(mesh, pixels, mtf.Shape(shape)), **config)
        labels = mtf.import_tf_tensor(mesh, rng.integers(0, 10, batch, dtype=np.int32), [logits.shape.dims[0]])
        targets = mtf.one_hot(labels, logits.shape.dims[-1], dtype=dtype)
        loss = mtf.reduce_mean(mtf.layers.softmax_cross_entropy_with_logits(logits, targets, logits.shape.dims[-1]))
        made = layout(graph)
        variables = graph.trainable_variables
        updates = optimizer().apply_grads(mtf.gradients([loss], [v.outputs[0] for v in variables]), variables)
        lowering = mtf_hetero.Lowering(graph, {mesh: cpu_mesh_impl(made)})
        step = tf.group([lowering.lowered_operation(op) for op in updates])
        with tf.control_dependencies([step]):
            train = tf.assign_add(tf.train.get_global_step(), 1)
        exported = lowering.export_to_tf_tensor(loss)
        with tf.Session(config=tf.ConfigProto(device_count={"CPU": made.size})) as session:
            session.run(tf.global_variables_initializer())
            session.run(tf.local_variables_initializer())
            return [session.run([exported, train])[0] for _ in range(steps)], lowering


def undivided(graph):
    return Layout("all:1", "")


def paper_shares(graph):
    return LAYOUTS["filters"](graph, mesh_shape="all:3", shares={"all": [70, 25, 5]})


OPTIMIZERS = {
    "adafactor": lambda: mtf.optimize.AdafactorOptimizer(),
    "sgd": lambda: mtf.optimize.SgdOptimizer(0.01),
}


@parametrize("config", [{}, TOY["paper_cifar"]["config"]], first=[TOY["paper_cifar"]["config"]])
@parametrize("optimizer", sorted(OPTIMIZERS), first=["sgd"])
def test_paper_cifar_follows_the_curve_of_one_device(optimizer, config):
    """Ten steps at 70,25,5, each loss within 1e-4, relative.

    In float64: in float32 the order of a sum alone, that of a batch split in two for instance, moves the tenth loss by
    a hundredth and more. Adafactor's first steps are little else than the signs of the gradients.
    """
    expected, _ = losses(undivided, OPTIMIZERS[optimizer], steps=10, dtype=tf.float64, **config)
    actual, _ = losses(paper_shares, OPTIMIZERS[optimizer], steps=10, dtype=tf.float64, **config)
    np.testing.assert_allclose(actual, expected, rtol=1e-4)
    assert len(set(expected)) == 10


@parametrize("optimizer", sorted(OPTIMIZERS), first=["sgd"])
def test_paper_cifar_starts_like_one_device_in_float32(optimizer):
    expected, _ = losses(undivided, OPTIMIZERS[optimizer], steps=2)
    actual, _ = losses(paper_shares, OPTIMIZERS[optimizer], steps=2)
    np.testing.assert_allclose(actual, expected, rtol=1e-5)


def test_paper_cifar_sends_what_the_scheme_says():
    """92 MB forward and 21.5 MB backward a step at batch 200, and little besides: dense layers and optimizer."""
    batch = 4
    _, lowering = losses(paper_shares, OPTIMIZERS["sgd"], steps=1, batch=batch)
    sums = {}
    for key, elements in lowering.counters:
        if key.startswith("allreduce"):
            kind = key.rsplit("/", 1)[-1]
            sums[kind] = sums.get(kind, 0) + elements // 3 * 200 // batch * 4  # 3 processors; bytes at batch 200
    filters = [stage[-1][1] for stage in CIFAR.stages]
    forward = sum(200 * (32 // 2**i) ** 2 * n * 4 for i, n in enumerate(filters))
    backward = sum(200 * (32 // 2 ** (i + 1)) ** 2 * n * 4 for i, n in enumerate(filters[:-1]))
    assert math.isclose(forward, 92e6, rel_tol=0.01)
    assert math.isclose(backward, 21.5e6, rel_tol=0.01)
    assert sums["Conv2dOperation"] == forward
    assert sums["Conv2or3dBackpropInputOperation"] == backward
    assert "Conv2or3dBackpropFilterOperation" not in sums
    assert not [key for key, _ in lowering.counters if key.startswith("reshard")]
