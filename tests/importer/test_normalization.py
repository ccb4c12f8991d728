"""A batch norm of a step is one operation, and so is its gradient; what differs from the pattern stays as it is."""

import collections

import keras
import numpy as np
import tiers
from import_oracle import BATCH, ONE, check, images, split
from steps import L, of_keras, sgd

import mtf_hetero
from mtf_hetero import tf
from mtf_hetero.importer import moments, normalization
from mtf_hetero.importer.divided import Traced


def norm(**options):
    return L.BatchNormalization(momentum=0.5, **options)


def sequential(*layers):
    inputs = [keras.Input((8, 8, 3)), L.Conv2D(4, 3, name="c")]
    return keras.Sequential([*inputs, *layers, L.Flatten(), L.Dense(5, name="head")])


def residual():
    """Two norms whose results are added up, so that they have one gradient; and one that other layers read too."""
    inputs = keras.Input((8, 8, 3))
    x = norm()(L.Conv2D(4, 3, name="a")(inputs))
    y = L.Add()([norm()(L.Conv2D(4, 3, name="b")(inputs)), x])
    z = norm()(y)
    return keras.Model(inputs, L.Dense(5, name="head")(L.Flatten()(L.Add()([y, L.ReLU()(z)]))))


NORMS = {  # {name: (model, number of batch norms, number of their gradients)}
    "relu": (lambda: sequential(norm(), L.ReLU()), 1, 1),
    "two": (lambda: sequential(norm(), L.Conv2D(3, 3, name="d"), norm()), 2, 2),
    "of vectors": (lambda: sequential(L.Flatten(), L.Dense(6, name="h"), norm()), 1, 1),
    "of one pixel": (lambda: sequential(L.Conv2D(4, 6), norm()), 1, 0),
    "residual": (residual, 3, 3),
    "no scale": (lambda: sequential(norm(scale=False)), 0, 0),
    "no offset": (lambda: sequential(norm(center=False)), 0, 0),
    "another axis": (lambda: sequential(norm(axis=1)), 0, 0),
    "layer norm": (lambda: sequential(L.LayerNormalization()), 0, 0),
}


@tiers.parametrize("name", NORMS, first=["relu", "of vectors", "of one pixel", "residual", "no scale", "another axis"])
def test_a_batch_norm_and_its_gradient_are_one_operation_each(name):
    make, norms, gradients = NORMS[name]
    step, _, inputs = of_keras(make, sgd, images)()
    operations = Traced(step).program(inputs[0]).operations
    found = collections.Counter(op.type for op in operations)
    assert (found["BatchNorm"], found["BatchNormGradient"]) == (norms, gradients)
    assert bool(found.keys() & {"Moments", "Rsqrt", "RsqrtGrad"}) == (gradients == 0)
    assert len(normalization.find_unjoined(operations)) == (name in ("no scale", "no offset", "of one pixel"))
    assert moments.find_unjoined(operations) == []


def test_a_pattern_that_is_not_recognized_is_reported():
    def step(x):
        mean, variance = tf.nn.moments(x, [0, 1, 2])
        mean_of_half = tf.reduce_mean(tf.cast(x, tf.float16), 0, keepdims=True)
        half = tf.reduce_mean(tf.math.squared_difference(tf.cast(x, tf.float16), mean_of_half), 0)
        return (x - mean) * tf.math.rsqrt(variance + 1e-3), half

    with mtf_hetero.function(step, np.ones((14, 8, 8, 3)), **BATCH) as divided:
        text = str(divided.undivided)
    assert text.count("slow, for its pattern is not recognized: batch norm or moments x 2  conftest.py") == 1


TRAINED = [("relu", "sequential/c"), ("of one pixel", "sequential/c"), ("residual", "a")]


@tiers.parametrize(("name", "layer"), TRAINED, first=TRAINED[:1])
def test_it_trains_as_tensorflow_does(name, layer):
    check(of_keras(NORMS[name][0], sgd, images), ONE, BATCH, split(f"{layer}/kernel/3"))


def test_a_norm_along_another_axis_of_the_same_size_is_none():
    scale, offset = tf.Variable([1.0, 2.0, 3.0, 4.0]), tf.Variable([4.0, 3.0, 2.0, 1.0])

    @tf.compat.v2.function
    def step(x):
        mean, variance = tf.nn.moments(x, [0])
        factor = tf.math.rsqrt(variance + 0.1) * scale
        return x * tf.reshape(factor, [4, 1]) + tf.reshape(offset - mean * factor, [4, 1])

    x = np.random.default_rng(0).standard_normal((4, 4)).astype("float32")
    with mtf_hetero.function(step, (x,), devices="cpu:0", layout="batch") as divided:
        np.testing.assert_allclose(divided(x), step(tf.constant(x)), rtol=1e-5)
