"""Runs of the training binary, in this process and in one of their own."""

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

import pytest
from absl.testing import flagsaver

from mtf_hetero import data, tf
from mtf_hetero.cli.train import __main__ as train

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


DATASETS = {name: functools.cache(load) for name, load in data.DATASETS.items()}  # whose statistics are computed once


def run(**values):
    """Runs the binary in this process; returns its exit code."""
    with flagsaver.flagsaver(), mock.patch.object(data, "DATASETS", DATASETS):
        return train.main([f"--{name}={value}" for name, value in values.items()])


def call(command, **values):
    """Runs one of the programs that use a trained model; returns its exit code."""
    return command.main([f"--{name}={value}" for name, value in values.items()], "mtf-hetero")


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
