"""A Normalization layer in front of a model, and models that have one of their own."""

import dataclasses
from typing import Any

import keras
import numpy as np
import pytest
from keras import layers

import mtf_hetero.keras
from mtf_hetero import data
from mtf_hetero.keras import networks

MEAN, DEVIATION = (100.0, 3.0), (50.0, 0.25)
IMAGES = np.random.default_rng(0).integers(0, 256, (3, 6, 5, 2)).astype("float32")


def branched():
    images = keras.Input((6, 5, 2), name="pictures")
    inner = keras.Sequential([keras.Input((4, 3, 4)), layers.Flatten(), layers.Dense(4, name="dense")], name="inner")
    x = layers.Conv2D(4, 3, name="conv")(images)
    y = layers.GlobalAveragePooling2D()(layers.Dropout(0.5)(images))
    return keras.Model(images, layers.Concatenate(name="input_normalization")([inner(x), y]), name="branched")


def sequential():
    return keras.Sequential([keras.Input((6, 5, 2)), layers.Flatten(), layers.Dense(3, activation="softmax")])


@pytest.mark.parametrize("make", [branched, sequential])
def test_a_model_gets_a_normalization_in_front(make, tmp_path):
    model = make()
    made = networks.normalising(model, MEAN, DEVIATION)
    assert made.name == model.name
    assert [v.path for v in made.variables] == [v.path for v in model.variables]
    assert {layer.name for layer in model.layers} <= {layer.name for layer in made.layers} | {made.layers[0].name}
    assert networks.normalises(made) and not networks.normalises(model)
    expected = np.asarray(model((IMAGES - np.float32(MEAN)) / np.float32(DEVIATION)))
    made.save(tmp_path / "made.keras")
    for found in (made, networks.load(tmp_path / "made.keras")):
        np.testing.assert_allclose(np.asarray(found(IMAGES)), expected, rtol=1e-6, atol=1e-6)


@pytest.mark.full
def test_it_may_be_trained_further():
    model: Any = networks.normalising(sequential(), MEAN, DEVIATION)
    model.compile("sgd", "sparse_categorical_crossentropy")
    before = model.evaluate(IMAGES, np.arange(3), verbose=0)
    options = {"verbose": 0, "devices": "cpu:0,cpu:1", "layout": "batch", "list_speed": [2, 1]}
    history = mtf_hetero.keras.fit(model, IMAGES, np.arange(3), **options)
    assert history.history["loss"][0] == pytest.approx(before, rel=1e-5)


def begin_with(*first):
    images = keras.Input((6, 5, 2))
    return keras.Model(images, layers.Add()([layers.Conv2D(2, 1)(layer(images)) for layer in first]))


def test_which_models_normalise_their_images():
    def in_a_model():
        return keras.Sequential([keras.Input((6, 5, 2)), layers.Rescaling(1 / 255)])

    assert networks.normalises(begin_with(layers.Rescaling(2.0)))
    assert networks.normalises(begin_with(layers.Normalization(mean=1.0, variance=2.0), in_a_model()))
    assert not networks.normalises(begin_with(layers.Rescaling(2.0), layers.ReLU()))
    assert not networks.normalises(begin_with(layers.BatchNormalization()))


def test_a_deviation_that_keras_would_change_is_refused():
    with pytest.raises(ValueError, match=r"deviation 1e-09, and Keras's Normalization uses 1e-07 at least; store the"):
        networks.normalising(sequential(), MEAN, (1.0, 1e-9))


def test_data_as_they_are_stored():
    images = data.load("mnist5k")
    stored = images.as_stored()
    pixels = np.arange(256, dtype=np.float32).reshape(16, 16, 1)
    np.testing.assert_allclose(np.asarray(stored.normaliser()(pixels)), pixels, rtol=3e-7)
    assert dataclasses.asdict(stored)["name"] == "mnist5k"
    mean, deviation = images.stored_statistics
    np.testing.assert_allclose((pixels - mean) / deviation, np.asarray(images.normaliser()(pixels)), atol=1e-6)


def test_volumes_as_they_are_stored():
    planes = data.Planes((4, 4, 4, 2), "float32", False, ("omega",))
    manifest = data.Manifest(planes, 2, 1, 2, 0, (3.0, 5.0), (2.0, 4.0), (1.0,), (2.0,), {})
    stored = data.Volumes("set", manifest).as_stored()
    volumes = np.random.default_rng(0).random((2, 4, 4, 4, 2), np.float32)
    np.testing.assert_array_equal(np.asarray(stored.normaliser()(volumes)), volumes)
    mean, deviation = data.Volumes("set", manifest).stored_statistics
    assert (mean.tolist(), deviation.tolist()) == ([3, 5], [2, 4])
