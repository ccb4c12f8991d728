"""The training binary on workers: results, wrong flags, measured speeds, and workers that die."""

import dataclasses
import functools
import os
import random
import re
import signal
import socket
import subprocess
import time
from unittest import mock

import numpy as np
import psutil
import pytest
from tiers import on_workers
from training_runs import FAST, ONE, Reader, restored_logging, run, start, variables  # noqa: F401 - one is a fixture

from mtf_hetero import tf
from mtf_hetero.cli.train import prepare
from mtf_hetero.cluster import LocalCluster, claim
from mtf_hetero.cluster.devices import shorten
from mtf_hetero.cluster.emulation import isolation
from mtf_hetero.cost import quick
from mtf_hetero.data.preparing.cosmology import write_universes
from mtf_hetero.mesh.commits import Commits
from mtf_hetero.models.registry import MODELS
from mtf_hetero.planner import plan as plan_lib

pytestmark = pytest.mark.usefixtures("restored_logging")
ON_WORKERS = {name: value for name, value in FAST.items() if name != "devices"}


@pytest.fixture
def small(monkeypatch):
    """A network with one dense layer, which is measured and lowered sooner; a process of its own has the real one."""
    model = dataclasses.replace(MODELS["lenet"], build=functools.partial(MODELS["lenet"].build, units=()))
    monkeypatch.setattr(prepare, "MODELS", {**MODELS, "lenet": model})


@pytest.fixture(scope="module")
def local():
    """Two workers, one a whole core and one a half."""
    cluster = LocalCluster("1.0,0.5", report=lambda line: None)
    with cluster:
        yield cluster


@on_workers
@pytest.mark.full
@pytest.mark.parametrize(("seconds", "times"), [(60, 1), (0, 0)])
def test_a_dry_run_counts_the_updates_that_wait(seconds, times, workers, monkeypatch, tmp_path):
    hold = mock.Mock(side_effect=Commits.hold, autospec=True)
    monkeypatch.setattr(Commits, "hold", lambda *args: hold(*args))
    options = ON_WORKERS | {"workers": ",".join(workers.addresses), "layout": "batch", "wait_for_workers": seconds}
    assert run(**options, dry_run=True, model_dir=tmp_path / "run") == 0
    assert hold.call_count == times


@on_workers
@pytest.mark.full
@pytest.mark.parametrize("layout", ["filters", "conv2/filters:all"])
def test_layouts_on_workers_train_as_one_device(small, layout, workers, tmp_path, capfd):
    assert run(**ONE, model_dir=tmp_path / "one") == 0
    expected = variables(tmp_path / "one")
    addresses = ",".join(workers.addresses)
    options = ON_WORKERS | {"workers": addresses, "layout": layout, "list_speed": "3,2,1"}
    assert run(**options, model_dir=tmp_path / "split") == 0
    for name, value in variables(tmp_path / "split").items():
        np.testing.assert_allclose(value, expected[name], rtol=0, atol=1e-5, err_msg=name)
    out = capfd.readouterr().out
    assert f"worker 0 at {workers.addresses[0]}, worker 1 at {workers.addresses[1]}, worker 2 at " in out
    assert "mesh all:3 on worker:0/cpu:0, worker:1/cpu:0, worker:2/cpu:0\n" in out


@pytest.mark.full
@on_workers
def test_devices_of_workers_and_of_this_process(small, workers, tmp_path, capfd):
    workers, devices = ",".join(workers.addresses[:2]), "worker:1/cpu:0,cpu:0,worker:0/cpu:0"
    assert run(**{**FAST, "devices": devices}, workers=workers, list_speed="1,2,2", model_dir=tmp_path) == 0
    assert f"mesh all:3 on {devices.replace(',', ', ')}\n" in capfd.readouterr().out


