"""`mtf_hetero.keras.fit` continues without a lost worker: each batch has the logs of an undisturbed training."""

import functools
import os
import re
import signal
import threading

import keras
import pytest
from estimator_oracle import await_wanted, log_lines
from fit_oracle import Noise, images, make_model, network, same, state
from keras_oracle import floatx
from tiers import losing_workers

import mtf_hetero.keras
from mtf_hetero import tf
from mtf_hetero.estimator import Elastic
from mtf_hetero.keras import callbacks as callbacks_lib
from mtf_hetero.keras import course, fitting

LOST = {"killed": signal.SIGKILL, "stopped": signal.SIGSTOP}
OPTIONS = {"epochs": 2, "batch_size": 8, "shuffle": False, "verbose": 0}
BATCHES = 12


def compiled():
    x = inputs = keras.Input((6, 6, 3))
    x = network().layers[1](Noise()(x))
    x = keras.layers.Dropout(0.4, seed=5)(keras.layers.BatchNormalization()(x))
    x = keras.layers.Dense(5, activation="softmax")(keras.layers.GlobalAveragePooling2D()(x))
    model = keras.Model(inputs, x)
    rate = keras.optimizers.schedules.ExponentialDecay(0.02, 3, 0.7)
    model.compile(keras.optimizers.Adam(rate), "sparse_categorical_crossentropy", metrics=["accuracy"])
    return model


class Blind(keras.callbacks.Callback):
    """Notes the logs of each batch, and acts after some, without a look at weights."""

    def __init__(self, acts=None):
        super().__init__()
        self.logs, self.acts = [], acts or {}

    def on_train_batch_end(self, batch, logs=None):
        self.logs.append(dict(logs))
        self.acts.get(len(self.logs), int)()


class Looking(Blind):
    """The same, and changes weights after some batches."""

    def on_train_batch_begin(self, batch, logs=None):
        if batch == 4:
            kernel = self.model.layers[2].kernel
            kernel.assign(0.9 * kernel)


class InTests(Blind):
    """The same, but acts before batches of the validation."""

    def __init__(self, acts=None):
        super().__init__()
        self.tests, self.acts_in_tests = 0, acts or {}

    def on_test_batch_begin(self, batch, logs=None):
        self.tests += 1
        self.acts_in_tests.get(self.tests, int)()


@pytest.fixture(autouse=True)
def blind(monkeypatch):
    monkeypatch.setattr(callbacks_lib, "_BLIND", (*callbacks_lib._BLIND, Blind))


@functools.cache
def undisturbed(kind):
    """The logs of each batch, those of each epoch, and the last values, as Keras trains."""
    with floatx(tf.float64):
        model, callback = make_model(compiled), kind()
        history = model.fit(*images(48), validation_data=images(9, seed=1), callbacks=[callback], **OPTIONS)
        return callback.logs, history.history, state(model)


def check(workers, acts, kind=Blind, **place):
    """Assert that a training, in which something is done after some batches, gives what Keras gives."""
    logs, history, last = undisturbed(kind)
    callback = kind(acts)
    place = {"workers": workers.addresses, "layout": "batch", "list_speed": "4,2,1", "wait_for_workers": 1} | place
    with floatx(tf.float64):
        model = make_model(compiled)
        found = mtf_hetero.keras.fit(
            model, *images(48), validation_data=images(9, seed=1), callbacks=[callback], **OPTIONS, **place
        )
        assert len(callback.logs) == len(logs) == BATCHES
        for batch, expected in enumerate(logs):
            same(callback.logs[batch], expected, 1e-12)
        same(found.history, history, 1e-12)
        same(state(model), last, 1e-9)


@pytest.fixture
def lines(workers, monkeypatch):
    """The lines of the log; in the end, all workers are back."""
    yield log_lines(monkeypatch)
    workers.restart(1)


def lose(workers, how="killed", number=1):
    os.kill(workers.pids[number], LOST[how])


def event(lines):
    """Return the step from which training continues, and the number of steps that are taken again."""
    (line,) = (line for line in lines if "training continues from step" in line)
    found = re.search(r"was lost: training continues from step (\d+) \(memory(, (\d+) steps again)?\)", line)
    return int(found[1]), int(found[3] or 0)


