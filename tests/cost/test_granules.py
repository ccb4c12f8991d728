"""Output channels that a device computes several at a time: what fewer cost, and plans that heed it."""

import dataclasses

import pytest

from mtf_hetero import Layout, mtf, tf
from mtf_hetero.cli.network import build_step
from mtf_hetero.cost import microbenchmarks, work
from mtf_hetero.cost.machines import Link, Machine, Machines
from mtf_hetero.cost.model import Model
from mtf_hetero.models.registry import MODELS
from mtf_hetero.planner.planning import find
from mtf_hetero.planner.refine import refine
from mtf_hetero.planner.space import Space

FAST = Machine("fast", 6e10, 1e11, granule=16)
MACHINES = Machines((FAST, dataclasses.replace(FAST, name="slow", flops_per_second=2e10)), Link(1e-6, 1e11))


def convolution():
    """The operations of a convolution of 64 filters and of its gradients, by the name of their class."""
    graph = mtf.Graph()
    mesh = mtf.Mesh(graph, "mesh")
    dims = [mtf.Dimension(name, size) for name, size in (("batch", 4), ("height", 8), ("width", 8), ("channels", 32))]
    x = mtf.get_variable(mesh, "x", dims)
    y = mtf.layers.conv2d(x, mtf.Dimension("filters", 64), [3, 3], padding="SAME")
    mtf.gradients([mtf.reduce_sum(y)], [v.outputs[0] for v in graph.trainable_variables])
    return {type(op).__name__: op for op in graph.operations}


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [
        ({"filters": (46, 18)}, {"Conv2dOperation": 32 / 18, "Conv2or3dBackpropInputOperation": 1.0}),
        ({"filters": (48, 16)}, {"Conv2dOperation": 1.0, "Conv2or3dBackpropFilterOperation": 1.0}),
        ({"channels": (28, 4)}, {"Conv2or3dBackpropInputOperation": 4.0, "Conv2dOperation": 1.0}),
        ({"filters": (60, 4)}, {"Conv2or3dBackpropFilterOperation": 4.0, "EinsumOperation": 1.0}),
        ({"filters": (64, 0)}, {"Conv2dOperation": 1.0}),
    ],
)
def test_fewer_channels_than_a_granule_take_as_long(sizes, expected):
    with tf.Graph().as_default():
        operations = convolution()
    layout = Layout("all:2", [(name, "all") for name in sizes], (), sizes)
    for name, times in expected.items():
        if name in operations:
            assert work.paddings(operations[name], layout, [16, 16])[1] == pytest.approx(times)
            assert work.paddings(operations[name], layout, [1, 1]) == [1.0, 1.0]


def test_plans_give_whole_granules():
    with tf.Graph().as_default():
        graph = build_step(MODELS["vgg11"], 16, "sgd", head=(512,))
        plan = find(graph, MACHINES)
        space = Space(Model(graph, MACHINES))
    divided = [sizes for name, sizes in plan.layout.sizes if name in space.granules]
    assert divided and not any(size % 16 for sizes in divided for size in sizes)
    assert "conv1/channels" not in space.granules and "conv1/batch" not in space.granules


def test_sizes_stay_multiples_while_they_are_refined():
    sizes = refine(
        {"filters": (32, 32)},
        lambda s: max(s["filters"][0], 3 * s["filters"][1]),
        granules={"filters": 16},
        evaluations=60,
        groups=[(0,), (1,)],
    )
    assert sizes == {"filters": (48, 16)}


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [
        ({4: 1.0, 8: 1.0, 16: 1.1, 32: 2.1}, 16),
        ({4: 1.0, 8: 1.9, 16: 3.7, 32: 7.0}, 1),
        ({4: 1.0, 8: 1.0, 16: 1.0, 32: 1.0}, 32),
        ({4: 1.0, 8: 1.1, 16: 2.0, 32: 3.9}, 8),
    ],
)
def test_the_granule_is_read_off_the_times(seconds, expected):
    assert microbenchmarks.find_granule(seconds) == expected


def test_the_granule_is_measured(monkeypatch):
    """Each number of filters has its seconds; those are not compared, as a busy machine may give 4 more than 32."""
    measured = {}
    monkeypatch.setattr(microbenchmarks, "find_granule", lambda seconds: measured.update(seconds) or 16)
    assert microbenchmarks.measure_granule("cpu:0", target="", config=tf.ConfigProto(), repeats=3) == 16
    assert tuple(measured) == microbenchmarks.FILTERS and min(measured.values()) > 0
