"""`mtf_hetero.keras.fit` on models of any kind: their own step is imported, with Keras's results."""

from typing import Any

import keras
import numpy as np
import pytest
import tiers
from fit_oracle import BATCH, ONE, check, make_model, same, state
from keras_oracle import floatx

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


class Adversarial(keras.Model):
    """Trains two networks by turns, each with an optimizer and a metric of its own."""

    def __init__(self):
        super().__init__()
        self.maker = keras.Sequential([keras.Input((4,)), L.Dense(12, "tanh"), L.Dropout(0.2)])
        self.judge = keras.Sequential([keras.Input((12,)), L.Dense(7, "relu"), L.Dense(1)])
        self.makers_loss, self.judges_loss = keras.metrics.Mean(name="maker"), keras.metrics.Mean(name="judge")
        self.noise = keras.random.SeedGenerator(5)

    def compile(self, maker, judge):
        super().compile(optimizer=maker)
        self.judges = judge
        self.entropy = keras.losses.BinaryCrossentropy(from_logits=True)

    @property
    def metrics(self):
        return [self.makers_loss, self.judges_loss]

    def call(self, x):
        return self.judge(x)

    def train_step(self, data):
        real = data[0]
        count = K.shape(real)[0]
        noise = keras.random.normal((count, 4), seed=self.noise)
        with tf.GradientTape() as tape:
            both = K.concatenate([real, self.maker(noise, training=True)], axis=0)
            labels = K.concatenate([K.ones((count, 1)), K.zeros((count, 1))], axis=0)
            loss = self.entropy(labels, self.judge(both))
        weights = self.judge.trainable_variables
        self.judges.apply_gradients(zip(tape.gradient(loss, weights), weights))
        self.judges_loss.update_state(loss)
        with tf.GradientTape() as tape:
            make_model = self.maker(keras.random.normal((count, 4), seed=self.noise), training=True)
            loss = self.entropy(K.ones((count, 1)), self.judge(make_model))
        weights = self.maker.trainable_variables
        self.optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights))
        self.makers_loss.update_state(loss)
        return {metric.name: metric.result() for metric in self.metrics}


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


def attention():
    inputs = keras.Input((6,), dtype="int32")
    x = L.Embedding(11, 8, mask_zero=True)(inputs)
    x = L.MultiHeadAttention(2, 4, dropout=0.1)(x, x, use_causal_mask=True)
    return keras.Model(inputs, L.Dense(5, "softmax")(L.GlobalAveragePooling1D()(x)))


def preprocessed():
    """Preprocessing in the model, a Lambda, and operations of keras.ops."""
    inputs = keras.Input((12,))
    x = L.Normalization(mean=0.1, variance=2.0)(inputs)
    x = L.Lambda(lambda x: K.where(x > 0.0, x, K.sin(x)))(x)
    return keras.Model(inputs, L.Dense(5, "softmax")(K.logsumexp(K.expand_dims(x, 1) * K.arange(3.0)[:, None], 1)))


def compiled(build, optimizer="adam", **options):
    def make() -> Any:
        model = build()
        model.compile(
            optimizer() if callable(optimizer) else optimizer, **{"loss": LOSS, "metrics": ["accuracy"], **options}
        )
        return model

    return make


def adversarial():
    model = Adversarial()
    model.build((None, 12))
    model.compile(keras.optimizers.Adam(0.01), keras.optimizers.RMSprop(0.01))
    return model


def cropped():
    layers = L.Reshape((3, 4, 1)), L.RandomCrop(2, 3, seed=3), L.Conv2D(8, 2, padding="same")
    return sequential(*layers, L.GlobalAveragePooling2D())


def scaled():
    return keras.optimizers.LossScaleOptimizer(keras.optimizers.Adam(0.01), dynamic_growth_steps=2)


def scaled_rows():
    """RMSprop divides the rows of an embedding's gradient in a condition, here within that of finite gradients."""
    return keras.optimizers.LossScaleOptimizer(keras.optimizers.RMSprop(0.01), dynamic_growth_steps=2)


