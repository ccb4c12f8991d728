"""A session is kept for the next call of the same place, which takes over whatever was changed in the model."""

import copy
import dataclasses
import gc
import pickle
import types
import weakref

import keras
import numpy as np
import pytest
from fit_oracle import BATCH, FILTERS, ONE, Noise, images, make_model, network, same, state
from keras_oracle import floatx
from tiers import on_workers

import mtf_hetero.keras
from mtf_hetero import tf
from mtf_hetero.keras import keeping
from mtf_hetero.placement import placer
from mtf_hetero.training import Runtime

DATA = images()
OPTIONS = {"batch_size": 8, "shuffle": False, "verbose": 0}
LOSS = "sparse_categorical_crossentropy"


@pytest.fixture
def opened(monkeypatch):
    """The sessions that were opened, one item each."""
    sessions, plain = [], Runtime.open
    monkeypatch.setattr(Runtime, "open", lambda self, *values: (sessions.append(self), plain(self, *values))[1])
    return sessions


class Ours:
    """Keras's functions, as mtf_hetero has them at a place."""

    def __init__(self, place):
        self._place = place

    def fit(self, *data, **options):
        return mtf_hetero.keras.fit(*data, **options, **self._place)

    def evaluate(self, *data, **options):
        return mtf_hetero.keras.evaluate(*data, **options, **self._place)

    def predict(self, *data, **options):
        return mtf_hetero.keras.predict(*data, **options, **self._place)


def compiled():
    x = inputs = keras.Input((6, 6, 3))
    x = keras.layers.Conv2D(7, 3, use_bias=False)(Noise()(x))
    x = keras.layers.Dropout(0.3, seed=5)(keras.layers.BatchNormalization()(x))
    model = keras.Model(inputs, keras.layers.Dense(5, activation="softmax")(keras.layers.GlobalAveragePooling2D()(x)))
    model.compile(keras.optimizers.Adam(0.01), LOSS, metrics=["accuracy"])
    return model


def plain():
    model = network()
    model.compile("adam", LOSS)
    return model


def one_batch_fits(model, keras_or_ours):
    """Fits of a batch each; between them all is changed that a program may change. Returns what each has logged."""
    x, y = DATA
    logs, options = [], {"verbose": 0, "shuffle": False}
    for number, rows in enumerate([8, 8, 8, 5, 1, 8, 8]):
        more = {"validation_data": (x[:3], y[:3])} if number == 2 else {}
        logs.append(keras_or_ours.fit(model, x[:rows], y[:rows], batch_size=rows, **options, **more).history)
        if number == 0:
            model.set_weights([0.9 * w for w in model.get_weights()])
        if number == 1:
            model.optimizer.learning_rate = 0.002
            model.optimizer.variables[2].assign(model.optimizer.variables[2] + 0.01)
        if number in (3, 5):
            logs.append({"p": keras_or_ours.predict(model, x, batch_size=8, verbose=0)})
            logs.append(keras_or_ours.evaluate(model, x, y, batch_size=8, verbose=0, return_dict=True))
    return logs


@pytest.mark.full
@pytest.mark.parametrize(("place", "steps"), [(ONE, 2), (BATCH, 1), (FILTERS, 2)])
def test_fits_of_one_batch_equal_kerass(place, steps, opened):
    def make():
        model = compiled()
        model.compile(keras.optimizers.Adam(0.01), LOSS, metrics=["accuracy"], steps_per_execution=steps)
        return model

    with floatx(tf.float64):
        reference, model = make_model(make), None
        expected = one_batch_fits(reference, keras.Model)
        model = make_model(make)
        found = one_batch_fits(model, Ours(place))
        for one, other in zip(found, expected, strict=True):
            same(one, other, 1e-9)
        same(state(model), state(reference), 1e-9)
    assert len(opened) == 1


def test_keras_may_train_the_model_between_two_fits(opened):
    def train(keras_or_ours):
        model = make_model(plain)
        for each in keras_or_ours, keras.Model, keras_or_ours:
            each.fit(model, *DATA, **OPTIONS)
        return state(model)

    with floatx(tf.float64):
        same(train(Ours(BATCH)), train(keras.Model), 1e-9)
    assert len(opened) == 1


