"""Several mtf operations become one of TensorFlow in the lowered graph, without leftovers."""

import collections

import numpy as np
import pytest
from oracle import FED, TOLERANCE, Feed, assert_same, check, cpu_mesh_impl, one_device, run

import mtf_hetero
from mtf_hetero import Layout, layers, mtf, tf

B, H, W, C, F = (mtf.Dimension(n, s) for n, s in [("b", 6), ("h", 8), ("w", 8), ("c", 3), ("f", 5)])
SHAPE = mtf.Shape([B, H, W, C])


ONE_PROCESSOR = Layout("x:1", "")


def lower(build, layout=ONE_PROCESSOR):
    """Builds and lowers; returns the Lowering, what `build` gave and how often each operation is in the graph."""
    mesh = mtf.Mesh(graph := mtf.Graph(), "mesh")
    results = build(mesh)
    lowering = mtf_hetero.Lowering(graph, {mesh: cpu_mesh_impl(layout)})
    return lowering, results, collections.Counter(op.type for op in tf.get_default_graph().get_operations())


def gradient(activation):
    def build(mesh):
        x = mtf.import_tf_tensor(mesh, tf.placeholder(tf.float32, SHAPE.to_integer_list), SHAPE)
        return mtf.gradients([mtf.reduce_sum(mtf.square(activation(x)))], [x])[0]

    return build


def test_gradients_of_relus():
    with tf.Graph().as_default():
        _, _, count = lower(gradient(mtf.relu), Layout("x:2", "b:x", {"x": [2, 1]}))
    assert count["ReluGrad"] == 2
    assert not count["Greater"] + count["Cast"]
    with tf.Graph().as_default():
        _, _, count = lower(gradient(mtf.leaky_relu))
    assert count["LeakyReluGrad"] == 1
    assert not count["Greater"] + count["LessEqual"] + count["Cast"] + count["ReluGrad"]


def test_what_is_left_out_can_be_exported():
    def build(mesh):
        x, dy = mtf.random_normal(mesh, SHAPE), mtf.ones(mesh, SHAPE)
        mask = mtf.cast(mtf.greater(x, 0), tf.float32)
        return x, mask, dy * mask

    with tf.Graph().as_default(), tf.Session() as session:
        lowering, results, count = lower(build)
        assert not count["Greater"]
        x, mask, product = session.run([lowering.export_to_tf_tensor(t) for t in results])
        np.testing.assert_array_equal(mask, x > 0)
        np.testing.assert_array_equal(product, x > 0)


def test_a_mask_that_is_needed_elsewhere_is_there():
    def build(mesh):
        x, dy = mtf.random_normal(mesh, SHAPE), mtf.ones(mesh, SHAPE)
        mask = mtf.cast(mtf.greater(x, 0), tf.float32)
        return dy * mask, mtf.reduce_sum(mask)

    with tf.Graph().as_default(), tf.Session() as session:
        lowering, results, count = lower(build)
        assert count["ReluGrad"] == count["Greater"] == 1
        product, total = session.run([lowering.export_to_tf_tensor(t) for t in results])
        assert product.sum() == total


def test_a_loop_that_returns_a_mask():
    def build(mesh):
        def body(i, x, dy):
            mask = mtf.cast(mtf.greater(x, 0), tf.float32)
            return [i + 1, dy * mask, mask]

        start = [mtf.constant(mesh, 0, dtype=tf.int32), mtf.random_normal(mesh, SHAPE), mtf.ones(mesh, SHAPE)]
        return mtf.while_loop(lambda i, *_: mtf.less(i, 1), body, start)[1:]

    with tf.Graph().as_default(), tf.Session() as session:
        lowering, results, _ = lower(build)
        product, mask = session.run([lowering.export_to_tf_tensor(t) for t in results])
        np.testing.assert_array_equal(product, mask)


def cast(x, dtype):
    """A user's function of the name of mtf's, which is no cast."""
    return mtf.slicewise(lambda t: 3 * tf.cast(t, dtype), [x], output_dtype=dtype, splittable_dims=x.shape.dims)


