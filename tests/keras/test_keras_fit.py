"""`mtf_hetero.keras.fit` is `model.fit`: optimizers, data, weights of examples, callbacks, frozen layers."""

import math
from typing import Any

import keras
import numpy as np
import pytest
import tiers
from fit_oracle import BATCH, FILTERS, ONE, PLACES, check, images, make_model, network, same, state
from keras_oracle import floatx

import mtf_hetero.keras
from mtf_hetero import Layout, tf

CROSSENTROPY = "sparse_categorical_crossentropy"
OPTIMIZERS = {
    "sgd": lambda: keras.optimizers.SGD(0.1),
    "momentum": lambda: keras.optimizers.SGD(0.1, momentum=0.9),
    "nesterov": lambda: keras.optimizers.SGD(0.1, momentum=0.9, nesterov=True, weight_decay=0.01),
    "adam": lambda: keras.optimizers.Adam(0.01),
    "amsgrad": lambda: keras.optimizers.Adam(0.01, beta_1=0.8, epsilon=1e-4, amsgrad=True),
    "rmsprop centered": lambda: keras.optimizers.RMSprop(0.01, momentum=0.5, centered=True),
    "adagrad": lambda: keras.optimizers.Adagrad(0.05),
    "adadelta": lambda: keras.optimizers.Adadelta(0.5),
    "adamax": lambda: keras.optimizers.Adamax(0.01),
    "ftrl": lambda: keras.optimizers.Ftrl(0.1, l1_regularization_strength=0.01),
    "lion": lambda: keras.optimizers.Lion(0.001),
    "nadam": lambda: keras.optimizers.Nadam(0.01),
    "loss scale": lambda: keras.optimizers.SGD(0.1, momentum=0.9, loss_scale_factor=7.0),
    "averages": lambda: keras.optimizers.SGD(0.1, use_ema=True, ema_momentum=0.7),
    "all of it": lambda: keras.optimizers.Nadam(
        0.01, gradient_accumulation_steps=2, use_ema=True, ema_overwrite_frequency=3, weight_decay=0.1, clipnorm=0.05
    ),
    "global clipnorm": lambda: keras.optimizers.Adam(0.01, global_clipnorm=0.1),
    "clipvalue": lambda: keras.optimizers.SGD(0.5, momentum=0.9, clipvalue=0.02),
    "schedule": lambda: keras.optimizers.SGD(keras.optimizers.schedules.ExponentialDecay(0.5, 2, 0.5)),
    "cosine": lambda: keras.optimizers.Adam(keras.optimizers.schedules.CosineDecay(0.01, 5)),
}
ELSEWHERE = ("sgd", "momentum", "adam", "cosine")  # optimizers that other tests train with


def compiled(optimizer="sgd", **options):
    def make():
        model = network(**options)
        model.compile(OPTIMIZERS[optimizer](), CROSSENTROPY, metrics=["accuracy"])
        return model

    return make


@pytest.mark.full
@pytest.mark.parametrize("name", [name for name in OPTIMIZERS if name not in ELSEWHERE])
def test_optimizers(name):
    """Updates are slice by slice, but where they clip by a norm. Averages are also what is tested."""
    places = PLACES if name == "global clipnorm" else [FILTERS]
    validated = {"validation_data": images(8, seed=1)} if name in ("averages", "all of it") else {}
    check(compiled(name), *images(16), epochs=3, places=places, **validated)


def test_it_is_what_keras_does():
    check(compiled("adam"), *images(), places=[ONE, FILTERS])


@pytest.mark.full
@pytest.mark.parametrize("name", ["momentum", "adam", "cosine", "all of it"])
def test_a_second_fit_goes_on(name):
    check(compiled(name), *images(16), epochs=3, again=True)


@pytest.mark.full
def test_what_weight_decay_leaves_out():
    def make():
        model = network()
        optimizer = keras.optimizers.AdamW(0.01, weight_decay=0.3)
        optimizer.exclude_from_weight_decay(var_names=["bias", "gamma", "beta"])
        model.compile(optimizer, CROSSENTROPY)
        return model

    check(make, *images())


