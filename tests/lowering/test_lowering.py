"""Lowering and UnevenMeshImpl: what they refuse, other meshes, random numbers."""

import numpy as np
import pytest
from oracle import cpu_mesh_impl

import mtf_hetero
from mtf_hetero import Layout, mtf, tf
from mtf_hetero.layout import CannotSplitError
from mtf_hetero.lowering import names

B, C = mtf.Dimension("b", 7), mtf.Dimension("c", 5)
LAYOUTS = [
    Layout("x:1", ""),
    Layout("x:3", "b:x", {"x": [70, 25, 5]}),
    Layout("x:3;y:2", "b:x;c:y", {"y": [1, 4]}),
    Layout("x:2", "c:x", {"x": [1, 3]}),
]


def make_graph(build):
    mesh = mtf.Mesh(graph := mtf.Graph(), "mesh")
    return graph, mesh, build(mesh)


def values(layout, build, *, seed=5, runs=1):
    with tf.Graph().as_default():
        tf.set_random_seed(seed)
        graph, mesh, y = make_graph(build)
        lowering = mtf_hetero.Lowering(graph, {mesh: cpu_mesh_impl(layout)})
        exported = lowering.export_to_tf_tensor(y)
        with tf.Session(config=tf.ConfigProto(device_count={"CPU": layout.size})) as session:
            return [session.run(exported) for _ in range(runs)]


@pytest.mark.parametrize(
    "build",
    [
        lambda mesh: mtf.random_uniform(mesh, mtf.Shape([B, C])),
        lambda mesh: mtf.random_normal(mesh, mtf.Shape([B, C]), stddev=2.0, dtype=tf.float64),
        lambda mesh: mtf.dropout(mtf.ones(mesh, mtf.Shape([B, C])), is_training=True, keep_prob=0.5),
        lambda mesh: mtf.dropout(
            mtf.ones(mesh, mtf.Shape([B, C])), is_training=True, rate=0.4, noise_shape=mtf.Shape([C])
        ),
        lambda mesh: mtf.RandomOperation(mesh, mtf.Shape([B, C]), tf.random.gamma, alpha=2.0).outputs[0],
    ],
)
def test_random_numbers_do_not_depend_on_the_layout(build):
    expected = values(LAYOUTS[0], build, runs=2)
    assert (expected[0] != expected[1]).any(), "every step draws anew"
    for layout in LAYOUTS[1:]:
        # uniform numbers are the same to the bit, normal ones to the rounding of a logarithm and a cosine
        np.testing.assert_allclose(values(layout, build, runs=2), expected, rtol=1e-14, atol=0)
    assert (values(LAYOUTS[0], build, seed=6)[0] != expected[0]).any()


def _stacked(mesh):
    x = mtf.ones(mesh, mtf.Shape([mtf.Dimension("a", 2), B, C]))
    y = mtf.stack([x, x], "s1")
    return mtf.reshape(y, mtf.Shape([mtf.Dimension("flat", y.shape.size)]))


def _flattened(mesh):
    x = mtf.ones(mesh, mtf.Shape([B, mtf.Dimension("h", 4), mtf.Dimension("w", 4), C]))
    y = mtf.layers.conv2d(x, mtf.Dimension("r0", 6), name="conv")
    return mtf.reshape(y, mtf.Shape([B, mtf.Dimension("flat", 96)]))


@pytest.mark.parametrize(
    ("build", "rules", "dims", "operation"),
    [(_stacked, "a:x;s1:x", "'s1', 'a'", "StackOperation 'stack"), (_flattened, "h:x;r0:x", "'h', 'r0'", "Conv2d")],
)
def test_two_dimensions_of_a_tensor_on_one_axis_are_refused_before_anything_is_lowered(build, rules, dims, operation):
    with tf.Graph().as_default() as tf_graph:
        graph, mesh, _ = make_graph(build)
        before = len(tf_graph.get_operations())
        with pytest.raises(ValueError, match=f"{operation}.*: a tensor has dimensions {dims}, and .* mesh axis 'x';"):
            mtf_hetero.Lowering(graph, {mesh: cpu_mesh_impl(Layout("x:2", rules))})
        assert len(tf_graph.get_operations()) == before


