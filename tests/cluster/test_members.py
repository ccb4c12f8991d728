"""The present workers of a training: lists, files that change, and workers that register."""

import contextlib
import os
import threading
import time

import grpc
import pytest
from ports import free_port
from tiers import on_workers

from mtf_hetero import tf
from mtf_hetero.cluster import Cluster, members, packet_filter, secret
from mtf_hetero.cluster.members import Members


def test_a_list_never_changes():
    with Members("a:1, b:2") as present:
        assert present.is_fixed
        assert present() == present.wait(9, pytest.fail) == ("a:1", "b:2")


def test_a_file_is_read_again(tmp_path, monkeypatch):
    hosts, warnings = tmp_path / "hosts.txt", []
    monkeypatch.setattr(tf.logging, "warning", lambda text, *values: warnings.append(text % values))
    hosts.write_text("# our machines\na:1  # fast\n\n b:2\n")
    with Members(f"@{hosts}") as present:
        assert not present.is_fixed
        assert present() == ("a:1", "b:2")
        hosts.write_text("b:2\nc:3\n")
        assert present() == ("b:2", "c:3")
        hosts.write_text("b:2\nc\n")
        assert present() == present() == ("b:2", "c:3")
        hosts.unlink()
        assert present() == ("b:2", "c:3")
        hosts.write_text("d:4\n")
        assert present() == ("d:4",)
    assert [warning.partition(": ")[2] for warning in warnings] == [
        "worker address 'c' is not host:port; write one such as 10.0.0.7:2222; the workers stay as they are",
        "no such file or directory; write one host:port per line; the workers stay as they are",
    ]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "^workers=@.*: no such file or directory; write one host:port per line"),
        (b"\xff", "it is not text; write"),
        (b"# none\n", "the file has none; write one host:port per line"),
        (b"a:1\na:1\n", "worker address 'a:1' is given twice"),
        (b"@hosts.txt\n", "worker address '@hosts.txt' is not host:port"),
    ],
)
def test_a_file_that_is_wrong_at_the_start(text, message, tmp_path):
    path = tmp_path / "hosts.txt"
    if text is not None:
        path.write_bytes(text)
    with pytest.raises(ValueError, match=message), Members(f"@{path}"):
        pass


@pytest.mark.parametrize(("kind", "path"), [("pipe", None), ("device", "/dev/zero")])
def test_no_regular_file_is_refused_at_once(kind, path, tmp_path):
    if path is None:
        os.mkfifo(path := tmp_path / "pipe")
    message = f"^workers=@{path}: it is a {kind}, not a regular file; write one host:port per line$"
    with pytest.raises(ValueError, match=message), Members(f"@{path}"):
        pass


@pytest.mark.parametrize(
    ("workers", "message"),
    [
        ("@hosts.txt,b:2", "workers has '@hosts.txt' beside others; give addresses, one file, or one port"),
        (["a:1", ":2300"], "workers has ':2300' beside others"),
        (":here", "workers is ':here'; write a port from 1 to 65535, such as :2300"),
        (":0", "workers is ':0'; write a port"),
        ("a", "worker address 'a' is not host:port"),
    ],
)
def test_wrong_words(workers, message):
    with pytest.raises(ValueError, match=message):
        Members(workers)


def test_workers_register_and_are_left_out_when_they_are_silent(monkeypatch):
    port, lines, done = free_port(), [], threading.Event()
    training = f"127.0.0.1:{port}"
    monkeypatch.setattr(members, "_RENEW_SECONDS", 0.05)
    arguments = (training, None, 7, lines.append, done)
    caller = threading.Thread(target=members.keep_registered, args=arguments, daemon=True)
    caller.start()
    while not lines:  # it waits for a training
        time.sleep(0.01)
    with Members(f":{port}") as present:
        told = []
        threading.Timer(0.2, members.register, [training, "b", 8]).start()
        assert set(present.wait(2, told.append)) == {"127.0.0.1:7", "b:8"}
        assert told[:2] == [
            f"warning: anyone who reaches port {port} can register a worker; to prevent it, set MTF_HETERO_SECRET here "
            "and for the workers",
            f"waiting for 2 workers at port {port}",
        ]
        monkeypatch.setattr(members, "_KEPT_SECONDS", 0.5)
        while present() != ("127.0.0.1:7",):
            time.sleep(0.05)
        for host, number, message in (
            ("b c", 8, "worker address 'b c:8' is not host:port"),
            ("b", 70000, "worker address 'b:70000' is not host:port"),
            ("b", "8", "worker address 'b:8' is no name or IPv4 address with a port"),
            ("$(id)", 8, r"worker address '\$\(id\):8' is no name"),
            (["b"], 8, r"worker address \"\['b'\]:8\" is no name"),
            (300 * "b", 8, "worker address 'bbb.*' is not host:port"),
        ):
            with pytest.raises(grpc.RpcError, match=message):
                members.register(training, host, number)
        with pytest.raises(ValueError, match=f"workers is ':{port}', a port that is in use"), Members(f":{port}"):
            pass
    done.set()
    caller.join()
    assert lines[:2] == [
        f"worker waits for a training at {training}",
        f"worker joined the training at {training} as 127.0.0.1:7",
    ]


SECRET, OTHER = "a secret of sixteen", "another secret of sixteen"


@pytest.fixture
def registry(monkeypatch):
    """Makes a registry with a secret; returns "host:port" of it."""
    monkeypatch.setattr(packet_filter, "_ports", {})
    monkeypatch.setattr(packet_filter, "_peers", None)
    with contextlib.ExitStack() as stack:

        def begin(text):
            monkeypatch.setenv(secret.VARIABLE, text) if text else monkeypatch.delenv(secret.VARIABLE, raising=False)
            port = free_port()
            return stack.enter_context(Members(f":{port}")), f"127.0.0.1:{port}"

        yield begin


