"""Faults of workers: lost, frozen, held by someone else, not there, or no worker at all."""

import contextlib
import functools
import http.server
import json
import re
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import psutil

from benchmarks.faults import fault
from benchmarks.faults.fault import ENDLESS, LENET, Fault, Outcome, Scene
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


def _train_on(scene: Scene, *workers: Worker) -> Process:
    """Endless training on workers."""
    return _start(scene, f"--workers={','.join(worker.address for worker in workers)}")


def _start(scene: Scene, flag: str) -> Process:
    return Process([*_FLAGS, *ENDLESS, f"--model_dir={scene.model_dir}", flag])


def _about_workers(outcome: Outcome) -> Outcome:
    """Leaves out the documented warnings, that a worker is gone, does not answer, or is back, and native lines."""
    # TensorFlow's, of the connection that was lost
    native = ("E0000 ", "W0000 ", "Additional GRPC error information", ":UNKNOWN:Error received from peer")
    warnings = [line for line in outcome.lines if line.startswith("W") and "worker " in line]
    outcome.lines = [line for line in outcome.lines if line not in warnings and not line.startswith(native)]
    return outcome


def restart(worker: Worker, process: Process, seen: int) -> int:
    """Kills a worker and starts it again; returns the line of the training's that says that it is gone."""
    worker.kill()
    gone = process.await_line("is gone", after=seen)
    worker.restart()
    return gone


def _freeze(worker: Worker, process: Process, seen: int) -> int:
    """Stops a worker for a while."""
    worker.send(signal.SIGSTOP)
    time.sleep(_FROZEN_SECONDS)
    worker.send(signal.SIGCONT)
    return max(seen, len(process.err) - 1)


def disturb(disturbance: Callable[[Worker, Process, int], int], number: int, scene: Scene) -> Outcome:
    """Trains on two workers, does something to one, and sends a signal once training goes on."""
    with Worker() as first, Worker() as second, _train_on(scene, first, second) as process:
        seen = disturbance(second, process, process.await_line("step 10 of"))
        process.await_line("step .* of", after=seen + 1)
        process.send(number)
        return scene.keep(_about_workers(fault.end(process)), 1)


def _two_trainings(scene: Scene, *, kill: bool) -> Outcome:
    """Trains on a worker on which another training is, or was until it was killed as nothing else can kill it."""
    with Worker() as worker, _train_on(scene, worker) as first:
        first.await_line("step 10 of")
        if kill:
            first.send(signal.SIGKILL)
            first.wait(30)
        flags = [f"--workers={worker.address}", "--max_steps=3", f"--model_dir={scene.directory / 'second'}"]
        outcome = fault.run([*_FLAGS, *flags])
        outcome.pid = first.pid
        if kill:
            return outcome
        seen = len(first.err)
        first.await_line("step .* of", after=seen, seconds=30)  # the first is not disturbed
        first.send(signal.SIGTERM)
        if first.wait(_WAIT_SECONDS) != 143:
            outcome.failures.append("the first training did not end as SIGTERM demands")
        return scene.keep(outcome, 1)


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


def _something_else(listening: Callable[[], contextlib.AbstractContextManager[int]], scene: Scene) -> Outcome:
    with listening() as port:
        return fault.run([*_FLAGS, f"--workers=127.0.0.1:{port}"])


def _port_in_use(scene: Scene) -> Outcome:
    with _silent() as port:
        return fault.run([*WORKER, f"--port={port}"])


def _worker_gets(number: int, scene: Scene) -> Outcome:
    with Process([*WORKER, "--port=0", "--gpus=none"]) as process:
        process.await_line("worker listens on", of="out")
        process.send(number)
        return fault.end(process, 30)


def _environment(command: Sequence[str], config: str, scene: Scene) -> Outcome:
    return fault.run(command, environment={"TF_CONFIG": config})


