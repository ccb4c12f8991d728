"""`mtf_hetero.keras.fit` continues without a lost worker: each batch has the logs of an undisturbed training."""

import os
import re
import signal
import threading

import keras
import pytest
from batch_oracle import Blind, Undisturbed
from estimator_oracle import log_lines
from fit_oracle import Noise, images, make_model, network, same, state
from tiers import losing_workers

import mtf_hetero.keras
from mtf_hetero.cluster import UnreachableWorkerError
from mtf_hetero.training import Policy, Runtime

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


UNDISTURBED = Undisturbed(compiled, *images(48), validation_data=images(9, seed=1), **OPTIONS)


def check(workers, acts, kind=Blind, **place):
    """Assert that a training, in which something is done after some batches, gives what Keras gives."""
    place = {"workers": workers.addresses, "layout": "batch", "list_speed": "4,2,1", "wait_for_workers": 1} | place
    UNDISTURBED.check(kind, acts, **place)


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
@pytest.mark.parametrize("returns", [True, False])
def test_a_worker_is_lost_before_the_first_step(returns, workers, lines, monkeypatch):
    begin = Runtime.open

    def lose_and_open(session, *values):
        monkeypatch.setattr(Runtime, "open", begin)
        lose(workers)
        if returns:
            threading.Timer(1.0, workers.restart, [1]).start()
        begin(session, *values)

    monkeypatch.setattr(Runtime, "open", lose_and_open)
    check(workers, {}, wait_for_workers=60 if returns else 1)
    said = "all workers answer again; training" if returns else "training begins without worker 1"
    assert sum(said in line for line in lines) == 1 and sum(" is gone: " in line for line in lines) == 1


@losing_workers
@pytest.mark.full
@pytest.mark.usefixtures("impatient", "lines")
@pytest.mark.parametrize("how", LOST)
def test_a_loss_that_is_not_waited_for_is_one_line_and_leaves_the_weights_of_the_epoch(how, workers):
    kept, model, data = {}, make_model(compiled), images()

    def lose_once(epoch, logs):
        if epoch == 0:
            kept.update(state(model))
            lose(workers, how)

    callback = keras.callbacks.LambdaCallback(on_epoch_end=lose_once)
    place = {"workers": workers.addresses, "layout": "batch", "wait_for_workers": False}
    message = "a worker was lost .* weights of the last complete epoch.*worker 1"
    with pytest.raises(UnreachableWorkerError, match=message):
        mtf_hetero.keras.fit(model, *data, callbacks=[callback], **OPTIONS | {"epochs": 3}, **place)
    same(state(model), kept, 0)
    model.evaluate(*data, verbose=0)


THREE_BATCHES = 4 * 3 * 8 * 6 * 6 * 3 * 8  # bytes of which a quarter may be used for them
LOSSES = {  # the layout, how a worker is lost, after which batch, the share of time for copies, and the event
    "all have all variables": ("batch", "killed", 9, 1e-9, (9, 0)),
    "from the end of an epoch": ("filters", "stopped", 9, 1e-9, (6, 3)),
    "a copy after each step": ("filters", "killed", 9, 1e9, (9, 0)),
    "batches beyond the memory": ("filters", "killed", 11, 1e-9, (9, 2)),
    "a callback that looks": ("batch", "killed", 9, 1e-9, (9, 0)),  # all weights are brought to this process
}


@losing_workers
@pytest.mark.full
@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("name", LOSSES)
def test_training_continues_without_a_lost_worker(name, workers, lines, monkeypatch):
    layout, how, batch, share, expected = LOSSES[name]
    monkeypatch.setattr("mtf_hetero.checkpoint.pace._SHARE", share)
    if name == "batches beyond the memory":
        monkeypatch.setattr("mtf_hetero.training.steps.free_bytes", lambda: THREE_BATCHES)
    check(workers, {batch: lambda: lose(workers, how)}, Looking if "callback" in name else Blind, layout=layout)
    assert event(lines) == expected
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
def test_a_worker_that_is_started_again_is_awaited(workers, lines):
    def restart():
        lose(workers)
        workers.restart(1)

    check(workers, {9: restart}, wait_for_workers="forever")
    assert "all workers answer again; training continues" in lines


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"wait_for_workers": "soon"}, "wait_for_workers is 'soon'; write seconds, such as 60, or forever"),
        ({"wait_for_workers": -1}, "wait_for_workers is -1; it must be zero or a positive number"),
        ({"min_workers": 0}, "min_workers is 0; it must be a positive whole number"),
    ],
)
def test_a_wrong_patience_is_refused(options, message):
    with pytest.raises(ValueError, match=f"^{message}$"):
        Policy.parse(**{"wait_for_workers": 60, "min_workers": 1, "rebalance": "auto"} | options)
