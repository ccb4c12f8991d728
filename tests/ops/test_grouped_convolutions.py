"""Depthwise, grouped and separable convolutions: as TensorFlow does them, and the same on every layout."""

import numpy as np
import pytest
from operations import layouts, layouts_with_zeros
from oracle import ONCE, check, cpu_mesh_impl, one_device
from tiers import parametrize

from mtf_hetero import Layout, Lowering, layers, mtf, tf

B, H, W, C, F = (mtf.Dimension(*dim) for dim in [("b", 4), ("h", 7), ("w", 9), ("c", 6), ("f", 8)])
RULES = (
    "b:x",
    "c:x",
    "h:x",
    "w:x;h:y",
    "h:x;c:y",
    "b:x;d/filters:y",
    "g/groups:x;b:y",
    "g/channels:y;h:x",
    "g/filters:y;f:x",
)
WAYS = {
    "one by one": {},
    "every other": {"strides": (2, 2), "padding": "VALID"},
    "left over": {"strides": (3, 2), "filter_size": (2, 5)},  # depthwise, TensorFlow has one stride alone
    "gaps": {"strides": (4, 4), "filter_size": (1, 3)},
}


def program(way):
    def build(feed):
        image, options = feed("image", [B, H, W, C]), {"variable_dtype": mtf.VariableDType(feed.dtype), **WAYS[way]}
        options["filter_initializer"] = tf.random_normal_initializer()
        return {
            "depthwise": layers.depthwise_conv2d(image, name="one", **options),
            "multiplied": layers.depthwise_conv2d(image, multiplier=3, name="d", **options),
            "grouped": layers.grouped_conv2d(image, F, groups=2, name="g", **options),
            "separable": layers.separable_conv2d(image, F, name="s", **options),
        }

    return build


@parametrize(
    ("way", "rules"), [("left over", ["w:x;h:y"]), *((way, RULES) for way in WAYS)], first=[("left over", ["w:x;h:y"])]
)
def test_they_are_the_same_on_every_layout(way, rules):
    check(program(way), *layouts(*rules, axes="xy"), **ONCE)


def test_processors_without_a_slice():
    empty = layouts_with_zeros(program("one by one"), ["h:x;c:y", "g/groups:y;b:x"])
    check(program("one by one"), *list(empty)[::2], **ONCE)


@pytest.mark.parametrize("way", ["one by one", "every other"])
def test_they_are_tensorflow_s(way):
    """With gradients to images and kernels, whose weights the oracle draws."""
    kernels = {}

    def build(feed):
        outputs = program(way)(feed)
        kernels.update({v.name: v.outputs[0] for v in feed.mesh.graph.all_variables})
        return {**outputs, "image": feed("image", [B, H, W, C]), **kernels}

    (step, *_) = one_device(build, exports=False).steps
    options = {"strides": [1, 1, 1, 1], "padding": "SAME"} | {
        key: [1, *value, 1] if key == "strides" else value for key, value in WAYS[way].items()
    }
    with tf.Graph().as_default(), tf.Session() as session:
        image = tf.constant(step["image"][0])
        depthwise, multiplied, grouped = (tf.constant(step[f"{name}/kernel"][0]) for name in ("one", "d", "g"))
        parts = zip(tf.split(image, 2, 3), tf.unstack(grouped, axis=2))
        expected = {
            "depthwise": tf.nn.depthwise_conv2d(image, depthwise, **options),
            "multiplied": tf.nn.depthwise_conv2d(image, multiplied, **options),
            "grouped": tf.concat([tf.nn.conv2d(part, kernel, **options) for part, kernel in parts], 3),
            "separable": tf.nn.separable_conv2d(
                image, step["s/depthwise/kernel"][0], step["s/pointwise/kernel"][0], **options
            ),
        }
        for name, value in session.run(expected).items():
            np.testing.assert_allclose(step[name][0], value, rtol=0, atol=1e-12, err_msg=name)


def test_a_split_of_channels_sends_nothing():
    mesh = mtf.Mesh(graph := mtf.Graph(), "mesh")
    with tf.Graph().as_default():
        x = mtf.import_tf_tensor(mesh, tf.zeros([4, 7, 9, 6]), mtf.Shape([B, H, W, C]))
        y = layers.depthwise_conv2d(x)
        mtf.gradients([mtf.reduce_sum(y)], [x, graph.trainable_variables[0].outputs[0]])
        lowering = Lowering(graph, {mesh: cpu_mesh_impl(Layout("x:3", "c:x", {"x": [3, 2, 1]}))})
        assert [key for key, _ in lowering.counters if key.startswith(("allreduce", "reshard"))] == [
            key for key, _ in lowering.counters if key.startswith("allreduce/[0]/ReduceOperation")
        ]
