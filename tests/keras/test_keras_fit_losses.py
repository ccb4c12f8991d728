"""Several inputs, outputs, losses and weights of `mtf_hetero.keras.fit` are as in Keras."""

import keras
import numpy as np
import pytest
from fit_oracle import BATCH, FILTERS, PLACES, check
from networks import two_in_two_out

RNG = np.random.default_rng(4)
COUNT = 11  # the last batch of eight has three
IMAGES, ROWS = RNG.standard_normal((COUNT, 9, 7, 3)), RNG.standard_normal((COUNT, 6))
CLASSES, NUMBERS = RNG.integers(0, 5, COUNT), RNG.standard_normal((COUNT, 4))


def of_the_whole_batch(y_true, y_pred):
    """A user's loss: a value of each example that depends on all examples."""
    errors = keras.ops.mean(keras.ops.square(y_true - y_pred), axis=-1)
    return keras.ops.divide(errors, keras.ops.add(keras.ops.max(errors), 1))


def named():
    image, row = keras.Input((9, 7, 3), name="a"), keras.Input((6,), name="b")
    x = keras.layers.GlobalAveragePooling2D()(keras.layers.Conv2D(7, 3)(image))
    y = keras.layers.Concatenate()([x, row])
    outputs = {
        "class": keras.layers.Dense(5, activation="softmax", name="class")(x),
        "number": keras.layers.Dense(4, name="number")(y),
        "odd": keras.layers.Dense(4, name="odd")(y),
    }
    model = keras.Model({"a": image, "b": row}, outputs)
    losses = {
        "class": keras.losses.SparseCategoricalCrossentropy(ignore_class=2),
        "number": keras.losses.Huber(reduction="mean_with_sample_weight"),
        "odd": of_the_whole_batch,
    }
    model.compile("adam", losses, loss_weights={"class": 1.0, "number": 0.2, "odd": 3.0}, metrics={"number": ["mae"]})
    return model


@pytest.mark.full
@pytest.mark.parametrize(("place", "batch_size"), [(BATCH, COUNT), (FILTERS, 8)])
def test_each_output_has_a_loss_and_weights(place, batch_size):
    targets = {"class": CLASSES, "number": NUMBERS, "odd": NUMBERS}
    weights = {name: np.linspace(0.1, 2, COUNT) ** power for power, name in enumerate(targets)}
    check(named, {"a": IMAGES, "b": ROWS}, targets, sample_weight=weights, places=[place], batch_size=batch_size)


@pytest.mark.filterwarnings("ignore:Gradients do not exist")  # as Keras says of the output that is left out
@pytest.mark.full
def test_an_output_without_a_loss():
    def make():
        model = two_in_two_out()
        model.compile("adam", ["sparse_categorical_crossentropy", None])
        return model

    check(make, [IMAGES, ROWS], [CLASSES, NUMBERS[:, :1]], places=[FILTERS])


@pytest.mark.full
def test_a_loss_of_each_pixel_with_its_weights():
    def make():
        inputs = keras.Input((6, 6, 3))
        x = keras.layers.Conv2D(7, 3, padding="same", activation="relu")(inputs)
        model = keras.Model(inputs, keras.layers.Conv2D(5, 1, activation="softmax")(x))
        model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
        return model

    x, y = RNG.standard_normal((COUNT, 6, 6, 3)), RNG.integers(0, 5, (COUNT, 6, 6))
    places = [*PLACES, {**BATCH, "layout": "spatial"}]
    check(make, x, y, sample_weight=RNG.uniform(0, 1, y.shape), places=places)
