"""Workers: found, named when they are gone, limited, and never left behind."""

import dataclasses
import json
import os
import pathlib
import re
import signal
import socket
import sys
import threading
import time
import types
from typing import Any
from unittest import mock

import numpy as np
import oracle
import pytest
from tiers import on_workers

import mtf_hetero
from mtf_hetero import cluster as cluster_lib
from mtf_hetero import mtf, tf, worker
from mtf_hetero.cluster import Cluster, LocalCluster, UnreachableWorkerError, WaitingSessionCreator, WorkerWatch, guard
from mtf_hetero.cluster.local import LimitedProcesses
from mtf_hetero.cluster.probe import Answer, Outcome, ask

ROOT = pathlib.Path(__file__).resolve().parents[1]
pytestmark = on_workers


@pytest.fixture(scope="module")
def local(workers):
    """Two of the run's workers."""
    addresses = workers.addresses[:2]
    return types.SimpleNamespace(
        addresses=addresses,
        cluster=Cluster.from_workers(addresses),
        kill=lambda index: os.kill(workers.pids[index], signal.SIGKILL),
        restart=workers.restart,
        log=workers._log(0),
    )


def free_port():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return taken.getsockname()[1]


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
        graph = mtf.Graph()
        mesh = mtf.Mesh(graph, "mesh")
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
        ("worker:2/cpu:0", "of worker 2, but there are workers 0 to 1"),
        ("worker:1/gpu:0", "is not there: worker 1 "),
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


@pytest.mark.full
def test_workers_are_limited():
    cluster = LocalCluster("1.0,0.33", report=lambda line: None)
    with cluster:
        assert len(cluster.describe()) == 2
        assert_limited(cluster)


# Addresses, TF_CONFIG, Slurm


def test_a_worker_that_cannot_be_reached_is_named(local):
    gone = f"127.0.0.1:{free_port()}"
    with pytest.raises(UnreachableWorkerError, match=f"^worker 1 \\({gone}\\): connection refused; start it") as caught:
        Cluster.from_workers([local.addresses[0], gone])
    assert "\n" not in str(caught.value)
    with pytest.raises(UnreachableWorkerError, match=r"^worker 0 \(no-such-host\.invalid:2222\)"):
        cluster_lib.check_reachable(("no-such-host.invalid:2222",))


def test_a_port_that_is_silent_is_named():
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        with pytest.raises(UnreachableWorkerError, match=r"worker 0 \(127\.0\.0\.1:\d+\)"):
            cluster_lib.check_reachable((address,), 1.0)


@pytest.mark.parametrize(
    ("workers", "message"),
    [
        ("host", "'host' is not host:port"),
        ("host:0", "'host:0' is not host:port"),
        ("host:65536", "is not host:port"),
        ("http://host:80", "is not host:port"),
        ("a:1,b:2,a:1", "'a:1' is given twice"),
        ("", "no worker is named"),
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


def test_tf_config(monkeypatch, local):
    tf_config(monkeypatch, JOBS, "worker", 1)
    task = cluster_lib.task_of_environment()
    assert task == cluster_lib.Task("worker", 1, "c:3", ("b:2", "c:3"), "TF_CONFIG")
    with pytest.raises(ValueError, match="this process is worker 1 of TF_CONFIG; train in its task 'chief'"):
        Cluster.from_environment()
    chief = f"127.0.0.1:{free_port()}"
    tf_config(monkeypatch, {"master": [chief], "worker": local.addresses}, "master", 0)
    cluster = Cluster.from_environment()
    assert cluster is not None
    assert (cluster.workers, cluster.target) == (tuple(local.addresses), f"grpc://{chief}")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "TF_CONFIG cannot be understood"),
        ("{}", "it needs a chief, which trains, and one worker"),
        (json.dumps({"cluster": {"worker": ["b:2"]}, "task": {"type": "worker", "index": 0}}), "needs a chief"),
        (json.dumps({"cluster": JOBS, "task": {"type": "worker", "index": 2}}), "task 2 of job 'worker'"),
        (json.dumps({"cluster": JOBS}), "task None of job None"),
    ],
)
def test_a_wrong_tf_config(text, message, monkeypatch):
    monkeypatch.setenv("TF_CONFIG", text)
    with pytest.raises(ValueError, match=message) as caught:
        cluster_lib.task_of_environment()
    assert "\n" not in str(caught.value)


def test_slurm(monkeypatch):
    monkeypatch.delenv("TF_CONFIG", raising=False)
    assert cluster_lib.task_of_environment({}) is None
    for name, value in {
        "PROCID": "2",
        "STEP_NUM_TASKS": "3",
        "STEP_NODELIST": "node[1-2]",
        "STEP_TASKS_PER_NODE": "2,1",
    }.items():
        monkeypatch.setenv(f"SLURM_{name}", value)
    task = cluster_lib.task_of_environment()
    assert task == cluster_lib.Task("worker", 1, "node2:8888", ("node1:8889", "node2:8888"), "Slurm")


# The worker's binary


def test_the_worker_says_where_it_is_and_that_anyone_may_use_it(local):
    text = local.log.read_text()
    assert f"worker listens on {local.addresses[0]} with cpu:0\n" in text
    assert "no authentication" in text
    assert "private network" in text


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--port=many"], "invalid int value: 'many'"),
        (["--speed=3"], "unrecognized arguments: --speed=3"),
        (["--port=70000"], "--port is 70000; it must be from 1 to 65535"),
        (["--port=0", "--cpus=0"], "--cpus is 0"),
        (["--port=0", "--threads=-1"], "--threads is -1"),
        (["--port=0", "--gpus=99"], "--gpus is '99', but the GPUs here are"),
        (["--port=0", "--gpus=0,one"], "--gpus is '0,one'; give all, none or numbers such as 0,2"),
        ([], "--port is missing"),
    ],
)
def test_a_wrong_flag_of_the_worker_gives_one_line_and_exit_code_2(args, message, capfd, monkeypatch):
    monkeypatch.delenv("TF_CONFIG", raising=False)
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    try:
        code = worker.main(args)
    except SystemExit as stop:
        code = stop.code
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    err = [line for line in capfd.readouterr().err.splitlines() if "cuda" not in line]  # TensorFlow's own noise
    assert code == 2
    assert len(err) == 1
    assert message in err[0]


def test_a_port_in_use(local, capfd):
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    try:
        assert worker.main([f"--port={local.addresses[0].rpartition(':')[2]}"]) == 2
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    err = capfd.readouterr().err
    assert "which is in use on this machine" in err
    assert err.count("\n") == 1


# A worker that dies


class _EndAfter(tf.train.SessionRunHook):
    """Ends training some steps after the global step was seen to fall back."""

    def __init__(self):
        self.steps = []

    def before_run(self, run_context):
        return tf.train.SessionRunArgs(tf.train.get_global_step())

    def after_run(self, run_context, run_values):
        self.steps.append(int(run_values.results))


def test_training_goes_on_after_a_worker_died(local, tmp_path):
    cluster, said, seen = local.cluster, [], _EndAfter()
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
                    local.kill(1)
                    end = time.monotonic() + 30
                    while not said and time.monotonic() < end:
                        time.sleep(0.05)
                    local.restart(1)
                session.run(train)
            value, last = session.run([total, step])
    assert said[0].startswith(f"worker 1 ({cluster.workers[1]}) is gone: ")
    assert "start it again there with `python -m mtf_hetero.worker --port=" in said[0]
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


def test_what_becomes_of_a_question(local):
    assert ask(local.addresses[0], 60.0).outcome is Outcome.ANSWERED
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
