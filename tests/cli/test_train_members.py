"""The training binary with workers that a file names, or that register."""

import itertools
import re
import socket
import subprocess
import sys
import time

import psutil
import pytest
from ports import free_port
from tiers import on_workers
from training_runs import FAST, run, start

ON_WORKERS = {name: value for name, value in FAST.items() if name != "devices"} | {"layout": "batch"}


@on_workers
def test_a_port_that_is_in_use(workers, capfd):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
        assert run(model="lenet", workers=workers.addresses[0], port=port) == 2
    out, err = capfd.readouterr()
    message = (
        f"this process cannot listen at 127.0.0.1:{port}; end the program that uses the port, or choose another one"
    )
    assert (out, err) == ("", f"error: {message}\n")


def _connected_ports(pid):
    """Return the ports to which a process is connected."""
    return {connection.raddr.port for connection in psutil.Process(pid).net_connections() if connection.raddr}


@pytest.mark.full
@on_workers
def test_workers_in_a_file_connect_to_the_port_of_the_training(workers, tmp_path, capfd):
    """In a process of its own, whose server has the port."""
    port, hosts = free_port(), tmp_path / "hosts.txt"
    hosts.write_text("".join(f"{address}  # a core\n" for address in workers.addresses[:2]))
    flags = [f"--{name}={value}" for name, value in (ON_WORKERS | {"max_steps": 2000, "train_epochs": 100}).items()]
    with start(*flags, f"--workers=@{hosts}", f"--port={port}", stdout=subprocess.PIPE) as training:
        try:
            lines = list(itertools.takewhile(lambda line: not line.startswith("mesh"), training.stdout))
            assert f"worker 0 at {workers.addresses[0]}, worker 1 at {workers.addresses[1]}\n" in lines
            end = time.monotonic() + 120
            while not all(port in _connected_ports(pid) for pid in workers.pids[:2]):
                assert time.monotonic() < end and training.poll() is None
                time.sleep(0.1)
        finally:
            training.terminate()


def _is_open(address, source="127.0.0.1"):
    try:
        socket.create_connection(address, 0.5, source_address=(source, 0)).close()
    except TimeoutError:
        return False
    return True


@pytest.mark.full
@pytest.mark.parametrize("text", [None, "a secret of sixteen"])
def test_workers_that_register(text, tmp_path, capfd, monkeypatch):
    port, logs = free_port(), [tmp_path / f"{number}.log" for number in range(2)]
    if text:
        monkeypatch.setenv("MTF_HETERO_SECRET", text)
    command = [sys.executable, "-m", "mtf_hetero", "worker", f"--join=127.0.0.1:{port}"]
    workers = []
    flags = [f"--{name}={value}" for name, value in (ON_WORKERS | {"min_workers": 2}).items()]
    flags += [f"--workers=:{port}", f"--model_dir={tmp_path / 'run'}"]
    try:
        for log in logs:
            with log.open("w") as output:
                workers.append(subprocess.Popen(command, stdout=output))
        for log in logs:
            _await_line("worker waits for a training", log)
        places = [("127.0.0.1", int(re.search(r"listens on \S+:(\d+) with", log.read_text())[1])) for log in logs]
        assert [_is_open(place) for place in places] == 2 * [not text]
        with start(*flags, stdout=subprocess.PIPE) as training:  # in a process of its own: its server gets a filter
            out = training.communicate(timeout=300)[0]
        assert training.returncode == 0
        assert [_is_open(place) for place in places] == [True, True]
        assert [_is_open(place, "127.0.0.9") for place in places] == 2 * [not text]
    finally:
        for worker in workers:
            worker.terminate()
        assert [worker.wait(30) for worker in workers] == [143, 143]
    assert f"waiting for 2 workers at port {port}\n" in out
    assert ("can register a worker; to prevent it" in out) == (not text)
    assert "mesh all:2 on worker:0/cpu:0, worker:1/cpu:0\n" in out
    for log in logs:
        assert re.search(rf"^worker joined the training at 127.0.0.1:{port} as 127.0.0.1:\d+$", log.read_text(), re.M)
        assert ("reached by nobody until the training at 127.0.0.1" in log.read_text()) == bool(text)


def _await_line(begin, path):
    end = time.monotonic() + 60
    while begin not in path.read_text():
        assert time.monotonic() < end, path.read_text()
        time.sleep(0.1)
