"""metrics.jsonl: whole lines, each step once; and the hook that writes it, and times the steps alone."""

import errno
import json
import math
import os
import pathlib
from typing import Any

import numpy as np
import pytest

from mtf_hetero import Estimator, EstimatorSpec, RunConfig, tf
from mtf_hetero.estimator import metrics, metrics_log
from mtf_hetero.estimator.metrics import MetricsHook
from mtf_hetero.estimator.metrics_log import MetricsLog
from mtf_hetero.estimator.summaries import add_scalar_summary, scalar_summaries
from mtf_hetero.estimator.validation import ValidatingSaverHook
from mtf_hetero.training import pace


def read_rows(path):
    """Every line, whole, without the time."""
    text = path.read_text()
    assert not text or text.endswith("\n")
    return [{k: v for k, v in json.loads(line).items() if k != "time"} for line in text.splitlines()]


def begun(path, step):
    log = MetricsLog(path)
    log.begin(step)
    return log


def test_each_step_once(tmp_path):
    path = tmp_path / "runs" / "metrics.jsonl"
    log = begun(path, 0)
    for step in (10, 20, 30):
        log.append(
            "train", step, {"loss": np.float32(0.1), "speed": None, "bad": math.nan, "parts": {"a": np.int64(3)}}
        )
    log.append("test", 20, {"text": "a\nb"})
    log.append("train", 30, {"loss": 5.0})
    row = {"kind": "train", "loss": 0.1, "speed": None, "bad": None, "parts": {"a": 3}}
    tests = [{"kind": "test", "step": 20, "text": "a\nb"}]
    assert read_rows(path) == [row | {"step": step} for step in (10, 20, 30)] + tests
    again = begun(path, 20)  # step 30 was lost
    assert read_rows(path) == [row | {"step": step} for step in (10, 20)] + tests
    for step in (20, 30):
        again.append("train", step, {"loss": 1.0})
    assert read_rows(path) == [row | {"step": step} for step in (10, 20)] + tests + [
        {"kind": "train", "step": 30, "loss": 1.0}
    ]
    assert metrics_log.read(path)[-1]["loss"] == 1.0


@pytest.mark.parametrize(
    "torn",
    [b'{"kind": "train", "ste', b'{"kind": "train", "step": 2}', b"\x00\xff\n", b"[1]\n", b'{"step": "x"}\n', b"\n"],
)
def test_what_a_killed_process_left_is_cut_off(tmp_path, torn):
    path = tmp_path / "metrics.jsonl"
    begun(path, 0).append("train", 1, {})
    whole = path.read_bytes()
    path.write_bytes(whole + torn)
    assert [row["step"] for row in metrics_log.read(path)] == [1]
    begun(path, 5).append("train", 6, {})
    assert path.read_bytes().startswith(whole)
    assert [row["step"] for row in read_rows(path)] == [1, 6]


def test_a_full_disk_leaves_no_part_of_a_line(tmp_path, monkeypatch):
    path = tmp_path / "metrics.jsonl"
    log, write = begun(path, 0), os.write
    log.append("train", 1, {})
    with monkeypatch.context() as patched:
        patched.setattr(os, "write", lambda descriptor, line: write(descriptor, line[:5]))
        with pytest.raises(OSError, match=r"No space left on device.*metrics\.jsonl") as raised:
            log.append("train", 2, {})
    assert raised.value.errno == errno.ENOSPC
    assert [row["step"] for row in read_rows(path)] == [1]
    log.append("train", 2, {})
    assert [row["step"] for row in read_rows(path)] == [1, 2]