CASES = {
    "custom layer": (compiled(lambda: sequential(Odd())), ROWS),
    "subclassed": (compiled(Subclassed), ROWS),
    "adversarial": (adversarial, ROWS),
    "LSTM": (compiled(lambda: on_ids(L.LSTM(7))), IDS),
    "GRU": (compiled(lambda: on_ids(L.GRU(7, dropout=0.2))), IDS),
    "bidirectional": (compiled(lambda: on_ids(L.Bidirectional(L.LSTM(4)), mask_zero=True)), IDS),
    "masks": (compiled(attention), IDS),
    "preprocessed": (compiled(preprocessed), ROWS),
    "random crop": (compiled(cropped), ROWS),
    "Adafactor": (compiled(lambda: sequential(L.Dense(7)), lambda: keras.optimizers.Adafactor(0.01)), ROWS),
    "loss scale": (compiled(lambda: sequential(L.Dense(7)), scaled), ROWS),
    "loss scale of an embedding": (compiled(lambda: on_ids(L.GlobalAveragePooling1D()), scaled_rows), IDS),
}


@tiers.parametrize("name", CASES, first=[])
def test_a_model_of_any_kind(name):
    make, data = CASES[name]
    tested = {} if name == "adversarial" else {"validation_data": [x[:9] for x in data]}
    check(make, *data, places=[BATCH], **tested)


def test_a_layer_of_ones_own_is_trained_as_keras_trains_it():
    check(CASES["custom layer"][0], *(x[:16] for x in ROWS), places=[BATCH])


@pytest.mark.full
def test_weights_of_examples_and_classes():
    options = {"sample_weight": RNG.uniform(size=17), "validation_split": 0.3}
    check(CASES["subclassed"][0], *ROWS, places=[BATCH], **options)
    check(CASES["custom layer"][0], *ROWS, places=[BATCH], class_weight={0: 2.0, 1: 1.0, 2: 0.5, 3: 1.0, 4: 1.0})


class Watches(keras.callbacks.Callback):
    """Notes what it reads at every batch and epoch, and changes weights and the learning rate."""

    model: Any

    def __init__(self):
        super().__init__()
        self.seen = []

    def on_train_batch_end(self, batch, logs: Any = None):
        self.seen += [logs["loss"], float(self.model.optimizer.iterations.numpy())]
        self.seen += [float(np.abs(w.numpy()).sum()) for w in self.model.trainable_variables]
        if batch == 1:
            kernel = self.model.trainable_variables[0]
            kernel.assign(np.clip(kernel.numpy(), -0.2, 0.2))

    def on_epoch_end(self, epoch, logs: Any = None):
        self.model.optimizer.learning_rate = 0.5 * self.model.optimizer.learning_rate
        self.seen += [logs["loss"], logs["accuracy"], logs["val_loss"]]
        self.model.trainable_variables[1].assign(self.model.trainable_variables[1] + 0.1)


@pytest.mark.full
@pytest.mark.parametrize("place", [ONE, BATCH])
def test_callbacks_read_and_write_what_they_would_under_keras(place):
    seen = []

    def callbacks():
        seen.append(Watches())
        return seen[-1:]

    options = {"places": [place], "callbacks": callbacks, "validation_data": [x[:9] for x in ROWS]}
    check(CASES["subclassed"][0], *ROWS, **options)
    np.testing.assert_allclose(seen[1].seen, seen[0].seen, atol=1e-9)


@pytest.mark.full
def test_a_second_fit_goes_on():
    check(CASES["custom layer"][0], *ROWS, places=[BATCH], again=True)


@pytest.mark.full
def test_lora():
    """Keras keeps its weights in float32, so that the last digit of that counts."""

    def make():
        model = sequential(L.Dense(14, "relu"))
        model.layers[0].enable_lora(2)
        model.compile("adam", LOSS)
        return model

    check(make, *ROWS, places=[ONE, BATCH], tolerance=1e-6)


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


@pytest.mark.full
def test_after_an_error_the_model_has_the_weights_of_the_last_step():
    class Breaks(keras.callbacks.Callback):
        def on_epoch_begin(self, epoch, logs=None):
            if epoch == 1:
                raise KeyError

    with floatx(tf.float64):
        reference, model = make_model(CASES["subclassed"][0]), make_model(CASES["subclassed"][0])
        options = {"batch_size": 8, "shuffle": False, "verbose": 0}
        reference.fit(*ROWS, **options)
        with pytest.raises(KeyError):
            mtf_hetero.keras.fit(model, *ROWS, epochs=2, callbacks=[Breaks()], **options, **BATCH)
        same(state(model), state(reference), 1e-9)


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
    refused(Subclassed, ValueError, match, devices="cpu:0,cpu:1", layout="dense/kernl:all")