def make_gan():
    dense, leaky = keras.layers.Dense, keras.layers.LeakyReLU
    discriminator = keras.Sequential([keras.Input((6,)), dense(7), leaky(), dense(1, activation="sigmoid")])
    discriminator.compile(keras.optimizers.Adam(0.01), "binary_crossentropy", metrics=["accuracy"])
    generator = keras.Sequential([keras.Input((4,)), dense(5), leaky(), keras.layers.BatchNormalization(), dense(6)])
    latent = keras.Input((4,))
    return generator, discriminator, keras.Model(latent, discriminator(generator(latent)))


def train_gan(parts, keras_or_ours):
    """Train both parts of a GAN in turns, as tutorials do; returns the losses."""
    generator, discriminator, combined = parts
    rng, losses, options = np.random.default_rng(0), [], {"batch_size": 8, "verbose": 0, "shuffle": False}
    for number in range(4):
        noise, real = rng.standard_normal((4, 4)), rng.standard_normal((4, 6))
        x = np.concatenate([real, keras_or_ours.predict(generator, noise, verbose=0)])
        losses += keras_or_ours.fit(discriminator, x, np.repeat([[1.0], [0.0]], 4, 0), **options).history["loss"]
        if number == 0:
            discriminator.trainable = False
            combined.compile(keras.optimizers.Adam(0.01), "binary_crossentropy")
        losses += keras_or_ours.fit(combined, noise, np.ones((4, 1)), **options).history["loss"]
    return losses


@pytest.mark.full
@pytest.mark.parametrize("place", [ONE, BATCH, FILTERS])
def test_models_that_share_layers_exchange_weights(place, opened):
    with floatx(tf.float64):
        parts = make_model(make_gan)
        losses = train_gan(parts, keras.Model)
        ours = make_model(make_gan)
        np.testing.assert_allclose(train_gan(ours, Ours(place)), losses, rtol=1e-9)
        for part, reference in zip(ours[1:], parts[1:], strict=True):
            same(state(part), state(reference), 1e-9)
    assert len(opened) == 3


@pytest.mark.full
def test_a_session_ends_where_the_place_or_the_traces_do(opened):
    with floatx(tf.float64):
        model, speeds = make_model(plain), {**BATCH, "list_speed": [1, 1, 1]}
        for place, count in [(ONE, 1), (ONE, 1), (BATCH, 2), (BATCH, 2), (speeds, 3), (FILTERS, 4), (FILTERS, 4)]:
            mtf_hetero.keras.fit(model, *DATA, **OPTIONS, **place)
            assert len(opened) == count
        model.compile("adam", LOSS)
        mtf_hetero.keras.fit(model, *DATA, **OPTIONS, **FILTERS)
        assert len(opened) == 5
        reference = make_model(plain)
        for _ in range(7):
            reference.fit(*DATA, **OPTIONS)
        reference.compile("adam", LOSS)
        reference.fit(*DATA, **OPTIONS)
        same(state(model), state(reference), 1e-9)


@pytest.mark.full
@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_an_error_ends_the_session(error, opened):
    def fail(batch, logs):
        raise error

    with floatx(tf.float64):
        model = make_model(plain)
        mtf_hetero.keras.fit(model, *DATA, **OPTIONS, **BATCH)
        callback = keras.callbacks.LambdaCallback(on_train_batch_end=fail)
        with pytest.raises(error):
            mtf_hetero.keras.fit(model, *DATA, **OPTIONS, **BATCH, callbacks=[callback])
        assert keeping._ATTRIBUTE not in vars(model)
        mtf_hetero.keras.fit(model, *DATA, **OPTIONS, **BATCH)
        assert len(opened) == 2
        reference = make_model(plain)
        reference.fit(*DATA, **OPTIONS)
        reference.fit(DATA[0][:8], DATA[1][:8], **OPTIONS)
        reference.fit(*DATA, **OPTIONS)
        same(state(model), state(reference), 1e-9)


@pytest.mark.full
def test_a_call_within_a_call_has_a_session_of_its_own(opened):
    def test(epoch, logs):
        logs["tested"] = evaluate(model, *DATA, batch_size=8, verbose=0)

    with floatx(tf.float64):
        model, evaluate = make_model(plain), keras.Model.evaluate
        callback = keras.callbacks.LambdaCallback(on_epoch_end=test)
        expected = [model.fit(*DATA, **OPTIONS, epochs=2, callbacks=[callback]).history for _ in range(2)]
        model, evaluate = make_model(plain), Ours(BATCH).evaluate
        for history in expected:
            found = mtf_hetero.keras.fit(model, *DATA, **OPTIONS, epochs=2, callbacks=[callback], **BATCH)
            same(found.history, history, 1e-9)
    assert len(opened) == 3  # the second epoch's test continues the first one's; the second fit continues the first


