"""Windows over split images: even and large kernels, strides, dilation, transposed; overlapping pools; groups of norms.

Extents of 7 and 13 over three to five processors of unequal shares, some of which have nothing.
"""

import itertools

import numpy as np
import pytest
from operations import variable
from oracle import ONCE, Feed, check, cpu_mesh_impl, one_device
from regression import ancestors
from tiers import ONCE_OR_ALL_KINDS, ONE_OR_ALL, SOME_ONCE_OR_ALL_KINDS, each_of_a_kind, parametrize

import mtf_hetero
from mtf_hetero import Layout, layers, mtf, tf

B, W, C, F = (mtf.Dimension(n, s) for n, s in [("b", 2), ("w", 4), ("c", 2), ("f", 3)])
SHARES = {2: [3, 1], 3: [5, 2, 1], 5: [5, 1, 2, 1, 3]}
CONVOLUTIONS = [*itertools.product((2, 4, 5), (1, 2, 3), ("SAME", "VALID")), (1, 2, "VALID"), (3, 2, "SAME")]
TRANSPOSED = [(2, 2, "VALID"), *itertools.product((2, 3, 4, 5), (1, 2, 3), ["SAME"]), (3, 3, "VALID")]


def over(processors, rule):
    return Layout(f"x:{processors}", rule, {"x": SHARES[processors]})


# An image's height, and how it is split: into fewer pixels than a window has, and beyond a processor without any
CASES = [
    (7, over(3, "h:x")),
    (7, over(5, "h:x")),
    (13, Layout("x:5", "h:x", sizes={"h": [6, 0, 0, 4, 3]})),
    (13, Layout("x:3;y:2", "h:x;f:y", sizes={"h": [0, 12, 1], "f": [0, 3]})),
]


def kernel(feed, name, sizes, last):
    window = [mtf.Dimension(f"k{i}", size) for i, size in enumerate(sizes)]
    return variable(feed, f"kernel {name}".replace(" ", "_"), [*window, *last])


def windowed(extent, cases, operation=mtf.Conv2dOperation):
    """A program of convolutions, or of transposed ones, which swap the channels of a kernel."""
    is_transposed = operation is mtf.Conv2dTransposeOperation

    def build(feed):
        x = feed("x", [B, mtf.Dimension("h", extent), W, C])
        outputs = {}
        for size, stride, padding in cases:
            name = f"{size} {stride} {padding}"
            width = 1 if is_transposed and padding == "VALID" else 2
            w = kernel(feed, name, [size, width], [F, C] if is_transposed else [C, F])
            outputs[name] = operation(x, w, [1, stride, 1, 1], padding).outputs[0]
        return outputs

    return build


@each_of_a_kind(("extent", "layout"), CASES, first=CASES[2:3])
def test_convolutions(extent, layout, some, options):
    check(windowed(extent, some(CONVOLUTIONS)), layout, **options)


@each_of_a_kind(("extent", "layout"), CASES[1:], first=CASES[1:2])
def test_transposed_convolutions(extent, layout, some, options):
    check(windowed(extent, some(TRANSPOSED), mtf.Conv2dTransposeOperation), layout, **options)


def convolutions_3d(convolutions, transposed):
    def build(feed):
        x = feed("x", [B, mtf.Dimension("d", 13), mtf.Dimension("h", 6), mtf.Dimension("w", 3), C])
        outputs = {}
        for sizes, strides, padding in convolutions:
            name = f"{sizes[0]} {strides[0]} {padding}"
            w = kernel(feed, name, sizes, [C, F])
            outputs[name] = mtf.Conv3dOperation(x, w, [1, *strides, 1], padding).outputs[0]
        for sizes, strides in transposed:
            w = kernel(feed, f"transposed {sizes[0]}", sizes, [F, C])
            outputs[f"transposed {sizes[0]}"] = mtf.Conv3dTransposeOperation(x, w, [1, *strides, 1], "SAME").outputs[0]
        return outputs

    return build


