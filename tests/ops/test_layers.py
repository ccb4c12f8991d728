"""The layers that mtf lacks: against TensorFlow's own, NumPy, and one device, on every layout."""

import itertools

import numpy as np
import pytest
from normalization import B, C, H, W
from operations import layouts, layouts_with_zeros
from oracle import ONCE, Feed, check, cpu_mesh_impl, one_device
from tiers import ONCE_OR_ALL_KINDS, ONE_OR_ALL, few, parametrize

import mtf_hetero
from mtf_hetero import Layout, layers, mtf, tf
from mtf_hetero.ops.sums import channel_sums

D3, H3, W3 = (mtf.Dimension(n, s) for n, s in [("d", 8), ("h", 7), ("w", 5)])


def pools(x, sizes, strides, paddings):
    return {
        f"{kind} {size} {stride} {padding}": layers.pool(x, kind=kind, size=size, strides=stride, padding=padding)
        for kind, size, stride, padding in itertools.product(("max", "avg"), sizes, strides, paddings)
        if padding != 1 or size != (1, 1)
    }


@pytest.mark.full
def test_pool_3d_is_the_same_on_every_layout():
    def build(feed):
        return pools(feed("x", [B, D3, H3, W3, C]), [3], [2], ["SAME", "VALID", 1])

    tried = layouts("b:x", "c:y", "d:x", "h:x;w:y", "d:x;c:y", "d:y;b:x")
    check(build, *tried, dtype=tf.float32, **ONCE)


def test_pool_over_several_batch_dimensions_and_none():
    def build(feed):
        x = feed("x", [mtf.Dimension("a", 3), B, H, W, C])
        y = feed("y", [H, W, C])
        return {
            "two": layers.pool(x, kind="max", size=(3, 3), strides=2, padding="SAME"),
            "none": layers.pool(y, kind="avg", size=(3, 3), strides=2, padding=1),
        }

    check(build, *layouts("a:x;h:y", "b:y;w:x"), **ONCE)


def test_pools_are_tensorflow_s():
    """With padding, TensorFlow's pool over an image with that padding around it."""
    cases = [*itertools.product(("max", "avg"), [(3, 2), (2, 2), (4, 3), (2, 3)], ("SAME", "VALID", 1))]

    def build(feed):
        outputs = {}
        for kind, (size, stride), padding in cases:
            case = f"{kind} {size} {stride} {padding}"
            x = feed(f"x {case}", [B, H, W, C])
            outputs[case] = layers.pool(x, kind=kind, size=size, strides=stride, padding=padding)
        return outputs

    actual, expected = one_device(build).slices, {}
    with tf.Graph().as_default(), tf.Session() as session:
        feed = Feed(mtf.Mesh(mtf.Graph(), "mesh"), tf.float64)
        for (kind, (size, stride), padding), (case, pooled) in zip(cases, build(feed).items(), strict=True):
            weights = feed(f"weights of {case}", pooled.shape).operation._tf_tensor
            x = feed.inputs[f"x {case}"].operation._tf_tensor
            padded, native = x, padding
            if padding == 1:
                fill = x.dtype.min if kind == "max" else 0
                padded, native = tf.pad(x, [[0, 0], [1, 1], [1, 1], [0, 0]], constant_values=fill), "VALID"
            y = (tf.nn.max_pool2d if kind == "max" else tf.nn.avg_pool2d)(padded, size, stride, native)
            expected |= {case: y, f"gradient of input x {case}": tf.gradients(y, x, weights)[0]}
        expected = session.run(expected)
    for name, value in expected.items():
        np.testing.assert_allclose(actual[name][0], value, rtol=0, atol=1e-12, err_msg=name)


def test_all_negative_pixels_and_ties():
    """Padding is no maximum; of equal maxima one gets the gradient, the same one on every layout."""

    def build(feed):
        x = mtf.minimum(feed("x", [B, H, W, C]), -0.5)
        return {"y": layers.pool(x, kind="max", size=3, strides=2, padding=1)}

    assert one_device(build).slices["y"][0].max() == -0.5
    check(build, *layouts("h:x", "h:x;w:y"), **ONCE)


def _batch_norm(training, **arguments):
    def build(feed):
        x = feed("x", [B, H, W, C]) * 3.0 + 2.0
        y = layers.batch_norm(x, training=training, name="bn", **arguments)
        updates = layers.batch_norm_updates(feed.mesh.graph)
        return {"y": mtf.square(y)} | {f"new {i}": op.inputs[0] for i, op in enumerate(updates)}

    return build