@pytest.mark.full
def test_a_session_ends_with_its_model():
    model = make_model(plain)
    mtf_hetero.keras.fit(model, *DATA, **OPTIONS, **BATCH)
    divided = weakref.ref(vars(model)[keeping._ATTRIBUTE].divided)
    del model
    keras.backend.clear_session()
    gc.collect()
    assert divided() is None


@pytest.mark.full
def test_copies_of_a_model_have_no_session(tmp_path, opened):
    model = make_model(plain)
    mtf_hetero.keras.fit(model, *DATA, **OPTIONS, **BATCH)
    model.save(tmp_path / "model.keras")
    copies = [
        copy.deepcopy(model),
        copy.copy(model),
        pickle.loads(pickle.dumps(model)),
        keras.models.clone_model(model),
        keras.models.load_model(tmp_path / "model.keras"),
    ]
    assert all(vars(each).get(keeping._ATTRIBUTE) is None for each in copies)
    assert copy.deepcopy(vars(model)[keeping._ATTRIBUTE]) is None
    mtf_hetero.keras.fit(copies[0], *DATA, **OPTIONS, **BATCH)
    assert len(opened) == 2
    before = copies[2].predict(DATA[0], verbose=0)
    np.testing.assert_allclose(mtf_hetero.keras.predict(model, DATA[0], verbose=0, **BATCH), before, rtol=1e-5)


@pytest.mark.full
@pytest.mark.parametrize(("name", "value"), [("_MOST_SESSIONS", 2), ("_MEMORY_SHARE", 0.0)])
def test_the_oldest_sessions_end_if_there_are_too_many(name, value, monkeypatch):
    gc.collect()
    monkeypatch.setattr(keeping, "_waiting", [])
    monkeypatch.setattr(keeping, name, value)
    models = [make_model(plain) for _ in range(3)]
    for model in [*models, models[1]]:
        mtf_hetero.keras.fit(model, *DATA, **OPTIONS, **ONE)
    kept = [vars(model)[keeping._ATTRIBUTE].divided is not None for model in models]
    assert kept == ([False, True, True] if name == "_MOST_SESSIONS" else [False] * 3)


@pytest.mark.full
@pytest.mark.parametrize("is_measured", [True, False])
def test_devices_are_measured_once_for_a_batch(is_measured, opened, monkeypatch):
    """Without figures of the devices, a longer training is placed anew."""
    place, placed = placer.place, []
    machines = types.SimpleNamespace(names=BATCH["devices"])

    def measure(request, *arguments, **options):
        placed.append(options["search"].steps)
        found = place(dataclasses.replace(request, layout="batch", list_speed=[4, 2, 1]), *arguments, **options)
        shown = {"warning": "", "lines": (), "headline": "", "allows_any_layout": False, "machines": machines}
        return dataclasses.replace(found, choice=types.SimpleNamespace(**shown, is_measured=is_measured))

    monkeypatch.setattr(placer, "place", measure)
    automatic = {"devices": BATCH["devices"], "rebalance": "off"}
    model, (x, y) = make_model(plain), DATA
    for rows in [8, 8, 16, 8]:
        mtf_hetero.keras.fit(model, x[:rows], y[:rows], **OPTIONS, **automatic)
    assert placed == ([1] if is_measured else [1, 2])
    mtf_hetero.keras.fit(model, x[:16], y[:16], **{**OPTIONS, "batch_size": 16}, **automatic)
    assert placed == ([1, 1] if is_measured else [1, 2])
    assert len(opened) == len(placed)


@on_workers
@pytest.mark.full
def test_sessions_on_workers_end_with_the_call(workers, opened):
    place = {"workers": workers.addresses, "layout": "batch", "list_speed": "4,2,1"}
    model = make_model(plain)
    for count in (1, 2):
        mtf_hetero.keras.fit(model, *DATA, **OPTIONS, **place)
        assert len(opened) == count
        assert keeping._ATTRIBUTE not in vars(model)