CONVOLUTIONS_3D = [
    ((4, 2, 3), (1, 2, 1), "SAME"),
    ((2, 4, 1), (1, 1, 1), "SAME"),
    ((5, 3, 2), (1, 1, 1), "VALID"),
    ((2, 3, 3), (2, 1, 1), "VALID"),
    ((4, 1, 1), (2, 3, 1), "VALID"),
    ((1, 1, 1), (4, 4, 4), "SAME"),
    ((3, 3, 3), (2, 2, 2), "SAME"),
    ((2, 2, 2), (3, 3, 3), "SAME"),
]
TRANSPOSED_3D = [((3, 4, 2), (2, 1, 3)), ((2, 2, 2), (2, 2, 2))]


@pytest.mark.parametrize(("some", "options"), SOME_ONCE_OR_ALL_KINDS)
def test_convolutions_3d(some, options):
    two = Layout("x:3;y:2", "d:x;h:y", {"x": SHARES[3], "y": SHARES[2]})
    batch = Layout("x:5;y:2", "d:x;b:y", {"x": SHARES[5], "y": [1, 1]})
    check(convolutions_3d(some(CONVOLUTIONS_3D), some(TRANSPOSED_3D)), two, batch, **options)


POOLS = [*itertools.product(("max", "avg"), (2, 3, 5), (1, 2, 3), ("SAME", "VALID", 1))]


def pooled(x, cases):
    rest = x.shape.ndims - 3
    outputs = {}
    for kind, size, stride, padding in cases:
        options = {"size": (size, *[2] * rest), "strides": (stride, *[1] * rest), "padding": padding}
        outputs[f"{kind} {size} {stride} {padding}"] = layers.pool(x, kind=kind, **options)
    return outputs


TWO_AXES = (7, Layout("x:3;y:2", "h:x;w:y", {"x": SHARES[3], "y": SHARES[2]}))


@each_of_a_kind(("extent", "layout"), [*CASES, TWO_AXES], first=[TWO_AXES])
def test_overlapping_pools(extent, layout, some, options):
    def build(feed):
        x = feed("x", [B, mtf.Dimension("h", extent), W, C])
        row = layers.pool(x, kind="avg", size=(extent, 1), strides=(extent, 1))  # which no layout splits
        outputs = {kind: layers.pool(row, kind=kind, size=(2, 2), strides=1, padding=1) for kind in ("max", "avg")}
        return outputs | pooled(x, some(POOLS))

    check(build, layout, **options)


@pytest.mark.parametrize("kind", ["conv", "transposed", "max", "avg", "avg gradient"])
def test_a_step_leaves_constants_as_they_are(kind):
    """Halos are added in place. What follows from constants TensorFlow computes once: it must not change."""
    values = np.random.default_rng(0).normal(size=[2, 12, 4, 2])
    with tf.Graph().as_default(), tf.Session() as session:
        mesh = mtf.Mesh(graph := mtf.Graph(), "mesh")
        x = mtf.import_tf_tensor(mesh, tf.constant(values), mtf.Shape([B, mtf.Dimension("h", 12), W, C]))
        channels = [F, C] if kind == "transposed" else [C, F]
        w = mtf.constant(mesh, 1.5, mtf.Shape([*window_dims([3, 3]), *channels]), tf.float64)
        if kind == "conv":
            y = mtf.Conv2dOperation(x, w, [1] * 4, "SAME").outputs[0]
        elif kind == "transposed":
            y = mtf.Conv2dTransposeOperation(x, w, [1, 2, 2, 1], "SAME").outputs[0]
        else:
            y = layers.pool(x, kind=kind[:3], size=3, strides=1, padding=1)
            if kind == "avg gradient":
                (y,) = mtf.gradients([mtf.reduce_sum(y * y)], [x])
        impl = mtf_hetero.UnevenMeshImpl.from_layout(Layout("x:3", "h:x", {"x": SHARES[3]}), ["cpu:0"] * 3)
        result = mtf_hetero.Lowering(graph, {mesh: impl}).export_to_tf_tensor(y)
        first = session.run(result)
        assert np.abs(first).max() > 0
        for _ in range(3):
            np.testing.assert_array_equal(session.run(result), first)


