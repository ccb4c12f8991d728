"""Faults of workers: lost, frozen, held by someone else, not there, or no worker at all."""

import contextlib
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
from benchmarks.faults.fault import ENDLESS, LENET, TRAIN, WORKER, Fault, Outcome, Scene
from benchmarks.process import Process

_FLAGS = (*TRAIN, *(flag for flag in LENET if not flag.startswith("--devices")))
_FROZEN_SECONDS = 5.0
_WAIT_SECONDS = 90.0
_HERE = "127.0.0.1"


class Worker(Process):
    """A worker on this machine, at its `address`, "host:port"."""

    def __init__(self, port: int | str = 0) -> None:
        super().__init__([*WORKER, f"--port={port}", f"--host={_HERE}", "--gpus=none", "--threads=1"])
        self.await_line("worker listens on ", of="out")
        self.address: str = re.findall(r"worker listens on (\S+)", " ".join(self.out))[0]

    def restart(self) -> None:
        """Start it again at its address, once it has ended."""
        Worker.__init__(self, self.address.rpartition(":")[2])


def _start(scene: Scene, *workers: Worker) -> Process:
    """Endless training on workers."""
    return _start_with(scene, f"--workers={','.join(worker.address for worker in workers)}")


def _start_with(scene: Scene, flag: str) -> Process:
    return Process([*_FLAGS, *ENDLESS, f"--model_dir={scene.model_dir}", flag])


def _about_workers(outcome: Outcome) -> Outcome:
    """Leaves out the documented warnings, that a worker is gone, does not answer, or is back, and native lines."""
    # TensorFlow's, of the connection that was lost
    native = ("E0000 ", "W0000 ", "Additional GRPC error information", ":UNKNOWN:Error received from peer")
    warnings = [line for line in outcome.lines if line.startswith(("W", "warning: ")) and "worker " in line]
    outcome.lines = [line for line in outcome.lines if line not in warnings and not line.startswith(native)]
    return outcome


def restart(worker: Worker, process: Process, seen: int) -> int:
    """Kills a worker and starts it again; returns the line of the training's that says that it is gone."""
    worker.close()
    gone = process.await_line("is gone", after=seen)
    worker.restart()
    return gone


def _freeze(worker: Worker, process: Process, seen: int) -> int:
    """Stop a worker for a while."""
    worker.send(signal.SIGSTOP)
    time.sleep(_FROZEN_SECONDS)
    worker.send(signal.SIGCONT)
    return max(seen, len(process.err) - 1)


def disturb(scene: Scene, disturbance: Callable[[Worker, Process, int], int], number: int) -> Outcome:
    """Trains on two workers, does something to one, and sends a signal once training goes on."""
    with Worker() as first, Worker() as second, _start(scene, first, second) as process:
        seen = disturbance(second, process, process.await_line("^step 10/"))
        process.await_line("^step ", after=seen + 1)
        process.send(number)
        return scene.keep(_about_workers(fault.end(process)), 1)


def _two_trainings(scene: Scene, kill: bool) -> Outcome:
    """Trains on a worker on which another training is, or was until it was killed as nothing else can kill it."""
    with Worker() as worker, _start(scene, worker) as first:
        first.await_line("^step 10/")
        if kill:
            first.send(signal.SIGKILL)
            first.wait(30)
        flags = [f"--workers={worker.address}", "--max_steps=3", f"--model_dir={scene.directory / 'second'}"]
        outcome = fault.run([*_FLAGS, *flags])
        outcome.pid = first.pid
        if kill:
            return outcome
        first.await_line("^step ", after=len(first.err), seconds=30)  # the first is not disturbed
        first.send(signal.SIGTERM)
        as_demanded = first.wait(_WAIT_SECONDS) == 143
        outcome.fail("the first training did not end as SIGTERM demands", unless=as_demanded)
        return scene.keep(outcome, 1)


@contextlib.contextmanager
def _silent() -> Iterator[int]:
    """Give a port that accepts connections and never answers."""
    with socket.create_server((_HERE, 0)) as server:
        yield server.getsockname()[1]


