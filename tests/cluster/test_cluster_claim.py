"""A worker belongs to one training at a time."""

import os
import re
import signal
import subprocess
import sys
import threading
import time

import psutil
import pytest
from tiers import on_workers

from mtf_hetero import tf
from mtf_hetero.cluster import LocalCluster, WorkerClaim, claim
from mtf_hetero.cluster import session as cluster_session
from mtf_hetero.cluster.claim import WorkerHeldError
from mtf_hetero.cluster.session import WaitingSessionCreator

HOLDER = """
import sys, time
from mtf_hetero.cluster import WorkerClaim
with WorkerClaim(sys.argv[1:]):
    print("held", flush=True)
    sys.stdin.readline()
"""


def ask_for_holder(address):
    """Return the message about a worker's owner that another process gets; "" if the worker is free."""
    holding = claim._Holding(address)
    who = holding.take()
    if not who:
        holding.release()
    return who


def await_free(address, seconds=60):
    end = time.monotonic() + seconds
    while ask_for_holder(address) and time.monotonic() < end:
        time.sleep(0.1)
    assert ask_for_holder(address) == ""


def hold(addresses):
    """A process that has the workers."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER, *addresses],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    return process


@pytest.mark.full
@on_workers
def test_the_second_is_told_who_holds_it_and_a_dead_holder_frees_it(workers):
    addresses = workers.addresses[:2]
    with hold(addresses) as process:
        try:
            message = rf"^worker 0 \({addresses[0]}\) belongs to another training: pid {process.pid} on \S+, since "
            with pytest.raises(WorkerHeldError, match=message) as caught, WorkerClaim(addresses):
                pass
            assert re.search(
                r"since \d{4}-\d\d-\d\d \d\d:\d\d:\d\d\S*, worker 1 .*; wait until that training ends",
                str(caught.value),
            )
            process.send_signal(signal.SIGSTOP)
            assert f"pid {process.pid} " in ask_for_holder(addresses[1])
        finally:
            process.kill()
    await_free(addresses[0])
    with WorkerClaim(addresses):
        assert f"pid {os.getpid()} " in ask_for_holder(addresses[1])


@on_workers
def test_a_claim_within_another_is_harmless(workers):
    first, second, _ = workers.addresses
    with WorkerClaim({1: second}):
        with WorkerClaim([first, second]):
            pass
        assert f"pid {os.getpid()} " in ask_for_holder(second)
        assert ask_for_holder(first) == ""
    assert ask_for_holder(second) == ""


@on_workers
@pytest.mark.full
def test_a_worker_tells_its_processor_time_and_spends_little_on_it():
    local = LocalCluster([1.0])
    with local as cluster, WorkerClaim(cluster.workers), tf.Graph().as_default():
        pid = local.pids[0]
        with tf.device("/job:worker/task:0/cpu:0"):
            product = tf.linalg.matmul(*[tf.random.normal([1200, 1200]) for _ in range(2)])
        with tf.Session(cluster.target, config=cluster.session_config()) as session:
            session.run(product.op)
            for _ in range(3):  # its threads are listed, chosen, and read for the first time
                assert claim.busy_seconds(cluster.workers) == {}
                session.run(product.op)
            before, used = claim.busy_seconds(cluster.workers)[0], cpu_seconds(pid)
            for _ in range(20):
                session.run(product.op)
            after, used = claim.busy_seconds(cluster.workers)[0], cpu_seconds(pid) - used
            assert after - before > 0.9 * used > 0
        begin = cpu_seconds(pid)
        for _ in range(100):
            claim.busy_seconds(cluster.workers)
        assert cpu_seconds(pid) - begin < 100 * 0.01 * 0.5  # 1 % of the half second between two questions
    assert claim.busy_seconds(cluster.workers) == {}


def cpu_seconds(pid):
    return sum(psutil.Process(pid).cpu_times()[:2])


@pytest.mark.full
@on_workers
def test_what_was_taken_is_given_back_where_another_is_held_and_at_an_orderly_end(workers):
    first, second, _ = workers.addresses
    with hold([second]) as process:
        with pytest.raises(WorkerHeldError, match="^worker 1 "), WorkerClaim([first, second]):
            pass
        assert ask_for_holder(first) == ""
        assert f"pid {process.pid} " in ask_for_holder(second)
        process.communicate("\n", timeout=60)
    assert process.returncode == 0
    assert ask_for_holder(second) == ""


@pytest.mark.full
def test_all_workers_are_given_back_at_the_same_time(monkeypatch):
    """At the end of Python, each one that is gone takes seconds."""
    all_begun, begun = threading.Barrier(3), []
    monkeypatch.setattr(claim, "_holdings", {address: claim._Holding(address) for address in "abc"})
    monkeypatch.setattr(claim, "_close", lambda session: begun.append(all_begun.wait(30)))
    monkeypatch.setattr(claim, "_CLOSE_SECONDS", 30)
    claim._release_all()
    assert sorted(begun) == [0, 1, 2] and not claim._holdings


@pytest.mark.full
def test_a_worker_that_was_started_anew_is_taken_again():
    local = LocalCluster("0.5", report=lambda line: None)
    with local:
        (address,) = local.addresses
        with WorkerClaim(local.addresses):
            before = ask_for_holder(address)
            local.restart(0)
            assert claim.renew([address]) == {}
            assert ask_for_holder(address) == before
            local.restart(0)
            with hold([address]) as process:  # which was faster
                assert f"pid {process.pid} " in claim.renew({0: address})[0]
                process.communicate("\n", timeout=60)
            assert claim.renew([address]) == {}
        assert ask_for_holder(address) == ""
        assert claim.renew([address]) == {}  # nothing is claimed


class _Session:
    def run(self, fetches):
        return fetches

    def close(self):
        pass

    def create_session(self):
        return self


def test_training_waits_for_a_worker_that_another_has_taken(monkeypatch):
    answers = [{2: "pid 7 on there"}, {2: "pid 7 on there"}, {}]
    said = []
    monkeypatch.setattr(claim, "renew", lambda workers: answers.pop(0))
    monkeypatch.setattr(cluster_session, "ask_all", lambda workers, timeout_seconds: {})
    monkeypatch.setattr(cluster_session, "_HELD_SECONDS", 0.01)
    monkeypatch.setattr(tf.logging, "warning", lambda text, *values: said.append(text % values))
    session = WaitingSessionCreator(_Session(), {2: "there:1"}).create_session()
    assert said == [
        "worker 2 (there:1) belongs to another training: pid 7 on there; training waits for it; press Ctrl-C to stop"
    ]
    session.close()
