"""Special cases of the importer, each with one condition broken: the results stay those of TensorFlow."""

import itertools

import numpy as np
import tiers
from import_oracle import BATCH, ONE, check

from mtf_hetero import tf

X = np.random.default_rng(0).standard_normal((14, 6))


def moments(axes=(0,), others=None, keepdims=(True, True), shifted=0.0, factor=1.0, squared=False):
    """The mean of x, and the mean of the squared differences from it, or from nearly it."""

    def function(x, w, b):
        mean = tf.reduce_mean(x, axes, keepdims=True)
        a, m = x + shifted if shifted else x, mean * factor if factor != 1.0 else mean
        differences = tf.square(a - m) if squared else tf.math.squared_difference(m, a)
        variance = tf.reduce_mean(differences, axes if others is None else others, keepdims=keepdims[1])
        return [tf.reduce_mean(x, axes, keepdims=keepdims[0]), variance, mean]

    return function


def norm(mean_of=None, variance_of=None, axes=(0,), epsilon=1e-3, scaled=True, shifted=True, swapped=False):
    """A batch norm as Keras writes it, or nearly it."""

    def function(x, w, b):
        mean, variance = tf.nn.moments(x, axes, keepdims=True)
        mean = mean if mean_of is None else mean_of(mean)
        variance = variance if variance_of is None else variance_of(variance)
        factor = tf.math.rsqrt(variance + epsilon)
        factor = factor * w if scaled else factor
        offset = b - mean * factor if shifted else -mean * factor
        return [offset + factor * x if swapped else x * factor + offset, mean]

    return function


MOMENTS = {
    "as it is": moments(),
    "negative axes": moments((-1,)),
    "kept and not": moments(keepdims=(False, True)),
    "a square": moments(squared=True, keepdims=(False, False)),
    "other axes": moments(others=(1,)),
    "more axes": moments(others=(0, 1)),
    "all axes": moments((0, 1)),
    "no axes": moments(()),
    "another x": moments(shifted=1.0),
    "another mean": moments(factor=2.0),
    "a product": lambda x, w, b: tf.reduce_mean((x - tf.reduce_mean(x, 0)) * (x - tf.reduce_mean(x, 0)), 0),
    "turned": lambda x, w, b: (
        lambda y: tf.reduce_mean(tf.math.squared_difference(y, tf.transpose(tf.reduce_mean(y, 1, keepdims=True))), 0)
    )(x[:6]),
}
NORMS = {
    "as it is": norm(),
    "swapped": norm(swapped=True),
    "no scale": norm(scaled=False),
    "no offset": norm(shifted=False),
    "scaled mean": norm(mean_of=lambda mean: mean * 2.0),
    "fixed mean": norm(mean_of=tf.stop_gradient),
    "scaled variance": norm(variance_of=lambda variance: variance * 14 / 13),
    "fixed variance": norm(variance_of=tf.stop_gradient),
    "other epsilons": norm(epsilon=tf.constant(np.linspace(0.1, 1.0, 6))),
    "a computed epsilon": lambda x, w, b: norm(epsilon=tf.reduce_sum(w * w))(x, w, b),
    "twice": lambda x, w, b: [*norm()(x, w, b), *norm(epsilon=0.1)(x, w, b)],
    "of a norm": lambda x, w, b: norm()(norm()(x, w, b)[0], b, w),
    "read again": lambda x, w, b: (lambda y: [y, tf.tanh(y) * x])(norm()(x, w, b)[0]),
    "one vector": lambda x, w, b: norm()(x, w, w),
    "of another x": lambda x, w, b: tf.nn.batch_normalization(x + 1.0, *tf.nn.moments(x, 0), b, w, 1e-3),
    "an offset of the mean": lambda x, w, b: norm()(x, w, b + tf.reduce_mean(x, 0)),
}
BROADCASTS = {
    "beside the whole": lambda row, column, x: tf.tanh(tf.broadcast_to(row, x.shape)) * x,
    "of two axes": lambda row, column, x: tf.broadcast_to(row, x.shape) * tf.broadcast_to(column, x.shape),
    "repeated too": lambda row, column, x: tf.tanh(tf.tile(row, [14, 2])) * tf.tile(x, [1, 2]),
    "a sum of three": lambda row, column, x: tf.add_n([tf.broadcast_to(row, x.shape), x, row + column]),
    "a sum of equals": lambda row, column, x: tf.add_n([tf.broadcast_to(row, x.shape)] * 2) + x,
    "a bias": lambda row, column, x: tf.nn.bias_add(tf.broadcast_to(row, x.shape), row[0]) + x,
    "a choice": lambda row, column, x: tf.where(tf.broadcast_to(row, x.shape) > 0.0, column + row, x),
    "of a broadcast": lambda row, column, x: tf.broadcast_to(tf.exp(tf.broadcast_to(row[0], (1, 6))), x.shape) * x,
    "of other types": lambda row, column, x: tf.cast(tf.cast(tf.broadcast_to(row, x.shape), tf.int32), tf.float64) * x,
    "clipped": lambda row, column, x: tf.raw_ops.ClipByValue(
        t=x, clip_value_min=row - 1.0 + 0.0 * x, clip_value_max=x + 1.0
    ),
}
FAMILIES = {"moments": MOMENTS, "norms": NORMS, "broadcasts": BROADCASTS}


PLACES = {"one": ONE, "batch": BATCH}


@tiers.parametrize(("family", "place"), itertools.product(FAMILIES, PLACES), first=[("norms", "batch")])
def test_one_condition_broken(family, place):
    """Each expression has variables of its own, so that one that is wrong does not hide another."""
    functions = list(FAMILIES[family].values())

    def make():
        shapes = [(1, 6), (14, 1)] if family == "broadcasts" else [(6,), (6,)]
        rng = np.random.default_rng(2)
        variables = [tf.Variable(rng.standard_normal(shape)) for _ in functions for shape in shapes]

        def step(x):
            with tf.GradientTape() as tape:
                found = []
                for number, function in enumerate(functions):
                    a, b = variables[2 * number : 2 * number + 2]
                    made = function(a, b, x) if family == "broadcasts" else function(x * a, a, b)
                    found.append(sum(tf.reduce_sum(y**2 * tf.cos(y)) for y in tf.nest.flatten(made)) / 100.0)
                loss = tf.add_n(found)
            for variable, gradient in zip(variables, tape.gradient(loss, variables), strict=True):
                if gradient is not None:
                    variable.assign_sub(0.01 * gradient)
            return found

        return tf.compat.v2.function(step, autograph=False), variables, [(X,)] * 3

    check(make, PLACES[place])
