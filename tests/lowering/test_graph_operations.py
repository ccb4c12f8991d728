"""The oracle over operations that act on a program rather than on numbers: loops, custom gradients, prints."""

import pytest
from graph_operations import PROGRAMS
from oracle import check, cpu_mesh_impl
from tiers import FEW_OR_ALL

from mtf_hetero import Layout, Lowering, mtf, tf

B = mtf.Dimension("b", 7)
SHARES = {"x": [5, 2, 1], "y": [3, 1]}
LAYOUTS = [Layout("x:3;y:2", rules, SHARES) for rules in ("b:x", "c:x", "f:x", "b:x;c:y", "f:x;b:y", "c:x;f:y")]


@pytest.mark.parametrize("chosen", FEW_OR_ALL)
@pytest.mark.parametrize("name", PROGRAMS)
def test_program_is_the_same_on_every_layout(name, chosen):
    check(PROGRAMS[name], *chosen(LAYOUTS))


def test_a_scalar_summary_is_collected_once():
    with tf.Graph().as_default():
        graph = mtf.Graph()
        mesh = mtf.Mesh(graph, "mesh")
        mtf.scalar_summary("mean", mtf.reduce_mean(mtf.ones(mesh, mtf.Shape([B]))))
        Lowering(graph, {mesh: cpu_mesh_impl(LAYOUTS[0])})
        ((name, tensor),) = tf.get_collection(mtf.utils.SCALAR_SUMMARIES_COLLECTION_KEY)
        assert name == "mean"
        assert tensor.shape.rank == 0
