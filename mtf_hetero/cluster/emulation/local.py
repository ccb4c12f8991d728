"""Processes on one machine, each with a fraction of a core or several cores; and TensorFlow workers of that kind."""

import atexit
import json
import math
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from typing import Any, Self

from mtf_hetero._compat import tf
from mtf_hetero._support import cores
from mtf_hetero.cluster import packet_filter
from mtf_hetero.cluster.cluster import Cluster
from mtf_hetero.cluster.emulation import guard, isolation
from mtf_hetero.cluster.probe import ask, closed
from mtf_hetero.cluster.worker import LISTENS

_LISTENS = re.compile(rf"^{LISTENS}(\S+)", re.MULTILINE)
_START_SECONDS = 180.0  # a worker with a small part of a core imports TensorFlow for long
_SHOWN_LINES = 5  # of the log of a worker that has ended, in an error
# The output of a worker is read if it fails to start
_ENVIRONMENT = {"PYTHONUNBUFFERED": "1", "TF_CPP_MIN_LOG_LEVEL": "2"}


def convert_to_fractions(fractions: str | Sequence[float], name: str = "LocalCluster") -> tuple[float, ...]:
    """Return the cores of each worker, (1.0, 0.5, 0.25), from "1.0,0.5,0.25" or a sequence.

    Raises:
      ValueError: one is not a positive number, or there is none.
    """
    parts = fractions.split(",") if isinstance(fractions, str) else list(fractions)
    cores = []
    for part in parts:
        try:
            number = float(part)
        except (TypeError, ValueError):
            number = math.nan
        if not (math.isfinite(number) and number >= 0.01):
            raise ValueError(
                f"{name} is {fractions!r}: {part!r} is not a number of cores; give one per worker, of 0.01 or "
                "more, as in 1.0,0.5,0.25"
            )
        cores.append(number)
    if not cores:
        raise ValueError(f"{name} is empty; give the cores of each worker, as in 1.0,0.5,0.25")
    return tuple(cores)


def assign_cores(fractions: Sequence[float], cores: Sequence[int], name: str = "LocalCluster") -> list[list[int]]:
    """Assign the least loaded cores to each worker, to the largest worker first.

    Args:
      fractions: how many cores' worth of time each worker gets.
      cores: the numbers of the cores there are.
      name: what the user calls the workers.

    Raises:
      ValueError: one worker needs more cores than there are.

    Example:
      >>> assign_cores([1.0, 0.5, 0.25], [0, 1])
      [[0], [1], [1]]
    """
    load = dict.fromkeys(cores, 0.0)
    assigned: list[list[int]] = [[] for _ in fractions]
    for index in sorted(range(len(fractions)), key=lambda index: -fractions[index]):
        count = math.ceil(fractions[index])
        if count > len(load):
            raise ValueError(
                f"{name} asks for {fractions[index]:g} cores for worker {index}, but there are only {len(load)}"
            )
        assigned[index] = sorted(sorted(load, key=lambda core: (load[core], core))[:count])
        for core in assigned[index]:
            load[core] += fractions[index] / count
    return assigned


