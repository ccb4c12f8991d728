"""A batch norm of a step is one operation, and so is its gradient; what differs from the pattern stays as it is."""

import collections

import keras
import numpy as np
import pytest
from import_oracle import BATCH, ONE, check, images, split
from steps import L, of_keras, sgd

import mtf_hetero
from mtf_hetero import tf
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


JOINED = {
    "relu": (lambda: sequential(norm(), L.ReLU()), 1),
    "two": (lambda: sequential(norm(), L.Conv2D(3, 3, name="d"), norm()), 2),
    "of vectors": (lambda: sequential(L.Flatten(), L.Dense(6, name="h"), norm()), 1),
    "residual": (residual, 3),
}
SEPARATE = {
    "no scale": lambda: sequential(norm(scale=False)),
    "no offset": lambda: sequential(norm(center=False)),
    "another axis": lambda: sequential(norm(axis=1)),
    "layer norm": lambda: sequential(L.LayerNormalization()),
}


def kinds(model):
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    model.optimizer.build(model.trainable_variables)
    step = tf.compat.v2.function(lambda data: model.train_step(data), autograph=False)
    x, y = images()[0]
    program = Traced(step).program(((x.astype("float32"), y),))
    return collections.Counter(op.type for op in program.operations)


@pytest.mark.parametrize("name", JOINED)
def test_a_batch_norm_and_its_gradient_are_one_operation_each(name):
    make, count = JOINED[name]
    found = kinds(make())
    assert found["BatchNorm"] == found["BatchNormGradient"] == count
    assert not found.keys() & {"Moments", "Rsqrt", "RsqrtGrad"}


@pytest.mark.parametrize("name", SEPARATE)
def test_others_are_left_alone(name):
    found = kinds(SEPARATE[name]())
    assert not found.keys() & {"BatchNorm", "BatchNormGradient"}


@pytest.mark.parametrize("name", ["relu", pytest.param("two", marks=pytest.mark.full), "residual"])
def test_it_trains_as_tensorflow_does(name):
    make, _ = JOINED[name]
    check(
        of_keras(make, sgd, images),
        ONE,
        BATCH,
        split("sequential/c/kernel/3") if name != "residual" else split("a/kernel/3"),
    )


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
