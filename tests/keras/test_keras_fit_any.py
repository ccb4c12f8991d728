"""`mtf_hetero.keras.fit` on models of any kind: their own step is imported, with Keras's results."""

from typing import Any

import keras
import numpy as np
import pytest
import tiers
from fit_oracle import BATCH, ONE, check, make_model

import mtf_hetero.keras
from mtf_hetero import tf

L, K = keras.layers, keras.ops
RNG = np.random.default_rng(0)
ROWS = RNG.standard_normal((17, 12)), RNG.integers(0, 5, 17)  # the last batch of eight has one
IDS = RNG.integers(0, 11, (17, 6)).astype("int32"), RNG.integers(0, 5, 17)
IMAGES = RNG.standard_normal((17, 8, 8, 3)), RNG.integers(0, 5, 17)
LOSS = "sparse_categorical_crossentropy"


class Odd(L.Layer):
    """Sorts, accumulates, adds a loss and keeps a metric."""

    def __init__(self):
        super().__init__()
        self.mean = keras.metrics.Mean(name="mean")

    def build(self, shape):
        self.w = self.add_weight(shape=(shape[-1], 14), name="w")

    def call(self, x):
        self.add_loss(0.01 * K.mean(K.square(x)))
        self.mean.update_state(x)
        return K.cumsum(K.sort(x, axis=-1), axis=-1) @ self.w


class Subclassed(keras.Model):
    """Calls its layers itself, one of them twice."""

    def __init__(self):
        super().__init__()
        self.first, self.twice, self.last = L.Dense(12, "relu"), L.Dense(12, "tanh"), L.Dense(5, "softmax")
        self.drop = L.Dropout(0.3, seed=1)

    def call(self, x, training=False):
        x = self.twice(self.twice(self.first(x)))
        return self.last(self.drop(x, training=training))


def sequential(*layers, shape=(12,), dtype=None):
    return keras.Sequential([keras.Input(shape, dtype=dtype), *layers, L.Dense(5, "softmax")])


def on_ids(*layers, **options):
    return sequential(L.Embedding(11, 8, **options), *layers, shape=(6,), dtype="int32")


def compiled(build, optimizer="adam", **options):
    def make() -> Any:
        model = build()
        model.compile(
            optimizer() if callable(optimizer) else optimizer, **{"loss": LOSS, "metrics": ["accuracy"], **options}
        )
        return model

    return make


def cropped():
    layers = L.Reshape((3, 4, 1)), L.RandomCrop(2, 3, seed=3), L.Conv2D(8, 2, padding="same")
    return sequential(*layers, L.GlobalAveragePooling2D())


def scaled():
    return keras.optimizers.LossScaleOptimizer(keras.optimizers.Adam(0.01), dynamic_growth_steps=2)


def scaled_rows():
    """RMSprop divides the rows of an embedding's gradient in a condition, here within that of finite gradients."""
    return keras.optimizers.LossScaleOptimizer(keras.optimizers.RMSprop(0.01), dynamic_growth_steps=2)


CASES = {
    "custom layer": (compiled(lambda: sequential(Odd())), (ROWS[0][:16], ROWS[1][:16])),
    "subclassed": (compiled(Subclassed), ROWS),
    "bidirectional": (compiled(lambda: on_ids(L.Bidirectional(L.LSTM(4)), mask_zero=True)), IDS),
    "random crop": (compiled(cropped), ROWS),
    "loss scale": (compiled(lambda: sequential(L.Dense(7)), scaled), ROWS),
    "loss scale of an embedding": (compiled(lambda: on_ids(L.GlobalAveragePooling1D()), scaled_rows), IDS),
}


@tiers.parametrize("name", CASES, first=["custom layer"])
def test_a_model_of_any_kind(name):
    make, data = CASES[name]
    tested = {} if name == "custom layer" else {"validation_data": [x[:9] for x in data]}
    check(make, *data, places=[BATCH], **tested)


@pytest.mark.full
def test_mixed_precision_runs():
    """Its rounding hides an exact comparison; the loss goes down as under Keras."""

    def make():
        keras.config.set_dtype_policy("mixed_float16")
        try:
            model = sequential(L.Conv2D(6, 3), L.BatchNormalization(), L.ReLU(), L.Flatten(), shape=(8, 8, 3))
            model.compile("adam", LOSS)
        finally:
            keras.config.set_dtype_policy("float32")
        return model

    reference, model = make_model(make), make_model(make)
    options = {"epochs": 6, "batch_size": 8, "shuffle": False, "verbose": 0}
    expected = reference.fit(*IMAGES, **options).history["loss"]
    found = mtf_hetero.keras.fit(model, *IMAGES, **options, **BATCH).history["loss"]
    np.testing.assert_allclose(found, expected, rtol=0.05)


def refused(build, error, match, data=ROWS, **options):
    model = make_model(compiled(build))
    with pytest.raises(error, match=match) as caught:
        mtf_hetero.keras.fit(model, *data, verbose=0, **{**ONE, **options})
    assert "\n" not in str(caught.value)


@pytest.mark.user_lines
def test_what_is_not_followed_is_named():
    def sine(x):
        y = tf.numpy_function(np.sin, [x], tf.float32)
        y.set_shape(x.shape)
        return y

    python = L.Lambda(sine, output_shape=(12,))
    refused(
        lambda: sequential(python), NotImplementedError, r"^operation PyFunc '.*' \(test_keras_fit_any.py:\d+\) calls"
    )
    match = "layout rule dense/kernl:all names dimension 'dense/kernl', .* the nearest is 'dense/kernel/1'"
    refused(sequential, ValueError, match, devices="cpu:0,cpu:1", layout="dense/kernl:all")