def test_factors_split_over_one_axis_are_refused_even_if_no_tensor_has_both_dimensions():
    x, y = [B, mtf.Dimension("r0", 6)], [B, mtf.Dimension("r1", 9)]
    with tf.Graph().as_default():
        graph, mesh, _ = make_graph(lambda mesh: mtf.einsum([mtf.ones(mesh, x), mtf.ones(mesh, y)], mtf.Shape([B])))
        with pytest.raises(CannotSplitError, match="EinsumOperation 'einsum', .*dimensions 'r0', 'r1'.*mesh axis 'x'"):
            mtf_hetero.Lowering(graph, {mesh: cpu_mesh_impl(Layout("x:2", "r0:x;r1:x"))})


def test_no_class_and_no_operation_of_mtf_is_changed():
    with tf.Graph().as_default():
        graph, mesh, _ = make_graph(lambda mesh: mtf.one_hot(mtf.range(mesh, B, tf.int32), C))
        before = {op: op.lower.__func__ for op in graph.operations}
        mtf_hetero.Lowering(graph, {mesh: cpu_mesh_impl(LAYOUTS[1])})
        assert {op: op.lower.__func__ for op in graph.operations} == before


def test_a_scalar_summary_is_collected_once():
    with tf.Graph().as_default():
        graph, mesh, _ = make_graph(
            lambda mesh: mtf.scalar_summary("mean", mtf.reduce_mean(mtf.ones(mesh, mtf.Shape([B]))))
        )
        mtf_hetero.Lowering(graph, {mesh: cpu_mesh_impl(LAYOUTS[1])})
        ((name, tensor),) = tf.get_collection(mtf.utils.SCALAR_SUMMARIES_COLLECTION_KEY)
        assert name == "mean"
        assert tensor.shape.rank == 0


def test_other_meshes_are_lowered_by_mtf():
    with tf.Graph().as_default(), tf.Session() as session:
        graph = mtf.Graph()
        even, uneven = mtf.Mesh(graph, "even"), mtf.Mesh(graph, "uneven")
        w = mtf.get_variable(even, "w", mtf.Shape([mtf.Dimension("c", 6)]), initializer=tf.ones_initializer())
        v = mtf.get_variable(uneven, "v", mtf.Shape([C]), initializer=tf.ones_initializer())
        impls = {
            even: mtf.placement_mesh_impl.PlacementMeshImpl("x:2", "c:x", ["cpu:0"] * 2),
            uneven: mtf_hetero.UnevenMeshImpl("x:2", "c:x", ["cpu:0"] * 2, shares={"x": [3, 2]}),
        }
        lowering = mtf_hetero.Lowering(graph, impls)
        session.run(tf.global_variables_initializer())
        session.run(lowering.copy_masters_to_slices())
        assert [s.shape.as_list() for s in lowering.tensors[w].to_laid_out_tensor().tensor_list] == [[3], [3]]
        assert [s.shape.as_list() for s in lowering.tensors[v].to_laid_out_tensor().tensor_list] == [[3], [2]]
        assert session.run(lowering.export_to_tf_tensor(w)).sum() == 6


class _UsesTheSliceShape(mtf.Operation):
    """An operation of a user's, which takes slices to be equal."""

    def __init__(self, x):
        super().__init__([x], name="mine")
        self._outputs = [mtf.Tensor(self, x.shape, x.dtype)]

    def lower(self, lowering):
        mesh_impl = lowering.mesh_impl(self)
        shape = mesh_impl.slice_shape(self.outputs[0].shape)
        x = lowering.tensors[self.inputs[0]]
        lowering.set_tensor_lowering(self.outputs[0], mesh_impl.slicewise(lambda x: tf.reshape(x, shape), x))


def test_a_users_operation_is_lowered_by_itself_or_refused():
    def build(mesh):
        return _UsesTheSliceShape(mtf.ones(mesh, mtf.Shape([B, C]))).outputs[0]

    assert values(Layout("x:1", ""), build)[0].sum() == 35
    with pytest.raises(NotImplementedError, match="_UsesTheSliceShape 'mine' .*dimension 'b' of size 7.*mesh axis 'x'"):
        values(LAYOUTS[1], build)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"devices": ["cpu:0"]}, "devices are .*1 device|devices are \\['cpu:0'\\], but the mesh x:2 has 2 processors"),
        ({"devices": "cpu:0"}, "give one device per processor"),
        ({"shares": {"x": [1, 2, 3]}}, "3 numbers for 2 processors"),
    ],
)
def test_bad_arguments(arguments, message):
    good = {"shape": "x:2", "layout": "b:x", "devices": ["cpu:0", "cpu:1"]}
    with pytest.raises(ValueError, match=message):
        mtf_hetero.UnevenMeshImpl(**(good | arguments))


