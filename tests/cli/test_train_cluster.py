"""The training binary on workers: results, wrong flags, measured speeds, and workers that die."""

import dataclasses
import functools
import os
import re
import signal
import socket
import subprocess
import threading
import time
from unittest import mock

import numpy as np
import psutil
import pytest
from tiers import losing_workers, on_workers, parametrize
from training_runs import FAST, ONE, Reader, act, check_mistake, check_variables, run, start, variables

from mtf_hetero import tf
from mtf_hetero.cli.train import prepare
from mtf_hetero.cluster import claim, watch
from mtf_hetero.cluster.devices import shorten
from mtf_hetero.cluster.emulation import isolation
from mtf_hetero.cost import quick
from mtf_hetero.data.preparing.cosmology import write_universes
from mtf_hetero.mesh.commits import Commits
from mtf_hetero.models.registry import MODELS
from mtf_hetero.planner import plan as plan_lib

ON_WORKERS = {name: value for name, value in FAST.items() if name != "devices"}


@pytest.fixture
def small(monkeypatch):
    """A network with one dense layer, which is measured and lowered sooner; a process of its own has the real one."""
    model = dataclasses.replace(MODELS["lenet"], build=functools.partial(MODELS["lenet"].build, units=()))
    monkeypatch.setattr(prepare, "MODELS", {**MODELS, "lenet": model})


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
def test_a_layout_on_workers_trains_as_one_device(small, workers, tmp_path, capfd, monkeypatch):
    """The training owns its workers meanwhile."""
    assert run(**ONE, model_dir=tmp_path / "one") == 0
    expected, owners = variables(tmp_path / "one"), []
    act(monkeypatch, {1: lambda _: owners.append(claim._Holding(workers.addresses[2]).take())})
    options = ON_WORKERS | {"workers": ",".join(workers.addresses), "layout": "filters", "list_speed": "3,2,1"}
    assert run(**options, model_dir=tmp_path / "split") == 0
    assert len(owners) == 1 and owners[0].startswith(f"pid {os.getpid()} on ")
    check_variables(tmp_path / "split", expected, atol=1e-5)
    out = capfd.readouterr().out
    assert f"worker 0 at {workers.addresses[0]}, worker 1 at {workers.addresses[1]}, worker 2 at " in out
    assert "mesh all:3 on worker:0/cpu:0, worker:1/cpu:0, worker:2/cpu:0\n" in out


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


@on_workers
def test_workers_that_another_training_has(workers, tmp_path, capfd):
    options = ON_WORKERS | {"workers": ",".join(workers.addresses[:2]), "model_dir": tmp_path}
    other = claim._Holding(workers.addresses[1])
    assert other.take() == ""
    try:
        for speeds in ("2,1", "auto"):
            message = f"belongs to another training: pid {os.getpid()} on "
            check_mistake(capfd, message, **options, list_speed=speeds)
    finally:
        other.release()


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
@parametrize("asked", [{"layout": "auto"}, {"layout": "batch", "list_speed": "auto"}], first=[{"layout": "auto"}])
def test_a_layout_that_is_found(asked, small, workers, tmp_path, capfd, monkeypatch):
    monkeypatch.setattr("mtf_hetero.cost.microbenchmarks.HOPS", {1 << 10: 10, 1 << 20: 4, 1 << 23: 4})
    monkeypatch.setattr("mtf_hetero.cost.microbenchmarks.LOADS", {1 << 10: 4, 1 << 16: 4})
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    options = ON_WORKERS | asked | {"workers": ",".join(workers.addresses[:2]), "measure_seconds": 0.1}
    assert run(**options, memory_limit="4,4", model_dir=tmp_path / "model") == 0
    out = capfd.readouterr().out
    assert re.search(r"^Layout: .*; chosen in \d+ s$", out, re.MULTILINE)
    assert "test accuracy" in out
    planned = plan_lib.load(tmp_path / "model" / "plan.json")
    assert f"mesh {planned.layout.mesh_text} on {', '.join(map(shorten, planned.devices))}" in out


# Workers that die


@losing_workers
@pytest.mark.full
@pytest.mark.usefixtures("toys")
@pytest.mark.parametrize("trained", ["volumes", "lenet"])
def test_training_survives_killed_workers(trained, workers, tmp_path, capfd, monkeypatch):
    """A worker starts again once the training has said that it is gone."""
    describe = watch.describe_wait

    def restart_and_describe(index, *rest):
        threading.Thread(target=workers.restart, args=[index]).start()
        return describe(index, *rest)

    def kill(index, _):
        os.kill(workers.pids[index], signal.SIGKILL)

    monkeypatch.setattr(watch, "describe_wait", restart_and_describe)
    kills = {3: 1, 6: 0, 9: 1} if trained == "lenet" else {3: 1}
    act(monkeypatch, {step: functools.partial(kill, index) for step, index in kills.items()})
    options = ON_WORKERS | {"max_steps": 12, "save_checkpoints_secs": 1, "list_speed": "2,1", "log_steps": 1}
    if trained == "volumes":
        write_universes(tmp_path / "universes", train=5, test=1, size=16)
        options |= {"model": "cosmoflow_small", "dataset": tmp_path / "universes", "batch_size": 2}
        options |= {"layout": "spatial", "mesh_shape": "depth:2", "train_epochs": 5}
    options |= {"workers": ",".join(workers.addresses[:2]), "model_dir": tmp_path / "model"}
    assert run(**options) == 0
    out, err = capfd.readouterr()
    assert "Traceback" not in err and f"checkpoint: {tmp_path}/model/model.ckpt-12\n" in out
    losses = [float(loss) for loss in re.findall(r"  loss (\S+)", err)]
    assert len(losses) >= 12 and np.isfinite(losses).all()
    assert err.count(" is gone: ") == len(kills)


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
