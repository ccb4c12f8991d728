"""Several training steps in one call of the session: the numbers are those of single steps, to the bit."""

import dataclasses
import os
import re
import signal
import threading

import numpy as np
import pytest
from estimator_oracle import ActionHook, line_data, line_steps, log_lines, make, scalars, trained_steps
from estimator_oracle import without_graph_optimizers as without_graph_optimizers
from tiers import losing_workers, parametrize
from uneven_estimator import BATCH, LAYOUTS, X, Y, estimator, model_fn

import mtf_hetero
from mtf_hetero import Estimator, RunConfig, tf
from mtf_hetero.estimator import Elastic, Place, looping, tpu
from mtf_hetero.estimator.inputs import hold_updates
from mtf_hetero.estimator.looping import LoopHook
from mtf_hetero.estimator.progress import ProgressHook

STEPS = 14  # three calls of four, and one of two


class Watch(tf.train.SessionRunHook):
    """Notes the loss and the global step that each call fetches."""

    def __init__(self):
        self.seen = []

    def begin(self):
        self.loss = tf.get_collection("mtf_hetero_loss")[-1]
        self.step = tf.get_collection("global_step_read_op_cache")[0]

    def before_run(self, run_context):
        return tf.train.SessionRunArgs({"step": self.step, "loss": [self.loss]})

    def after_run(self, run_context, run_values):
        self.seen.append((int(run_values.results["step"]), float(run_values.results["loss"][0])))


def data(count=None):
    """Batches, and perhaps their end."""
    batches = tf.data.Dataset.from_tensor_slices((X, Y)).batch(BATCH.size, drop_remainder=True).repeat()
    return batches if count is None else batches.take(count)


def train(model_dir, loop, layout="three", params=None, count=None, **options):
    """Train, and return what each call has seen, and all values in the end."""
    watch = Watch()
    made = estimator(layout, model_dir, params=params, iterations_per_loop=loop, **options)
    made.train(lambda: data(count), hooks=[watch], max_steps=STEPS)
    return watch.seen, {name: made.get_variable_value(name) for name in made.get_variable_names()}


CASES = [
    ("three", None, {"noisy": True}),
    ("four", 11, {"noisy": True}),
    ("batch", 9, {}),
    ("one", 9, {"optimizer": "sgd"}),
    ("three", 11, {"optimizer": "adam", "dtype": tf.float32}),
    ("four", None, {"optimizer": "adafactor", "dtype": tf.float32}),
]


@parametrize(("layout", "count", "params"), CASES, first=CASES[:2])
def test_steps_of_a_call_are_those_steps(layout, count, params, tmp_path):
    """The data may end within a call: the steps before their end are taken."""
    single, expected = train(tmp_path / "single", 1, layout, params, count)
    seen, found = train(tmp_path / "loop", 4, layout, params, count)
    steps = [3, 7, 11, 13] if count is None else [3, 7]
    rounding = 1e-5 if "dtype" in params else 0.0  # TensorFlow's products in float32 may add in another order
    assert [step for step, _ in seen] == steps
    assert [loss for _, loss in seen] == pytest.approx([single[step][1] for step in steps], rel=rounding, abs=rounding)
    assert int(found["global_step"]) == (count or STEPS)
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, rounding, rounding, err_msg=name)


@pytest.mark.full
def test_a_training_goes_on_from_a_checkpoint_between(tmp_path):
    """Checkpoints lie between two calls; the second training is on another layout."""
    estimator("two", tmp_path / "single").train(data, max_steps=10)
    _, expected = train(tmp_path / "single", 1)
    made = estimator("two", tmp_path / "loop", iterations_per_loop=4, save_checkpoints_steps=3, keep_checkpoint_max=0)
    made.train(data, max_steps=10)
    saved = sorted(int(path.stem.split("-")[1]) for path in (tmp_path / "loop").glob("model.ckpt-*.index"))
    assert saved == [0, 4, 8, 10]
    _, found = train(tmp_path / "loop", 4)
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, 1e-12, 1e-12, err_msg=name)