MASKS = {  # what looks like mtf's gradient of relu, and how it differs
    "another cast": lambda x: cast(mtf.greater(x, 0), x.dtype),
    "another comparison": lambda x: mtf.cast(mtf.greater_equal(x, 0), x.dtype),
    "another threshold": lambda x: mtf.cast(mtf.greater(x, 1), x.dtype),
    "a threshold for each": lambda x: mtf.cast(mtf.greater(x, imported(x, [0.0, 1.0, 0.0])), x.dtype),
    "another order": lambda x: mtf.cast(mtf.greater(mtf.zeros_like(x), x), x.dtype),
    "the cast of a cast": lambda x: mtf.cast(mtf.cast(mtf.greater(x, 0), tf.int32), x.dtype),
    "a number in place of a zero": lambda x: mtf.cast(mtf.greater(x, mtf.reduce_sum(x)), x.dtype),
}


def imported(x, values):
    return mtf.import_tf_tensor(x.mesh, tf.constant(values, x.dtype), mtf.Shape([C]))


def assert_not_recognised(build, kind):
    """Assert that no operation of a kind is made of a program, and that its results are right."""
    with tf.Graph().as_default():
        _, _, count = lower(lambda mesh: build(Feed(mesh, tf.float32)))
    assert not count[kind]
    uneven = run(build, lambda: cpu_mesh_impl(Layout("x:2", "h:x", {"x": [2, 1]})), tf.float64, gradients=False)
    assert_same(one_device(build, gradients=False), uneven, TOLERANCE[tf.float64])


@pytest.mark.parametrize("name", MASKS)
def test_what_looks_like_the_gradient_of_a_relu_is_none(name):
    def build(feed):
        x = feed("x", SHAPE)
        return {"y": feed("dy", SHAPE) * MASKS[name](x)}

    assert_not_recognised(build, "ReluGrad")


def test_zeros_of_the_image_s_last_dimension_are_a_zero():
    with tf.Graph().as_default():
        _, _, count = lower(lambda mesh: relu_mask(mtf.random_normal(mesh, SHAPE)))
    assert count["ReluGrad"] == 1


def relu_mask(x):
    return mtf.ones(x.mesh, SHAPE) * mtf.cast(mtf.greater(x, imported(x, [0.0, 0.0, 0.0])), x.dtype)


LEAKY = {  # dy * [x > 0] + alpha * dy * [x <= 0], but for one thing
    "of two gradients": lambda x, dy, other: (dy * mask(mtf.greater, x)) + (other * mask(mtf.less_equal, x)) * 0.1,
    "of two images": lambda x, dy, other: (dy * mask(mtf.greater, x)) + (dy * mask(mtf.less_equal, other)) * 0.1,
    "of two greater": lambda x, dy, _: (dy * mask(mtf.greater, x)) + (dy * mask(mtf.greater, x)) * 0.1,
    "of less": lambda x, dy, _: (dy * mask(mtf.greater, x)) + (dy * mask(mtf.less, x)) * 0.1,
}


def mask(comparison, x):
    return mtf.cast(comparison(x, 0), x.dtype)


@pytest.mark.parametrize("name", LEAKY)
def test_what_looks_like_the_gradient_of_a_leaky_relu_is_none(name):
    def build(feed):
        return {"y": LEAKY[name](feed("x", SHAPE), feed("dy", SHAPE), feed("other", SHAPE))}

    assert_not_recognised(build, "LeakyReluGrad")


@pytest.mark.parametrize("rule", ["b:x", "d:x"])
def test_a_leaky_relu_after_padding_and_a_3d_convolution_is_there(rule):
    """TensorFlow's remapper makes one operation of the three, without the relu."""
    dims = [mtf.Dimension(name, size) for name, size in (("b", 2), ("d", 6), ("h", 5), ("w", 5), ("c", 4))]

    def build(feed):
        x = feed("x", dims)
        for name in ("d", "h", "w"):
            x = mtf.pad(x, [1, 1], name)
        w = feed("kernel", [*(mtf.Dimension(f"k{i}", 3) for i in range(3)), dims[-1], F])
        return {"y": mtf.leaky_relu(mtf.Conv3dOperation(x, w, [1] * 5, "VALID").outputs[0], 0.01)}

    uneven = run(build, lambda: cpu_mesh_impl(Layout("x:2", rule)), tf.float32, kind=FED, gradients=False)
    assert_same(one_device(build, tf.float32, gradients=False), uneven, TOLERANCE[tf.float32])


