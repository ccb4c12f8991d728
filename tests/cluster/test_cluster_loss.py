"""Workers that die, do not answer, or are asked in vain: training says so, waits, and goes on."""

import logging
import os
import re
import signal
import socket
import threading
import time
from typing import Any
from unittest import mock

import pytest
from estimator_oracle import log_lines
from ports import free_port
from tiers import losing_workers

from mtf_hetero import tf
from mtf_hetero.cluster import Cluster, UnreachableWorkerError, WorkerWatch
from mtf_hetero.cluster import session as session_lib
from mtf_hetero.cluster.probe import Answer, Outcome, ask
from mtf_hetero.cluster.session import WaitingSessionCreator

pytestmark = losing_workers


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
        with tf.train.MonitoredSession(creator, hooks=[watch, seen, saver]) as session:
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


def test_the_watch_of_a_training_outlives_that_of_its_validation(monkeypatch):
    monkeypatch.setattr("mtf_hetero.cluster.watch.ask", lambda *_: Answer(Outcome.ANSWERED, status=b"one"))
    record = logging.makeLogRecord({"msg": "An error occurred when attempting to close the session. ..."})
    with WorkerWatch({0: "127.0.0.1:1"}):
        with WorkerWatch({0: "127.0.0.1:1"}):
            pass
        assert not tf.get_logger().filter(record)
    assert tf.get_logger().filter(record)


def test_a_worker_that_is_lost_while_the_step_is_built_is_named():
    address, said = f"127.0.0.1:{free_port()}", []
    creator = WaitingSessionCreator(mock.Mock(), {1: address}, wait_seconds=0.1)
    with pytest.raises(UnreachableWorkerError), creator.claim_workers(said.append):
        pass
    (line,) = said
    assert line.startswith(f"worker 1 ({address}) is gone: connection refused; training waits 0.1 seconds for it.")


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
    """Return a watch's reports about a worker that gives these answers, and then answers always."""
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


class _Unmade:
    """Sessions of which the first ones are never made, until they are released."""

    def __init__(self, unmade=1):
        self.unmade, self.released, self.closed, self.attempts = unmade, threading.Event(), threading.Event(), 0

    def create_session(self):
        self.attempts += 1
        if self.attempts > self.unmade:
            return _Stuck()
        self.released.wait()
        return mock.Mock(close=self.closed.set)


def test_a_session_that_is_never_made_is_begun_anew(monkeypatch):
    lines, unmade = log_lines(monkeypatch), _Unmade(2)
    WaitingSessionCreator(unmade, (), create_seconds=0.5).create_session().close()
    again = "although all workers answer; trying again for"
    assert lines == [
        f"no session after {before} seconds, {again} {after} seconds; press Ctrl-C to stop"
        for before, after in [("0.5", "1"), ("1", "2")]
    ]
    assert unmade.attempts == 3


@losing_workers
@pytest.mark.full
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
def test_the_end_of_a_session_frees_the_workers_that_are_left(how, workers, monkeypatch):
    """TensorFlow's end of a session waits for the lost worker, and keeps the variables of all."""
    cluster, ends = Cluster.from_workers(workers.addresses[:2]), []
    with tf.Graph().as_default() as graph:
        for device in cluster.devices:
            with tf.device(device):
                tf.get_variable(f"on_{len(ends)}", [3], use_resource=True)
                ends.append(graph.as_graph_element(tf.global_variables()[-1]))
        step = tf.add_n(ends)

        class Plain:
            def create_session(self):
                return tf.Session(cluster.target, config=cluster.session_config())

        session = WaitingSessionCreator(Plain(), cluster.workers).create_session()
        session.run(tf.global_variables_initializer())
        graph.finalize()
    run, close = type(session).run, mock.Mock()
    monkeypatch.setattr(type(session), "close", close)
    os.kill(workers.pids[1], how)
    try:
        if how == signal.SIGSTOP:
            threading.Timer(1, vars(session)["interrupt"], [tf.errors.UnavailableError(None, None, "")]).start()
        with pytest.raises(tf.errors.UnavailableError):
            session.run(step)
        begin = time.monotonic()
        session.close()
        assert time.monotonic() - begin < 10
        close.assert_called_once()
        with pytest.raises(tf.errors.FailedPreconditionError):
            run(session, ends[0])
    finally:
        workers.restart(1)


