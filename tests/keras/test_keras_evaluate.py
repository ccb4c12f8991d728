"""`mtf_hetero.keras.evaluate` and `predict` are `model.evaluate` and `model.predict`, on unequal devices."""

from typing import Any

import keras
import numpy as np
import pytest
import tiers
from fit_oracle import BATCH, FILTERS, ONE, images, make_model, network, same, state
from keras_oracle import floatx, randomised

import mtf_hetero.keras
from mtf_hetero import tf

X, Y = images()
WEIGHTS = np.random.default_rng(1).uniform(0.1, 2, len(X))
EVALUATIONS = {
    "a dict": {"y": Y, "return_dict": True},
    "a list": {"y": Y, "batch_size": 4},
    "weights": {"y": Y, "sample_weight": WEIGHTS},
    "steps": {"x": tf.data.Dataset.from_tensor_slices((X, Y)).batch(5).repeat(), "steps": 3, "batch_size": None},
}


def compiled(**options: Any):
    model = network()
    metrics = ["accuracy", keras.metrics.SparseCategoricalCrossentropy()]
    model.compile("sgd", "sparse_categorical_crossentropy", metrics=metrics, weighted_metrics=["accuracy"], **options)
    return randomised(model)


@tiers.parametrize("name", EVALUATIONS, first=["a dict"])
def test_evaluate_gives_what_keras_gives(name):
    options = {"x": X, "batch_size": 8, "verbose": 0, **EVALUATIONS[name]}
    with floatx(tf.float64):
        expected = make_model(compiled).evaluate(**options)
        model = make_model(compiled)
        before = state(model)
        found = mtf_hetero.keras.evaluate(model, **options, **BATCH)
        same(state(model), before, 0)
    assert type(found) is type(expected)
    if isinstance(expected, dict):
        assert list(found) == list(expected)
        expected, found = list(expected.values()), list(found.values())
    np.testing.assert_allclose(found, expected, rtol=1e-9)


class Sampled(keras.Model):
    """Predicts the mean of samples with dropout, a structure, and counts its steps."""

    def __init__(self):
        super().__init__()
        self.hidden, self.drop = keras.layers.Dense(7, "tanh"), keras.layers.Dropout(0.5, seed=3)
        self.last = keras.layers.Dense(5)
        self.steps = self.add_weight(shape=(), name="steps", initializer="zeros", trainable=False)

    def call(self, x, training=False):
        return self.last(self.drop(self.hidden(keras.ops.mean(x, axis=(1, 2))), training=training))

    def predict_step(self, data):
        x, *_ = keras.utils.unpack_x_y_sample_weight(data)
        samples = [self(x, training=True) for _ in range(3)]
        self.steps.assign_add(1)
        return {"mean": sum(samples[1:], samples[0]) / 3, "all": samples}


def structured():
    inputs = {"image": keras.Input((6, 6, 3), name="image"), "row": keras.Input((4,), name="row")}
    x = keras.layers.Conv2D(7, 3)(inputs["image"])
    y = keras.layers.Dense(2)(inputs["row"])
    return randomised(keras.Model(inputs, {"map": x, "row": y}))


ROWS = np.random.default_rng(2).standard_normal((17, 4))
PREDICTIONS = {
    "classes": (compiled, X, {}),
    "own step": (Sampled, X, {}),
    "at once": (lambda: compiled(steps_per_execution=2), X, {}),
    "structure": (structured, {"image": X, "row": ROWS}, {}),
    "data set": (compiled, tf.data.Dataset.from_tensor_slices(X).batch(5), {"steps": 3, "batch_size": None}),
}


@tiers.parametrize("name", PREDICTIONS, first=["own step"])
def test_predict_gives_what_keras_gives(name):
    make, x, more = PREDICTIONS[name]
    options = {"batch_size": 8, "verbose": 0, **more}
    with floatx(tf.float64):
        reference, model = make_model(make), make_model(make)
        expected = reference.predict(x, **options)
        found = mtf_hetero.keras.predict(model, x, **options, **BATCH)
    keras.tree.assert_same_structure(found, expected)
    for a, b in zip(keras.tree.flatten(found), keras.tree.flatten(expected), strict=True):
        assert type(a) is type(b) and a.dtype == b.dtype
        np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-12)
    for one, other in zip(model.variables, reference.variables, strict=True):
        np.testing.assert_array_equal(np.asarray(one), np.asarray(other))


@pytest.mark.full
def test_callbacks_of_tests_and_predictions():
    class Watches(keras.callbacks.Callback):
        def __init__(self):
            super().__init__()
            self.seen = []

        def on_test_batch_end(self, batch, logs=None):
            self.seen.append((logs or {})["loss"])

        def on_predict_batch_end(self, batch, logs=None):
            self.seen += list(np.asarray((logs or {})["outputs"]).ravel())
            kernel: Any = self.model.layers[1].kernel  # pyright: ignore[reportOptionalMemberAccess]
            kernel.assign(kernel * 2)

    seen = []
    options = {"batch_size": 8, "verbose": 0}
    with floatx(tf.float64):
        for evaluate, predict, place in (
            (keras.Model.evaluate, keras.Model.predict, {}),
            (mtf_hetero.keras.evaluate, mtf_hetero.keras.predict, FILTERS),
        ):
            model, callback = make_model(compiled), Watches()
            evaluate(model, X, Y, callbacks=[callback], **options, **place)
            predict(model, X, callbacks=[callback], **options, **place)
            seen.append([*callback.seen, *np.asarray(model.layers[1].kernel).ravel()])
    np.testing.assert_allclose(seen[1], seen[0], rtol=1e-9)


def test_only_what_is_needed_is_traced():
    model = make_model(Sampled)

    def test_step(data):
        raise AssertionError

    model.train_step = model.test_step = test_step
    assert mtf_hetero.keras.predict(model, X, verbose=0, **ONE)["mean"].shape == (17, 5)