class LimitedProcesses:
    """Processes on this machine, each with a fraction of a core. A context manager.

    Each process is pinned to its cores and limited by a CPU quota of the kernel. If no control group can be made, the
    process is stopped and continued in turn, which is coarser, and a warning is logged. A guard process
    (`emulation.guard`) ends the processes, however this process ends.

    Args:
      fractions: cores of each process: "1.0,0.5,0.25" or a sequence; more than 1 is several cores.
      report: called with a line for the user; None: tf.logging.warning.
      name: what messages call the workers.
      allow_groups: False stops and continues the processes even if a quota is possible.

    Raises:
      ValueError: a figure that is not a positive number, or is more than the machine has.
    """

    def __init__(
        self,
        fractions: str | Sequence[float],
        *,
        report: Callable[[str], None] | None = None,
        name: str = "LocalCluster",
        allow_groups: bool = True,
    ) -> None:
        self.fractions = convert_to_fractions(fractions, name)
        there = cores.usable_cores()
        self._cores = assign_cores(self.fractions, there, name)
        self._core_count = len(there)
        self._name = name
        self._report = report or tf.logging.warning
        self._allow_groups = allow_groups
        self._guard: subprocess.Popen[bytes] | None = None
        self._directory = pathlib.Path()
        self.pids: list[int] = [0] * len(self.fractions)
        self.limits: list[str] = [""] * len(self.fractions)
        self.groups: list[str | None] = [None] * len(self.fractions)

    def __enter__(self) -> Self:
        if sum(self.fractions) > self._core_count:
            self._report(
                f"{self._name} asks for {sum(self.fractions):g} cores in all, but there are only "
                f"{self._core_count}: the workers slow each other down"
            )
        self._directory = pathlib.Path(tempfile.mkdtemp(prefix="mtf_hetero_workers_"))
        command = [sys.executable, "-I", "-S", guard.__file__, str(self._directory)]
        self._guard = subprocess.Popen(
            command if self._allow_groups else [*command, "--no_groups"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, **_ENVIRONMENT, "PYTHONPATH": _import_path()},
            start_new_session=True,  # Ctrl-C in the terminal is for this process, which may still need its workers
        )
        atexit.register(self.close)
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End all processes, if they still run."""
        guard, self._guard = self._guard, None
        atexit.unregister(self.close)
        if guard is not None:
            assert guard.stdin is not None and guard.stdout is not None
            guard.stdin.close()
            guard.wait()
            guard.stdout.close()

    def start(self, index: int, command: Sequence[str]) -> None:
        """Start a process, in place of an earlier one; `limit` sets its limit."""
        log = self._log(index)
        log.unlink(missing_ok=True)
        cpus = self._cores[index]
        self.pids[index] = self._ask_guard("start", index=index, command=command, cpus=cpus, log=str(log))["pid"]

    def limit(self, index: int, cores: float | None = None) -> None:
        """Limit a process, at its start or in mid-run; `limits` then has the means.

        Args:
          index: of the process.
          cores: at most those that it is pinned to; None: its fraction.
        """
        answer = self._ask_guard("limit", index=index, cores=self.fractions[index] if cores is None else cores)
        self.limits[index], self.groups[index] = answer["by"], answer.get("group")

    def exit_code(self, index: int) -> int | None:
        """Return the exit code of a process; None: it runs."""
        return self._ask_guard("status")["codes"][str(index)]

    def last_lines(self, index: int) -> str:
        """Return the last lines of a process, joined to one."""
        lines = self._log(index).read_text(errors="replace").splitlines()[-_SHOWN_LINES:]
        return "; ".join(line.strip() for line in lines if line.strip())

    def _log(self, index: int) -> pathlib.Path:
        return self._directory / f"worker_{index}.log"

    def _ask_guard(self, request: str, **arguments: object) -> dict[str, Any]:
        guard = self._guard
        if guard is None or guard.stdin is None or guard.stdout is None:
            raise RuntimeError("this LocalCluster is closed; enter it with `with`")
        try:
            guard.stdin.write(json.dumps({"do": request, **arguments}).encode() + b"\n")
            guard.stdin.flush()
        except BrokenPipeError:
            pass  # then there is no answer either
        answer = json.loads(guard.stdout.readline() or '{"error": "the process that runs the workers has ended"}')
        if "error" in answer:
            raise RuntimeError(f"{self._name}: {answer['error']}")
        return answer


class LocalCluster(LimitedProcesses):
    """TensorFlow workers on this machine, each with a fraction of a core. Entered, it is the Cluster.

    The limit of a worker begins once it is up. The training process is not limited, and takes its time from the same
    cores. Where this process has no network of its own, one line says that others may reach the workers, and why.

    Args:
      fractions: as in LimitedProcesses; so are the others.
      return_memory: starts the workers with --return_memory.
      **options: of LimitedProcesses.

    Raises:
      ValueError: as LimitedProcesses.

    Example:
      >>> with LocalCluster([1.0, 0.5]) as cluster:
      ...     mesh_impl = UnevenMeshImpl("all:2", "hidden:all", cluster.devices, shares={"all": [2, 1]})
    """

    def __init__(self, fractions: str | Sequence[float], *, return_memory: bool = False, **options: Any) -> None:
        super().__init__(fractions, **options)
        self._return_memory = return_memory
        self.addresses: list[str] = []

    @property
    def workers(self) -> tuple[str, ...]:
        """Return "host:port" of each worker while this is entered; otherwise none."""
        return tuple(self.addresses) if self._guard is not None else ()

    def __enter__(self) -> Cluster:
        """Start all workers at the same time, and wait until each answers.

        Raises:
          RuntimeError: a worker ended at its start; the last lines that it printed are in the message.
        """
        super().__enter__()
        try:
            indices = range(len(self.fractions))
            for index in indices:
                self._launch(index, 0)
            self.addresses = [self._await(index) for index in indices]
            closed.difference_update(self.addresses)
            for index in indices:
                self.limit(index)
            if guard.DUTY_CYCLE in self.limits:
                self._report(f"{self._name} limits its workers by {guard.DUTY_CYCLE}: speeds are approximate")
            if reason := isolation.why_not():
                who = "anyone who can reach this machine" if packet_filter.why_not() else "any user of this machine"
                self._report(
                    f"{self._name}: {who} can run code in its workers and in this process, because TensorFlow's "
                    f"server has no authentication. No private network: {reason}"
                )
            return Cluster.from_workers(self.addresses, timeout_seconds=60.0)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """End all workers, if they still run."""
        super().close()
        closed.update(self.addresses)

    def restart(self, index: int) -> None:
        """Start a worker again, at its address and with its limit. A running one is ended first."""
        self._launch(index, int(self.addresses[index].rpartition(":")[2]))
        self._await(index)
        self.limit(index)

    def describe(self) -> list[str]:
        """Return a line per worker: its address, its cores, and the means of its limit."""
        return [
            f"worker {index} at {self.addresses[index]}: {fraction:g} cores on core "
            f"{', '.join(str(core) for core in self._cores[index])}, limited by {self.limits[index]}"
            for index, fraction in enumerate(self.fractions)
        ]

    def _launch(self, index: int, port: int) -> None:
        threads = math.ceil(self.fractions[index])
        command = [
            sys.executable,
            "-P",
            "-m",
            "mtf_hetero.cluster.worker",
            f"--port={port}",
            "--host=127.0.0.1",
            "--gpus=none",
        ]
        command += ["--return_memory"] if self._return_memory else []
        self.start(index, [*command, f"--threads={threads}"])

    def _await(self, index: int) -> str:
        """Wait until a worker answers; returns its address."""
        end = time.monotonic() + _START_SECONDS
        while True:
            listens = _LISTENS.search(self._log(index).read_text(errors="replace"))
            if listens and not ask(listens[1], 5.0).failure:
                return listens[1]
            code = self.exit_code(index)
            if code is not None or time.monotonic() > end:
                how = "did not start in time" if code is None else f"ended with exit code {code} when it started"
                last = self.last_lines(index) or "nothing"
                raise RuntimeError(f"worker {index} of {self._name} {how}; its last output: {last}")
            time.sleep(0.05)


def _import_path() -> str:
    """Return the PYTHONPATH with which a worker finds the mtf_hetero of this process."""
    here = str(pathlib.Path(__file__).parents[3])
    return os.pathsep.join([here, *filter(None, [os.environ.get("PYTHONPATH")])])
