"""`mtf_hetero.keras.fit` on what users write themselves: layers, optimizers, metrics, and losses of their own."""

import signal
from typing import Any

import keras
import numpy as np
import pytest
import tiers
from fit_oracle import BATCH, Noise, check, make_model, same, state
from keras_oracle import floatx

import mtf_hetero.keras
from mtf_hetero import tf
from mtf_hetero.training import Runtime

L, K = keras.layers, keras.ops
RNG = np.random.default_rng(0)
ROWS = RNG.standard_normal((17, 12)), RNG.integers(0, 5, 17)  # the last batch of eight has one
IDS = RNG.integers(0, 11, (17, 6)).astype("int32")
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


class Tied(keras.Model):
    """Reads a table of words by rows, and once more transposed."""

    def __init__(self):
        super().__init__()
        self.words, self.hidden = L.Embedding(11, 8, name="words"), L.Dense(8, "tanh")

    def call(self, x):
        return K.softmax(K.matmul(self.hidden(self.words(x)), K.transpose(self.words.embeddings)))


class Signs(keras.optimizers.Optimizer):
    """Steps by the signs of a momentum."""

    def build(self, variables):
        if not self.built:
            super().build(variables)
            self.momenta = self.add_optimizer_variables(variables, "momentum")

    def update_step(self, gradient, variable, learning_rate):
        momentum = self.momenta[self._get_variable_index(variable)]
        self.assign(momentum, 0.9 * momentum + gradient)
        self.assign_sub(variable, K.cast(learning_rate, variable.dtype) * K.sign(momentum))


class NoTargets(keras.Model):
    """Has no loss but the one that it adds."""

    def __init__(self):
        super().__init__()
        self.dense = L.Dense(3)

    def call(self, x):
        self.add_loss(K.mean(K.square(self.dense(x) - 1)))
        return x


class Peak(keras.metrics.Metric):
    """Keeps a sum per class, and shows the largest."""

    def __init__(self):
        super().__init__(name="peak")
        self.sums = self.add_weight(shape=(5,), name="sums", initializer="zeros")

    def update_state(self, y_true, y_pred, sample_weight=None):
        self.sums.assign_add(K.sum(y_pred, axis=0))

    def result(self):
        return K.max(self.sums)

    def reset_state(self):
        self.sums.assign(K.zeros(5))


def sequential(*layers, shape=(12,), dtype=None):
    return keras.Sequential([keras.Input(shape, dtype=dtype), *layers, L.Dense(5, "softmax")])


def always_dropped():
    """Monte-Carlo dropout: it drops in tests too."""
    inputs = keras.Input((12,))
    x = L.Dropout(0.5, seed=2)(L.Dense(14, "tanh")(inputs), training=True)
    return keras.Model(inputs, L.Dense(5, "softmax")(x))


def compiled(build, optimizer="adam", **options):
    def make() -> Any:
        model = build()
        make_model = optimizer() if callable(optimizer) else optimizer
        model.compile(make_model, **{"loss": LOSS, "metrics": ["accuracy"], **options})
        return model

    return make


def hidden():
    return sequential(L.Dense(14, "tanh"))


def on_ids(*layers, **options):
    return sequential(L.Embedding(11, 8, **options), *layers, shape=(6,), dtype="int32")


def cropped():
    layers = L.Reshape((3, 4, 1)), L.RandomCrop(2, 3, seed=3), L.Conv2D(8, 2, padding="same")
    return sequential(*layers, L.GlobalAveragePooling2D())


def scaled():
    return keras.optimizers.LossScaleOptimizer(keras.optimizers.Adam(0.01), dynamic_growth_steps=2)


def scaled_rows():
    """RMSprop divides the rows of an embedding's gradient in a condition, here within that of finite gradients."""
    return keras.optimizers.LossScaleOptimizer(keras.optimizers.RMSprop(0.01), dynamic_growth_steps=2)


WORDS = {**BATCH, "layout": "words/embeddings/0:all"}
CASES = {
    "custom layer": (compiled(lambda: sequential(Odd())), (ROWS[0][:16], ROWS[1][:16]), [BATCH]),
    "random crop": (compiled(cropped), ROWS, [BATCH]),
    "loss scale": (compiled(lambda: sequential(L.Dense(7)), scaled), ROWS, [BATCH]),
    "loss scale of an embedding": (
        compiled(lambda: on_ids(L.GlobalAveragePooling1D()), scaled_rows),
        (IDS, ROWS[1]),
        [BATCH],
    ),
    "one weight in two forms": (compiled(Tied), (IDS, (IDS + 1) % 11), [BATCH, WORDS]),
    "dropout in tests": (compiled(always_dropped), ROWS, [BATCH]),
    "noise": (compiled(lambda: sequential(Noise(), L.Dense(14, "tanh"))), (ROWS[0][:16], ROWS[1][:16]), [BATCH]),
    "own optimizer": (compiled(hidden, lambda: Signs(0.01)), ROWS, [BATCH]),
    "own metric": (lambda: compiled(hidden, metrics=[Peak(), "accuracy"])(), ROWS, [BATCH]),
    "no targets": (compiled(NoTargets, loss=None, metrics=[]), ROWS[:1], [BATCH]),
    "compiled by XLA": (compiled(hidden, jit_compile=True), ROWS, [BATCH]),
}


TESTED = {"dropout in tests", "own metric", "random crop", "loss scale", "loss scale of an embedding"}


@tiers.parametrize("name", CASES, first=["custom layer"])
def test_it_is_what_keras_does(name):
    make, data, places = CASES[name]
    tested = {"validation_data": [x[:9] for x in data]} if name in TESTED else {}
    check(make, *data, places=places, again=name == "noise", **tested)


@pytest.mark.full
def test_ctrl_c_within_a_step_leaves_the_model_whole(monkeypatch):
    """The weights, the number of steps and the metrics are all of the step that Ctrl-C arrived in."""
    run, steps = Runtime.run, []

    def pressed(self, fetches, feed=None, trace=None):
        found = run(self, fetches, feed, trace)
        if isinstance(fetches, tuple):  # the results and the updates of a step
            steps.append(found)
            if len(steps) == 2:
                signal.raise_signal(signal.SIGINT)
        return found

    options = {"batch_size": 8, "shuffle": False, "verbose": 0}
    with floatx(tf.float64):
        reference, model = make_model(compiled(hidden)), make_model(compiled(hidden))
        expected = reference.fit(*(x[:16] for x in ROWS), **options).history["loss"][0]
        monkeypatch.setattr(Runtime, "run", pressed)
        with pytest.raises(KeyboardInterrupt):
            mtf_hetero.keras.fit(model, *ROWS, **options, **BATCH)
        same(state(model), state(reference), 1e-9)
    np.testing.assert_allclose(model.get_metrics_result()["loss"], expected, rtol=1e-9)


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