def test_a_session_that_is_made_too_late_is_closed():
    unmade, asked = _Unmade(), []

    def check():
        asked.append(1)
        if len(asked) == 2:  # as Ctrl-C does
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        WaitingSessionCreator(unmade, (), check=check).create_session()
    assert not unmade.closed.is_set()
    unmade.released.set()
    assert unmade.closed.wait(30)


def test_a_session_that_a_hook_cannot_use_is_closed_before_the_next_one():
    sessions = [_Stuck(), _Stuck()]
    creator = WaitingSessionCreator(mock.Mock(create_session=mock.Mock(side_effect=sessions)), ())
    creator.create_session()
    assert not sessions[0].released.is_set()
    creator.create_session().close()
    assert sessions[0].released.is_set()


@pytest.mark.parametrize("answers", [True, False])
def test_workers_that_refuse_a_session_are_asked_for_it_again(answers, monkeypatch):
    """Once if they answer: they may have been started anew meanwhile."""
    claims = []

    class Claim:
        def __init__(self, workers):
            claims.append(workers)

        def __enter__(self):
            if len(claims) < 4:
                raise UnreachableWorkerError("it does not join a session")

        def __exit__(self, *_):
            claims.append("released")

    asked = []

    def ask_all(workers, timeout_seconds):
        asked.append(workers)
        is_lost = not answers and len(asked) % 2 == 1 and len(asked) > 1
        return {0: Answer(Outcome.REFUSED, "connection refused") if is_lost else Answer(Outcome.ANSWERED)}

    monkeypatch.setattr("mtf_hetero.cluster.session.ask_all", ask_all)
    monkeypatch.setattr("mtf_hetero.cluster.session.find_refused", lambda workers, answers: {})  # nobody is there
    monkeypatch.setattr("mtf_hetero.cluster.session._POLL_SECONDS", 0.05)
    monkeypatch.setattr("mtf_hetero.cluster.claim.WorkerClaim", Claim)
    creator = WaitingSessionCreator(None, ("127.0.0.1:1",))
    if answers:
        with pytest.raises(UnreachableWorkerError, match="does not join"), creator.claim_workers():
            pass
        assert len(claims) == 2
    else:
        with creator.claim_workers():
            assert len(claims) == 4
        assert claims[-1] == "released"


class _Stuck:
    """A session whose steps wait without end for a worker."""

    def __init__(self):
        self.released, self.graph = threading.Event(), tf.Graph()

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


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        (
            "CANCELLED: From /job:chief:\nABORTED: From /job:worker/task:2:\nThe same request",
            tf.errors.UnavailableError,
        ),
        ("Step was cancelled by an explicit call to `Session::Close()`.", tf.errors.CancelledError),
    ],
)
def test_a_connection_that_breaks_is_a_loss(message, expected):
    failing = mock.Mock(graph=tf.Graph(), run=mock.Mock(side_effect=tf.errors.CancelledError(None, None, message)))
    creator = WaitingSessionCreator(mock.Mock(create_session=lambda: failing), ())
    session = creator.create_session()
    with pytest.raises(expected, match=re.escape(message)):
        session.run("step")
    session.close()
    begun = mock.Mock(create_session=failing.run)
    with pytest.raises(expected, match=re.escape(message)):
        WaitingSessionCreator(begun, ()).create_session()


def test_a_closed_session_leaves_no_thread():
    with tf.Graph().as_default():
        three, session = tf.constant(3), tf.Session()
    runner = session_lib._Runner(session, lambda session: None)
    runner.install()
    assert session.run(three) == 3
    session.close()
    runner._thread.join(10)
    assert not runner._thread.is_alive()
