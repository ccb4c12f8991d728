"""A softmax at the end of a model is left out: its logits are what the model computes before it."""

import keras
import numpy as np
import pytest
from keras import layers
from keras_oracle import inferred

from mtf_hetero.keras import build


def head(**options):
    return layers.Dense(3, name="head", **options)


ENDS = {  # of a model of images: its layers behind a convolution
    "dense": lambda: [layers.Flatten(), head(activation="softmax")],
    "softmax layer": lambda: [layers.Flatten(), head(), layers.Softmax()],
    "activation layer": lambda: [layers.Flatten(), head(), layers.Activation("softmax")],
    "nested": lambda: [layers.Flatten(), keras.Sequential([keras.Input((48,)), head(activation="softmax")])],
    "pixels": lambda: [layers.Conv2D(3, 1, activation="softmax", name="head")],
    "reshaped": lambda: [layers.Flatten(), head(activation="softmax"), layers.Reshape((1, 3))],
    "logits": lambda: [layers.Flatten(), head(), layers.Reshape((3,))],
}


def make_model(name):
    return keras.Sequential([keras.Input((6, 5, 2)), layers.Conv2D(4, 3, activation="relu"), *ENDS[name]()])


@pytest.mark.parametrize("name", ENDS)
@pytest.mark.parametrize("recipe", [None, pytest.param("filters", marks=pytest.mark.full)])
def test_the_softmax_of_the_logits_is_what_the_model_gives(name, recipe):
    model = make_model(name)
    images = np.random.default_rng(1).standard_normal((4, 6, 5, 2)).astype(np.float32)
    expected = np.asarray(model(images))
    found = inferred(build(model, logits=True), images, recipe)
    probabilities = np.exp(found) / np.exp(found).sum(-1, keepdims=True)
    if name != "logits":
        np.testing.assert_allclose(probabilities, expected, atol=1e-6)
        assert np.abs(found.sum(-1) - 1).max() > 1e-3
    else:
        np.testing.assert_allclose(found, expected, atol=1e-6)
    np.testing.assert_allclose(inferred(build(model), images, recipe), expected, atol=1e-6)  # as it is


def test_other_ends_are_refused():
    images = keras.Input((6, 5, 2))
    x = layers.Flatten()(layers.Conv2D(4, 3, activation="relu", name="conv")(images))
    for outputs, message in [
        (layers.Dense(3, activation="sigmoid", name="head")(x), "ends in activation Sigmoid .*head.*; end it in"),
        (layers.Softmax(axis=1)(layers.Reshape((16, 3))(x)), "a softmax over another axis than the last"),
        ([layers.Dense(3)(x), layers.Dense(2)(x)], "has 2 outputs; logits=True needs a model with one"),
    ]:
        builder = build(keras.Model(images, outputs), logits=True)
        with pytest.raises(ValueError, match=message):
            inferred(builder, np.zeros((2, 6, 5, 2), np.float32))
