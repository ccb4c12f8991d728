"""Workers: what they compute, how they are limited, and what their binary says."""

import dataclasses
import os
import pathlib
import re
import signal
import socket
import sys
import types

import numpy as np
import oracle
import pytest
from ports import free_port
from tiers import on_workers

import mtf_hetero
from mtf_hetero import mtf, tf
from mtf_hetero.cluster import Cluster, WorkerWatch, probe, worker
from mtf_hetero.cluster.emulation import guard
from mtf_hetero.cluster.emulation.local import LimitedProcesses

ROOT = pathlib.Path(__file__).resolve().parents[2]
pytestmark = on_workers


@pytest.fixture(scope="module")
def local(workers):
    """Two of the run's workers."""
    addresses = workers.addresses[:2]
    return types.SimpleNamespace(addresses=addresses, cluster=Cluster.from_workers(addresses), log=workers._log(0))


# Two workers compute what one device computes


def program(feed):
    batch, channels, hidden = mtf.Dimension("batch", 6), mtf.Dimension("channels", 5), mtf.Dimension("hidden", 11)
    x = feed("x", mtf.Shape([batch, channels]))
    w = mtf.get_variable(x.mesh, "w", mtf.Shape([channels, hidden]), dtype=tf.float64)
    return {"y": mtf.relu(mtf.einsum([x, w], mtf.Shape([batch, hidden])))}


def on_cluster(cluster, shares):
    """The program's output, and the devices on which its slices of the variable were."""
    with tf.Graph().as_default():
        tf.set_random_seed(oracle.SEED)
        mesh = mtf.Mesh(graph := mtf.Graph(), "mesh")
        y = program(oracle.Feed(mesh, tf.float64))["y"]
        mesh_impl = mtf_hetero.UnevenMeshImpl("all:2", "hidden:all", cluster.devices, shares={"all": shares})
        lowering = mtf_hetero.Lowering(graph, {mesh: mesh_impl})
        exported = lowering.export_to_tf_tensor(y)
        metadata = tf.RunMetadata()
        with tf.Session(cluster.target, config=cluster.session_config()) as session:
            session.run(tf.global_variables_initializer())
            options = tf.RunOptions(trace_level=tf.RunOptions.FULL_TRACE)
            value = session.run(exported, options=options, run_metadata=metadata)
        stats = metadata.step_stats.dev_stats
        return value, {s.device for s in stats if any("einsum" in n.node_name for n in s.node_stats)}


def test_two_workers_compute_what_one_device_does(local):
    cluster = local.cluster
    assert cluster.devices == ("/job:worker/task:0/device:CPU:0", "/job:worker/task:1/device:CPU:0")
    assert cluster.target.startswith("grpc://127.0.0.1:")
    value, used = on_cluster(cluster, [3, 1])
    assert {f"/job:worker/replica:0/task:{task}/device:CPU:0" for task in (0, 1)} <= used
    other, _ = on_cluster(cluster, [1, 2])  # slices of another size: nothing stale is left on the workers
    np.testing.assert_allclose(other, value, rtol=0, atol=1e-12)
    one = dataclasses.replace(cluster, devices=("/job:chief/task:0/device:CPU:0",) * 2)
    np.testing.assert_allclose(on_cluster(one, [1, 1])[0], value, rtol=0, atol=1e-12)


def test_devices_of_this_process_and_of_workers_are_mixed(local):
    cluster = Cluster.from_workers(local.addresses, ["cpu:1", "worker:1/cpu:0", "/job:worker/task:0/device:CPU:0"])
    assert cluster.devices == (
        "/job:chief/task:0/device:CPU:1",
        "/job:worker/task:1/device:CPU:0",
        "/job:worker/task:0/device:CPU:0",
    )
    assert cluster.session_config().device_count["CPU"] == 2


@pytest.mark.parametrize(
    ("device", "message"),
    [
        ("worker:2/cpu:0", "names worker 2, but there are only workers 0 to 1"),
        ("worker:1/gpu:0", "does not exist: worker 1 "),
        ("worker:1/cpu:1", "has cpu:0"),
        ("tpu:0", "write cpu:N, gpu:N or, of a worker, worker:N/gpu:N"),
        ("gpu:99", "TensorFlow finds"),
    ],
)
def test_devices_that_are_not_there(device, message, local):
    with pytest.raises(ValueError, match=message):
        Cluster.from_workers(local.addresses, [device])


def test_a_worker_without_a_device_in_use_need_not_be_there(local):
    workers = [local.addresses[0], f"127.0.0.1:{free_port()}", local.addresses[1]]
    cluster = Cluster.from_workers(workers, ["worker:0/cpu:0", "worker:2/cpu:0"])
    assert cluster.workers_in_use == {0: workers[0], 2: workers[2]}
    (chief, job) = cluster.session_config().cluster_def.job
    assert (chief.name, dict(job.tasks)) == ("chief", {0: workers[0], 2: workers[2]})
    cluster.check_reachable(60.0)
    value, used = on_cluster(cluster, [1, 1])
    assert {f"/job:worker/replica:0/task:{task}/device:CPU:0" for task in (0, 2)} <= used
    np.testing.assert_allclose(value, on_cluster(local.cluster, [1, 1])[0], rtol=0, atol=1e-12)
    config = mtf_hetero.RunConfig(workers=cluster.workers_in_use)
    assert list(WorkerWatch(config.workers)._workers) == [0, 2]