def random_model(features, labels, mode):
    """A line, with noise whose operation has a state of its own."""
    w = tf.get_variable("w", [], initializer=tf.zeros_initializer())
    loss = tf.reduce_mean(tf.square(w * features - labels + tf.random.normal([4])))
    train_op = tf.train.GradientDescentOptimizer(0.01).minimize(loss, tf.train.get_global_step())
    return mtf_hetero.EstimatorSpec(mode, loss=loss, train_op=train_op)


def test_random_numbers_with_a_state_keep_steps_single(tmp_path, monkeypatch):
    watch, lines = Watch(), log_lines(monkeypatch)
    make(tmp_path, random_model, iterations_per_loop=4).train(lambda: line_data(), hooks=[watch], steps=6)
    assert [step for step, _ in watch.seen] == list(range(6))
    message = "a call takes 1: the step has operations with a state of their own, RandomStandardNormal"
    assert lines.count(f"iterations_per_loop is 4, but {message}") == 1


def test_an_error_within_a_call_leaves_the_steps_before_it(own_graph):
    data = tf.data.Dataset.range(10).map(lambda x: 1 // (6 - x) + 1)  # the seventh is an error
    early, late = (tf.Variable(np.int64(0), name=name) for name in ("early", "late"))
    counted = tf.assign_add(tf.train.create_global_step(), 1)
    batch = tf.data.make_one_shot_iterator(data).get_next()
    step = tf.group(early.assign_add(1), late.assign_add(batch * 0 + 1), counted)
    hold_updates(step)
    loop = LoopHook(4, [step], [])
    loop.begin()
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        loop.after_create_session(session, tf.train.Coordinator())
        session.run(step)
        with pytest.raises(tf.errors.InvalidArgumentError):
            session.run(step)
        assert session.run([early, late, tf.train.get_global_step()]) == [6, 6, 6]


def test_a_call_has_only_so_many_operations(tmp_path, monkeypatch):
    lines, watch = log_lines(monkeypatch), Watch()
    monkeypatch.setattr(looping, "MOST_OPERATIONS", 100)
    make(tmp_path, iterations_per_loop=50).train(lambda: line_data(), hooks=[watch], steps=6)
    (line,) = (line for line in lines if line.startswith("iterations_per_loop is 50, but a call takes "))
    (most, size) = map(int, re.fullmatch(r".*takes (\d+): a step has (\d+) operations, .* at most 100", line).groups())
    assert most == 100 // size > 1
    assert [step for step, _ in watch.seen] == [min(n + most, 6) - 1 for n in range(0, 6, most)]


def test_hooks_are_called_for_each_call(tmp_path, monkeypatch):
    """Summaries, the progress and a hook that stops after so many steps are of the last step of a call."""

    def watch(loop):
        lines, shown = log_lines(monkeypatch), []
        config = {"save_summary_steps": 1, "log_step_count_steps": 2, "iterations_per_loop": loop}
        made = make(tmp_path / str(loop), **config)
        stop = tf.train.StopAtStepHook(num_steps=6)
        made.train(lambda: line_data(), hooks=[stop, ProgressHook(4, 6, log_step_count_steps=2, report=shown.append)])
        assert made.get_variable_value("w") == pytest.approx(line_steps(0.0, 6), rel=1e-5)
        assert any(line.startswith("trained to step 6, loss ") for line in lines)
        steps = [int(re.search(r"step (\d+)", line)[1]) for line in shown]
        return steps, scalars(tmp_path / str(loop) / "model")

    (steps, single), (loop_steps, found) = watch(1), watch(4)
    assert (steps, loop_steps) == ([2, 4, 6], [4, 6])
    assert found["loss"] == {step: single["loss"][step] for step in (4, 6)}


class Feed(tf.train.SessionRunHook):
    """Feeds the rate of each call, and fetches a variable after the training operation."""

    def begin(self):
        self.fetched, self.rate, self.seen = tf.get_collection("after")[0], tf.get_collection("rate")[0], []

    def before_run(self, run_context):
        return tf.train.SessionRunArgs(self.fetched, {self.rate: 0.5})

    def after_run(self, run_context, run_values):
        self.seen.append(float(run_values.results))


def fed_model(features, mode):
    """A variable that grows by a rate, and an operation that waits for the update."""
    w, rate = tf.get_variable("w", [], initializer=tf.zeros_initializer()), tf.placeholder_with_default(9.0, [])
    train_op = tf.group(w.assign_add(rate), tf.assign_add(tf.train.get_global_step(), 1))
    with tf.control_dependencies([train_op]):
        tf.add_to_collection("after", w.read_value())
    tf.add_to_collection("rate", rate)
    return mtf_hetero.EstimatorSpec(mode, loss=tf.reduce_sum(features), train_op=train_op)


def test_a_hook_feeds_all_steps_and_fetches_of_the_last(tmp_path):
    feed = Feed()
    make(tmp_path, fed_model, iterations_per_loop=4).train(lambda: tf.data.Dataset.range(10), hooks=[feed], steps=10)
    assert feed.seen == [2.0, 4.0, 5.0]


@pytest.mark.parametrize("number", [0, 2.5])
def test_a_wrong_number_of_steps_is_refused(number, tmp_path):
    with pytest.raises(ValueError, match=f"^iterations_per_loop is {number}; it must be a positive whole number$"):
        make(tmp_path, iterations_per_loop=number)


@pytest.mark.parametrize(
    ("config", "number"),
    [
        ({}, 1),
        ({"tpu_config": tpu.TPUConfig(num_shards=2)}, 1),
        ({"tpu_config": tpu.TPUConfig(3)}, 3),
        ({"tpu_config": tpu.TPUConfig(), "iterations_per_loop": 4}, 4),
    ],
)
def test_the_number_of_a_tpu_config_is_used(config, number):
    made = dataclasses.replace(tpu.RunConfig(**config), model_dir="unused")
    assert made.iterations_per_loop == number == made.tpu_config.iterations_per_loop


def test_a_tpu_config_of_another_number_is_refused():
    message = "^iterations_per_loop is 4, but that of tpu_config is 3; give one of the two$"
    with pytest.raises(ValueError, match=message):
        tpu.RunConfig(tpu_config=tpu.TPUConfig(3), iterations_per_loop=4)
    with pytest.raises(ValueError, match="^iterations_per_loop is 0; it must be a positive whole number$"):
        tpu.RunConfig(tpu_config=tpu.TPUConfig(0))


KILL, STOP = signal.SIGKILL, signal.SIGSTOP


@losing_workers
@pytest.mark.full
@pytest.mark.usefixtures("impatient", "without_graph_optimizers")
@pytest.mark.parametrize(("seconds", "how"), [(0.0, KILL), (0.004, KILL), (0.004, STOP)])
def test_a_worker_is_lost_in_a_call(seconds, how, workers, tmp_path):
    """The training goes on with the others, with what an undisturbed one has."""
    _, expected = train(tmp_path / "single", 1, "one", {"noisy": True})

    def place(layout, tasks):
        devices = tuple(device for device in workers.cluster.devices if any(f"task:{n}" in device for n in tasks))
        cluster = dataclasses.replace(workers.cluster, devices=devices)
        options = {"workers": cluster.workers_in_use, "master": cluster.target, "wait_for_workers": 1}
        options |= {"session_config": cluster.session_config(), "save_checkpoints_steps": 4, "iterations_per_loop": 4}
        params = {"layout": LAYOUTS[layout], "devices": devices, "noisy": True}
        return Estimator(model_fn, str(tmp_path / "loop"), RunConfig(**options), params)

    def lose():
        threading.Timer(seconds, os.kill, [workers.pids[1], how]).start()

    events = []
    elastic = Elastic(without=lambda lost: Place(place("two", (0, 2)), data), report=events.append)
    made = place("three", (0, 1, 2))
    try:
        made.train(data, hooks=[ActionHook({4: lose})], max_steps=STEPS, elastic=elastic)
    finally:
        workers.restart(1)
    assert len(events) == 1
    assert trained_steps(made) == STEPS
    for name, value in expected.items():
        np.testing.assert_allclose(made.get_variable_value(name), value, 1e-12, 1e-12, err_msg=name)
