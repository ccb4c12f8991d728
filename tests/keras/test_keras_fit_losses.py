"""Losses and metrics of `mtf_hetero.keras.fit` are Keras's: each loss, reduction and weight."""

import keras
import numpy as np
import pytest
from fit_oracle import BATCH, FILTERS, PLACES, check, images, network
from networks import two_in_two_out
from tiers import parametrize

SPLIT = [BATCH]


def with_loss(loss, *, activation="softmax", units=5, metrics=(), **options):
    def make():
        model = network(activation, units)
        model.compile("adam", loss() if callable(loss) else loss, metrics=list(metrics), **options)
        return model

    return make


def one_hot(y, classes=5):
    return np.eye(classes)[y]


LOSSES = {  # the loss, the activation before it, how many units, and targets of classes
    "probabilities": ("sparse_categorical_crossentropy", "softmax", 5, lambda y: y),
    "logits": (lambda: keras.losses.SparseCategoricalCrossentropy(from_logits=True), None, 5, lambda y: y),
    "column": ("crossentropy", "softmax", 5, lambda y: y[:, None]),
    "one hot": (lambda: keras.losses.CategoricalCrossentropy(label_smoothing=0.1), "softmax", 5, one_hot),
    "focal": (lambda: keras.losses.CategoricalFocalCrossentropy(), "softmax", 5, one_hot),
    "left out": (lambda: keras.losses.SparseCategoricalCrossentropy(ignore_class=2), "softmax", 5, lambda y: y),
    "binary": ("binary_crossentropy", "sigmoid", 1, lambda y: (y > 2).astype(float)),
    "binary of many": (lambda: keras.losses.BinaryCrossentropy(reduction="sum"), "sigmoid", 5, one_hot),
    "mean": (lambda: keras.losses.MeanSquaredError(reduction="mean"), None, 1, lambda y: y),
    "weighted mean": (lambda: keras.losses.Huber(reduction="mean_with_sample_weight"), None, 5, one_hot),
    "kl": ("kl_divergence", "softmax", 5, one_hot),
    "poisson": ("poisson", "exponential", 5, one_hot),
    "cosine": ("cosine_similarity", "tanh", 5, one_hot),
    "hinge": ("hinge", "tanh", 5, one_hot),
    "dice": (lambda: keras.losses.Dice(), "sigmoid", 5, one_hot),
    "tversky": (lambda: keras.losses.Tversky(alpha=0.3), "softmax", 5, one_hot),
    "function": (lambda: of_the_whole_batch, None, 5, one_hot),
}


def of_the_whole_batch(y_true, y_pred):
    """A user's loss: a value of each example that depends on all examples."""
    errors = keras.ops.mean(keras.ops.square(y_true - y_pred), axis=-1)
    return keras.ops.divide(errors, keras.ops.add(keras.ops.max(errors), 1))


@parametrize("name", LOSSES, first=["function"])
def test_losses(name):
    loss, activation, units, targets = LOSSES[name]
    x, y = images()
    check(with_loss(loss, activation=activation, units=units), x, targets(y), places=SPLIT)


@pytest.mark.full
@pytest.mark.parametrize("name", ["mean", "weighted mean", "binary of many", "dice", "left out"])
def test_losses_of_weighted_examples(name):
    loss, activation, units, targets = LOSSES[name]
    x, y = images()
    weights = np.random.default_rng(2).uniform(0, 2, len(x))
    check(with_loss(loss, activation=activation, units=units), x, targets(y), sample_weight=weights, places=SPLIT)


def two_outputs(loss, **options):
    def make():
        model = two_in_two_out()
        model.compile("adam", loss, **options)
        return model

    return make


def rows(count=11):
    rng = np.random.default_rng(4)
    x = [rng.standard_normal((count, 9, 7, 3)), rng.standard_normal((count, 6))]
    return x, [rng.integers(0, 5, count), rng.standard_normal((count, 1))]


@pytest.mark.filterwarnings("ignore:Gradients do not exist")  # as Keras says of the output that is left out
@pytest.mark.full
@pytest.mark.parametrize("kind", ["lists", "weighted", "one left out", "dicts"])
def test_several_inputs_and_outputs(kind):
    x, (classes, numbers) = rows()
    losses = ["sparse_categorical_crossentropy", "mse"]
    if kind == "lists":
        check(two_outputs(losses), x, [classes, numbers], validation_data=(x, [classes, numbers]))
    elif kind == "weighted":
        options = {"loss_weights": [0.3, 2.0], "metrics": [["accuracy"], ["mae"]]}
        check(two_outputs(losses, **options), x, [classes, numbers], places=SPLIT)
    elif kind == "one left out":
        check(two_outputs([losses[0], None]), x, [classes, numbers], places=[FILTERS])
    else:
        check(named(losses), dict(zip("ab", x, strict=True)), {"class": classes, "number": numbers}, places=SPLIT)


def named(losses):
    def make():
        image, row = keras.Input((9, 7, 3), name="a"), keras.Input((6,), name="b")
        x = keras.layers.GlobalAveragePooling2D()(keras.layers.Conv2D(7, 3)(image))
        outputs = {
            "class": keras.layers.Dense(5, activation="softmax", name="class")(x),
            "number": keras.layers.Dense(1, name="number")(keras.layers.Concatenate()([x, row])),
        }
        model = keras.Model({"a": image, "b": row}, outputs)
        model.compile("adam", dict(zip(outputs, losses, strict=True)), loss_weights={"class": 1.0, "number": 0.2})
        return model

    return make


@pytest.mark.full
def test_a_loss_of_each_pixel_with_its_weights():
    def make():
        inputs = keras.Input((6, 6, 3))
        x = keras.layers.Conv2D(7, 3, padding="same", activation="relu")(inputs)
        model = keras.Model(inputs, keras.layers.Conv2D(5, 1, activation="softmax")(x))
        model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
        return model

    rng = np.random.default_rng(5)
    x, y = rng.standard_normal((11, 6, 6, 3)), rng.integers(0, 5, (11, 6, 6))
    weights = rng.uniform(0, 1, (11, 6, 6))
    places = [*PLACES, {**BATCH, "layout": "spatial"}]
    check(make, x, y, sample_weight=weights, places=places)
