"""Exact sizes with zeros in models: a processor with an empty slice.

Operations with empty slices are in `test_operations`, layers in `tests/layers`, checkpoints in `mesh/test_variables`.
"""

import dataclasses

import pytest
from operations import K3, B, C, F, H, W, find_extents, sizes_with_zeros
from oracle import check, cpu_mesh_impl, of_cpus
from regression import Program
from tiers import ONCE_OR_ALL_KINDS, parametrize
from toy_models import toy_graph, toy_layout, toy_program

from mtf_hetero import Layout, Lowering, mtf, tf
from mtf_hetero.cost import memory


@of_cpus
def test_processors_that_take_no_part_are_sent_nothing():
    """A filter's processor without filters computes and receives nothing, though it holds a part of the image."""
    with tf.Graph().as_default() as tf_graph:
        mesh = mtf.Mesh(graph := mtf.Graph(), "mesh")
        x = mtf.import_tf_tensor(mesh, tf.zeros([7, 6, 4, 5]), mtf.Shape([B, H, W, C]))
        w = mtf.get_variable(mesh, "w", mtf.Shape([*K3, C, F]))
        y = mtf.Conv2dOperation(x, w, [1, 1, 1, 1], "SAME").outputs[0]
        layout = Layout("x:2;y:2", "h:x;f:y", sizes={"h": [3, 3], "f": [11, 0]})
        Lowering(graph, {mesh: cpu_mesh_impl(layout)}).tensors[y]
        convolutions = [op for op in tf_graph.get_operations() if op.type == "Conv2D"]
        assert {op.device[-1] for op in convolutions} == {"0", "2"}  # of processors 0 to 3, those with filters


@pytest.mark.parametrize("options", ONCE_OR_ALL_KINDS)
@parametrize(
    ("name", "recipe"),
    [("vgg11", "filters"), ("resnet18", "spatial"), ("vgg13", "batch")],
    first=[("vgg11", "filters")],
)
def test_models(name, recipe, options):
    """Each split dimension without units on a processor: filters, units of dense layers, pixels, examples."""
    rules = toy_layout(name, recipe, "three").rules
    extents = find_extents(toy_graph(name))
    sizes = {dim: sizes_with_zeros(extents[dim], 3, number) for number, (dim, _) in enumerate(rules)}
    check(toy_program(name), Layout("x:3", rules, sizes=sizes), **options)


@pytest.mark.full
def test_the_last_layers_on_one_device():
    """VGG's dense layers on the first device alone, and its convolutions on two."""
    layout = toy_layout("vgg11", "filters", "two")
    extents = find_extents(toy_graph("vgg11"))
    dense = {dim: [extents[dim], 0] for dim, _ in layout.rules if dim.startswith("dense")}
    assert dense
    check(toy_program("vgg11"), dataclasses.replace(layout, sizes=dense))


def test_estimates_of_memory():
    layout = Layout("x:3", "f:x", sizes={"f": [0, 9, 2]})
    with tf.Graph().as_default():
        program = Program(layout, mtf.optimize.MomentumOptimizer(0.01, 0.9))
        estimates = memory.estimate(program.lowering, [program.train, program.loss])
        peaks = [estimates[device].peak for device in sorted(estimates)]
    assert len(peaks) == 3 and 0 < peaks[0] < peaks[1]
