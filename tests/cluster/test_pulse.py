"""Workers that answer and make no progress, and slow steps on workers that do."""

import concurrent.futures
import threading
import time

import pytest
from tiers import on_workers

from mtf_hetero import tf
from mtf_hetero.cluster import Cluster, WorkerWatch, probe, pulse

HUNG = "it answers, but its devices carry out no operation"


@pytest.fixture(autouse=True)
def forget():
    yield
    probe.hung.clear()


def test_an_operation_has_its_time(monkeypatch):
    released = threading.Event()
    monkeypatch.setattr(pulse, "_carry_out", lambda address: released.wait(60) and None)
    beating = pulse.Pulse("a:1")
    assert beating.beats(0.0)  # it begins
    assert beating.beats(60.0)
    assert not beating.beats(0.0)
    assert "a:1" in probe.hung
    released.set()
    concurrent.futures.wait([probe.hung["a:1"]], 10)
    assert beating.beats(0.0)  # the next one


class Session:
    def __init__(self):
        self.interrupted = threading.Event()

    def interrupt(self, error):
        self.interrupted.set()


class Coordinator:
    def request_stop(self, error):
        pass


def watched(address, said):
    """A WorkerWatch of a step that has begun and does not end, and its session."""
    watch, session = WorkerWatch((address,), report=said.append, interval_seconds=0.1, timeout_seconds=1.0), Session()
    watch.after_create_session(session, Coordinator())
    watch.before_run(None)
    return watch, session


@on_workers
@pytest.mark.full
def test_a_worker_that_carries_out_nothing_is_gone_until_it_does(workers, monkeypatch):
    released, said, address = threading.Event(), [], workers.addresses[1]
    monkeypatch.setattr(pulse, "_carry_out", lambda address: released.wait(60) and None)
    monkeypatch.setattr("mtf_hetero.cluster.watch.ask", lambda address, seconds: probe.ask(address, 10.0))
    watch, session = watched(address, said)
    with watch:
        assert session.interrupted.wait(60)
        assert said[0].startswith(f"worker 0 ({address}) is gone: {HUNG}; training waits for it")
        assert probe.ask(address, 10.0).failure == HUNG
        watch.after_run(None, None)
        released.set()
        end = time.monotonic() + 60
        while len(said) < 2:
            assert time.monotonic() < end
            time.sleep(0.05)
    assert said[1] == f"worker 0 ({address}) answers again; training continues"
    assert probe.ask(address, 10.0).failure == ""


@on_workers
@pytest.mark.full
def test_a_worker_in_a_slow_step_is_not_gone(workers, monkeypatch):
    said, cluster = [], Cluster.from_workers(workers.addresses[:1])
    monkeypatch.setattr("mtf_hetero.cluster.watch.ask", lambda address, seconds: probe.ask(address, 10.0))
    beats, asked = pulse.Pulse.beats, []
    monkeypatch.setattr(pulse.Pulse, "beats", lambda self, limit: asked.append(beats(self, 20.0)) or asked[-1])
    with tf.Graph().as_default(), tf.device(cluster.devices[0]):
        x = tf.random.uniform([700, 700])
        for _ in range(60):
            x = tf.nn.softmax(x @ x)
        with tf.Session(cluster.target, config=cluster.session_config()) as session:
            session.run(x[0, 0])
            watch, _ = watched(workers.addresses[0], said)
            with watch:
                end = time.monotonic() + 60
                while sum(asked) < 3 and time.monotonic() < end:  # steps one after another, for the watch a single one
                    session.run(x[0, 0])
    assert said == [] and all(asked) and len(asked) >= 3


def test_a_step_is_slow_if_it_lasts_longer_than_those_before(monkeypatch):
    watch, now = WorkerWatch((), timeout_seconds=10.0), 0.0
    monkeypatch.setattr("mtf_hetero.cluster.watch.time.monotonic", lambda: now)
    hung = pulse.Pulse("a:1")
    monkeypatch.setattr(hung, "beats", lambda limit: False)
    assert not watch._is_hung(hung)  # no step runs
    watch.before_run(None)
    now = 19.0
    assert not watch._is_hung(hung)
    now = 50.0
    assert watch._is_hung(hung)
    watch.after_run(None, None)
    watch.before_run(None)
    now = 99.0
    assert not watch._is_hung(hung)  # one of 50 seconds went before
    now = 101.0
    assert watch._is_hung(hung)
