"""Workers that die, do not answer, or are asked in vain: training says so, waits, and goes on."""

import os
import re
import signal
import socket
import threading
import time
from typing import Any
from unittest import mock

import pytest
from ports import free_port
from tiers import on_workers

from mtf_hetero import tf
from mtf_hetero.cluster import Cluster, WaitingSessionCreator, WorkerWatch
from mtf_hetero.cluster.probe import Answer, Outcome, ask

pytestmark = on_workers


class _EndAfter(tf.train.SessionRunHook):
    """Ends training some steps after the global step was seen to fall back."""

    def __init__(self):
        self.steps = []

    def before_run(self, run_context):
        return tf.train.SessionRunArgs(tf.train.get_global_step())

    def after_run(self, run_context, run_values):
        self.steps.append(int(run_values.results))


def test_training_goes_on_after_a_worker_died(workers, tmp_path):
    cluster, said, seen = Cluster.from_workers(workers.addresses[:2]), [], _EndAfter()
    with tf.Graph().as_default(), WorkerWatch(cluster.workers, report=said.append, interval_seconds=0.2) as watch:
        step = tf.train.get_or_create_global_step()
        with tf.device(cluster.devices[1]):
            total = tf.get_variable("total", initializer=0.0, use_resource=True)
            train = tf.group(total.assign_add(1.0), tf.assign_add(step, 1))
        creator = WaitingSessionCreator(
            tf.train.ChiefSessionCreator(
                checkpoint_dir=str(tmp_path), master=cluster.target, config=cluster.session_config()
            ),
            cluster.workers,
        )
        saver = tf.train.CheckpointSaverHook(str(tmp_path), save_steps=5)
        with tf.train.MonitoredSession(creator, hooks=[seen, watch, saver]) as session:
            for number in range(30):
                if number == 12:
                    os.kill(workers.pids[1], signal.SIGKILL)
                    end = time.monotonic() + 30
                    while not said and time.monotonic() < end:
                        time.sleep(0.05)
                    workers.restart(1)
                session.run(train)
            value, last = session.run([total, step])
    assert said[0].startswith(f"worker 1 ({cluster.workers[1]}) is gone: ")
    assert "Start it again there with `mtf-hetero worker --port=" in said[0]
    assert value == last  # both are of the same checkpoint
    assert last < 30  # some steps were lost, but not all
    assert last > 18


def test_a_worker_that_dies_again_before_it_is_asked_is_named_again(monkeypatch):
    said, asked = [], []
    watch = WorkerWatch(("127.0.0.1:1",), report=said.append, interval_seconds=0.001)

    def ask(address, timeout_seconds):
        asked.append(address)
        if len(asked) == 4:  # it was back for long enough that a session could be made
            watch.after_create_session(mock.Mock(), mock.Mock())
        if len(asked) == 1:
            return Answer(Outcome.ANSWERED, status=b"one")
        return Answer(Outcome.REFUSED, "connection refused")

    monkeypatch.setattr("mtf_hetero.cluster.watch.ask", ask)
    with watch:
        end = time.monotonic() + 10
        while len(said) < 3 and time.monotonic() < end:
            time.sleep(0.01)
    assert re.findall("is gone|answers again", " ".join(said)) == ["is gone", "answers again", "is gone"]


def watch_until_asked(monkeypatch, answers):
    """What a watch says of a worker that gives these answers, and answers from then on."""
    said, done = [], threading.Event()

    def ask(address, timeout_seconds):
        if answers:
            return answers.pop(0)
        done.set()
        return Answer(Outcome.ANSWERED, status=b"one")

    monkeypatch.setattr("mtf_hetero.cluster.watch.ask", ask)
    with WorkerWatch({4: "127.0.0.1:1"}, report=said.append, interval_seconds=0.001):
        assert done.wait(60)
    return [re.findall("^worker 4 .* (is gone|answers again)", line)[0] for line in said]


def test_one_failure_alone_is_no_loss(monkeypatch):
    answered = Answer(Outcome.ANSWERED, status=b"one")
    for outcome in Outcome:
        failed = Answer(outcome, "it failed")
        if outcome not in (Outcome.ANSWERED, Outcome.REFUSED):
            assert watch_until_asked(monkeypatch, [answered, failed, answered, failed, answered]) == []
            assert watch_until_asked(monkeypatch, [answered, failed, failed, failed])[:1] == ["is gone"]
    assert watch_until_asked(monkeypatch, [answered, Answer(Outcome.REFUSED, "refused")])[:1] == ["is gone"]


def test_what_becomes_of_a_question(workers):
    assert ask(workers.addresses[0], 60.0).outcome is Outcome.ANSWERED
    assert ask(f"127.0.0.1:{free_port()}", 5.0).outcome is Outcome.REFUSED
    assert ask("no-such-host.invalid:2222", 5.0).outcome is Outcome.UNREACHABLE
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
        assert ask(address, 0.5) == Answer(Outcome.SILENT, "no answer within 0.5 seconds")


def test_waiting_for_a_worker_can_be_stopped():
    def check():
        raise KeyboardInterrupt

    creator = WaitingSessionCreator(None, (f"127.0.0.1:{free_port()}",), check=check)
    with pytest.raises(KeyboardInterrupt):
        creator.create_session()


class _Stuck:
    """A session whose steps wait without end for a worker."""

    def __init__(self):
        self.released = threading.Event()

    def run(self, fetches):
        self.released.wait()

    def close(self):
        self.released.set()

    def create_session(self):
        return self


def test_a_step_that_waits_for_a_frozen_worker_is_ended():
    stuck: Any = WaitingSessionCreator(_Stuck(), ()).create_session()
    error = tf.errors.UnavailableError(None, None, "worker 1 does not answer")
    threading.Timer(0.2, stuck.interrupt, [error]).start()
    with pytest.raises(tf.errors.UnavailableError, match="worker 1"):
        stuck.run("step")
    stuck.close()
    assert stuck.released.is_set()