def test_a_sum_of_several_is_added_up_as_they_come():
    def build(mesh):
        w = mtf.random_normal(mesh, SHAPE)
        products = [mtf.reduce_mean(w * mtf.random_normal(mesh, SHAPE)) for _ in range(4)]
        return mtf.gradients([mtf.add_n(products)], [w])[0]

    with tf.Graph().as_default(), tf.Session() as session:
        lowering, gradient, _ = lower(build)
        metadata = tf.RunMetadata()
        run_options = tf.RunOptions(output_partition_graphs=True)
        session.run(lowering.export_to_tf_tensor(gradient), options=run_options, run_metadata=metadata)
    nodes = [node for graph in metadata.partition_graphs for node in graph.node]
    assert not any(node.op == "AddN" and len(node.input) > 2 for node in nodes)


def test_a_convolution_its_bias_and_its_relu_are_one_operation():
    def build(mesh):
        x = mtf.random_normal(mesh, SHAPE)
        y = mtf.relu(mtf.layers.conv2d(x, F, name="conv") + mtf.get_variable(mesh, "bias", mtf.Shape([F])))
        variables = mesh.graph.trainable_variables
        gradients = mtf.gradients([mtf.reduce_sum(mtf.square(y))], [v.outputs[0] for v in variables])
        return [mtf.assign_sub(v, g) for v, g in zip(variables, gradients)]

    with tf.Graph().as_default(), tf.Session() as session:
        lowering, updates, count = lower(build)
        assert count["BiasAdd"] == count["BiasAddGrad"] == 1
        session.run(tf.global_variables_initializer())
        metadata = tf.RunMetadata()
        session.run(
            [lowering.lowered_operation(op) for op in updates],
            options=tf.RunOptions(output_partition_graphs=True),
            run_metadata=metadata,
        )
        run = {node.op for graph in metadata.partition_graphs for node in graph.node}
        assert any("FusedConv2D" in kind for kind in run)
        assert "Relu" not in run


def test_small_images_are_convolved_by_a_matrix_product_on_a_cpu_alone():
    def build(mesh):
        x = mtf.random_normal(mesh, mtf.Shape([B, mtf.Dimension("h", 2), mtf.Dimension("w", 2), C]))
        return mtf.layers.conv2d(x, F, name="conv")

    with tf.Graph().as_default():
        _, _, count = lower(build)
        assert (count["MatMul"], count["Conv2D"]) == (1, 0)
    with tf.Graph().as_default():
        mesh = mtf.Mesh(graph := mtf.Graph(), "mesh")
        build(mesh)
        mtf_hetero.Lowering(graph, {mesh: mtf_hetero.UnevenMeshImpl("x:1", "", ["gpu:0"])})
        kinds = [op.type for op in tf.get_default_graph().get_operations()]
        assert ("Conv2D" in kinds, "MatMul" in kinds) == (True, False)


def test_batch_norm_is_fused_where_no_channel_is_split():
    def build(mesh):
        x = mtf.import_tf_tensor(mesh, tf.placeholder(tf.float32, SHAPE.to_integer_list), SHAPE)
        return mtf.gradients([mtf.reduce_sum(mtf.square(layers.batch_norm(x, training=True)))], [x])[0]

    for rule, fused in (("c:x", 2), ("b:x", 0), ("h:x", 0)):
        with tf.Graph().as_default():
            _, _, count = lower(build, Layout("x:2", rule, {"x": [2, 1]}))
            assert count["FusedBatchNormV3"] == count["FusedBatchNormGradV3"] == fused


def test_fused_batch_norm_of_any_rank():
    def build(feed):
        x = feed("x", [B, C]) + feed("more", [B, H, C])
        return {
            "vector": layers.batch_norm(feed("y", [B, F]), training=True),
            "rows": layers.batch_norm(x, training=True),
        }

    check(build, Layout("x:2", "c:x", {"x": [2, 1]}), Layout("x:2", "f:x", {"x": [2, 1]}), dtype=tf.float32)
