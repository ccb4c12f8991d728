"""`mtf_hetero.keras.fit` is `model.fit`: optimizers, data, callbacks, frozen layers; a layout changes no result."""

import keras
import numpy as np
import pytest
from fit_oracle import BATCH, FILTERS, PLACES, check, images, make_model, network, same, state

import mtf_hetero.keras
from mtf_hetero import tf

CROSSENTROPY = "sparse_categorical_crossentropy"
OPTIMIZERS = {  # whose updates are more than functions of each element, and the places
    "averages": (lambda: keras.optimizers.SGD(0.1, momentum=0.9, use_ema=True, ema_momentum=0.7), [FILTERS]),
    "loss scale": (lambda: keras.optimizers.SGD(0.1, momentum=0.9, loss_scale_factor=7.0), [FILTERS]),
    "global clipnorm": (lambda: keras.optimizers.Adam(0.01, global_clipnorm=0.1), PLACES),
    "schedule": (lambda: keras.optimizers.SGD(keras.optimizers.schedules.ExponentialDecay(0.5, 2, 0.5)), [BATCH]),
    "all of it": (
        lambda: keras.optimizers.Nadam(
            0.01,
            gradient_accumulation_steps=2,
            use_ema=True,
            ema_overwrite_frequency=3,
            weight_decay=0.1,
            clipnorm=0.05,
        ),
        [FILTERS],
    ),
}


def compiled(optimizer="adam", **options):
    def make():
        model = network()
        model.compile(optimizer() if callable(optimizer) else optimizer, CROSSENTROPY, metrics=["accuracy"], **options)
        return model

    return make


def test_it_is_what_keras_does():
    """A convolution, batch norm, dropout and a dense layer, by Adam: each layout gives Keras's results."""

    def make():
        model = network(dropout=0.4)
        model.compile(keras.optimizers.Adam(0.01), CROSSENTROPY, metrics=["accuracy"])
        return model

    check(make, *images(16), places=PLACES)


@pytest.mark.full
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_optimizers(name):
    """Averages are also what is tested. A second fit goes on."""
    optimizer, places = OPTIMIZERS[name]
    options = {"epochs": 3, "places": places, "again": name == "all of it"}
    check(compiled(optimizer), *images(16), validation_data=images(8, seed=1), **options)


@pytest.mark.full
def test_data_of_all_kinds():
    x, y = images()
    check(compiled(), x, y, shuffle=True, validation_split=0.3, places=[BATCH])
    weighted = tf.data.Dataset.from_tensor_slices((x, y, np.linspace(0, 2, len(x)))).batch(5).repeat()
    check(compiled(), weighted, batch_size=None, steps_per_epoch=3, places=[BATCH])


@pytest.mark.full
def test_what_is_saved_within_an_epoch_and_at_its_end(tmp_path):
    saved = []
    for train in (keras.Model.fit, mtf_hetero.keras.fit):
        path = tmp_path / f"{len(saved)}"
        model = make_model(compiled())
        callbacks = [
            keras.callbacks.ModelCheckpoint(f"{path}-{{batch}}.keras", save_freq=2),
            keras.callbacks.ModelCheckpoint(f"{path}-end.keras"),
        ]
        place = BATCH if saved else {}
        train(model, *images(33), batch_size=8, shuffle=False, verbose=0, callbacks=callbacks, **place)
        saved.append([state(keras.models.load_model(f"{path}-{batch}.keras")) for batch in (2, 4, "end")])
        same(saved[-1][-1], state(model), 0)
    for expected, found in zip(*saved, strict=True):
        same(found, expected, 1e-4)


def padded():
    """A network that begins with a padding, as many of keras.applications do: the images are convolved nowhere."""
    layers = keras.layers
    inputs = keras.Input((24, 20, 3))
    x = layers.Conv2D(6, 7, strides=2, use_bias=False)(layers.ZeroPadding2D(3)(inputs))
    x = layers.ReLU()(layers.BatchNormalization()(x))
    x = layers.MaxPooling2D(3, 2)(layers.ZeroPadding2D(1)(x))
    x = layers.Add()([x, layers.Conv2D(6, 3, padding="same")(x)])
    x = layers.DepthwiseConv2D(3, strides=2)(layers.ZeroPadding2D(((0, 1), (0, 1)))(x))
    model = keras.Model(inputs, layers.Dense(5, activation="softmax")(layers.GlobalAveragePooling2D()(x)))
    model.compile(keras.optimizers.SGD(0.05, momentum=0.9), CROSSENTROPY)
    return model


@pytest.mark.full
def test_space_is_split_behind_a_padding():
    rng = np.random.default_rng(0)
    place = {**BATCH, "layout": "spatial"}
    check(padded, rng.standard_normal((16, 24, 20, 3)), rng.integers(0, 5, 16), places=[place])
    model = make_model(padded)
    step = tf.compat.v2.function(lambda x: model(x, training=False))
    with mtf_hetero.function(step, (tf.zeros([4, 24, 20, 3]),), **place) as divided:
        split = {name.rpartition("/")[2] for name, _ in divided.layout.rules}
    assert "height" in split
