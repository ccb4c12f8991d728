"""Faults of workers: lost, frozen, held by someone else, not there, or no worker at all."""

import contextlib
import functools
import http.server
import json
import pathlib
import re
import signal
import socket
import threading
import time
from collections.abc import Iterator, Mapping
from typing import Any

import psutil

from benchmarks.faults import fault
from benchmarks.faults.fault import ENDLESS, LENET, Fault, Outcome, Shared
from benchmarks.faults.processes import TRAIN, WORKER, Process

_FLAGS = (*TRAIN, *(flag for flag in LENET if not flag.startswith("--devices")))
_FROZEN_SECONDS = 5.0
_WAIT_SECONDS = 90.0


class Worker:
    """A worker on this machine. A context manager.

    Attributes:
      address: its "host:port".
    """

    def __init__(self) -> None:
        self._process = self._start(0)
        self.address = self._await()

    def _start(self, port: int) -> Process:
        return Process([*WORKER, f"--port={port}", "--host=127.0.0.1", "--gpus=none", "--threads=1"])

    def _await(self) -> str:
        self._process.await_line("worker listens on ", of="out")
        return re.findall(r"worker listens on (\S+)", " ".join(self._process.out))[0]

    @property
    def pid(self) -> int:
        """The worker's process."""
        return self._process.pid

    def kill(self) -> None:
        """kill -9."""
        self._process.close()

    def restart(self) -> None:
        """Starts it again at its address."""
        self._process = self._start(int(self.address.rpartition(":")[2]))
        self._await()

    def send(self, number: int) -> None:
        """Sends it a signal."""
        self._process.send(number)

    def __enter__(self) -> "Worker":
        return self

    def __exit__(self, *exception: object) -> None:
        self._process.close()


def _train(directory: pathlib.Path, *flags: str) -> Process:
    return Process([*_FLAGS, f"--model_dir={directory / 'model'}", *flags])


def train_on(directory: pathlib.Path, *workers: Worker) -> Process:
    """Endless training on workers."""
    return _train(directory, *ENDLESS, f"--workers={','.join(worker.address for worker in workers)}")


def about_workers(outcome: Outcome) -> Outcome:
    """Leaves out the documented warnings, that a worker is gone, does not answer, or is back, and native lines."""
    # TensorFlow's, of the connection that was lost
    native = ("E0000 ", "W0000 ", "Additional GRPC error information", ":UNKNOWN:Error received from peer")
    warnings = [line for line in outcome.lines if line.startswith("W") and "worker " in line]
    outcome.lines = [line for line in outcome.lines if line not in warnings and not line.startswith(native)]
    return outcome


def _killed_and_restarted(directory: pathlib.Path, shared: Shared) -> Outcome:
    with Worker() as first, Worker() as second, train_on(directory, first, second) as process:
        seen = process.await_line("step 10 of")
        second.kill()
        seen = process.await_line("is gone", after=seen, seconds=60)
        second.restart()
        process.await_line("step .* of", after=seen + 1)
        process.send(signal.SIGINT)
        return fault.keep(about_workers(fault.end(process)), directory / "model", {}, 1)


def _frozen(directory: pathlib.Path, shared: Shared) -> Outcome:
    with Worker() as first, Worker() as second, train_on(directory, first, second) as process:
        seen = process.await_line("step 10 of")
        second.send(signal.SIGSTOP)
        time.sleep(_FROZEN_SECONDS)
        second.send(signal.SIGCONT)
        seen = max(seen, len(process.err) - 1)
        process.await_line("step .* of", after=seen + 1)
        process.send(signal.SIGINT)
        return fault.keep(about_workers(fault.end(process)), directory / "model", {}, 1)


def _two_trainings(directory: pathlib.Path, shared: Shared, *, third: bool) -> Outcome:
    with Worker() as worker, train_on(directory / "first", worker) as first:
        first.await_line("step 10 of")
        if third:
            fault.killed(first)
        outcome = fault.run(
            [*_FLAGS, f"--workers={worker.address}", "--max_steps=3", f"--model_dir={directory / 'second'}"]
        )
        outcome.pid = first.pid
        if third:
            return outcome
        seen = len(first.err)
        first.await_line("step .* of", after=seen, seconds=30)  # the first is not disturbed
        first.send(signal.SIGTERM)
        if first.wait(_WAIT_SECONDS) != 143:
            outcome.failures.append("the first training did not end as SIGTERM demands")
        return fault.keep(outcome, directory / "first" / "model", {}, 1)


@contextlib.contextmanager
def _silent() -> Iterator[int]:
    """A port at which connections are taken and nothing is ever said."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


@contextlib.contextmanager
def _http() -> Iterator[int]:
    """A port at which a web server listens."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def log_message(self, *args: object) -> None:
            """Says nothing."""

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server.server_port
        server.shutdown()


def _something_else(kind: str, directory: pathlib.Path, shared: Shared) -> Outcome:
    with {"silent": _silent, "http": _http}[kind]() as port:
        return fault.run([*_FLAGS, f"--workers=127.0.0.1:{port}"])