@pytest.mark.full
def test_a_cluster_of_its_own(small, tmp_path, capfd, monkeypatch):
    entered = []
    monkeypatch.setattr(isolation, "enter", lambda: entered.append(psutil.Process().children()))
    before = set(psutil.Process().children(recursive=True))
    options = FAST | {"devices": "cpu:0,worker:0/cpu:0", "wire_dtype": "bfloat16"}
    assert run(**options, local_cluster="0.75", model_dir=tmp_path) == 0
    assert len(entered) == 1 and set(entered[0]) <= before  # the network of its own, before there are workers
    out = capfd.readouterr().out
    assert re.search(r"worker 0 at 127.0.0.1:\d+: 0.75 cores on core \d+, limited by ", out)
    assert set(psutil.Process().children(recursive=True)) <= before


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"workers": "127.0.0.1:1"}, "worker 0 (127.0.0.1:1)"),
        ({"workers": "here"}, "worker address 'here' is not host:port"),
        ({"workers": "a:1", "local_cluster": "1"}, "give one of the two"),
        ({"local_cluster": "1.0,fast"}, "'fast' is not a number of cores"),
        ({"local_cluster": "99"}, "asks for 99 cores for worker 0"),
        ({"list_speed": "auto", "mesh_shape": "rows:1"}, "remove --mesh_shape"),
        ({"list_speed": "auto", "layout": "even"}, "which uses no speeds; give another layout"),
        ({"memory_limit": "16,8"}, "which only --layout=auto and --list_speed=auto use"),
        ({"list_speed": "auto", "memory_limit": "16,8", "devices": "cpu:0"}, "gigabytes of each of the 1 devices"),
        ({"wire_dtype": "int8"}, "--wire_dtype is 'int8'; it must be one of bfloat16, float16"),
        ({"devices": "worker:0/cpu:0"}, "device 'worker:0/cpu:0'"),
    ],
)
def test_a_mistake_gives_one_line_and_exit_code_2(values, message, capfd):
    assert run(model="lenet", **values) == 2
    out, err = capfd.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert err.startswith("error: ")
    assert message in err


@on_workers
def test_workers_that_another_training_has(workers, tmp_path, capfd):
    options = ON_WORKERS | {"workers": ",".join(workers.addresses[:2]), "model_dir": tmp_path}
    other = claim._Holding(workers.addresses[1])
    assert other.take() == ""
    try:
        for speeds in ("2,1", "auto"):
            assert run(**options, list_speed=speeds) == 2
            out, err = capfd.readouterr()
            assert (out, err.count("\n")) == ("", 1)
            assert f"belongs to another training: pid {os.getpid()} on " in err
    finally:
        other.release()


@pytest.mark.full
@on_workers
def test_a_second_training_on_the_same_workers_is_told_who_has_them(workers, tmp_path, capfd):
    options = {**ON_WORKERS, "workers": ",".join(workers.addresses[:2]), "max_steps": 100_000, "train_epochs": 50_000}
    with start(*(f"--{name}={value}" for name, value in options.items()), stdout=subprocess.DEVNULL) as process:
        try:
            reader = Reader(process.stderr)
            seen = reader.await_line("step 10/")
            for speeds in ("2,1", "auto"):
                assert run(**options, list_speed=speeds, model_dir=tmp_path) == 2
                out, err = capfd.readouterr()
                assert (out, err.count("\n")) == ("", 1)
                assert f"belongs to another training: pid {process.pid} on " in err
            reader.await_line("step .*/", seen + 1)
            process.send_signal(signal.SIGTERM)
            assert process.wait(300) == 143
        finally:
            process.kill()
    assert "is gone" not in "".join(reader.lines)


# Measured speeds


@pytest.mark.full
@on_workers
def test_measured_speeds(small, workers, tmp_path, capfd, monkeypatch):
    monkeypatch.setattr("mtf_hetero.cost.microbenchmarks.HOPS", {1 << 10: 10, 1 << 20: 4, 1 << 23: 4})
    monkeypatch.setattr("mtf_hetero.cost.microbenchmarks.LOADS", {1 << 10: 4, 1 << 16: 4})
    workers = ",".join(workers.addresses[:2])
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    options = {**ON_WORKERS, "workers": workers, "layout": "batch", "list_speed": "auto", "measure_seconds": 0.1}
    assert run(**options, memory_limit="4,4", model_dir=tmp_path / "model") == 0
    out = capfd.readouterr().out
    assert re.search(r"^Layout: .* \(chosen in \d+ s\)$", out, re.MULTILINE)
    assert "test accuracy" in out


@pytest.mark.full
@on_workers
def test_a_worker_that_is_killed_while_devices_are_measured(workers, tmp_path, capfd, monkeypatch):
    measure, killed = quick.measure_rates, []

    def kill_and_measure(cluster):
        killed.append(os.kill(workers.pids[2], signal.SIGKILL))
        return measure(cluster)

    monkeypatch.setattr(quick, "measure_rates", kill_and_measure)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    try:
        assert run(**ON_WORKERS, workers=",".join(workers.addresses), layout="auto") == 2
    finally:
        workers.restart(2)
    err = capfd.readouterr().err
    said = [line for line in err.splitlines() if line.startswith("error: ")]  # among what TensorFlow logs
    assert killed and len(said) == 1 and said[0].startswith(f"error: worker 2 ({workers.addresses[2]}): "), err
    assert "Traceback" not in err


