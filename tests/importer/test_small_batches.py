"""A batch with fewer examples than devices is replicated, whether it comes first or later; a reshaped one is split."""

import keras
import numpy as np
import pytest
from import_oracle import BATCH, arrays, same

import mtf_hetero
import mtf_hetero.keras
from mtf_hetero import tf

X = np.random.default_rng(0).standard_normal((16, 4))
W = np.random.default_rng(1).standard_normal((4, 3))


@pytest.mark.parametrize("counts", [(2, 14, 1), (14, 2)])
def test_few_examples_first_or_later(counts):
    def step(x):
        return tf.reduce_sum(tf.tanh(x @ W)), x @ W

    with mtf_hetero.function(step, (X[: counts[0]],), **BATCH) as divided:
        for count in counts:
            same(arrays(divided(X[:count])), arrays(step(X[:count])), 1e-9)
        assert divided.layout.split("batch", 14) == (8, 4, 2)


def test_fit_and_predict_of_two_examples():
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3)])
    model.compile("sgd", "mse")
    weights = model.get_weights()
    model.fit(X[:2], W[:2], verbose=0)
    expected, predicted = model.get_weights(), model.predict(X[:2], verbose=0)
    model.set_weights(weights)
    mtf_hetero.keras.fit(model, X[:2], W[:2], verbose=0, **BATCH)
    same(model.get_weights(), expected, 1e-6)
    same([mtf_hetero.keras.predict(model, X[:2], verbose=0, **BATCH)], [predicted], 1e-6)


@pytest.mark.parametrize(
    ("count", "shape", "dim"), [(14, (2, 7, 4), "batch_1"), (16, (2, 8, 4), "batch_1"), (14, (7, 2, 4), "batch_0")]
)
def test_a_batch_that_is_reshaped(count, shape, dim):
    """The factor that has a unit for each device is split."""

    def step(x):
        halves = tf.reshape(x, shape)
        return tf.reduce_sum(tf.tanh(halves[0] @ W), 1), halves * 2

    with mtf_hetero.function(step, (X[:count],), **BATCH) as divided:
        same(arrays(divided(X[:count])), arrays(step(X[:count])), 1e-9)
        assert dim in dict(divided.layout.rules)
