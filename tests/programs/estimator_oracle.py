"""A line to learn, y = 2 x, whose every step is known; shared by the tests of the Estimator."""

import time
from unittest import mock

import numpy as np
import pytest

from mtf_hetero._compat import tf
from mtf_hetero.estimator import Estimator, EstimatorSpec, ModeKeys, RunConfig, training
from mtf_hetero.estimator.hooks import read_global_step

X = np.arange(1, 9, dtype=np.float32)
LEARNING_RATE = 0.01


def line_model(features, labels, mode, params):
    """y = w x; one step from w is w - rate * mean(2 (w x - y) x)."""
    w = tf.get_variable("w", [], initializer=tf.zeros_initializer())
    y = w * features
    if mode == ModeKeys.PREDICT:
        return EstimatorSpec(mode, predictions={"y": y, "x": features})
    loss = tf.reduce_mean(tf.square(y - labels)) * params.get("loss_factor", 1.0)
    tf.summary.scalar("weight", w)
    if mode == ModeKeys.EVAL:
        return EstimatorSpec(mode, loss=loss, eval_metric_ops={"error": tf.metrics.mean_absolute_error(labels, y)})
    optimizer = tf.train.GradientDescentOptimizer(params.get("rate", LEARNING_RATE))
    return EstimatorSpec(mode, loss=loss, train_op=optimizer.minimize(loss, tf.train.get_global_step()))


def line_data(*, repeat=None, batch=4, count=8):
    return tf.data.Dataset.from_tensor_slices((X[:count], 2 * X[:count])).repeat(repeat).batch(batch)


def line_steps(w, steps, batch=4):
    for step in range(steps):
        x = np.roll(X, -batch * step)[:batch].astype(np.float64)
        w -= LEARNING_RATE * np.mean(2 * (w * x - 2 * x) * x)
    return w


def make(tmp_path, model_fn=line_model, params=None, **config):
    return Estimator(model_fn, tmp_path / "model", RunConfig(**config), params or {})


def trained_steps(estimator):
    return int(estimator.get_variable_value("global_step"))


def scalars(directory):
    """{tag: {step: value}} of all event files of a directory."""
    found = {}
    for path in sorted(directory.glob("events.out.tfevents.*")):
        for event in tf.train.summary_iterator(str(path)):
            for value in event.summary.value:
                found.setdefault(value.tag, {})[event.step] = value.simple_value
    return found


@pytest.fixture(scope="module")
def without_graph_optimizers():
    """TensorFlow's optimizers take a third of the time of a short training; the oracles of operations have them."""
    with mock.patch.multiple(training, MANY_OPERATIONS=0, MANY_IN_PAUSE=0):
        yield


class CountHook(tf.train.SessionRunHook):
    def __init__(self):
        self.count = 0

    def after_run(self, run_context, run_values):
        self.count += 1


class ActionHook(tf.train.SessionRunHook):
    """Calls functions after steps of a training, {number of steps: function}, each of them once."""

    def __init__(self, actions):
        self.actions = dict(actions)

    def begin(self):
        self.step = read_global_step()

    def before_run(self, run_context):
        return tf.train.SessionRunArgs(self.step)

    def after_run(self, run_context, run_values):
        action = self.actions.pop(int(run_values.results) + 1, None)
        if action is not None:
            action()


def await_wanted(elastic):
    """Wait until the training is to continue elsewhere."""
    end = time.monotonic() + 60
    while not elastic.is_wanted:
        assert time.monotonic() < end
        time.sleep(0.1)


def log_lines(monkeypatch):
    """The lines that tf.logging is given from now on, whatever its verbosity."""
    lines = []
    for level in ("info", "warning", "error"):
        monkeypatch.setattr(tf.logging, level, lambda text, *values: lines.append(text % values if values else text))
    return lines
