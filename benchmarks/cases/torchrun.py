"""A lost worker of PyTorch's DistributedDataParallel under torchrun: seconds to the next step, and repeated steps."""

import contextlib
import importlib.util
import itertools
import json
import pathlib
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import psutil

from mtf_hetero.cluster.emulation.local import LimitedProcesses

WAITS: Mapping[str, str] = {  # settings of the rendezvous: how long it waits for agents that may still come
    "defaults": "",
    "short waits": "last_call_timeout=1",
}
NOT_INSTALLED = "no torch: pip install torch==2.13.0 --index-url https://download.pytorch.org/whl/cpu"
LOST, TRAIN = "lost", "train"  # kinds of the program's lines
# With the agents' store, ranks connect to addresses of the round before: github.com/pytorch/pytorch/issues/135712
_OWN_STORE = "TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1"
_PROGRAM = "benchmarks.frameworks.torch_elastic"
_STEP_SECONDS, _POLL_SECONDS = 180.0, 0.05


def is_installed() -> bool:
    """Return whether PyTorch can be imported."""
    return importlib.util.find_spec("torch") is not None


def measure(
    cores: Sequence[float], waits: str, options: Mapping[str, Any], before: int, report: Callable[[str], None]
) -> dict[str, Any]:
    """Train with one agent per worker, kill the last agent and its rank, and return what was seen.

    Args:
      cores: of each agent and its rank.
      waits: a key of WAITS.
      options: flags of the program.
      before: number of steps before the kill.
      report: called with lines about the limits of processes.

    Raises:
      RuntimeError: no step ends in time.
    """
    with tempfile.TemporaryDirectory(prefix="torchrun_") as made, LimitedProcesses(cores, report=report) as agents:
        run = _Run(agents, pathlib.Path(made) / "metrics.jsonl")
        try:
            run.start(waits, {**options, "directory": made})
            run.await_step(lambda row: row["ranks"] == len(cores) and row["step"] >= before)
            _kill(agents.pids[-1])
            killed = time.time()
            after = run.await_step(lambda row: row["time"] > killed and row["ranks"] < len(cores))
        finally:
            for pid in agents.pids:
                _kill(pid)
        values = {"step_seconds": run.step_seconds(until=killed), "limits": agents.limits}
        lost = [row["time"] for row in run.rows(LOST) if row["time"] > killed]
        last = max(row["step"] for row in run.rows(TRAIN) if row["ranks"] == len(cores))
    detected = min(lost) - killed if lost else None
    return {**values, "seconds": after["time"] - killed, "detected": detected, "repeated": last - after["step"] + 1}


class _Run:
    """Agents of torchrun, and the lines of their program."""

    def __init__(self, agents: LimitedProcesses, path: pathlib.Path) -> None:
        self._agents, self._path = agents, path

    def start(self, waits: str, options: Mapping[str, Any]) -> None:
        count = len(self._agents.pids)
        with socket.create_server(("127.0.0.1", 0)) as server:
            port = server.getsockname()[1]
        flags = [f"--nnodes=1:{count}", "--nproc-per-node=1", "--max-restarts=3", "--rdzv-backend=c10d"]
        flags += [f"--rdzv-endpoint=127.0.0.1:{port}", "--rdzv-id=elastic", "--local-addr=127.0.0.1"]
        program = ["-m", _PROGRAM, *(f"--{name}={value}" for name, value in options.items())]
        for index in range(count):
            settings = ",".join(filter(None, [f"is_host={int(index == 0)}", WAITS[waits]]))
            command = [
                "env",
                _OWN_STORE,
                sys.executable,
                "-m",
                "torch.distributed.run",
                *flags,
                f"--rdzv-conf={settings}",
                *program,
            ]
            self._agents.start(index, command)
            self._agents.limit(index)  # of its rank too, which is not yet there

    def rows(self, kind: str) -> list[dict[str, Any]]:
        """Return the lines of a kind so far."""
        rows = map(json.loads, self._path.read_text(encoding="utf-8").splitlines()) if self._path.exists() else []
        return [row for row in rows if row["kind"] == kind]

    def await_step(self, is_wanted: Callable[[Mapping[str, Any]], bool]) -> dict[str, Any]:
        """Return the first line of a wanted step, once it has ended."""
        end, count = 0.0, -1
        while not (found := list(filter(is_wanted, self.rows(TRAIN)))):
            if (now := len(self.rows(TRAIN))) > count:
                end, count = time.monotonic() + _STEP_SECONDS, now
            if time.monotonic() > end:
                raise RuntimeError(f"torchrun did not continue; its last lines: {self._agents.last_lines(0)}")
            time.sleep(_POLL_SECONDS)
        return found[0]

    def step_seconds(self, until: float) -> list[float]:
        """Return the seconds of each step on all ranks, up to a time."""
        count = len(self._agents.pids)
        times = [row["time"] for row in self.rows(TRAIN) if row["ranks"] == count and row["time"] <= until]
        return [0.0, *(round(after - before, 4) for before, after in itertools.pairwise(times))]


def _kill(pid: int) -> None:
    """Kill an agent and its rank."""
    with contextlib.suppress(psutil.NoSuchProcess):
        agent = psutil.Process(pid)
        for process in (agent, *agent.children(recursive=True)):
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
