"""A thread that TensorFlow computes in when Python ends does not abort the process."""

import subprocess
import sys
import time

import pytest

TRACING = """
import time
from mtf_hetero import tf
from mtf_hetero._support import threads

def trace():
    while True:
        with tf.Graph().as_default():
            x = tf.random.uniform([3, 3])
            for _ in range(30):
                x = tf.matmul(x, x)
            tf.gradients(x, x)

threads.begin(trace, "planning")
time.sleep(1)
"""
WAITING = """
import threading
from mtf_hetero._support import command_line, threads
threads.begin(threading.Event().wait, "session_closer")
"""


@pytest.mark.full
@pytest.mark.parametrize("number", range(6))
def test_a_thread_that_builds_a_graph_ends_before_python(number):
    """Without the wait, three of eight such processes ended with SIGABRT."""
    done = subprocess.run([sys.executable, "-c", TRACING], capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(
    ("end", "least", "most"), [pytest.param("", 5, 60, marks=pytest.mark.full), ("command_line.leave(3)", 0, 5)]
)
def test_a_thread_that_waits_is_not_waited_for_long(end, least, most):
    """A program's own process does not wait at all."""
    begin = time.monotonic()
    done = subprocess.run([sys.executable, "-c", WAITING + end], timeout=120, check=False)
    assert done.returncode == (3 if end else 0)
    assert least <= time.monotonic() - begin < most