FF = mtf.Dimension("d_ff", 12)
MISTAKES = [
    (Layout("x:3", "c:x", sizes={"c": [2, 2, 2]}), "c", "6 in all, but the dimension has size 12"),
    (Layout("x:2", "b:x;c:x"), "c", "dimensions 'b', 'c', and the layout splits all of them over mesh axis 'x'"),
    (
        Layout("x:2", "hiden:x"),
        "hidden",
        "rule hiden:x names dimension 'hiden', .* are hidden, .*; the nearest is 'hid",
    ),
    (Layout("x:2", "b:x;dense/unit:x"), "dense/units", "dimension 'dense/unit', .*; the nearest is 'dense/units'$"),
    (Layout("x:2", "b:x;chanels:x"), "channels", "dimension 'chanels', which no tensor of the graph has; the dimen"),
    (
        Layout("x:2;y:2", "hieght:y;b:x"),
        "height",
        "rule hieght:y names dimension 'hieght', .*; the nearest is 'height'",
    ),
    (
        Layout("x:2", "q:x", sizes={"q": [2, 2]}),
        "hidden",
        "does not occur in the graph; .*; the dimensions are .*hidden",
    ),
]


@pytest.mark.parametrize(("layout", "name", "message"), MISTAKES)
def test_a_layout_that_does_not_fit_the_graph_is_refused(layout, name, message):
    with pytest.raises(ValueError, match=message) as caught:
        values(layout, lambda mesh: mtf.ones(mesh, mtf.Shape([B, mtf.Dimension(name, 12)])))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("layout", "idle"),
    [
        # the default of Mesh-TensorFlow's Transformer, on a mesh without an axis for ensembles
        (Layout("x:2", "ensemble:ensemble,b:x,d_ff:model,experts:x"), "d_ff:model;ensemble:ensemble;experts:x"),
        (Layout("x:2", "conv1/f:x;conv9/f:x"), "conv9/f:x"),  # a deeper network has it
        (Layout("x:1", "experts:x"), "experts:x"),
        (Layout("x:2", "labels:x"), "labels:x"),  # the graph of another mode has them
        (Layout("x:2", "d_ff:x;d_f:x"), None),
    ],
)
def test_rules_of_a_layout_for_several_graphs(layout, idle, caplog):
    """They have no effect, and one line says so; a name that is nearly one of another rule's is no mistake."""
    shape = mtf.Shape([B, mtf.Dimension("conv1/f", 4), FF])
    assert values(Layout("x:1", ""), lambda mesh: mtf.ones(mesh, shape))[0].shape == (7, 4, 12)
    with caplog.at_level("WARNING", "tensorflow"):
        found = values(layout, lambda mesh: mtf.ones(mesh, shape))[0]
    assert found.shape == (7, 4, 12)
    lines = [record.getMessage() for record in caplog.records if "no effect" in record.getMessage()]
    assert len(lines) == 1 and lines[0].startswith(f"layout rules {idle or 'd_f:x'} have no effect: ")


def test_a_layout_is_kept_for_another_graph():
    layout = Layout("x:2", "b:x;q:x", {"x": [2, 1]}, {"b": [4, 3], "q": [1, 1]})
    assert names.keep(layout, {"b", "c"}) == Layout("x:2", "b:x", {"x": [2, 1]}, {"b": [4, 3]})
    assert names.keep(layout, {"b", "q"}) is layout
    with pytest.raises(
        ValueError, match="rule q:x names dimension 'q', which no tensor of the graph has; .* are b, c$"
    ):
        names.check(layout, ["b", "c", "whole0"], ["b", "c"])
    with pytest.raises(ValueError, match="rule q:z names mesh axis 'z'"):
        names.check(Layout("x:2", "b:x;q:z"), ["b", "q"], ["b", "q"])


def test_slice_shape_without_a_processor():
    mesh_impl = cpu_mesh_impl(LAYOUTS[1])
    assert mesh_impl.slice_shape(mtf.Shape([C])) == [5]
    assert mesh_impl.slice_shape(mtf.Shape([B, C]), 0) == [4, 5]
    assert mesh_impl.slice_begin(mtf.Shape([B, C]), 2) == [6, 0]
    assert mesh_impl.slice_size(mtf.Shape([B, C])) == 20
    assert mesh_impl.laid_out_size(mtf.Shape([B, C])) == 35
    with pytest.raises(ValueError, match="give the number of a processor"):
        mesh_impl.slice_shape(mtf.Shape([B, C]))