@pytest.mark.full
@pytest.mark.parametrize(
    ("regularizer", "places"),
    [
        (keras.regularizers.L1(0.02), [FILTERS]),
        (keras.regularizers.L2(0.03), [FILTERS]),
        (keras.regularizers.L1L2(0.01, 0.02), PLACES),
    ],
)
def test_regularizers(regularizer, places):
    check(compiled("momentum", kernel_regularizer=regularizer), *images(), validation_split=0.3, places=places)


class Odd(keras.constraints.Constraint):
    """A constraint that no slice of a weight can compute alone."""

    def __call__(self, w):
        largest: Any = keras.ops.max(keras.ops.abs(w))
        return w * keras.ops.minimum(1.0, 0.3 / largest)


CONSTRAINTS = {
    "not negative": keras.constraints.NonNeg(),
    "max norm": keras.constraints.MaxNorm(0.4),
    "norms of filters": keras.constraints.MinMaxNorm(0.3, 0.5, rate=0.8, axis=[0, 1, 2]),
    "unit norm": keras.constraints.UnitNorm(axis=-1),
    "of one's own": Odd(),
}


@tiers.parametrize("name", CONSTRAINTS, first=["max norm"])
def test_constraints(name):
    constraint = CONSTRAINTS[name]
    of_dense = keras.constraints.MaxNorm(0.5, axis=1) if "filters" in name else constraint

    def make():
        x = inputs = keras.Input((6, 6, 3))
        x = keras.layers.Conv2D(7, 3, kernel_constraint=constraint)(x)
        x = keras.layers.DepthwiseConv2D(3, depth_multiplier=2, depthwise_constraint=constraint)(x)
        x = keras.layers.Dense(5, activation="softmax", kernel_constraint=of_dense)(keras.layers.Flatten()(x))
        model = keras.Model(inputs, x)
        model.compile(keras.optimizers.SGD(0.5, momentum=0.9), CROSSENTROPY)
        return model

    check(make, *images(16))


@pytest.mark.full
def test_regularizers_of_what_layers_give():
    def make():
        x = inputs = keras.Input((6, 6, 3))
        x = keras.layers.Conv2D(7, 3, activity_regularizer=keras.regularizers.L1L2(0.01, 0.02))(x)
        x = keras.layers.Flatten(activity_regularizer="l1")(x)
        dense = keras.layers.Dense(4, activity_regularizer="l2")
        inner = keras.Sequential([keras.Input((4,)), dense, keras.layers.ActivityRegularization(l2=0.1)])
        x = keras.layers.Dense(5, activation="softmax")(inner(dense(keras.layers.Dense(4)(x))))
        model = keras.Model(inputs, x)
        model.compile("adam", CROSSENTROPY)
        return model

    check(make, *images(), validation_data=images(9, seed=1))


@pytest.mark.full
def test_examples_are_shuffled_as_keras_does():
    x, y = images()
    check(compiled("adam"), x, y, shuffle=True, class_weight={0: 1.0, 1: 2.0, 2: 0.5, 3: 1.0, 4: 3.0}, places=[BATCH])


@pytest.mark.full
def test_weights_of_examples():
    x, y = images()
    weights = np.random.default_rng(1).uniform(0.1, 2, len(x))

    def make():
        model = network()
        model.compile("sgd", CROSSENTROPY, metrics=["accuracy"], weighted_metrics=["accuracy"])
        return model

    check(make, x, y, sample_weight=weights, validation_data=(x[:9], y[:9], weights[:9]))


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
    check(compiled(), tf.data.Dataset.from_tensor_slices((x, y)).batch(5), batch_size=None, places=[FILTERS])
    check(compiled(), Sequence(x, y), batch_size=None, places=[FILTERS])
    weighted = tf.data.Dataset.from_tensor_slices((x, y, np.linspace(0, 2, len(x)))).batch(5).repeat()
    check(compiled(), weighted, batch_size=None, steps_per_epoch=3, places=[BATCH])


def test_a_tuple_of_arrays():
    x, y = images()
    one, other = (make_model(compiled()) for _ in range(2))
    options = {"batch_size": 8, "shuffle": False, "verbose": 0, **ONE}
    mtf_hetero.keras.fit(one, (x, y), **options)
    mtf_hetero.keras.fit(other, x, y, **options)
    same(state(one), state(other), 0)


