"""The oracle over models: every model with every layout at toy size, and the network of the paper at its own."""

import collections
import functools
import itertools
import math

import numpy as np
import pytest
from oracle import ONCE, TOLERANCE, assert_same, check, cpu_mesh_impl, one_device, run
from tiers import parametrize
from toy_models import PAIRS, TOY, toy_graph, toy_layout, toy_program
from training_steps import training

import mtf_hetero
from mtf_hetero import Layout, mtf, tf
from mtf_hetero.cli.train import program as network
from mtf_hetero.layouts import LAYOUTS
from mtf_hetero.models import MODELS
from mtf_hetero.models.paper import CIFAR


@parametrize("name", PAIRS, first=["lenet", "marques", "paper_cifar", "resnet18"])
def test_every_model_on_a_layout_and_every_layout_on_models(name):
    """In pairs: each layout with several models, of all families."""
    check(toy_program(name), *(toy_layout(name, *choice) for choice in PAIRS[name]), **ONCE)


@pytest.mark.full
@pytest.mark.parametrize("name", PAIRS)
def test_every_model_on_other_layouts(name):
    """By units, examples and space."""
    others = {("filters", "three"), ("batch", "two"), ("spatial", "two")} - {*PAIRS[name]}
    layouts = [toy_layout(name, *choice) for choice in sorted(others)]
    assert all(layout.rules for layout in layouts)
    check(toy_program(name), *layouts, **ONCE)


def test_the_pairs_are_of_every_model_and_layout():
    assert set(PAIRS) == {name for name in MODELS if not MODELS[name].takes_volumes}
    tried = collections.Counter(recipe for choices in PAIRS.values() for recipe, _ in choices)
    assert set(tried) == set(LAYOUTS)
    assert min(tried.values()) > 2


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


TRAINED = [("vgg19", "filters"), ("vgg13", "batch"), ("resnet18", "batch"), ("resnet18", "filters")]


@parametrize(("name", "recipe"), TRAINED, first=TRAINED[1:2])
def test_dropout_and_moving_averages_do_not_depend_on_the_layout(name, recipe):
    """Against one processor of ours: mtf's own draws other numbers, and moves the averages in no step."""
    program = toy_program(name, training=True)
    layouts = [Layout("x:1", ""), toy_layout(name, recipe, "three")]
    options = {"exports": False, "averages": True}
    reference, result = [run(program, lambda x=x: cpu_mesh_impl(x), tf.float64, **options) for x in layouts]
    if name == "vgg19":
        without = one_device(toy_program(name), exports=False)
        assert np.abs(reference.slices["logits"][0] - without.slices["logits"][0]).max() > 1e-3
    else:
        moving = {v: values[0] for v, values in reference.steps[-1].items() if "/moving_" in v}
        assert moving and all(np.abs(x - ("variance" in v)).max() > 1e-3 for v, x in moving.items())
    assert_same(reference, result, TOLERANCE[tf.float64])


def test_a_training_step_moves_the_averages():
    """The step that the binary trains with."""
    config = {name: value for name, value in TOY["vgg13"]["config"].items() if name != "training"}
    with tf.Graph().as_default():
        made = network.Program(functools.partial(MODELS["vgg13"].build, **config), network.Optimizer("sgd", 0.1))
        built = made.build_training(tf.zeros([5, 4, 4, 3]), tf.zeros([5], tf.int32))
    assigned = {v.name for op in built.updates if isinstance(op, mtf.Assign) for v in op.variables}
    assert assigned == {v.name for v in built.graph.all_variables}
    assert any("/moving_" in name for name in assigned)


PAPER = {"size": 32, "stages": CIFAR.stages, "units": CIFAR.units}


@pytest.mark.full
def test_the_network_of_the_paper_at_its_size():
    check(toy_program("paper_cifar", **PAPER), toy_layout("paper_cifar", "filters", "three", **PAPER), **ONCE)


def test_paper_cifar_sends_what_the_scheme_says():
    """92 MB forward and 21.5 MB backward a step at batch 200, and little besides: dense layers and optimizer."""
    batch = 5
    with tf.Graph().as_default():
        step = training(toy_program("paper_cifar", **PAPER), optimizer="sgd")
        mesh_impl = cpu_mesh_impl(toy_layout("paper_cifar", "filters", "three", **PAPER))
        lowering = mtf_hetero.Lowering(step.graph, {step.mesh: mesh_impl})
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