# The limit


def test_the_limit_is_applied():
    with LimitedProcesses("1.0,0.33", report=lambda line: None) as local:
        for index in range(2):
            local.start(index, [sys.executable, "-S", "-c", "import time; time.sleep(1000)"])
            local.limit(index)
        assert_limited(local)


def assert_limited(local):
    assert local.limits[0] == guard.AFFINITY
    for pid, cores in zip(local.pids, local._cores):
        assert sorted(os.sched_getaffinity(pid)) == cores
    if local.limits[1] == guard.DUTY_CYCLE:
        pytest.skip("no control group can be made here")
    directory = pathlib.Path(local.groups[1])
    assert str(local.pids[1]) in (directory / "cgroup.procs").read_text().split()
    if local.limits[1] == guard.QUOTA_V1:
        quota, period = (int((directory / f"cpu.cfs_{name}_us").read_text()) for name in ("quota", "period"))
    else:
        quota, period = (int(number) for number in (directory / "cpu.max").read_text().split())
    assert quota / period == pytest.approx(0.33, abs=0.001)


# The worker's binary


def test_the_worker_says_where_it_is_and_who_reaches_it(local):
    text = local.log.read_text()
    assert f"worker listens on {local.addresses[0]} with cpu:0\n" in text
    line = "^reached by programs on this machine only: each of them, of any user, can run code as .* no authentication$"
    assert re.search(line, text, re.M)


def test_a_worker_and_the_chief_are_reached_at_their_own_address_only(local):
    for address in (local.addresses[0], local.cluster.target.removeprefix("grpc://")):
        host, port = probe.split_address(address)
        assert host == "127.0.0.1"
        socket.create_connection((host, port), 1).close()
        for other, family in (("127.0.0.2", socket.AF_INET), ("::1", socket.AF_INET6)):
            with socket.socket(family) as client:
                client.settimeout(0.3)
                with pytest.raises(TimeoutError):
                    client.connect((other, port))


@pytest.mark.parametrize(
    ("host", "address", "refusal", "line"),
    [
        (
            None,
            None,
            "",
            "warning: anyone who reaches port 7 at any address of this machine can run code as me, because",
        ),
        ("node7", None, "", "has no authentication; --host=ADDRESS opens one address only"),
        ("203.0.113.7", None, "", "warning: anyone who reaches port 7 at any address"),
        ("localhost", "127.0.0.1", "", "reached by programs on this machine only: each of them, of any user, can run"),
        ("127.0.0.1", "127.0.0.1", "no filter", "at any address of .*; --host=127.0.0.1 has no effect: no filter"),
        ("127.0.0.1", "127.0.0.1", "", "reached by programs on this machine only"),
    ],
)
def test_who_reaches_a_worker(host, address, refusal, line, monkeypatch):
    monkeypatch.setattr(worker, "_user", lambda: "me")
    assert worker._listening_address(host) == address
    assert re.search(line, worker._describe_reach(7, address, refusal))


def test_who_reaches_a_worker_at_one_address(monkeypatch):
    monkeypatch.setattr(worker, "_user", lambda: "me")
    assert worker._describe_reach(7, "10.0.0.7", "") == (
        "warning: anyone who reaches 10.0.0.7:7 can run code as me, because TensorFlow's server has no authentication; "
        "the port is closed at other addresses"
    )
    monkeypatch.setenv("MTF_HETERO_SECRET", "sixteen characters")
    assert "; MTF_HETERO_SECRET has no effect without --join; --host=ADDRESS" in worker._describe_reach(7, None, "")
    assert worker._describe_reach(7, None, "", "a:2300") == (
        "reached by nobody until the training at a:2300 proves MTF_HETERO_SECRET, then by its machines only: each user "
        "of them can run code as me, because TensorFlow's server has no authentication"
    )


def test_what_the_worker_cannot_have_gives_one_line_and_exit_code_2(local, capfd):
    port = local.addresses[0].rpartition(":")[2]
    for flags, message in (
        (["--port=0", "--gpus=99"], "--gpus is '99', but the GPUs here are"),
        ([f"--port={port}"], "which is in use on this machine"),
    ):
        before = signal.pthread_sigmask(signal.SIG_BLOCK, ())
        try:
            assert worker.main(flags) == 2
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        err = [line for line in capfd.readouterr().err.splitlines() if "cuda" not in line]  # TensorFlow's own noise
        assert len(err) == 1 and message in err[0]
