"""Rounds: a part of a batch after another, the same result on every layout, and one part at a time in one place."""

import pytest
from oracle import ONCE, check, one_device
from regression import ancestors
from rounds import LAYOUTS, SIZES, program
from tiers import few, parametrize
from zeros import Zeros, dims

import mtf_hetero
from mtf_hetero import Layout, layers, mtf, tf

PRODUCTS = ("Einsum", "MatMul")


@pytest.mark.parametrize(("count", "options"), [(2, ONCE), pytest.param(7, {}, marks=pytest.mark.full)])
@parametrize("sizes", [(7,), SIZES, (2, 5)], first=[SIZES])
def test_same_as_all_at_once(sizes, count, options):
    tried = [layout for layout in LAYOUTS if "rounds/b" not in dict(layout.rules) or min(sizes) > 1]  # no half of one
    reference = one_device(program(None), exports=False)
    check(program(sizes), *few(tried, count), reference=reference, **options | {"exports": False})


def lowered(sizes):
    """The TensorFlow graph of the program on three processors, each of which holds a round's examples."""
    with tf.Graph().as_default() as tf_graph:
        graph = mtf.Graph()
        zeros = Zeros(graph)
        program(sizes)(zeros)
        layout = Layout("all:3", "b:all;u:all", sizes={"b": SIZES})
        mesh_impl = mtf_hetero.UnevenMeshImpl.from_layout(layout, ["cpu:0", "cpu:1", "cpu:2"])
        mtf_hetero.Lowering(graph, {zeros.mesh: mesh_impl})
    return tf_graph


def test_a_round_begins_after_the_one_before_it():
    operations = lowered(SIZES).get_operations()
    for pnum in range(3):
        own = [op for op in operations if op.type in PRODUCTS and op.device.endswith(f":{pnum}")]
        assert len(own) == 6  # two products a round
        for number in range(1, 3):
            first, before = own[2 * number], own[2 * number - 1]
            assert before in ancestors(first) or pnum != number  # the one whose examples it takes sees to it
            owners = [op for op in operations if op.type in PRODUCTS and op.device.endswith(f":{number}")]
            assert owners[2 * number - 1] in ancestors(first)


def test_memory_is_bounded_by_a_part():
    """Without rounds each processor gathers all examples; with rounds only a part."""

    def gathered(sizes):
        shapes = {
            tuple(t.shape.as_list())
            for op in lowered(sizes).get_operations()
            for t in op.outputs
            if op.device and t.shape.rank == 3 and not op.name.startswith("x")
        }
        return max(shape[1] for shape in shapes if shape[0] == 2)

    assert gathered(SIZES) == max(SIZES)
    assert gathered((7,)) == 7


def test_stock_meshes_refuse_what_they_cannot():
    with tf.Graph().as_default():
        mesh = mtf.Mesh(graph := mtf.Graph(), "mesh")
        x = mtf.import_tf_tensor(mesh, tf.zeros([4, 2]), dims("b:4 i:2"))
        layers.in_rounds(x, mtf.tanh, dim=x.shape.dims[0], sizes=(2, 2))
        stock = mtf.placement_mesh_impl.PlacementMeshImpl([("x", 2)], [("b", "x")], ["cpu:0"] * 2)
        with pytest.raises(NotImplementedError, match="CutOperation .* cannot be split along dimension 'b'"):
            mtf.Lowering(graph, {mesh: stock})
