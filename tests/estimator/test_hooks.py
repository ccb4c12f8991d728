"""The hooks of the training loop: signals, progress, NaN."""

import os
import signal
import threading

import numpy as np
import pytest
from estimator_oracle import ActionHook, line_data, log_lines, make, trained_steps

from mtf_hetero._compat import tf
from mtf_hetero.estimator import EstimatorSpec


@pytest.fixture(name="log")
def _log(monkeypatch):
    return log_lines(monkeypatch)


def test_nan_loss_raises_and_is_not_saved(tmp_path, log):
    def input_fn():
        x = np.where(np.arange(16) < 10, 1.0, np.nan).astype(np.float32)  # the third batch has the first NaN
        return tf.data.Dataset.from_tensor_slices((x, x)).batch(4)

    estimator = make(tmp_path, save_checkpoints_steps=1)
    with pytest.raises(tf.train.NanLossDuringTrainingError):
        estimator.train(input_fn, steps=50)
    assert trained_steps(estimator) == 2 and np.isfinite(estimator.get_variable_value("w"))


@pytest.fixture
def interruptible():
    """A shell ignores SIGINT for tests in the background."""
    previous = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, previous)


def counting(features, mode, params):
    """Counts its steps; params["stuck"]: begins one that never ends."""
    w = tf.get_variable("w", [], initializer=tf.zeros_initializer())
    train_op = tf.group(w.assign_add(1.0), tf.train.get_global_step().assign_add(1))
    loss = features
    if params.get("stuck"):
        with tf.control_dependencies([tf.FIFOQueue(1, tf.float32).dequeue()]):
            loss = tf.identity(loss)
    return EstimatorSpec(mode, loss=loss, train_op=train_op)


@pytest.mark.parametrize(
    ("number", "ending"),
    [(signal.SIGINT, KeyboardInterrupt), (signal.SIGTERM, SystemExit), (signal.SIGHUP, SystemExit)],
)
def test_a_signal_in_this_process_ends_the_step_and_saves(interruptible, tmp_path, number, ending):
    before = signal.getsignal(number)
    estimator, hook = make(tmp_path, counting), ActionHook({3: lambda: signal.raise_signal(number)})
    with pytest.raises(ending) as caught:
        estimator.train(lambda: tf.constant(1.0), hooks=[hook])
    assert ending is KeyboardInterrupt or caught.value.code == 128 + number
    assert signal.getsignal(number) is before
    assert trained_steps(estimator) == estimator.get_variable_value("w") == 3
    assert estimator.train(lambda: tf.constant(1.0), max_steps=5).get_variable_value("w") == 5


def test_a_second_signal_interrupts_a_step_that_is_stuck(interruptible, tmp_path, monkeypatch):
    log = log_lines(monkeypatch)
    heard = threading.Event()

    def warning(text, *values):
        log.append(text % values)
        if log[-1].startswith("SIGINT"):
            heard.set()

    def twice():
        os.kill(os.getpid(), signal.SIGINT)
        heard.wait(60)
        os.kill(os.getpid(), signal.SIGINT)

    class Begin(tf.train.SessionRunHook):
        def before_run(self, run_context):
            thread.start()

    monkeypatch.setattr(tf.logging, "warning", warning)
    thread = threading.Thread(target=twice)
    estimator = make(tmp_path, counting, {"stuck": True})
    with pytest.raises(KeyboardInterrupt):
        estimator.train(lambda: tf.constant(1.0), hooks=[Begin()])
    thread.join()
    first, second = [line for line in log if line.startswith("SIGINT")]
    assert first.startswith("SIGINT: finishing this step and saving a checkpoint; press Ctrl-C again")
    assert second == "SIGINT again: stopping at once"
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    assert trained_steps(estimator) == 0


def test_outside_of_the_main_thread(tmp_path):
    estimator = make(tmp_path)
    thread = threading.Thread(target=estimator.train, args=(line_data,), kwargs={"steps": 2})
    thread.start()
    thread.join()
    assert trained_steps(estimator) == 2


def test_a_step_reads_its_own_number(tmp_path):
    """The model does not say whether its learning rate or the addition to the global step comes first."""

    def summing(features, mode):
        w, step = tf.get_variable("w", [], initializer=tf.zeros_initializer()), tf.train.get_global_step()
        reads = [tf.cast(step.read_value(), tf.float32) for _ in range(9)]
        added = [tf.assign_add(w, read) for read in reads]
        train_op = tf.group(tf.assign_add(step, 1), *added)
        return EstimatorSpec(mode, loss=tf.reduce_sum(features), train_op=train_op)

    estimator = make(tmp_path, summing).train(
        lambda: tf.data.Dataset.from_tensors(np.ones(2, np.float32)).repeat(), steps=40
    )
    assert estimator.get_variable_value("w") == 9 * sum(range(40))
