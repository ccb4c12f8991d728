"""`mtf_hetero.keras.fit` is `model.fit`: optimizers, data, callbacks, frozen layers; a layout changes no result."""

import math

import keras
import numpy as np
import pytest
from fit_oracle import BATCH, FILTERS, PLACES, check, images, make_model, network, same, state
from keras_oracle import floatx

import mtf_hetero.keras
from mtf_hetero import Layout, tf

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


class Sequence(keras.utils.PyDataset):
    """Batches of four of all images."""

    def __init__(self, x, y):
        super().__init__()
        self.x, self.y = x, y

    def __len__(self):
        return math.ceil(len(self.x) / 4)

    def __getitem__(self, index):
        return self.x[4 * index : 4 * index + 4], self.y[4 * index : 4 * index + 4]


@pytest.mark.full
def test_data_of_all_kinds():
    x, y = images()
    check(compiled(), x, y, shuffle=True, validation_split=0.3, places=[BATCH])
    check(compiled(), Sequence(x, y), batch_size=None, places=[FILTERS])
    weighted = tf.data.Dataset.from_tensor_slices((x, y, np.linspace(0, 2, len(x)))).batch(5).repeat()
    check(compiled(), weighted, batch_size=None, steps_per_epoch=3, places=[BATCH])


@pytest.mark.full
def test_frozen_layers_stay_as_they_are():
    def make():
        model = network()
        for layer in model.layers[:-1]:
            layer.trainable = False
        model.compile("adam", CROSSENTROPY, metrics=["accuracy"])
        return model

    with floatx(tf.float64):
        before = [np.asarray(v) for v in make_model(make).variables]
    weights = {0: 1.0, 1: 2.0, 2: 0.5, 3: 1.0, 4: 3.0}
    for model in check(make, *images(16), places=[BATCH], class_weight=weights):
        after = [np.asarray(v) for v in model.variables]
        assert [np.array_equal(a, b) for a, b in zip(after, before, strict=True)] == [True] * 5 + [False] * 2


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


@pytest.mark.full
def test_steps_per_execution():
    check(compiled(steps_per_execution=2), *images(25), places=[BATCH])


@pytest.mark.full
def test_layouts_by_rules_and_by_themselves():
    devices = "cpu:0,cpu:1"
    rules = {"devices": devices, "layout": "dense/kernel/1:all", "list_speed": "3,1"}
    layout = Layout("a:2;b:1", "batch:a;conv2d/kernel/3:b", sizes={"batch": [6, 2]})
    check(compiled(), *images(), places=[rules, {"devices": devices, "layout": layout}])


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