@on_workers
def test_a_layout_that_is_found(small, workers, tmp_path, capfd, monkeypatch):
    monkeypatch.setattr("mtf_hetero.cost.microbenchmarks.HOPS", {1 << 10: 10, 1 << 20: 4, 1 << 23: 4})
    monkeypatch.setattr("mtf_hetero.cost.microbenchmarks.LOADS", {1 << 10: 4, 1 << 16: 4})
    options = {**ON_WORKERS, "workers": ",".join(workers.addresses[:2]), "layout": "auto", "measure_seconds": 0.1}
    assert run(**options, memory_limit="4,4", model_dir=tmp_path / "model") == 0
    out = capfd.readouterr().out
    assert re.search(r"^Layout: .* \(chosen in \d+ s\)$", out, re.MULTILINE)
    assert "test accuracy" in out
    planned = plan_lib.load(tmp_path / "model" / "plan.json")
    assert f"mesh {planned.layout.mesh_text} on {', '.join(map(shorten, planned.devices))}" in out


# Workers that die


@pytest.mark.parametrize(
    ("kills", "trained"),
    [
        pytest.param(1, "volumes", marks=pytest.mark.full),
        pytest.param(1, "keras", marks=pytest.mark.full),
        pytest.param(3, "lenet", marks=pytest.mark.slow),
    ],
)
def test_training_survives_a_killed_worker(local, tmp_path, kills, trained):
    rng = random.Random(kills)
    options = {**ON_WORKERS, "max_steps": 100_000, "train_epochs": 50_000, "save_checkpoints_secs": 2, "log_steps": 10}
    if trained == "keras":
        from tiny_keras import tiny  # other tests do without Keras

        tiny(tmp_path / "my.keras")
        options |= {"model": tmp_path / "my.keras", "layout": "batch"}
    if trained == "volumes":
        write_universes(tmp_path / "universes", train=5, test=1, size=16)
        options |= {"model": "cosmoflow_small", "dataset": tmp_path / "universes", "batch_size": 2}
        options |= {"layout": "spatial", "mesh_shape": "depth:2"}
    options |= {"workers": ",".join(local.addresses), "list_speed": "2,1", "model_dir": tmp_path / "model"}
    args = [f"--{name}={value}" for name, value in options.items()]
    with start(*args, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as process:
        reader = Reader(process.stdout)
        seen = reader.await_line("step 10/")
        try:
            for _ in range(kills):
                time.sleep(rng.uniform(0.0, 5.0))
                index = rng.randrange(len(local.pids))
                os.kill(local.pids[index], signal.SIGKILL)
                seen = reader.await_line(rf"worker {index} \(.*\) is gone", seen, seconds=30)
                time.sleep(rng.uniform(0.0, 2.0))
                local.restart(index)
                seen = reader.await_line("step .*/", seen + 1)
            process.send_signal(signal.SIGTERM)
            assert process.wait(300) == 143
        finally:
            process.kill()
    text = "".join(reader.lines)
    assert "Traceback" not in text
    assert "to resume, run the same command" in reader.lines[-1]
    losses = [float(loss) for loss in re.findall(r"  loss (\S+)", text)]
    assert (
        trained == "volumes" or np.median(losses[-5:]) < losses[0]
    )  # five universes are told no better within seconds
    assert np.isfinite(losses).all()
    assert text.count(" is gone: ") == kills


@pytest.mark.full
def test_the_run_of_a_killed_chief_is_resumed_and_its_workers_are_gone(tmp_path, capfd):
    """And while it ran, they could be reached by nobody else."""
    options = {**ON_WORKERS, "max_steps": 100_000, "train_epochs": 50_000, "save_checkpoints_secs": 1}
    options = {**options, "local_cluster": "0.6,0.3", "list_speed": "2,1", "model_dir": tmp_path}
    args = [f"--{name}={value}" for name, value in options.items()]
    with start(*args, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as process:
        reader = Reader(process.stdout)
        reader.await_line("step 10/")
        text = "".join(reader.lines)
        if "network" not in text:  # where the kernel permits no network namespace, a line says so
            for port in re.findall(r"worker \d at 127.0.0.1:(\d+):", text):
                with pytest.raises(ConnectionRefusedError):
                    socket.create_connection(("127.0.0.1", int(port)), 10)
        end = time.monotonic() + 60
        while (tf.train.latest_checkpoint(str(tmp_path)) or "-0").endswith("-0") and time.monotonic() < end:
            time.sleep(0.1)
        descendants = psutil.Process(process.pid).children(recursive=True)
        assert sum("mtf_hetero.cluster.worker" in " ".join(child.cmdline()) for child in descendants) == 2
        process.kill()
    _, alive = psutil.wait_procs(descendants, timeout=20)
    assert not alive
    step = int(tf.train.load_variable(tf.train.latest_checkpoint(str(tmp_path)), "global_step"))
    assert step > 0
    assert run(**{**options, "max_steps": step + 3}) == 0
    assert f"model.ckpt-{step + 3}\n" in capfd.readouterr().out
