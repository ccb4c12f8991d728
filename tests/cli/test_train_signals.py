"""The training binary and the signals that end it."""

import fcntl
import os
import pty
import re
import signal
import subprocess
import sys
import termios
import time

import psutil
import pytest
from tiers import parametrize
from training_runs import ONE, ROOT, Reader, start

from mtf_hetero import tf

ENDLESS = {**ONE, "max_steps": 100_000, "train_epochs": 10_000}


def make_flags(**options):
    return [f"--{name}={value}" for name, value in options.items()]


@parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGHUP, 129)], first=[(signal.SIGTERM, 143)])
def test_a_signal_before_the_first_step_is_one_line(number, code):
    with start(*make_flags(**ENDLESS), stdout=subprocess.DEVNULL) as process:
        try:
            end = time.monotonic() + 120
            while not any("tensorflow" in file.path for file in psutil.Process(process.pid).memory_maps()):
                assert process.poll() is None and time.monotonic() < end
            process.send_signal(number)
            _, error = process.communicate(timeout=120)
        finally:
            process.kill()
    assert process.returncode == code
    assert error == "stopped: nothing was trained\n"


def on_terminal():
    os.setsid()
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


@pytest.mark.full
def test_a_closed_terminal_loses_nothing(tmp_path):
    ours, theirs = pty.openpty()
    termios.tcsetwinsize(theirs, (24, 120))  # a bar fills no terminal of no width
    command = [sys.executable, "-m", "models.train", *make_flags(**ENDLESS, model_dir=tmp_path)]
    with subprocess.Popen(
        command, cwd=ROOT, stdin=theirs, stdout=theirs, stderr=theirs, preexec_fn=on_terminal
    ) as process:
        os.close(theirs)
        try:
            seen = b""
            while not re.search(rb"\d\d/100000", seen):  # the bar leaves some steps out
                seen += os.read(ours, 1 << 16)
            os.close(ours)  # the kernel sends SIGHUP, and takes what is printed no more
            assert process.wait(120) == 129
        finally:
            process.kill()
    assert int(tf.train.load_variable(tf.train.latest_checkpoint(str(tmp_path)), "global_step")) >= 10


@pytest.mark.full
def test_an_ignored_hangup_stays_ignored(tmp_path):
    args = [*make_flags(**ENDLESS, model_dir=tmp_path)]
    previous = signal.signal(signal.SIGHUP, signal.SIG_IGN)  # which the process inherits, as under nohup
    try:
        process = start(*args, stdout=subprocess.DEVNULL)
    finally:
        signal.signal(signal.SIGHUP, previous)
    with process:
        try:
            reader = Reader(process.stderr)
            seen = reader.await_line("step 10/")
            process.send_signal(signal.SIGHUP)
            reader.await_line("step .*/", seen + 1)
            process.send_signal(signal.SIGTERM)
            assert process.wait(120) == 143
        finally:
            process.kill()
