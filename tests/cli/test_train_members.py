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


@pytest.mark.full
def test_workers_that_register(tmp_path, capfd):
    port, logs = free_port(), [tmp_path / f"{number}.log" for number in range(2)]
    command = [sys.executable, "-m", "mtf_hetero", "worker", f"--join=127.0.0.1:{port}"]
    workers = []
    try:
        for log in logs:
            with log.open("w") as output:
                workers.append(subprocess.Popen(command, stdout=output))
        assert run(**ON_WORKERS, workers=f":{port}", min_workers=2, model_dir=tmp_path / "run") == 0
    finally:
        for worker in workers:
            worker.terminate()
        assert [worker.wait(30) for worker in workers] == [143, 143]
    out = capfd.readouterr().out
    assert f"waiting for 2 workers at port {port}\n" in out
    assert "mesh all:2 on worker:0/cpu:0, worker:1/cpu:0\n" in out
    for log in logs:
        assert re.search(rf"^worker joined the training at 127.0.0.1:{port} as 127.0.0.1:\d+$", log.read_text(), re.M)
