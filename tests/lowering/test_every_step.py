"""The second and the third step are right too, also if a stride does not divide the size."""

import numpy as np
import oracle
import pytest
from oracle import ONCE, check
from tiers import parametrize

from mtf_hetero import Layout, layers, mtf, tf

B, C, F = mtf.Dimension("b", 2), mtf.Dimension("c", 3), mtf.Dimension("f", 2)
OVER_THREE = Layout("x:3", "h:x", {"x": [5, 3, 1]})
# Kernel, stride, padding and extent of convolutions whose gradients once grew from step to step
STRIDED = [(1, 2, "SAME", 6), (3, 2, "VALID", 9), (3, 4, "SAME", 12)]
LEFT_OVER = [(3, 2, "SAME", 28), (3, 2, "SAME", 7), (5, 3, "SAME", 13), (2, 4, "VALID", 13), (1, 3, "SAME", 11)]


def image(feed, extent):
    return feed("x", [B, mtf.Dimension("h", extent), mtf.Dimension("w", extent), C])


def kernel(feed, size, channels=(C, F)):
    return feed("kernel", [mtf.Dimension("kh", size), mtf.Dimension("kw", size), *channels])


def convolution(size, stride, padding, extent):
    def build(feed):
        x, w = image(feed, extent), kernel(feed, size)
        return {"y": mtf.Conv2dOperation(x, w, [1, stride, stride, 1], padding).outputs[0]}

    return build


@parametrize("case", STRIDED, first=STRIDED[1:2])
def test_gradients_do_not_grow(case):
    check(convolution(*case), OVER_THREE)


@parametrize("case", LEFT_OVER, first=[(3, 2, "SAME", 7), (2, 4, "VALID", 13)])
def test_windows_that_a_stride_does_not_divide_are_tensorflow_s(case):
    _, stride, padding, _ = case
    build = convolution(*case)
    check(build, OVER_THREE, **ONCE)
    found = oracle.run(build, lambda: oracle.cpu_mesh_impl(Layout("x:1", "")), tf.float64).slices
    with tf.Graph().as_default(), tf.Session() as session:
        feed = oracle.Feed(mtf.Mesh(mtf.Graph(), "mesh"), tf.float64)
        build(feed)
        x, w = (feed.inputs[name].operation._tf_tensor for name in ("x", "kernel"))
        y = tf.nn.conv2d(x, w, stride, padding)
        dy = feed("weights of y", mtf.Shape([mtf.Dimension(f"d{i}", n) for i, n in enumerate(y.shape.as_list())]))
        expected = session.run([y, *tf.gradients(y, [x, w], dy.operation._tf_tensor)])
    for name, array in zip(("y", "gradient of input x", "gradient of input kernel"), expected, strict=True):
        np.testing.assert_allclose(found[name][0], array, rtol=0, atol=1e-9)


def test_a_transposed_convolution_that_tensorflow_would_refuse():
    """Mtf's shape is n * stride, of which windows of 3 at a stride of 2 are not n."""

    def build(feed):
        x, w = image(feed, 5), kernel(feed, 3, (F, C))
        return {"y": mtf.Conv2dTransposeOperation(x, w, [1, 2, 2, 1], "VALID").outputs[0]}

    with pytest.raises(ValueError, match=r"10 pixels of dimension 'h' make 4 windows .* but the output has 5;"):
        check(build, OVER_THREE, reference=oracle.Result([], {}, None))


def test_halos_within_a_loop():
    def build(feed):
        x, w = image(feed, 7), kernel(feed, 3, (C, mtf.Dimension("new", C.size))) * 0.1

        def body(i, x):
            y = mtf.Conv2dOperation(x, w, [1, 1, 1, 1], "SAME").outputs[0]
            y = mtf.rename_dimension(mtf.tanh(y), "new", C.name)
            return [i + 1, layers.pool(y, kind="max", size=3, strides=1, padding=1)]

        start = [mtf.constant(feed.mesh, 0, dtype=tf.int32), x]
        return {"y": mtf.while_loop(lambda i, _: mtf.less(i, 3), body, start)[1]}

    program = oracle.run(build, lambda: oracle.cpu_mesh_impl(OVER_THREE), tf.float64, gradients=False)
    oracle.assert_same(oracle.one_device(build, gradients=False), program, 1e-9)


def test_the_oracle_finds_what_tensorflow_may_keep():
    with tf.Graph().as_default() as graph:
        zeros = tf.fill([3, 2], tf.placeholder_with_default(tf.constant(0.0), []))
        tf.raw_ops.InplaceAdd(x=zeros, i=[0], v=tf.ones([1, 2]))
        with pytest.raises(AssertionError, match="which TensorFlow may keep"):
            oracle.assert_nothing_is_kept(graph)
