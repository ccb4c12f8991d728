"""Tensors, slices and variables without elements, and tensors of one channel, give what TensorFlow gives."""

import numpy as np
import pytest
from import_oracle import BATCH, DEVICES, ONE, check

from mtf_hetero import Layout, tf

RNG = np.random.default_rng(0)
X, IMAGE = RNG.standard_normal((14, 6)), RNG.standard_normal((7, 4, 4, 3))
TABLE, ROWS, IDS = RNG.standard_normal((9, 4)), RNG.standard_normal((7, 4)), RNG.integers(0, 9, (7, 1))


def with_gradients(function, *inputs):
    """Make a step that gives values, and their gradients to the inputs."""

    def step(*inputs):
        values = tf.nest.flatten(function(*inputs))
        ends = [value for value in values if value.dtype.is_floating]
        return values, tf.compat.v1.gradients(ends, [x for x in inputs if x.dtype.is_floating], [3.0 * y for y in ends])

    return lambda: (tf.compat.v2.function(step, autograph=False), [], [inputs])


def test_means_of_no_numbers():
    def means(x):
        none = x[:0]
        every = [tf.reduce_mean(none, 0), tf.reduce_mean(x[:, :0], 1, keepdims=True), tf.reduce_mean(none)]
        return [*every, tf.reduce_mean(none, 1), tf.reduce_mean(none[:, :0], 0), *tf.nn.moments(none, 0)]

    check(with_gradients(means, X), ONE, BATCH, steps=1)


@pytest.mark.parametrize("shape", [(0, 6), pytest.param((0,), marks=pytest.mark.full)])
def test_a_variable_without_elements(shape):
    def make():
        none, w = tf.Variable(np.zeros(shape)), tf.Variable(X[0])

        def step(x):
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum((x * w) ** 2) + tf.reduce_sum(none * 2.0)
            for variable, gradient in zip((none, w), tape.gradient(loss, (none, w)), strict=True):
                variable.assign_sub(0.1 * gradient)
            return loss

        return step, [none, w], [(X,)] * 3

    check(make, ONE, BATCH)


REFUSING = {  # operations of TensorFlow that refuse a slice without elements, and the dimension that has one
    "gather_nd": (lambda x, i: tf.gather_nd(x, i), "batch", 9, (TABLE, IDS)),
    "gather_nd, behind": (lambda x, i: tf.gather_nd(x, i), "inputs_0/1", 4, (TABLE, IDS)),
    "scatter_nd": (lambda x, i: tf.scatter_nd(i, x, [9, 4]), "inputs_0/1", 4, (ROWS, IDS)),
    "update": (lambda x, y, i: tf.tensor_scatter_nd_update(x, i[:1], y[:1]), "inputs_0/1", 4, (TABLE, ROWS, IDS)),
    "max_pool_with_argmax": (
        lambda x: tf.raw_ops.MaxPoolWithArgmax(input=x, ksize=[1, 2, 2, 1], strides=[1, 2, 2, 1], padding="VALID"),
        *("batch", 7, (IMAGE,)),
    ),
}


@pytest.mark.parametrize("name", REFUSING)
def test_slices_without_elements(name):
    function, dim, size, inputs = REFUSING[name]
    layout = Layout("all:3", [(dim, "all")], sizes={dim: [size - 1, 0, 1]})
    check(with_gradients(function, *inputs), {"devices": DEVICES, "layout": layout}, steps=1)


def test_a_batch_norm_of_one_channel_that_is_not_split():
    def norm(x):
        w = tf.stop_gradient(tf.reduce_mean(tf.abs(x), [0, 1, 2]) + 1.5)
        mean, variance = tf.nn.moments(x, [0, 1, 2])
        fused, *_ = tf.compat.v1.nn.fused_batch_norm(x, w, w)
        return tf.nn.batch_normalization(x, mean, variance, w + 0.5, w, 1e-3), fused

    check(with_gradients(norm, IMAGE[..., :1].astype("float32")), ONE, BATCH, steps=1, tolerance=1e-4)