def test_the_interior_waits_for_no_neighbour():
    """The largest convolution on each device, forward and of both gradients, reads nothing that another device made."""
    with tf.Graph().as_default() as tf_graph:
        mesh = mtf.Mesh(graph := mtf.Graph(), "mesh")
        dims = [mtf.Dimension(*pair) for pair in zip("bdhwc", (1, 12, 6, 6, 2), strict=True)]
        impl = mtf_hetero.UnevenMeshImpl.from_layout(over(3, "d:x"), [f"cpu:{i}" for i in range(3)])
        shape = mtf.Shape(dims)
        parts = []
        for pnum, device in enumerate(impl.devices):
            with tf.device(device):
                parts.append(tf.random.normal(impl.slice_shape(shape, pnum)))
        x = mtf.import_laid_out_tensor(mesh, impl.LaidOutTensor(parts), shape)
        w = mtf.get_variable(mesh, "w", mtf.Shape([*window_dims([3, 3, 3]), dims[-1], F]))
        y = mtf.Conv3dOperation(x, w, [1] * 5, "SAME").outputs[0]
        gradients = mtf.gradients([mtf.reduce_sum(y)], [x, w])
        lowering = mtf_hetero.Lowering(graph, {mesh: impl})
        for gradient in gradients:
            lowering.export_to_tf_tensor(gradient)
        kinds = {"Conv3D": 0, "Conv3DBackpropFilterV2": 0, "Conv3DBackpropInputV2": 2}  # and which input is the image
        for (kind, image), device in itertools.product(kinds.items(), impl.devices):
            ours = [op for op in tf_graph.get_operations() if op.type == kind and device in op.device.lower()]
            largest = max(ours, key=lambda op: op.inputs[image].shape.num_elements())
            assert len(ours) > 1
            assert {op.device.lower().rpartition(":")[2] for op in ancestors(largest)} <= {device[-1], ""}


KERNELS = [((3, 2), (2, 3)), ((2, 3), (5, 1)), ((4, 1), (3, 4)), ((1, 3), (4, 2))]
DILATED = [*itertools.product(KERNELS, ("SAME", "VALID"))]


def dilated(cases):
    def build(feed):
        x = feed("x", [B, mtf.Dimension("h", 13), mtf.Dimension("w", 7), C])
        outputs = {}
        for (sizes, rates), padding in cases:
            w = layers.dilate(feed(f"w {sizes}", mtf.Shape([*window_dims(sizes), C, F])), rates)
            outputs[f"{sizes} {padding}"] = mtf.Conv2dOperation(x, w, [1, 1, 1, 1], padding).outputs[0]
        return outputs

    return build


def window_dims(sizes):
    return [mtf.Dimension(f"k{i}", size) for i, size in enumerate(sizes)]


@pytest.mark.parametrize(("some", "options"), SOME_ONCE_OR_ALL_KINDS)
def test_dilated_convolutions(some, options):
    two = Layout("x:3;y:2", "h:x;f:y", {"x": SHARES[3], "y": SHARES[2]})
    check(dilated(some(DILATED)), two, over(2, "w:x"), **options)


def test_dilated_convolutions_are_tensorflow_s():
    slices = one_device(dilated(DILATED)).slices
    with tf.Graph().as_default(), tf.Session() as session:
        feed = Feed(mtf.Mesh(mtf.Graph(), "mesh"), tf.float64)
        dilated(DILATED)(feed)
        arrays = {name: t.operation._tf_tensor for name, t in feed.inputs.items()}
        for (sizes, rates), padding in DILATED:
            y = tf.nn.conv2d(arrays["x"], arrays[f"w {sizes}"], 1, padding, dilations=rates)
            np.testing.assert_allclose(slices[f"{sizes} {padding}"][0], session.run(y), rtol=0, atol=1e-12)


G, H = mtf.Dimension("g", 3), mtf.Dimension("h", 6)