@contextlib.contextmanager
def _http() -> Iterator[int]:
    """Give a port at which a web server listens."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def log_message(self, *args: object) -> None:
            """Says nothing."""

    with http.server.ThreadingHTTPServer((_HERE, 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server.server_port
        server.shutdown()


def _at_port(
    scene: Scene, listening: Callable[[], contextlib.AbstractContextManager[int]], command: Sequence[str], flag: str
) -> Outcome:
    """Run a command whose last flag names a port at which something listens."""
    with listening() as port:
        return fault.run([*command, f"{flag}{port}"])


def _worker_gets(scene: Scene, number: int) -> Outcome:
    with Process([*WORKER, "--port=0", "--gpus=none"]) as process:
        process.await_line("worker listens on", of="out")
        process.send(number)
        return fault.end(process, 30)


def _environment(scene: Scene, command: Sequence[str], config: str) -> Outcome:
    return fault.run(command, environment={"TF_CONFIG": config})


def _outside(scene: Scene) -> Outcome:
    """Connect to the ports of a local cluster's workers at this machine's other addresses."""
    interfaces = psutil.net_if_addrs().values()
    addresses = [one.address for interface in interfaces for one in interface if one.family == socket.AF_INET]
    others = [address for address in addresses if not address.startswith("127.")]
    if not others:
        return Outcome(skipped=f"this machine has no address but {_HERE}")
    with _start_with(scene, "--local_cluster=0.5,0.5") as process:
        process.await_line("^step 10/")
        ports = [int(port) for port in re.findall(r"worker \d+ at [^ ]*:(\d+)", "\n".join(process.out))]
        reached = [f"{address}:{port}" for address in others for port in ports if _answers(address, port)]
        process.send(signal.SIGINT)
        outcome = _about_workers(fault.end(process))
    outcome.fail("no port of a worker was found", unless=ports)
    outcome.fail(f"reachable from outside: {', '.join(reached)}", unless=not reached)
    return outcome


def _answers(address: str, port: int) -> bool:
    try:
        with socket.create_connection((address, port), timeout=3):
            return True
    except OSError:
        return False


def _config(cluster: Mapping[str, Sequence[str]], kind: str, index: int) -> str:
    """Return a TF_CONFIG."""
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
_BACK = (restart, signal.SIGINT)
_FROZEN = f"SIGSTOP of a worker, SIGCONT {_FROZEN_SECONDS:.0f} s later"
_FROM_OUTSIDE = "connections to a local cluster's workers at other addresses of this machine"
_KILLED_BEFORE = "a training on a worker whose last one got kill -9"
_SAYS_NOTHING = "a port that takes connections and says nothing"
_AT = (_FLAGS, f"--workers={_HERE}:")
_IN_USE = (_silent, WORKER, "--port=")
_NO_JSON = (WORKER, _BROKEN["no JSON"])
_STOPPED_WORKERS = (("SIGINT", {"exit_code": 130, **_QUIET}), ("SIGTERM", {"exit_code": 143, **_QUIET}))

FAULTS = (
    Fault("killed and started again", "kill -9 of a worker, which is started again", disturb, _BACK, **_STOPPED),
    Fault("frozen and continued", _FROZEN, disturb, (_freeze, signal.SIGINT), **_STOPPED),
    Fault(
        "two trainings on one worker",
        "a second training on a worker that is in use",
        _two_trainings,
        (False,),
        says="{pid}",
    ),
    Fault("a worker whose training was killed", _KILLED_BEFORE, _two_trainings, (True,), exit_code=0, **_QUIET),
    fault.command("not there", (*_FLAGS, f"--workers={_HERE}:1"), f"worker 0 ({_HERE}:1)"),
    Fault("silence", _SAYS_NOTHING, _at_port, (_silent, *_AT), says="worker 0 ("),
    Fault("a web server", "a web server at the worker's port", _at_port, (_http, *_AT), says="worker 0 ("),
    Fault("a port in use", "a worker at a port that is in use", _at_port, _IN_USE, says="which is in use"),
    *(
        Fault(
            f"{name} at a worker",
            f"{name} at a worker",
            _worker_gets,
            (signal.Signals[name],),
            out=f"worker stopped by {name}",
            **expected,
        )
        for name, expected in _STOPPED_WORKERS
    ),
    Fault("from outside", _FROM_OUTSIDE, _outside, **_STOPPED),
    *(
        Fault(f"TF_CONFIG: {name}", f"TF_CONFIG with {name}", _environment, (_FLAGS, config), says="TF_CONFIG")
        for name, config in _BROKEN.items()
    ),
    Fault(
        "TF_CONFIG at a worker: no JSON",
        "a worker under a TF_CONFIG with no JSON",
        _environment,
        _NO_JSON,
        says="TF_CONFIG",
    ),
)
