"""A worker belongs to one training at a time."""

import os
import re
import signal
import subprocess
import sys
import time

import pytest
from tiers import on_workers

from mtf_hetero import tf
from mtf_hetero.cluster import LocalCluster, WaitingSessionCreator, WorkerClaim, WorkerHeldError, claim
from mtf_hetero.cluster import session as cluster_session

HOLDER = """
import sys, time
from mtf_hetero.cluster import WorkerClaim
with WorkerClaim(sys.argv[1:]):
    print("held", flush=True)
    sys.stdin.readline()
"""


def holder_of(address):
    """Who has a worker, as another process that wants it is told; "" where it is free."""
    holding = claim._Holding(address)
    who = holding.take()
    if not who:
        holding.release()
    return who


def await_free(address, seconds=60):
    end = time.monotonic() + seconds
    while holder_of(address) and time.monotonic() < end:
        time.sleep(0.1)
    assert holder_of(address) == ""


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
            assert f"pid {process.pid} " in holder_of(addresses[1])
        finally:
            process.kill()
    await_free(addresses[0])
    with WorkerClaim(addresses):
        assert f"pid {os.getpid()} " in holder_of(addresses[1])


@pytest.mark.full
@on_workers
def test_an_orderly_end_frees_it(workers):
    first, second, _ = workers.addresses
    with hold([first]) as process:
        assert f"pid {process.pid} " in holder_of(first)
        assert holder_of(second) == ""
        process.communicate("\n", timeout=60)
    assert process.returncode == 0
    assert holder_of(first) == ""


@on_workers
def test_a_claim_within_another_is_harmless(workers):
    first, second, _ = workers.addresses
    with WorkerClaim({1: second}):
        with WorkerClaim([first, second]):
            pass
        assert f"pid {os.getpid()} " in holder_of(second)
        assert holder_of(first) == ""
    assert holder_of(second) == ""


@on_workers
@pytest.mark.full
def test_what_was_taken_is_given_back_where_another_is_held(workers):
    first, second, _ = workers.addresses
    with hold([second]) as process:
        with pytest.raises(WorkerHeldError, match="^worker 1 "), WorkerClaim([first, second]):
            pass
        assert holder_of(first) == ""
        process.communicate("\n", timeout=60)


@pytest.mark.full
def test_a_worker_that_was_started_anew_is_taken_again():
    local = LocalCluster("0.5", report=lambda line: None)
    with local:
        (address,) = local.addresses
        with WorkerClaim(local.addresses):
            before = holder_of(address)
            local.restart(0)
            assert claim.renew([address]) == {}
            assert holder_of(address) == before
            local.restart(0)
            with hold([address]) as process:  # which was faster
                assert f"pid {process.pid} " in claim.renew({0: address})[0]
                process.communicate("\n", timeout=60)
            assert claim.renew([address]) == {}
        assert holder_of(address) == ""
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