@losing_workers
@pytest.mark.full
@pytest.mark.usefixtures("impatient", "lines")
@pytest.mark.parametrize("layout", ["batch", "filters"])
@pytest.mark.parametrize("batch", [1, 2])
def test_training_continues_after_a_loss_in_its_validation(layout, batch, workers):
    """The session there begins with a test, and the devices write variables for the first time afterwards."""
    check(workers, {batch: lambda: lose(workers)}, InTests, layout=layout)


@losing_workers
@pytest.mark.full
@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize(("layout", "how"), [("batch", "killed"), ("filters", "stopped")])
def test_training_continues_without_a_lost_worker(layout, how, workers, lines, monkeypatch):
    monkeypatch.setattr("mtf_hetero.checkpoint.pace._SHARE", 1e-9)  # no copy is due
    check(workers, {9: lambda: lose(workers, how)}, layout=layout)
    # the devices that are left have all variables, or those of the end of the first epoch are in memory
    assert event(lines) == {"batch": (9, 0), "filters": (6, 3)}[layout]
    assert sum(" is gone: " in line for line in lines) == 1


@losing_workers
@pytest.mark.full
@pytest.mark.parametrize("seconds", [0.003, 0.03])
def test_a_worker_is_lost_in_the_middle_of_a_step(seconds, workers, lines):
    check(workers, {7: lambda: threading.Timer(seconds, lose, [workers]).start()})
    first, again = event(lines)
    assert 7 <= first + again < BATCHES


@losing_workers
@pytest.mark.full
def test_training_continues_with_measured_devices(workers, lines):
    """One of them may be fastest alone. Training then continues on another one."""
    check(workers, {9: lambda: lose(workers)}, layout="filters", list_speed="auto")


@losing_workers
@pytest.mark.full
def test_steps_are_taken_again_from_the_last_copy(workers, lines, monkeypatch):
    monkeypatch.setattr("mtf_hetero.checkpoint.pace._SHARE", 1e9)  # after each step
    check(workers, {9: lambda: lose(workers)}, layout="filters")
    assert event(lines) == (9, 0)


@losing_workers
@pytest.mark.full
def test_batches_that_take_too_much_memory_are_not_kept(workers, lines, monkeypatch):
    monkeypatch.setattr("mtf_hetero.checkpoint.pace._SHARE", 1e-9)  # no copy is due
    monkeypatch.setattr("mtf_hetero.keras.course.free_bytes", lambda: 4 * 3 * 8 * 6 * 6 * 3 * 8)  # of three batches
    check(workers, {11: lambda: lose(workers)}, layout="filters")
    assert event(lines) == (9, 2)


@losing_workers
@pytest.mark.full
def test_what_a_callback_changes_is_kept(workers, lines):
    check(workers, {9: lambda: lose(workers)}, Looking)
    assert event(lines) == (9, 0)  # a callback that looks has all weights brought to this process


@losing_workers
@pytest.mark.full
def test_a_worker_that_is_started_again_is_awaited(workers, lines):
    def restart():
        lose(workers)
        workers.restart(1)

    check(workers, {9: restart}, wait_for_workers="forever")
    assert "all workers answer again; training continues" in lines


@losing_workers
@pytest.mark.full
def test_a_worker_that_answers_again_is_taken_in(workers, lines, monkeypatch):
    monkeypatch.setattr("mtf_hetero.estimator.elastic._LOOK_SECONDS", 0.2)
    made = []
    monkeypatch.setattr(course, "Elastic", lambda **options: made.append(Elastic(**options)) or made[-1])

    def restart():
        workers.restart(1)
        await_wanted(made[0])

    check(workers, {3: lambda: lose(workers), 8: restart})
    said = f"worker 1 ({workers.addresses[1]}) answers again: training continues from step 8 (memory) after"
    assert any(line.startswith(said) for line in lines)


@losing_workers
@pytest.mark.full
def test_two_workers_are_lost_one_after_the_other(workers, lines):
    try:
        check(workers, {4: lambda: lose(workers), 8: lambda: lose(workers, number=2)})
    finally:
        workers.restart(2)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"wait_for_workers": "soon"}, "wait_for_workers is 'soon'; write seconds, such as 60, 'forever' or False"),
        ({"wait_for_workers": -1}, "wait_for_workers is -1; it must be zero or a positive number"),
        ({"min_workers": 0}, "min_workers is 0; it must be a positive whole number"),
    ],
)
def test_a_wrong_patience_is_refused(options, message):
    with pytest.raises(ValueError, match=f"^{message}$"):
        fitting._policy(**{"wait_for_workers": 60, "min_workers": 1, "rebalance": "auto"} | options)