def test_a_worker_with_the_secret_learns_the_machines_of_the_training(registry):
    present, training = registry(SECRET)
    key = SECRET.encode()
    assert members.register(training, "127.0.0.5", 7, key=key) == ("127.0.0.5:7", ("127.0.0.1",))
    assert packet_filter._peers == {"127.0.0.1", "127.0.0.5"}
    # The other worker calls from 127.0.0.1, where others reach it at 127.0.0.5
    assert members.register(training, None, 8, key=key) == ("127.0.0.1:8", ("127.0.0.1", "127.0.0.5"))
    assert present() == ("127.0.0.5:7", "127.0.0.1:8")


@pytest.mark.parametrize(
    ("ours", "theirs", "message"),
    [
        (SECRET, None, "it admits only workers with its MTF_HETERO_SECRET"),
        (SECRET, OTHER, "it has another MTF_HETERO_SECRET"),
        (None, SECRET, "^it has no MTF_HETERO_SECRET$"),
    ],
)
def test_a_side_without_the_secret_is_refused(ours, theirs, message, registry):
    present, training = registry(ours)
    with pytest.raises((grpc.RpcError, members.RefusedError), match=message):
        members.register(training, None, 7, key=theirs and theirs.encode())
    assert present() == (("127.0.0.1:7",) if ours is None else ())


def test_a_training_that_cannot_sign_is_refused(registry, monkeypatch):
    present, training = registry(SECRET)
    monkeypatch.setattr(present._registry, "_admit", lambda address, nonce: {"address": address, "peers": ["10.0.0.9"]})
    with pytest.raises(members.RefusedError, match="^it has another MTF_HETERO_SECRET$"):
        members.register(training, None, 7, key=SECRET.encode())


def test_a_message_cannot_be_used_again_or_changed(registry):
    server = registry(SECRET)[0]._registry
    old = server._draw_challenge()
    assert server._is_fresh(old) and not server._is_fresh(f"1{old}") and not server._is_fresh(None)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(members, "_KEPT_SECONDS", -1.0)
        assert not server._is_fresh(old)


def test_a_registry_has_a_limit(registry, monkeypatch):
    monkeypatch.setattr(members, "_MOST_WORKERS", 2)
    training = registry(None)[1]
    for port in (7, 8, 7):
        members.register(training, "a", port)
    with pytest.raises(grpc.RpcError, match="it has 2 workers, and takes no more"):
        members.register(training, "a", 9)
    monkeypatch.setattr(members, "_KEPT_SECONDS", 0.0)
    members.register(training, "a", 9)
    with pytest.raises(grpc.RpcError, match="larger than max"), grpc.insecure_channel(training) as channel:
        channel.unary_unary("/mtf_hetero.Members/Register")(9000 * b" ", timeout=5)


def test_a_short_secret_is_refused(registry):
    message = "MTF_HETERO_SECRET has 5 characters; it needs 16 or more, such as the output of `openssl rand -hex 16`"
    with pytest.raises(ValueError, match=message):
        registry("short")


def test_a_secret_needs_a_packet_filter(registry, monkeypatch):
    monkeypatch.setattr(packet_filter, "why_not", lambda: "the system refuses it")
    with pytest.raises(
        ValueError, match="MTF_HETERO_SECRET is set, but the system refuses it; unset it to admit every"
    ):
        registry(SECRET)


def test_a_worker_is_open_to_the_machines_of_its_training_while_that_answers(registry, monkeypatch):
    present, training = registry(SECRET)
    admitted, lines, done = [], [], threading.Event()
    monkeypatch.setattr(members, "_RENEW_SECONDS", 0.02)
    monkeypatch.setattr(members, "_KEPT_SECONDS", 0.2)
    registering = threading.Thread(
        target=members.keep_registered, args=(training, None, 7, lines.append, done), kwargs={"key": SECRET.encode()}
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(packet_filter, "admit", lambda peers: admitted.append(tuple(peers)))
        registering.start()
        await_that(lambda: ("127.0.0.1",) in admitted)
        present._registry.key = OTHER.encode()
        await_that(lambda: admitted[-1] == ())
        done.set()
        registering.join()
    assert lines == [
        f"worker joined the training at {training} as 127.0.0.1:7",
        f"worker waits for a training at {training}; the one there refuses it: it has another MTF_HETERO_SECRET",
    ]


def await_that(holds):
    end = time.monotonic() + 10
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.01)


@on_workers
def test_a_cluster_takes_workers_in_and_leaves_workers_out(workers):
    a, b, c = workers.addresses
    cluster = Cluster.from_workers([a, b], ["worker:1/cpu:0", "cpu:1"])
    grown = cluster.with_members([b, c], timeout_seconds=60.0)
    of_chief = "/job:chief/task:0/device:CPU:1"
    of = [f"/job:worker/task:{number}/device:CPU:0" for number in range(3)]
    assert (grown.workers, grown.devices, grown.cpus) == ((a, b, c), (of[1], of_chief, of[2]), 2)
    assert grown.with_members([c]).devices == (of_chief, of[2])
    returned = grown.with_members([c]).with_members([a, b, c], timeout_seconds=60.0)
    assert (returned.workers, set(returned.devices)) == ((a, b, c), {*of, of_chief})
    with pytest.raises(ValueError, match=r"worker 3 \(127.0.0.1:\d+\): connection refused"):
        grown.with_members([c, f"127.0.0.1:{free_port()}"])
    with pytest.raises(ValueError, match="devices is empty"):
        Cluster.from_workers([a]).with_members([])
