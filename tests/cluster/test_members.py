"""The present workers of a training: lists, files that change, and workers that register."""

import os
import threading
import time

import grpc
import pytest
from ports import free_port
from tiers import on_workers

from mtf_hetero import tf
from mtf_hetero.cluster import Cluster, members
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
        (None, "the file of workers is '.*': no such file or directory; write one host:port per line"),
        (b"\xff", "it is not text; write"),
        (b"# none\n", "which has none; write one host:port per line"),
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
    message = f"^the file of workers is '{path}': it is a {kind}, not a regular file; write one host:port per line$"
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
        assert told[0] == f"waiting for 2 workers at port {port}"
        monkeypatch.setattr(members, "_KEPT_SECONDS", 0.5)
        while present() != ("127.0.0.1:7",):
            time.sleep(0.05)
        with pytest.raises(grpc.RpcError, match="worker address 'b c:8' is not host:port"):
            members.register(training, "b c", 8)
        with pytest.raises(ValueError, match=f"workers is ':{port}', a port that is in use"), Members(f":{port}"):
            pass
    done.set()
    caller.join()
    assert lines[:2] == [
        f"worker waits for a training at {training}",
        f"worker joined the training at {training} as 127.0.0.1:7",
    ]


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
