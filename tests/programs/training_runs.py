"""Runs of the training binary, in this process and in one of their own."""

import dataclasses
import functools
import os
import pathlib
import re
import signal
import subprocess
import sys
import threading
import time
from unittest import mock

import numpy as np
import pytest
from absl.testing import flagsaver
from estimator_oracle import ActionHook
from small_volumes import TOYS

from mtf_hetero import tf
from mtf_hetero.cli.train import __main__ as train
from mtf_hetero.cli.train import prepare, training
from mtf_hetero.data import known
from mtf_hetero.estimator import metrics_log
from mtf_hetero.models.registry import MODELS

ROOT = pathlib.Path(__file__).resolve().parents[2]
CPUS = "cpu:0,cpu:1,cpu:2"
FAST = {
    "model": "lenet",
    "devices": CPUS,
    "batch_size": 50,
    "max_steps": 2,
    "optimizer": "sgd",
    "learning_rate_schedule": "constant",
    "log_steps": 10,
}
ONE = FAST | {"devices": "cpu:0"}


@pytest.fixture
def restored_logging():
    verbosity = tf.logging.get_verbosity()
    yield
    tf.logging.set_verbosity(verbosity)


DATASETS = {name: functools.cache(load) for name, load in known.DATASETS.items()}  # whose statistics are computed once


def run(**values):
    """Runs the binary in this process; returns its exit code."""
    with flagsaver.flagsaver(), mock.patch.object(known, "DATASETS", DATASETS):
        return train.main([f"--{name}={value}" for name, value in values.items()])


def call(command, **values):
    """Runs one of the programs that use a trained model; returns its exit code."""
    with mock.patch.object(known, "DATASETS", DATASETS):
        return command.main([f"--{name}={value}" for name, value in values.items()], "mtf-hetero")


def check_mistake(capfd, message, program=run, **values):
    """Asserts that a program says one line about a mistake, and ends with exit code 2."""
    capfd.readouterr()
    try:
        code = program(**values)
    except SystemExit as end:  # of a parser of flags
        code = end.code
    out, err = capfd.readouterr()
    assert (code, out, err.count("\n")) == (2, "", 1), err
    assert err.startswith("error: ") and message in err, err


def act(monkeypatch, actions):
    """Has trainings of this process call functions of their Training after steps, {number of steps: function}."""
    hooks = training.Training._hooks

    def with_actions(self, metrics):
        bound = {step: functools.partial(action, self) for step, action in actions.items()}
        return [*hooks(self, metrics), ActionHook(bound)]

    monkeypatch.setattr(training.Training, "_hooks", with_actions)


@pytest.fixture
def toys(monkeypatch):
    """Networks for volumes that are lowered in no time; a program of its own has the real ones."""
    toys = {name: dataclasses.replace(MODELS[name], build=build) for name, build in TOYS.items()}
    monkeypatch.setattr(prepare, "MODELS", {**MODELS, **toys})


def start(*args, **kwargs):
    """Starts the binary."""
    environment = {key: value for key, value in os.environ.items() if not key.startswith("TF_CPP")}
    command = [sys.executable, "-m", "models.train", *args]
    streams = {"stderr": subprocess.PIPE, **kwargs}
    return subprocess.Popen(command, cwd=ROOT, env=environment, text=True, preexec_fn=_heed_interrupts, **streams)


def _heed_interrupts():
    # Where the tests run in the background, a shell has set SIGINT to be ignored, and children inherit that.
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def variables(model_dir):
    """The values in the last checkpoint."""
    path = tf.train.latest_checkpoint(str(model_dir))
    return {name: tf.train.load_variable(path, name) for name, _ in tf.train.list_variables(path)}


def check_variables(directory, expected, *, rtol=0.0, atol=0.0):
    """Asserts that the last checkpoint has these values."""
    found = variables(directory)
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, rtol=rtol, atol=atol, err_msg=name)


def read_rows(directory, *kinds):
    """The rows of metrics.jsonl."""
    rows = metrics_log.read(directory / metrics_log.NAME)
    return [row for row in rows if not kinds or row["kind"] in kinds]


def read_losses(directory):
    """{step: loss}."""
    return {row["step"]: row["loss"] for row in read_rows(directory, "train")}


def read_test(directory):
    """The metrics of the run's own test."""
    row = read_rows(directory)[-1]
    assert row.pop("kind") == "test" and row.pop("step")
    return {name: value for name, value in row.items() if name != "time"}


class Reader:
    """Reads what a process prints, as it comes."""

    def __init__(self, stream):
        self.lines = []
        self._news = threading.Condition()
        self._thread = threading.Thread(target=self._read, args=(stream,), daemon=True)
        self._thread.start()

    def _read(self, stream):
        for line in stream:
            with self._news:
                self.lines.append(line)
                self._news.notify_all()

    def join(self, seconds=60):
        """Wait until nobody writes any more; the stream may then be closed."""
        self._thread.join(seconds)

    def await_line(self, pattern, first=0, seconds=120):
        """The index of the first line from `first` on in which the pattern is."""
        end = time.monotonic() + seconds
        with self._news:
            while True:
                found = [i for i, line in enumerate(self.lines) if i >= first and re.search(pattern, line)]
                if found:
                    return found[0]
                left = end - time.monotonic()
                assert left > 0, f"no {pattern!r} within {seconds} s in {''.join(self.lines[first:])}"
                self._news.wait(left)