@pytest.mark.parametrize("options", ONCE_OR_ALL_KINDS)
@pytest.mark.parametrize("chosen", ONE_OR_ALL)
@pytest.mark.parametrize("training", [True, False])
@parametrize("dtype", [tf.float64, tf.float32], first=[tf.float64])
def test_batch_norm_is_the_same_on_every_layout(training, dtype, chosen, options):
    rules = ("b:x", "c:x", "h:x", "b:x;c:y", "h:x;b:y", "c:x;w:y", "h:x;w:y")
    build = _batch_norm(training)
    empty = few(chosen(layouts_with_zeros(build, rules[::-1])))  # in the first tier by another rule
    check(build, *chosen(layouts(*rules)), *empty, dtype=dtype, **options)


def test_batch_norm_is_tensorflow_s():
    reference = one_device(_batch_norm(True, momentum=0.75)).slices
    with tf.Graph().as_default(), tf.Session() as session:
        feed = Feed(mtf.Mesh(mtf.Graph(), "mesh"), tf.float64)
        x, weights = (feed(name, [B, H, W, C]).operation._tf_tensor for name in ("x", "weights of y"))
        scale, offset = tf.ones([C.size], tf.float64), tf.zeros([C.size], tf.float64)
        scaled = x * 3.0 + 2.0
        mean, variance = tf.nn.moments(scaled, [0, 1, 2])
        y = tf.square(tf.nn.batch_normalization(scaled, mean, variance, offset, scale, 1e-5))
        gradients = tf.gradients(y, [x, scale, offset], weights)
        expected = session.run([y, *gradients, 0.25 * mean, 0.75 + 0.25 * variance])
    gradients = [f"gradient of {name}" for name in ("input x", "variable bn/scale", "variable bn/offset")]
    names = ["y", *gradients, "new 0", "new 1"]
    for name, value in zip(names, expected):
        np.testing.assert_allclose(reference[name][0], value, rtol=0, atol=1e-9, err_msg=name)


def moving_averages(layout, x, *, momentum, steps):
    """Return the values of each processor, after some steps on the same batch."""
    with tf.Graph().as_default():
        mesh = mtf.Mesh(graph := mtf.Graph(), "mesh")
        dims = [mtf.Dimension(dim.name, size) for dim, size in zip((B, H, W, C), x.shape, strict=True)]
        images = mtf.import_tf_tensor(mesh, tf.constant(x), mtf.Shape(dims))
        y = layers.batch_norm(images, training=True, momentum=momentum)
        lowering = mtf_hetero.Lowering(graph, {mesh: cpu_mesh_impl(layout)})
        updates = [lowering.lowered_operation(op) for op in layers.batch_norm_updates(graph)]
        normal = lowering.export_to_tf_tensor(y)
        with tf.Session(config=tf.ConfigProto(device_count={"CPU": layout.size})) as session:
            session.run(tf.global_variables_initializer())
            session.run(tf.local_variables_initializer())
            for _ in range(steps):
                session.run(updates)
            variables = [v for v in graph.all_variables if not v.trainable]
            assert [v.name for v in variables] == ["batch_norm/moving_mean", "batch_norm/moving_variance"]
            slices = [lowering.variables[v].laid_out_tensor.tensor_list for v in variables]
            return session.run([slices, normal])


def test_moving_averages_are_those_of_the_whole_batch_on_every_slice():
    x = np.random.default_rng(0).standard_normal([5, 11, 7, 5]) + np.arange(5.0)[:, None, None, None]
    mean, variance = x.mean((0, 1, 2)), x.var((0, 1, 2))
    for layout in layouts("b:x;h:y", "c:x;b:y"):
        (means, variances), _ = moving_averages(layout, x, momentum=0.8, steps=2)
        for pnum in range(layout.size):
            (begin,) = layout.slice_begin([C], pnum)
            own = slice(begin, begin + layout.slice_shape([C], pnum)[0])
            np.testing.assert_allclose(means[pnum], 0.36 * mean[own], rtol=1e-12)
            np.testing.assert_allclose(variances[pnum], 0.64 + 0.36 * variance[own], rtol=1e-12)


def test_one_exchange_of_moments_does_not_cancel():
    """In float32, where the mean is 3,000 times the deviation: E[x^2] - E[x]^2 has no digit left of the variance.

    What remains is the rounding of the mean.
    """
    x = (np.random.default_rng(0).standard_normal([5, 11, 7, 5]) + 3000).astype(np.float32)
    wide = x.astype(np.float64)
    expected = (wide - wide.mean((0, 1, 2))) / wide.std((0, 1, 2))
    naive = (x * x).mean((0, 1, 2)) - x.mean((0, 1, 2)) ** 2
    assert np.abs(naive - wide.var((0, 1, 2))).max() > 0.1
    for layout in (Layout("x:1", ""), *layouts("b:x;h:y")):
        (_, variances), y = moving_averages(layout, x, momentum=0.0, steps=1)
        np.testing.assert_allclose(variances[0], wide.var((0, 1, 2)), rtol=5e-4)
        np.testing.assert_allclose(y, expected, rtol=0, atol=5e-3)


