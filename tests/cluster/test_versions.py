"""The versions of workers, beside those of the training process."""

import json
import re
import warnings

import numpy as np
import pytest
from tiers import on_workers

from mtf_hetero import tf
from mtf_hetero.cluster import Cluster, UnreachableWorkerError, WorkerClaim, claim, versions
from mtf_hetero.cluster.probe import Answer, Outcome
from mtf_hetero.cluster.session import WaitingSessionCreator

OWN = {"TensorFlow": "2.21.0", "mtf_hetero": "0.1.0", "Python": "3.11"}
WORKERS = {0: "a:1", 2: "c:3"}
HERE = "but this process has TensorFlow 2.21.0, mtf_hetero 0.1.0, Python 3.11; if something fails, install the same"


@pytest.fixture
def own(monkeypatch):
    monkeypatch.setattr(versions, "own", lambda: OWN)


def test_equal_versions_are_silent(own):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        versions.check(WORKERS, {0: OWN, 2: dict(OWN)})


@pytest.mark.parametrize(
    ("theirs", "message"),
    [
        ({"TensorFlow": "2.21.1"}, "worker 2 (c:3) has TensorFlow 2.21.1, "),
        ({"mtf_hetero": "0.2.0", "Python": "3.13"}, "worker 2 (c:3) has mtf_hetero 0.2.0, Python 3.13, "),
        (None, "worker 2 (c:3) does not tell its versions, "),
    ],
)
def test_a_difference_is_a_warning(own, theirs, message):
    with pytest.warns(UserWarning, match=f"^{re.escape(message + HERE)} versions$"):
        versions.check(WORKERS, {0: OWN, 2: {} if theirs is None else OWN | theirs})


@pytest.mark.parametrize("version", ["2.20.0", "2.22.0rc1", "3.21.0"])
def test_another_tensorflow_is_refused(own, version):
    message = (
        f"worker 2 (c:3) has TensorFlow {version}, but this process has 2.21.0; TensorFlow supports no cluster of two "
        "versions: pip install tensorflow==2.21.0 there"
    )
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        versions.check(WORKERS, {0: OWN | {"Python": "3.12"}, 2: OWN | {"TensorFlow": version}})


@on_workers
def test_a_worker_tells_its_versions(workers):
    (address,) = workers.addresses[:1]
    other = versions.own() | {"TensorFlow": "1.15.5"}
    try:
        versions.publish(f"grpc://{address}", other)
        with pytest.raises(ValueError, match=r"worker 0 \(\S+\) has TensorFlow 1.15.5, but this process has"):
            Cluster.from_workers([address], timeout_seconds=60.0)
    finally:
        versions.publish(f"grpc://{address}", versions.own())
    Cluster.from_workers([address], timeout_seconds=60.0)


@pytest.fixture
def restarted(own, monkeypatch):
    """Returns a function that restarts worker 2 with some versions, and finds refused workers; and what is logged."""
    lines, asked = [], []
    monkeypatch.setattr(versions, "_compared", {})
    monkeypatch.setattr(tf.logging, "warning", lambda text, *values: lines.append(text % values))

    def find(status, theirs=None, failure=""):
        monkeypatch.setattr(versions, "_ask", lambda address: (asked.append(address), theirs)[1])
        answers = {0: Answer(Outcome.ANSWERED, status=b"0"), 2: Answer(Outcome.ANSWERED, failure, status)}
        return versions.find_refused(WORKERS, answers)

    return find, lines, asked


def test_a_worker_that_comes_back_with_another_tensorflow_is_refused_until_it_has_the_same(restarted):
    find, lines, asked = restarted
    reason = {2: "it has TensorFlow 2.20.0, but this process has 2.21.0"}
    assert find(b"1") == find(b"1") == find(b"", failure="connection refused") == {} and asked == []
    assert find(b"2") == {}  # it is lost again
    assert find(b"2", OWN | {"TensorFlow": "2.20.0"}) == find(b"2") == find(b"2") == reason
    assert lines == [
        "worker 2 (c:3) came back and has TensorFlow 2.20.0, but this process has 2.21.0; TensorFlow supports no "
        "cluster of two versions: pip install tensorflow==2.21.0 there; it takes no part until it is started again "
        "with that version"
    ]
    assert find(b"3", OWN) == find(b"3") == {}
    assert find(b"4", OWN | {"Python": "3.12"}) == find(b"5", {}) == {}
    assert lines[1:] == [
        f"worker 2 (c:3) {text}, {HERE} versions" for text in ("has Python 3.12", "does not tell its versions")
    ]
    assert asked == ["c:3"] * 5


@on_workers
def test_a_training_continues_without_a_worker_that_comes_back_with_another_tensorflow(workers, monkeypatch):
    (address,) = workers.addresses[:1]
    lines = []
    monkeypatch.setattr(tf.logging, "warning", lambda text, *values: lines.append(text % values))
    monkeypatch.setattr(versions, "_compared", {address: (b"the process before", "")})
    creator = WaitingSessionCreator(
        tf.train.ChiefSessionCreator(master=f"grpc://{address}"), [address], wait_seconds=1.0
    )
    try:
        versions.publish(f"grpc://{address}", versions.own() | {"TensorFlow": "1.15.5"})
        with WorkerClaim([address]):
            assert claim.find_free([address]) == {}
            with pytest.raises(UnreachableWorkerError, match=r"^worker 0 \(\S+\): it has TensorFlow 1.15.5, but this "):
                creator.await_workers()
            assert len(lines) == 1 and lines[0].startswith(f"worker 0 ({address}) came back and has TensorFlow 1.15.5")
            versions.publish(f"grpc://{address}", versions.own())
            versions._compared[address] = b"the process before", ""
            assert claim.find_free([address]) == {0: address}
            creator.await_workers()
    finally:
        versions.publish(f"grpc://{address}", versions.own())


INVALID = [
    *(b"", b"no JSON", b"[]", b"{}", b"1", b"null", b"\xff", b"[" * 900, b'{"Python": "3.11"}', b'{"TensorFlow": 2}'),
    *(b'{"TensorFlow": []}', b'{"TensorFlow": "two"}', b'{"TensorFlow": "2.21.0", "Python": {}}'),
    *(
        b'{"TensorFlow": "2.21.0", "\\u001b[2J": "1"}',
        b'{"TensorFlow": "2.21.0\\n"}',
        b'{"TensorFlow": "2.%s"}' % (b"1" * 99),
    ),
    *(b'{"TensorFlow": "2.21.0"}' + b" " * 1000, np.array([b"{}"]), 3),
]


@pytest.mark.parametrize("published", INVALID, ids=map(repr, range(len(INVALID))))
def test_invalid_versions_are_none(published):
    assert versions._parse(published) == {}
    assert versions._parse(json.dumps(OWN).encode()) == OWN


@on_workers
def test_a_worker_with_invalid_versions_is_named(workers):
    (address,) = workers.addresses[:1]
    try:
        versions.publish(f"grpc://{address}", [])
        message = rf"^worker 0 \({address}\) does not tell its versions, but this process has "
        with pytest.warns(UserWarning, match=message):
            Cluster.from_workers([address], timeout_seconds=60.0)
    finally:
        versions.publish(f"grpc://{address}", versions.own())


def test_a_server_that_is_no_worker_of_ours_tells_nothing():
    server = tf.train.Server.create_local_server()
    with tf.Graph().as_default(), tf.Session(server.target) as session:
        assert versions.read(session) == {}
