"""The oracle over reshape and rename: between any two layouts, forward and gradient."""

import math

import pytest
from hypothesis import HealthCheck, given, settings
from oracle import check, cpu_mesh_impl
from reshapes import flatten, outstanding_sum, rename, reshards
from tiers import FEW_OR_ALL

from mtf_hetero import Layout, Lowering, mtf, tf

SHARES = {"x": [5, 2, 1], "y": [3, 1]}


def over(rules):
    return [Layout("x:3;y:2", rule, SHARES) for rule in rules]


@pytest.mark.parametrize("chosen", FEW_OR_ALL)
def test_rename(chosen):
    rules = ["f0:x", "r0:x", "f0:x;r0:x", "f0:x;r0:y", "f0:x;k:y", "f0:x;n:y", "r0:y;n:x", "r0:x;f0:x;n:y"]
    check(rename, *chosen(over(rules)))


def test_rename_moves_a_dimension_from_one_axis_to_another_on_a_square_mesh():
    """mtf's own lowering gives a wrong result here and no error: both slices have the same shape."""
    check(rename, Layout("x:2;y:2", "f0:x;r0:y"))


@pytest.mark.parametrize("chosen", FEW_OR_ALL)
def test_flatten_and_back(chosen):
    rules = ["c:x", "b:x;c:y", "c:x;k:x", "k:x", "h:y;k:x", "k:y;c2:x", "h2:x;c2:y", "b:y;n:x", "n:y", "c:x;c2:y;n:x"]
    check(flatten, *chosen(over(rules)))


@pytest.mark.parametrize("chosen", FEW_OR_ALL)
def test_a_sum_that_is_outstanding(chosen):
    rules = ["b:x", "b:x;scattered:x", "b:x;cut:y", "b:y;scattered:y;cut:x", "b:x;a:y"]
    check(outstanding_sum, *chosen(over(rules)))


@pytest.mark.parametrize("rules", ["a:x;b:x", "a:x;b:x;c:y;d:y", "", "a:x"])
def test_a_rename_between_like_splits_is_no_operation(rules):
    """Reshape a tensor, and an outstanding sum."""
    a, b, c, d = (mtf.Dimension(name, size) for name, size in (("a", 8), ("b", 8), ("c", 7), ("d", 7)))
    with tf.Graph().as_default() as tf_graph:
        graph = mtf.Graph()
        mesh = mtf.Mesh(graph, "mesh")
        x = mtf.import_tf_tensor(mesh, tf.zeros([8, 7]), mtf.Shape([a, c]))
        renamed = mtf.reshape(x, [b, d], name="renamed")
        total = mtf.reshape(mtf.reduce_sum(x, output_shape=[c]), [d], name="total")
        layout = Layout("x:3;y:2", rules, SHARES)
        lowering = Lowering(graph, {mesh: cpu_mesh_impl(layout)})
        made = [op.name for op in tf_graph.get_operations() if op.name.startswith(("renamed", "total"))]
        assert not made or rules == "a:x"
        assert [t.shape.as_list() for t in lowering.tensors[renamed].to_laid_out_tensor().tensor_list] == [
            layout.slice_shape(renamed.shape, pnum) for pnum in range(6)
        ]
        assert isinstance(lowering.tensors[total], mtf.LazyAllreduceSum) == (rules != "")


@pytest.mark.full
@settings(derandomize=True, deadline=None, max_examples=100, suppress_health_check=list(HealthCheck))
@given(reshards())
def test_any_reshape_between_any_two_layouts(case):
    layout, old, new = case

    def build(feed):
        return {"y": mtf.reshape(feed("x", old), new) * 2.0}

    assert math.prod(d.size for d in old) == math.prod(d.size for d in new)
    check(build, layout)