def _port_in_use(directory: pathlib.Path, shared: Shared) -> Outcome:
    with _silent() as port:
        return fault.run([*WORKER, f"--port={port}"])


def _worker_gets(number: int, directory: pathlib.Path, shared: Shared) -> Outcome:
    with Process([*WORKER, "--port=0", "--gpus=none"]) as process:
        process.await_line("worker listens on", of="out")
        process.send(number)
        return fault.end(process, 30)


def _environment(config: object, directory: pathlib.Path, shared: Shared, *, worker: bool = False) -> Outcome:
    text = config if isinstance(config, str) else json.dumps(config)
    return fault.run(WORKER if worker else _FLAGS, environment={"TF_CONFIG": text})


def _outside(directory: pathlib.Path, shared: Shared) -> Outcome:
    """Connects to the ports of a local cluster's workers at this machine's other addresses."""
    own = [
        address.address
        for addresses in psutil.net_if_addrs().values()
        for address in addresses
        if address.family == socket.AF_INET and not address.address.startswith("127.")
    ]
    if not own:
        return Outcome(skipped="this machine has no address but 127.0.0.1")
    with _train(directory, *ENDLESS, "--local_cluster=0.5,0.5") as process:
        process.await_line("step 10 of")
        ports = [int(port) for port in re.findall(r"worker \d+ at [^ ]*:(\d+)", "\n".join(process.out))]
        reached = [f"{address}:{port}" for address in own for port in ports if _answers(address, port)]
        process.send(signal.SIGINT)
        outcome = about_workers(fault.end(process))
    outcome.failures += [] if ports else ["no port of a worker was found"]
    outcome.failures += [f"reachable from outside: {', '.join(reached)}"] if reached else []
    return outcome


def _answers(address: str, port: int) -> bool:
    try:
        with socket.create_connection((address, port), timeout=3):
            return True
    except OSError:
        return False


_STOPPED: Mapping[str, Any] = {"exit_code": 130, "says": "stopped: "}
_BROKEN: Mapping[str, Any] = {
    "no JSON": ("{", "TF_CONFIG"),
    "no worker": ({"cluster": {"chief": ["a:1"]}, "task": {"type": "chief", "index": 0}}, "TF_CONFIG"),
    "a task that is not there": (
        {"cluster": {"chief": ["a:1"], "worker": ["b:1"]}, "task": {"type": "chief", "index": 7}},
        "TF_CONFIG",
    ),
    "a worker that trains": (
        {"cluster": {"chief": ["a:1"], "worker": ["b:1"]}, "task": {"type": "worker", "index": 0}},
        "TF_CONFIG",
    ),
}

FAULTS = (
    Fault("killed and started again", "kill -9 of a worker, which is started again", _killed_and_restarted, **_STOPPED),
    Fault("frozen and continued", f"SIGSTOP of a worker, SIGCONT {_FROZEN_SECONDS:.0f} s later", _frozen, **_STOPPED),
    Fault(
        "two trainings on one worker",
        "a second training on a worker that is in use",
        functools.partial(_two_trainings, third=False),
        says="{pid}",
    ),
    Fault(
        "a worker whose training was killed",
        "a training on a worker whose last one got kill -9",
        functools.partial(_two_trainings, third=True),
        exit_code=0,
        lines=(0, 0),
    ),
    fault.command("not there", (*_FLAGS, "--workers=127.0.0.1:1"), "worker 0 (127.0.0.1:1)"),
    Fault(
        "silence",
        "a port that takes connections and says nothing",
        functools.partial(_something_else, "silent"),
        says="worker 0 (",
    ),
    Fault(
        "a web server",
        "a web server at the worker's port",
        functools.partial(_something_else, "http"),
        says="worker 0 (",
    ),
    Fault("a port in use", "a worker at a port that is in use", _port_in_use, says="which is in use"),
    Fault(
        "SIGINT at a worker",
        "SIGINT at a worker",
        functools.partial(_worker_gets, signal.SIGINT),
        exit_code=130,
        out="worker stopped by SIGINT",
        lines=(0, 0),
    ),
    Fault(
        "SIGTERM at a worker",
        "SIGTERM at a worker",
        functools.partial(_worker_gets, signal.SIGTERM),
        exit_code=143,
        out="worker stopped by SIGTERM",
        lines=(0, 0),
    ),
    Fault(
        "from outside",
        "connections to a local cluster's workers at other addresses of this machine",
        _outside,
        **_STOPPED,
    ),
    *(
        Fault(f"TF_CONFIG: {name}", f"TF_CONFIG with {name}", functools.partial(_environment, config), says=says)
        for name, (config, says) in _BROKEN.items()
    ),
    Fault(
        "TF_CONFIG at a worker: no JSON",
        "a worker under a TF_CONFIG with no JSON",
        functools.partial(_environment, "{", worker=True),
        says="TF_CONFIG",
    ),
)
