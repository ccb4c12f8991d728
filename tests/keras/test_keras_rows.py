"""Several steps in one call of the session: Keras's `steps_per_execution` gives what Keras gives, in fewer calls."""

import os
import signal

import keras
import numpy as np
import pytest
from batch_oracle import Blind, Undisturbed
from fit_oracle import BATCH, FILTERS, ONE, Noise, check, images, make_model, network, same, state
from keras_oracle import floatx
from tiers import losing_workers

import mtf_hetero.keras
from mtf_hetero import tf
from mtf_hetero.importer import lowered

STEPS = 3  # in a row
EXECUTIONS = (8 * STEPS) * 3 + 8 + 3  # images of three executions, of a batch more, and of a smaller batch


def compiled(steps=STEPS):
    def make():
        x = inputs = keras.Input((6, 6, 3))
        x = network(0.3).layers[1](Noise()(x))
        x = keras.layers.Dropout(0.4, seed=5)(keras.layers.BatchNormalization()(x))
        x = keras.layers.Dense(5, activation="softmax")(keras.layers.GlobalAveragePooling2D()(x))
        model = keras.Model(inputs, x)
        rate = keras.optimizers.schedules.ExponentialDecay(0.02, 3, 0.7)
        optimizer = keras.optimizers.Adam(rate, global_clipnorm=1.0, use_ema=True, ema_overwrite_frequency=4)
        loss, metrics = "sparse_categorical_crossentropy", ["accuracy", "sparse_categorical_crossentropy"]
        model.compile(optimizer, loss, metrics=metrics, steps_per_execution=steps)
        return model

    return make


@pytest.mark.parametrize("place", [ONE, BATCH, pytest.param(FILTERS, marks=pytest.mark.full)])
def test_rows_are_those_steps(place, calls):
    check(compiled(), *images(EXECUTIONS), places=[place], epochs=3, validation_data=images(41, seed=1))
    assert calls.count(STEPS) == 3 * 3 - 1 + 3 - 2  # executions of trainings and of tests, but for the first ones


def test_one_execution_is_one_call(calls):
    x, y = images(8 * STEPS * 4)
    model = make_model(compiled())
    options = {"batch_size": 8, "shuffle": False, "verbose": 0, "epochs": 2}
    ended = []
    each = keras.callbacks.LambdaCallback(on_train_batch_end=lambda batch, logs: ended.append(len(calls)))
    mtf_hetero.keras.fit(model, x, y, callbacks=[each], **options, **BATCH)
    assert calls == [1] * STEPS + [STEPS] * 7
    assert ended == [STEPS + number for number in range(8)]


@pytest.mark.full
def test_steps_in_a_row_are_the_same_bits():
    results = []
    for steps in (1, STEPS):
        model = make_model(compiled(steps))
        options = {"batch_size": 8, "shuffle": False, "verbose": 0, "epochs": 3}
        history = mtf_hetero.keras.fit(model, *images(EXECUTIONS), **options, **BATCH)
        results.append((history.history, state(model)))
    for found, expected in zip(results[1], results[0], strict=True):
        same(found, expected, 0)


def recurrent():
    inputs = keras.Input((7, 3))
    x = keras.layers.LSTM(5, recurrent_dropout=0.2, seed=1)(inputs)
    x = keras.layers.Dense(2)(x)
    model = keras.Model(inputs, x)
    model.compile(keras.optimizers.RMSprop(0.01), "mse", steps_per_execution=STEPS)
    return model


@pytest.mark.full
def test_loops_in_a_row(calls):
    rng = np.random.default_rng(0)
    check(recurrent, rng.standard_normal((8 * 9, 7, 3)), rng.standard_normal((8 * 9, 2)), places=[BATCH])
    assert STEPS in calls


@pytest.mark.full
def test_test_and_prediction_in_a_row(calls):
    x, y = images(8 * STEPS * 3 + 5)
    with floatx(tf.float64):
        model = make_model(compiled())
        expected = model.evaluate(x, y, batch_size=8, verbose=0)
        found = mtf_hetero.keras.evaluate(model, x, y, batch_size=8, verbose=0, **BATCH)
        np.testing.assert_allclose(found, expected, 1e-9)
        assert STEPS in calls
        calls.clear()
        expected = model.predict(x, batch_size=8, verbose=0)
        found = mtf_hetero.keras.predict(model, x, batch_size=8, verbose=0, **BATCH)
        np.testing.assert_allclose(found, expected, 1e-9)
        assert STEPS in calls


@pytest.mark.full
@pytest.mark.parametrize("limit", ["_MOST_OPERATIONS", "_MOST_BYTES"])
def test_rows_that_would_be_too_large_are_shorter(limit, calls, monkeypatch):
    monkeypatch.setattr(lowered, limit, {"_MOST_OPERATIONS": 2, "_MOST_BYTES": 2 * 8 * 6 * 6 * 3 * 8 + 999}[limit])
    monkeypatch.setattr(lowered.Row, "size", 1)
    check(compiled(5), *images(8 * 5 * 3), places=[BATCH])
    assert set(calls) == {1, 2}


@pytest.mark.full
def test_an_error_of_the_data_comes_after_the_steps_before_it():
    x, y = images(8 * 5)

    def batches():
        yield from ((x[first : first + 8], y[first : first + 8]) for first in range(0, len(x), 8))
        raise RuntimeError("no more")

    counts = []
    for fit in (keras.Model.fit, mtf_hetero.keras.fit):
        model = make_model(compiled())
        with pytest.raises(Exception, match="no more"):
            fit(model, batches(), shuffle=False, verbose=0, **({} if fit is keras.Model.fit else BATCH))
        counts.append(int(model.optimizer.iterations))
    assert counts[0] == counts[1] == 5


UNDISTURBED = Undisturbed(
    compiled(), *images(8 * STEPS * 4 + 8), epochs=2, batch_size=8, shuffle=False, verbose=0
)  # five calls of callbacks in an epoch


@losing_workers
@pytest.mark.full
@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("after", [1, 3, 5, 7])
def test_a_worker_is_lost_between_executions(workers, elastic_place, after, calls):
    UNDISTURBED.check(Blind, {after: lambda: os.kill(workers.pids[1], signal.SIGKILL)}, **elastic_place)
    assert STEPS in calls


@losing_workers
@pytest.mark.full
@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("seconds", [0.0, 0.002, 0.01])
def test_a_worker_is_lost_within_an_execution(seconds, check_loss_in_a_call):
    check_loss_in_a_call(UNDISTURBED, Blind, STEPS, seconds)
