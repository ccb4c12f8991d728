"""Addresses of workers: flags, TF_CONFIG and Slurm, right and wrong."""

import json
import socket

import pytest
from ports import free_port
from silent_proxy import silent_after
from tiers import on_workers

from mtf_hetero.cluster import Cluster, UnreachableWorkerError, environment, probe

pytestmark = on_workers


def test_a_worker_that_cannot_be_reached_is_named(workers):
    gone = f"127.0.0.1:{free_port()}"
    with pytest.raises(UnreachableWorkerError, match=f"^worker 1 \\({gone}\\): connection refused; start it") as caught:
        Cluster.from_workers([workers.addresses[0], gone])
    assert "\n" not in str(caught.value)
    with pytest.raises(UnreachableWorkerError, match=r"^worker 0 \(no-such-host\.invalid:2222\)"):
        probe.check_reachable(("no-such-host.invalid:2222",))


def test_a_port_that_is_silent_is_named():
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        with pytest.raises(UnreachableWorkerError, match=r"worker 0 \(127\.0\.0\.1:\d+\)"):
            probe.check_reachable((address,), 1.0)


@pytest.mark.parametrize(
    ("workers", "message"),
    [
        ("host", "'host' is not host:port"),
        ("host:0", "'host:0' is not host:port"),
        ("host:65536", "is not host:port"),
        ("http://host:80", "is not host:port"),
        ("a:1,b:2,a:1", "'a:1' is given twice"),
        ("", "workers is empty"),
    ],
)
def test_wrong_addresses(workers, message):
    with pytest.raises(ValueError, match=message):
        Cluster.from_workers(workers)


def test_the_devices_of_this_process():
    assert Cluster.local().devices[-1] == "cpu:0"
    cluster = Cluster.local(["cpu:0", "/device:CPU:2"])
    assert (cluster.devices, cluster.target, cluster.cpus) == (("cpu:0", "cpu:2"), "", 3)
    with pytest.raises(ValueError, match="gpu:99"):
        Cluster.local(["gpu:99"])


def tf_config(monkeypatch, cluster, job, index):
    monkeypatch.setenv("TF_CONFIG", json.dumps({"cluster": cluster, "task": {"type": job, "index": index}}))


JOBS = {"chief": ["a:1"], "worker": ["b:2", "c:3"]}


def test_tf_config(monkeypatch, workers):
    tf_config(monkeypatch, JOBS, "worker", 1)
    task = environment.task_of_environment()
    assert task == environment.Task("worker", 1, "c:3", ("b:2", "c:3"), "TF_CONFIG")
    with pytest.raises(ValueError, match="this process is worker 1 of TF_CONFIG; train in its task 'chief'"):
        Cluster.from_environment()
    addresses = workers.addresses[:2]
    chief = f"127.0.0.1:{free_port()}"
    tf_config(monkeypatch, {"master": [chief], "worker": addresses}, "master", 0)
    cluster = Cluster.from_environment()
    assert cluster is not None
    assert (cluster.workers, cluster.target) == (tuple(addresses), f"grpc://{chief}")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "TF_CONFIG is invalid"),
        ("{}", "it needs a chief, which trains, and at least one worker"),
        (json.dumps({"cluster": {"worker": ["b:2"]}, "task": {"type": "worker", "index": 0}}), "needs a chief"),
        (json.dumps({"cluster": JOBS, "task": {"type": "worker", "index": 2}}), "task 2 of job 'worker'"),
        (json.dumps({"cluster": JOBS}), "task None of job None"),
    ],
)
def test_a_wrong_tf_config(text, message, monkeypatch):
    monkeypatch.setenv("TF_CONFIG", text)
    with pytest.raises(ValueError, match=message) as caught:
        environment.task_of_environment()
    assert "\n" not in str(caught.value)


def test_slurm(monkeypatch):
    monkeypatch.delenv("TF_CONFIG", raising=False)
    assert environment.task_of_environment() is None
    for name, value in {
        "PROCID": "2",
        "STEP_NUM_TASKS": "3",
        "STEP_NODELIST": "node[1-2]",
        "STEP_TASKS_PER_NODE": "2,1",
    }.items():
        monkeypatch.setenv(f"SLURM_{name}", value)
    task = environment.task_of_environment()
    assert task == environment.Task("worker", 1, "node2:8888", ("node1:8889", "node2:8888"), "Slurm")


def test_a_proxy_that_goes_silent_is_named(workers):
    silent = "answers, but does not list its devices"
    with (
        silent_after(2, workers.addresses[0]) as address,
        pytest.raises(UnreachableWorkerError, match=f"{address}. {silent}"),
    ):
        Cluster.from_workers(address, timeout_seconds=2)