def grouped(per, *, training=True, blocks=0):
    """Batch norm of images [g, b, h, w, c] in groups; with blocks, of h in so many parts."""

    def build(feed):
        x = y = feed("x", [G, B, H, W, C]) * 3.0 + 2.0
        if blocks:
            parts = [mtf.Dimension("blocks", blocks), mtf.Dimension("rows", H.size // blocks)]
            y = mtf.reshape(x, mtf.Shape([G, B, *parts, W, C]))
        y = mtf.reshape(layers.batch_norm(y, training=training, per=per, momentum=0.75, name="bn"), x.shape)
        updates = layers.batch_norm_updates(feed.mesh.graph)
        return {"y": mtf.square(y)} | {f"new {i}": op.inputs[0] for i, op in enumerate(updates)}

    return build


PER = {"g": (1, 2, 3), "b": (0, 2, 3), "g b": (2, 3), "w g": (1, 2)}


def grouped_layouts():
    shares = {"x": SHARES[3], "y": SHARES[2]}
    return [Layout("x:3;y:2", rule, shares) for rule in ("g:x;h:y", "h:x;b:y", "h:x;c:y", "g:y;w:x")]


@pytest.mark.parametrize("options", ONCE_OR_ALL_KINDS)
@pytest.mark.parametrize("chosen", ONE_OR_ALL)
@parametrize("per", PER, first=["w g"])
def test_groups_of_batch_norm_are_the_same_on_every_layout(per, chosen, options):
    check(grouped(per.split()), *chosen(grouped_layouts()), **options)


@pytest.mark.parametrize("per", PER)
def test_groups_of_batch_norm_have_moments_of_their_own(per):
    slices = one_device(grouped(per.split())).slices
    with tf.Graph().as_default(), tf.Session() as session:
        feed = Feed(mtf.Mesh(mtf.Graph(), "mesh"), tf.float64)
        x, weights = (feed(name, [G, B, H, W, C]).operation._tf_tensor for name in ("x", "weights of y"))
        scaled = x * 3.0 + 2.0
        mean, variance = tf.nn.moments(scaled, PER[per], keepdims=True)
        y = tf.square((scaled - mean) * tf.math.rsqrt(variance + 1e-5))
        (dx,) = tf.gradients(y, x, weights)
        expected = session.run([y, tf.reduce_mean(mean, [0, 1, 2, 3]), tf.reduce_mean(variance, [0, 1, 2, 3]), dx])
    np.testing.assert_allclose(slices["y"][0], expected[0], rtol=0, atol=1e-9)
    np.testing.assert_allclose(slices["new 0"][0], 0.25 * expected[1], rtol=0, atol=1e-12)
    np.testing.assert_allclose(slices["new 1"][0], 0.75 + 0.25 * expected[2], rtol=0, atol=1e-12)
    np.testing.assert_allclose(slices["gradient of input x"][0], expected[3], rtol=0, atol=1e-9)


def forward_traffic(build, layout):
    """Return a program's forward traffic without moving averages, from the counters of its lowering."""
    with tf.Graph().as_default():
        mesh = mtf.Mesh(graph := mtf.Graph(), "mesh")
        build(Feed(mesh, tf.float32))
        lowering = mtf_hetero.Lowering(graph, {mesh: cpu_mesh_impl(layout)})
        return sorted(
            key for key, _ in lowering.counters if key.startswith(("allreduce", "reshard")) and "Reduce" not in key
        )


def test_the_three_groups_of_the_paper():
    """All, one sample's shards, one shard, where a batch and a height are split: nothing is sent beyond a group."""
    shares = {"x": [1, 1, 1], "y": [1, 1]}
    layout = Layout("x:3;y:2", "g:x;h:y;blocks:y", shares)
    assert forward_traffic(grouped([]), layout) == ["allreduce/[0, 1]/BatchNormOperation"]
    assert forward_traffic(grouped(["g"]), layout) == ["allreduce/[1]/BatchNormOperation"]
    assert forward_traffic(grouped(["g", "blocks"], blocks=2), layout) == []
    check(grouped(["g", "blocks"], blocks=2), layout, **ONCE)
