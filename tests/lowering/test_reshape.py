"""Reshapes and renames between any two layouts; `test_operations` has those of whole programs."""

import math

import pytest
from hypothesis import HealthCheck, given, settings
from oracle import ONCE, check, cpu_mesh_impl
from reshapes import rename, reshards

from mtf_hetero import Layout, Lowering, mtf, tf

SHARES = {"x": [5, 2, 1], "y": [3, 1]}


def test_rename_moves_a_dimension_from_one_axis_to_another_on_a_square_mesh():
    """mtf's own lowering gives a wrong result here and no error: both slices have the same shape."""
    check(rename, Layout("x:2;y:2", "f0:x;r0:y"), **ONCE)


@pytest.mark.parametrize("rules", ["a:x;b:x", "a:x;b:x;c:y;d:y", "", "a:x"])
def test_a_rename_between_like_splits_is_no_operation(rules):
    """Reshape a tensor, and an outstanding sum."""
    a, b, c, d = (mtf.Dimension(name, size) for name, size in (("a", 8), ("b", 8), ("c", 7), ("d", 7)))
    with tf.Graph().as_default() as tf_graph:
        mesh = mtf.Mesh(graph := mtf.Graph(), "mesh")
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
@settings(derandomize=True, deadline=None, max_examples=60, suppress_health_check=list(HealthCheck))
@given(reshards())
def test_any_reshape_between_any_two_layouts(case):
    layout, old, new = case

    def build(feed):
        return {"y": mtf.reshape(feed("x", old), new) * 2.0}

    assert math.prod(d.size for d in old) == math.prod(d.size for d in new)
    check(build, layout)