@pytest.mark.parametrize("layout", [Layout("x:1", ""), *layouts("h:x")])
def test_moments_of_half_a_million_values_keep_their_digits(layout):
    """One value after another, as in TensorFlow's fused operation, a mean is off by fifteen millionths."""
    x = np.random.default_rng(0).uniform(0.5, 2.5, [4, 256, 512, 2]).astype(np.float32)
    wide = x.astype(np.float64)
    (means, variances), _ = moving_averages(layout, x, momentum=0.0, steps=1)
    np.testing.assert_allclose(means[0], wide.mean((0, 1, 2)), rtol=2e-6)
    np.testing.assert_allclose(variances[0], wide.var((0, 1, 2)), rtol=2e-6)


@pytest.mark.parametrize("shape", [(7, 3), (2**15, 3), (5, 11, 3), (3, 128, 129, 2), (1, 9, 60, 61, 5)])
def test_sums_of_channels(shape):
    x = np.random.default_rng(0).uniform(0.5, 2.5, shape)
    axes = tuple(range(len(shape) - 1))
    with tf.Graph().as_default(), tf.Session() as session:
        sums, rough = session.run([channel_sums(tf.constant(x)), channel_sums(tf.constant(x, tf.float32))])
    np.testing.assert_allclose(sums, x.sum(axes), rtol=1e-12)
    np.testing.assert_allclose(rough, x.sum(axes), rtol=2e-5 if len(shape) == 2 else 2e-6)


def test_batch_norm_in_half_precision_adds_up_in_float32():
    with tf.Graph().as_default():
        graph = mtf.Graph()
        x = mtf.zeros(mtf.Mesh(graph, "mesh"), mtf.Shape([B, C]), dtype=tf.bfloat16)
        for training in (True, False):
            y = layers.batch_norm(x, training=training, name="bn")
            assert y.dtype == tf.bfloat16
        assert {v.master_dtype for v in graph.all_variables} == {tf.float32}
        assert len(graph.all_variables) == 4


def test_a_layer_that_is_used_twice_is_updated_once():
    with tf.Graph().as_default():
        graph = mtf.Graph()
        x = mtf.zeros(mtf.Mesh(graph, "mesh"), mtf.Shape([B, C]))
        layers.batch_norm(layers.batch_norm(x, training=True, name="bn"), training=True, name="bn")
        assert len(layers.batch_norm_updates(graph)) == 2
        layers.batch_norm(layers.batch_norm(x, training=True), training=True)
        assert len(layers.batch_norm_updates(graph)) == 6


def test_batch_norm_adds_few_operations():
    with tf.Graph().as_default():
        graph = mtf.Graph()
        x = mtf.zeros(mtf.Mesh(graph, "mesh"), mtf.Shape([B, H, W, C]))
        y = mtf.reduce_sum(layers.batch_norm(x, training=True))
        before = len(graph.operations)
        mtf.gradients([y], [x, *(v.outputs[0] for v in graph.trainable_variables)])
        kinds = [type(op).__name__ for op in graph.operations[before:]]
        assert kinds.count("BatchNormGradientOperation") == 1
        assert len(kinds) <= 4


@pytest.mark.parametrize(
    ("rule", "build", "message"),
    [
        ("h:x", lambda x: layers.pool(x, kind="max", size=3), "PoolOperation 'pool' .*'h'.*UnevenMeshImpl"),
        ("b:x", lambda x: layers.batch_norm(x, training=True), "BatchNormOperation .*'b'.*UnevenMeshImpl"),
    ],
)
def test_on_a_mesh_of_mtf_s_own_nothing_is_sent(rule, build, message):
    dims = [mtf.Dimension(n, 4) for n in "bhwc"]

    def lower(layout):
        with tf.Graph().as_default():
            mesh = mtf.Mesh(graph := mtf.Graph(), "mesh")
            build(mtf.zeros(mesh, mtf.Shape(dims)))
            mesh_impl = mtf.placement_mesh_impl.PlacementMeshImpl("x:2", layout, ["cpu:0"] * 2)
            mtf_hetero.Lowering(graph, {mesh: mesh_impl})

    lower("c:x")
    with pytest.raises(NotImplementedError, match=message):
        lower(rule)