def _outside(scene: Scene) -> Outcome:
    """Connects to the ports of a local cluster's workers at this machine's other addresses."""
    interfaces = psutil.net_if_addrs().values()
    addresses = [one.address for interface in interfaces for one in interface if one.family == socket.AF_INET]
    others = [address for address in addresses if not address.startswith("127.")]
    if not others:
        return Outcome(skipped="this machine has no address but 127.0.0.1")
    with _start(scene, "--local_cluster=0.5,0.5") as process:
        process.await_line("step 10 of")
        ports = [int(port) for port in re.findall(r"worker \d+ at [^ ]*:(\d+)", "\n".join(process.out))]
        reached = [f"{address}:{port}" for address in others for port in ports if _answers(address, port)]
        process.send(signal.SIGINT)
        outcome = _about_workers(fault.end(process))
    outcome.failures += [] if ports else ["no port of a worker was found"]
    outcome.failures += [f"reachable from outside: {', '.join(reached)}"] if reached else []
    return outcome


def _answers(address: str, port: int) -> bool:
    try:
        with socket.create_connection((address, port), timeout=3):
            return True
    except OSError:
        return False


def _config(cluster: Mapping[str, Sequence[str]], kind: str, index: int) -> str:
    """A TF_CONFIG."""
    return json.dumps({"cluster": cluster, "task": {"type": kind, "index": index}})


_STOPPED: Any = {"exit_code": 130, "says": "stopped: "}
_QUIET: Any = {"lines": (0, 0)}
_TWO = {"chief": ["a:1"], "worker": ["b:1"]}
_BROKEN = {
    "no JSON": "{",
    "no worker": _config({"chief": ["a:1"]}, "chief", 0),
    "a task that is not there": _config(_TWO, "chief", 7),
    "a worker that trains": _config(_TWO, "worker", 0),
}
_RESTARTED = functools.partial(disturb, restart, signal.SIGINT)
_FROZEN = functools.partial(disturb, _freeze, signal.SIGINT)
_IN_USE, _KILLED = (functools.partial(_two_trainings, kill=kill) for kill in (False, True))
_SILENCE, _WEB = (functools.partial(_something_else, listening) for listening in (_silent, _http))
_FROM_OUTSIDE = "connections to a local cluster's workers at other addresses of this machine"
_KILLED_BEFORE = "a training on a worker whose last one got kill -9"

FAULTS = (
    Fault("killed and started again", "kill -9 of a worker, which is started again", _RESTARTED, **_STOPPED),
    Fault("frozen and continued", f"SIGSTOP of a worker, SIGCONT {_FROZEN_SECONDS:.0f} s later", _FROZEN, **_STOPPED),
    Fault("two trainings on one worker", "a second training on a worker that is in use", _IN_USE, says="{pid}"),
    Fault("a worker whose training was killed", _KILLED_BEFORE, _KILLED, exit_code=0, **_QUIET),
    fault.command("not there", (*_FLAGS, "--workers=127.0.0.1:1"), "worker 0 (127.0.0.1:1)"),
    Fault("silence", "a port that takes connections and says nothing", _SILENCE, says="worker 0 ("),
    Fault("a web server", "a web server at the worker's port", _WEB, says="worker 0 ("),
    Fault("a port in use", "a worker at a port that is in use", _port_in_use, says="which is in use"),
    *(
        Fault(
            f"{name} at a worker",
            f"{name} at a worker",
            functools.partial(_worker_gets, signal.Signals[name]),
            exit_code=code,
            out=f"worker stopped by {name}",
            **_QUIET,
        )
        for name, code in (("SIGINT", 130), ("SIGTERM", 143))
    ),
    Fault("from outside", _FROM_OUTSIDE, _outside, **_STOPPED),
    *(
        Fault(
            f"TF_CONFIG: {name}",
            f"TF_CONFIG with {name}",
            functools.partial(_environment, _FLAGS, config),
            says="TF_CONFIG",
        )
        for name, config in _BROKEN.items()
    ),
    Fault(
        "TF_CONFIG at a worker: no JSON",
        "a worker under a TF_CONFIG with no JSON",
        functools.partial(_environment, WORKER, _BROKEN["no JSON"]),
        says="TF_CONFIG",
    ),
)