def test_frozen_layers_stay_as_they_are():
    def make():
        model = network()
        for layer in model.layers[:-1]:
            layer.trainable = False
        model.compile("adam", CROSSENTROPY, metrics=["accuracy"])
        return model

    with floatx(tf.float64):
        before = [np.asarray(v) for v in make_model(make).variables]
    for model in check(make, *images(), places=[BATCH]):
        after = [np.asarray(v) for v in model.variables]
        assert [np.array_equal(a, b) for a, b in zip(after, before, strict=True)] == [True] * 5 + [False] * 2


def callbacks():
    return [
        keras.callbacks.ReduceLROnPlateau(monitor="loss", factor=0.3, patience=1, min_delta=10.0),
        keras.callbacks.EarlyStopping(monitor="val_loss", patience=2, restore_best_weights=True),
    ]


@pytest.mark.full
def test_callbacks_change_what_is_trained():
    x, y = images()
    check(compiled("momentum"), x, y, validation_data=(x, (y + 1) % 5), epochs=6, callbacks=callbacks, places=[FILTERS])


@pytest.mark.full
def test_weights_that_a_callback_changes_are_taken_over():
    class Halve(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            trained: Any = self.model
            kernel = trained.layers[-1].kernel
            kernel.assign(kernel / 2)

    check(compiled("momentum"), *images(), callbacks=lambda: [Halve()], epochs=3)


@pytest.mark.full
def test_callbacks_that_write(tmp_path):
    x, y = images()
    model = make_model(compiled("adam"))
    path = str(tmp_path / "best.keras")
    mtf_hetero.keras.fit(
        model,
        x,
        y,
        epochs=3,
        batch_size=8,
        verbose=0,
        validation_data=(x, y),
        callbacks=[
            keras.callbacks.CSVLogger(str(tmp_path / "log.csv")),
            keras.callbacks.ModelCheckpoint(path),
        ],
        **BATCH,
    )
    assert len((tmp_path / "log.csv").read_text().splitlines()) == 4
    saved = keras.models.load_model(path)
    same(state(saved), state(model), 0)


@pytest.mark.full
def test_what_is_saved_within_an_epoch(tmp_path):
    saved = []
    for train in (keras.Model.fit, mtf_hetero.keras.fit):
        path = tmp_path / f"{len(saved)}"
        model = make_model(compiled("adam"))
        callback = keras.callbacks.ModelCheckpoint(f"{path}-{{batch}}.keras", save_freq=2)
        place = BATCH if saved else {}
        train(model, *images(33), batch_size=8, shuffle=False, verbose=0, callbacks=[callback], **place)
        saved.append([state(keras.models.load_model(f"{path}-{batch}.keras")) for batch in (2, 4)])
    for expected, found in zip(*saved, strict=True):
        same(found, expected, 1e-4)


@pytest.mark.full
def test_steps_per_execution():
    def make():
        model = network()
        model.compile("sgd", CROSSENTROPY, steps_per_execution=2)
        return model

    check(make, *images(25), places=[BATCH])


@pytest.mark.full
def test_mixed_precision():
    def make():
        half = {"dtype": "mixed_bfloat16"}
        x = inputs = keras.Input((6, 6, 3), dtype="float32")
        x = keras.layers.BatchNormalization(**half)(keras.layers.Conv2D(7, 3, activation="tanh", **half)(x))
        x = keras.layers.Dense(5, **half)(keras.layers.Flatten(**half)(x))
        model = keras.Model(inputs, keras.layers.Activation("softmax", dtype="float32")(x))
        model.compile("sgd", CROSSENTROPY)
        return model

    x, y = images(16)
    check(make, x.astype("float32"), y, tolerance=0.05)  # bfloat16 has three digits


@pytest.mark.full
def test_layouts_by_rules_and_by_themselves():
    devices = "cpu:0,cpu:1"
    rules = {"devices": devices, "layout": "dense/kernel/1:all", "list_speed": "3,1"}
    layout = Layout("a:2;b:1", "batch:a;conv2d/kernel/3:b", sizes={"batch": [6, 2]})
    check(compiled("adam"), *images(), places=[rules, {"devices": devices, "layout": layout}])


@pytest.mark.full
def test_dropout_is_that_of_keras():
    def make():
        inputs = keras.Input((6, 6, 3))
        x = keras.layers.Dropout(0.5)(keras.layers.Conv2D(7, 3)(inputs))
        model = keras.Model(inputs, keras.layers.Dense(5)(keras.layers.Flatten()(x)))
        model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
        return model

    check(make, *images())