def test_the_first_steps_are_not_counted(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(pace.time, "monotonic", lambda: now[0])
    seen = pace.Pace()
    assert seen.steps_per_second is None

    def step(seconds, **options):
        seen.begin_step()
        now[0] += seconds
        seen.end_step(**options)
        now[0] += 50.0  # something else, a test for instance

    step(30.0)
    assert seen.steps_per_second == pytest.approx(1 / 30)
    step(2.0)
    assert seen.steps_per_second == pytest.approx(1 / 2)
    for _ in range(pace.WARM_UP_STEPS - 2):
        step(4.0)
    for seconds in (0.5, 1.5):
        step(seconds)
    step(9.0, counted=False)
    assert (seen.steps, seen.steps_per_second) == (2, 1.0)
    seen.begin_session()
    step(30.0)
    assert seen.steps_per_second == 1.0


def model_fn(features, mode):
    with tf.variable_scope("", use_resource=True):
        w = tf.get_variable("w", [], initializer=tf.zeros_initializer())
    loss = tf.square(w - tf.reduce_mean(features))
    add_scalar_summary("rate", tf.constant(0.25))
    step = tf.train.get_global_step()
    with tf.control_dependencies([w.assign(w - 0.25 * 2 * (w - 1.0))]):
        train_op = tf.assign_add(step, 1)
    return EstimatorSpec(mode, loss=loss, train_op=train_op)


def train(directory, steps, *hooks, **options):
    log = MetricsLog(directory / "metrics.jsonl")
    config = RunConfig(save_summary_steps=None, log_step_count_steps=None)
    hook = MetricsHook(log, str(directory), 4, every_steps=3, **options)
    return Estimator(model_fn, directory, config).train(
        lambda: tf.ones([4]), hooks=[hook, *hooks], max_steps=steps
    ), hook


def test_a_loss_in_float64_keeps_its_digits(own_graph):
    add_scalar_summary("exact", tf.constant(1 / 3, tf.float64))
    add_scalar_summary("short", tf.constant(1 / 3, tf.float16))
    tensors = scalar_summaries()
    with tf.Session() as session:
        assert session.run(tensors["exact"]) == 1 / 3
    assert (tensors["exact"].dtype, tensors["short"].dtype) == (tf.float64, tf.float32)


def read_events(directory):
    """{tag: {step: value}} of the events, as TensorBoard shows them: a start takes back what was beyond it."""
    values = {}
    for path in sorted(pathlib.Path(directory).glob("events.*"), key=lambda path: path.stat().st_mtime_ns):
        for event in tf.train.summary_iterator(str(path)):
            if event.session_log.status == tf.SessionLog.START:
                values = {tag: {s: v for s, v in each.items() if s < event.step} for tag, each in values.items()}
            for value in event.summary.value:
                values.setdefault(value.tag, {})[event.step] = value.simple_value
    return values


def test_a_resumed_training_has_each_row_once(tmp_path):
    busy: dict[str, Any] = {
        "busy_steps": 6,
        "busy": lambda metadata: {"step_seconds": 2.0, "busy_seconds": {"cpu:0": 1.0}},
    }
    train(tmp_path, 7, **busy)
    _, hook = train(tmp_path, 14, **busy)
    assert hook.pace.steps == 1  # of seven, five are the first, and one was looked at
    rows = read_rows(tmp_path / "metrics.jsonl")
    assert [(row["kind"], row["step"]) for row in rows] == [
        *(("train", 3), ("busy", 6), ("train", 6), ("train", 7)),
        *(("train", 9), ("train", 12), ("busy", 13), ("train", 14)),
    ]
    losses = {row["step"]: row["loss"] for row in rows if row["kind"] == "train"}
    assert losses == pytest.approx({step: 0.25 ** (step - 1) for step in losses})  # of the step, before its update
    assert {row["rate"] for row in rows if row["kind"] == "train"} == {0.25}
    assert [row["images_per_second"] is None for row in rows if row["kind"] == "train"] == [True, True, False] * 2
    events = read_events(tmp_path)
    assert events["loss"] == pytest.approx(losses)
    assert events["busy_seconds/cpu:0"] == {6: 1.0, 13: 1.0}
    assert set(events["images_per_second"]) == {7, 14}


@pytest.mark.parametrize(("seconds", "steps"), [(0.0, [6, 16, 26, 36]), (0.3, [6, 36])])
def test_devices_are_measured_by_the_clock_and_rarely_where_that_is_slow(seconds, steps, tmp_path, monkeypatch):
    """At most every 10 seconds, and at most 1 % of the time: a measurement of 0.3 seconds every 30."""
    now = [0.0]
    monkeypatch.setattr(metrics.time, "monotonic", lambda: now[0])

    def busy(metadata):
        now[0] += seconds
        return {"step_seconds": 1.0, "busy_seconds": {"cpu:0": 1.0}}

    class Clock(tf.train.SessionRunHook):
        def after_run(self, run_context, run_values):
            now[0] += 1.0

    train(tmp_path, 40, Clock(), busy=busy)
    rows = read_rows(tmp_path / "metrics.jsonl")
    assert [row["step"] for row in rows if row["kind"] == "busy"] == steps


def test_validation_at_steps_that_are_due(tmp_path):
    seen = []

    def evaluate(step, path):
        seen.append((step, os.path.basename(path), int(tf.train.load_variable(path, "global_step"))))

    def saver(*steps):
        return ValidatingSaverHook(str(tmp_path), save_secs=None, is_due=lambda step: step in steps, evaluate=evaluate)

    train(tmp_path, 5, saver(2, 5))
    assert seen == [(2, "model.ckpt-2", 2), (5, "model.ckpt-5", 5)]
    assert sorted(path.stem for path in tmp_path.glob("*.index")) == [f"model.ckpt-{step}" for step in (0, 2, 5)]
    train(tmp_path, 6, saver(5))  # as if it had been killed while it was evaluated
    assert seen[2:] == [(5, "model.ckpt-5", 5)]
