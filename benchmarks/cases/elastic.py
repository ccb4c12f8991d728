"""Workers that change in mid-run: step time after a quota is cut and restored, pauses, and the cost of watching.

    python -m benchmarks.run elastic
    python -m benchmarks.run elastic --only=vgg11

`mtf-hetero train` runs on workers of this machine. Each is a process with a core of its own. The planner chooses the
layout (`--layout=auto`) of the first three, but for ResNet-50, whose batch is split.

* auto: of two workers, the second one's quota is cut from 1.0 to 0.33 cores in mid-run and restored later; shares
  follow (`--rebalance=auto`).
* static: the same cut with `--rebalance=off`.
* fresh: a new training on workers of 1.0 and 0.33 cores.
* kill: one of three workers is killed, and training continues without it after `--wait_for_workers=1`.
* stop: the same if a worker is stopped for ever (SIGSTOP).
* torchrun: the same with PyTorch's DistributedDataParallel. The program saves a checkpoint every 10 steps, and one of
  three agents is killed with its rank half-way between two of them. It needs torch, of the extra `benchmarks`.
* steady: 2,000 steps of a small network on two equal workers, with `--rebalance=auto` and with nothing measured, in
  turns.
* saving: step time with a checkpoint every 10 seconds, and with none, in turns.

Time: 30 minutes on two cores. Expected: 30 steps after the cut, `auto` is within 10 % of `fresh`, and no step is
repeated by a change of the shares. Steady workers keep their shares, and watching costs less than 1 % of the processor
time. A checkpoint every minute costs less than 2 % of the time.
"""

import contextlib
import dataclasses
import functools
import math
import os
import pathlib
import signal
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, TypeVar

import numpy as np
import psutil

from benchmarks.cases import torchrun
from benchmarks.harness import Case, Part
from benchmarks.process import Process, TooLateError
from benchmarks.rows import Writer, summarise
from mtf_hetero.cluster import LocalCluster
from mtf_hetero.data.preparing import cosmology
from mtf_hetero.estimator import metrics_log

_Result = TypeVar("_Result")
NETWORKS: Mapping[str, Sequence[str]] = {
    "vgg11": ("--model=vgg11", "--layout=auto", "--measure_seconds=30"),
    "cosmoflow": ("--model=cosmoflow", "--layout=auto", "--measure_seconds=30"),
    "resnet50": ("--model=resnet50", "--layout=batch"),  # a plan would take minutes
}
TOY_NETWORKS: Mapping[str, Sequence[str]] = {
    "vgg11": ("--model=lenet", "--layout=batch"),
    "cosmoflow": ("--model=cosmoflow_small", "--layout=spatial", "--mesh_shape=depth:2"),
    "resnet50": ("--model=lenet", "--layout=filters"),
}
AUTO, STATIC, FRESH = "auto", "static", "fresh"
WAYS = {"vgg11": (AUTO, STATIC, FRESH), "cosmoflow": (AUTO, STATIC, FRESH), "resnet50": (AUTO,)}
STEADY: Mapping[str, Sequence[str]] = {"auto": ["--rebalance=auto"], "off": ["--rebalance=off", "--busy_steps=0"]}
SAVES: Mapping[str, int] = {"saved": 10, "unsaved": 1_000_000}  # seconds between checkpoints
LOSSES = {"kill": signal.SIGKILL, "stop": signal.SIGSTOP}
_LAYOUTS = ("batch", "filters")
CUT = 0.33  # cores
_START_SECONDS, _STEP_SECONDS = 240.0, 120.0
_POLL_SECONDS = 0.05


@dataclasses.dataclass(frozen=True)
class Elastic(Case):
    """The case."""

    name: ClassVar[str] = "elastic"
    summary: ClassVar[str] = "changed, lost and steady workers: step time, pause"
    minutes: ClassVar[float] = 30
    small: ClassVar[Mapping[str, Any]] = {
        "before": 8,
        "cut": 6,
        "settled": 2,
        "restored": 4,
        "images": 8,
        "volumes": 2,
        "seconds": 0.0,
        "save_steps": 4,
        "steady": 40,
        "turns": 1,
        "warmup": 10,
        "saving": 4,
    }

    seconds: float = 20.0  # that a phase takes at least; where shares may change, twice as many
    before: int = 30  # steps of each phase
    cut: int = 50
    settled: int = 20  # steps at the end of a phase, whose median counts
    restored: int = 50
    images: int = 128  # per step
    volumes: int = 4
    deep_images: int = 8  # per step, of ResNet-50
    save_steps: int = 10  # between checkpoints of torchrun's program
    steady: int = 2000
    turns: int = 2  # of each way, on steady workers and with checkpoints
    warmup: int = 50  # steps before these
    saving: int = 40  # steps with and without checkpoints

    def parts(self) -> Mapping[str, Part]:
        changes = {
            f"{network}/{way}": functools.partial(self._change, network, way)
            for network, ways in WAYS.items()
            for way in ways
        }
        losses = {
            f"{what}/{layout}": functools.partial(self._lose, what, layout) for what in LOSSES for layout in _LAYOUTS
        }
        agents = {f"torchrun/{waits}": functools.partial(self._kill_agent, waits) for waits in torchrun.WAITS}
        return changes | losses | agents | {"steady": self._steady, "saving": self._save}

    def _change(self, network: str, way: str, writer: Writer, bar: Any) -> None:
        flags = [*(TOY_NETWORKS if self.toy else NETWORKS)[network], f"--rebalance={'auto' if way == AUTO else 'off'}"]
        if way == FRESH:
            flags = [flags[0], "--layout=auto", "--rebalance=off", "--measure_seconds=30"]
        phases: dict[str, int] = {}
        factor = 2.0 if way == AUTO else 0.5
        workers = LocalCluster([1.0, 1.0], report=_say_nothing)
        with _directory(self, network) as (data, directory), workers:
            if way == FRESH:
                workers.limit(1, CUT)
            with self._trained(network, flags, workers, data, directory) as run:
                if way == FRESH:
                    run.await_step(self.settled + 5, self.seconds / 2)
                else:
                    phases["cut"] = run.await_step(self.before, self.seconds)
                    workers.limit(1, CUT)
                    steps = self.cut if way == AUTO else self.settled + 5
                    phases["restored"] = run.await_step(phases["cut"] + steps, factor * self.seconds)
                if way == AUTO:
                    workers.limit(1, 1.0)
                    run.await_step(phases["restored"] + self.restored, factor * self.seconds)
                values = {"way": way, "phases": phases, "limits": workers.limits, **run.describe()}
        seconds = values["step_seconds"]
        last = [seconds[max(end - self.settled, 1) : end] for end in (*phases.values(), len(seconds))]
        names = {AUTO: ("before", "cut", "restored"), STATIC: ("before", "cut"), FRESH: ("cut",)}[way]
        medians = {name: summarise(of_phase) for name, of_phase in zip(names, last, strict=False)}
        self._write(writer, f"{network}/{way}", network, flags, {**values, "settled_seconds": medians})

    def _steady(self, writer: Writer, bar: Any) -> None:
        model = "--model=lenet"
        measured: dict[str, list[tuple[float, int]]] = {way: [] for way in STEADY}
        for _ in range(self.turns):
            for way, flags in STEADY.items():
                measured[way].append(self._watched([model, "--layout=batch", *flags]))
        for way, found in measured.items():
            seconds, events = zip(*found, strict=True)
            columns = self.columns(
                warmup=self.warmup, steps=self.steady, repeats=self.turns, layout="--layout=batch", flags=STEADY[way]
            )
            values = {"watched": way, "batch_size": self.images, "changes": sum(events)}
            values |= {"cpu_seconds_per_step": summarise(seconds), "devices": _devices(2)}
            writer.write(f"steady/{way}", {**columns, "network": "lenet", **values})

    def _watched(self, flags: Sequence[str]) -> tuple[float, int]:
        """Return the processor seconds of a step, of all processes, and the number of changes of the shares."""
        workers = LocalCluster([1.0, 1.0], report=_say_nothing)
        with (
            _directory(self, "vgg11") as (data, directory),
            workers,
            self._trained("vgg11", flags, workers, data, directory, summary_steps=10) as run,
        ):
            begin = run.await_step(self.warmup)
            before = _cpu_seconds([run.pid, *workers.pids])
            steps = run.await_step(begin + self.steady) - begin
            return (_cpu_seconds([run.pid, *workers.pids]) - before) / steps, len(run.rows("event"))

    def _save(self, writer: Writer, bar: Any) -> None:
        model, layout = "--model=lenet" if self.toy else "--model=vgg11", "--layout=batch"
        measured: dict[str, list[float]] = {way: [] for way in SAVES}
        for _ in range(self.turns):
            for way, interval in SAVES.items():
                flags = [model, layout, "--rebalance=off", f"--save_checkpoints_secs={interval}"]
                measured[way].append(self._saved(flags))
        for way, found in measured.items():
            columns = self.columns(warmup=2, steps=self.saving, repeats=self.turns, layout=layout)
            values = {"saves": way, "interval": SAVES[way], "batch_size": self.images, "mean_seconds": summarise(found)}
            values["devices"] = _devices(2)
            writer.write(f"saving/{way}", {**columns, "network": "vgg11", **values})

    def _saved(self, flags: Sequence[str]) -> float:
        """Return the mean seconds of a step."""
        workers = LocalCluster([1.0, 1.0], report=_say_nothing)
        with (
            _directory(self, "vgg11") as (data, directory),
            workers,
            self._trained("vgg11", flags, workers, data, directory) as run,
        ):
            begin = run.await_step(3)
            run.await_step(begin + self.saving)
            return float(np.mean(run.describe()["step_seconds"][begin : begin + self.saving]))

    def _lose(self, what: str, layout: str, writer: Writer, bar: Any) -> None:
        network = "vgg11"
        model = (TOY_NETWORKS if self.toy else NETWORKS)[network][0]
        flags = [model, f"--layout={layout}", "--rebalance=off", "--wait_for_workers=1"]
        workers = LocalCluster([0.6] * 3, report=_say_nothing)
        with (
            _directory(self, network) as (data, directory),
            workers,
            self._trained(network, flags, workers, data, directory) as run,
        ):
            step = run.await_step(self.before)
            os.kill(workers.pids[2], LOSSES[what])
            killed = time.time()
            event, reported = run.await_event()
            seconds, detected = time.time() - killed, None if reported is None else reported - killed
            run.await_step(step + 3)
            values = {**run.describe(), "layout": layout, "seconds": seconds, "detected": detected}
            values["repeated"] = event["repeated_steps"]
        self._write(writer, f"{what}/{layout}", network, flags, {**values, "source": event["source"]})

    def _kill_agent(self, waits: str, writer: Writer, bar: Any) -> None:
        """Measure the same with PyTorch, between two checkpoints."""
        network = "toy_vgg" if self.toy else "vgg11_4096"
        settings = {"network": network, "batch_size": self.images, "seed": self.seed, "save_steps": self.save_steps}
        columns = self.columns(warmup=0, repeats=1, layout=waits, devices=["cpu:0"] * 3)
        if torchrun.is_installed():
            before = 5 * self.save_steps // 2
            values = torchrun.measure([0.6] * 3, waits, settings, before, _say_nothing)
            columns |= {**values, "steps": len(values["step_seconds"]), "source": "checkpoint"}
        else:
            columns |= {"steps": 0, "failed": torchrun.NOT_INSTALLED}
        writer.write(f"torchrun/{waits}", {**columns, **settings, "network": "vgg11"})

    def _write(
        self, writer: Writer, variant: str, network: str, flags: Sequence[str], values: Mapping[str, Any]
    ) -> None:
        columns = self.columns(
            warmup=0, steps=len(values["step_seconds"]), repeats=1, layout=flags[1], flags=list(flags)
        )
        batch = self._batch_size(network)
        writer.write(variant, {**columns, "network": network, "batch_size": batch, **values})

    def _batch_size(self, network: str) -> int:
        return {"cosmoflow": self.volumes, "resnet50": self.deep_images}.get(network, self.images)

    @contextlib.contextmanager
    def _trained(
        self,
        network: str,
        flags: Sequence[str],
        workers: LocalCluster,
        data: pathlib.Path,
        directory: pathlib.Path,
        summary_steps: int = 1,
    ) -> Iterator["_Run"]:
        batch = self._batch_size(network)
        arguments = [
            *("-m", "mtf_hetero.cli.train", *flags, f"--dataset={data}", f"--model_dir={directory}"),
            *(f"--workers={','.join(workers.addresses)}", f"--batch_size={batch}", "--train_epochs=100000"),
            *("--max_steps=100000", "--optimizer=sgd", "--learning_rate=0.001"),
            *(f"--summary_steps={summary_steps}", f"--seed={self.seed}"),
        ]
        with Process(arguments) as process:
            yield _Run(process, directory / metrics_log.NAME, _devices(len(workers.addresses)))


class _Run:
    """A training that writes a row of metrics per step."""

    def __init__(self, process: Process, path: pathlib.Path, devices: Sequence[str]) -> None:
        self._process, self._path, self._devices, self._since = process, path, devices, 0.0
        self.pid = process.pid

    def rows(self, kind: str) -> list[dict[str, Any]]:
        """Return the rows of a kind so far."""
        return metrics_log.read_kind(self._path, kind)

    def await_step(self, step: int, seconds: float = 0.0) -> int:
        """Wait until a step has ended, for so many seconds since the first row at least; return the number of steps."""

        def found() -> int | None:
            rows = self.rows("train")
            since = time.time() - max(rows[0]["time"], self._since) if rows else -math.inf
            return rows[-1]["step"] if since >= seconds and rows[-1]["step"] >= step else None

        self._since = time.time()
        return self._await(found)

    def await_event(self) -> tuple[dict[str, Any], float | None]:
        """Wait until training has continued elsewhere; return its row, and when the loss was reported, if it was."""
        reported: list[float] = []

        def found() -> dict[str, Any] | None:
            if not reported and any("is gone: " in line for line in self._process.err):
                reported.append(time.time())
            rows = self.rows("event")
            return rows[-1] if rows else None

        return self._await(found, extends=False), reported[0] if reported else None

    def _await(self, found: Callable[[], _Result | None], *, extends: bool = True) -> _Result:
        """Return what a function finds; each step extends the time limit if `extends` is set."""
        end, count = time.monotonic() + _START_SECONDS, 0
        while (result := found()) is None:
            if extends and (now := len(self.rows("train"))) > count:
                end, count = time.monotonic() + _STEP_SECONDS, now
            if not self._process.wait_briefly() or time.monotonic() > end:
                raise TooLateError(f"the training did not get on; its last: {self._process.last_words}")
            time.sleep(_POLL_SECONDS)
        return result

    def describe(self) -> dict[str, Any]:
        """Return the devices, the seconds from the end of each step to that of the next, and the changes of place."""
        times = [row["time"] for row in self.rows("train")]
        names = ("step", "why", "seconds_paused", "repeated_steps", "predicted_gain", "sizes")
        events = [{name: row.get(name) for name in names} for row in self.rows("event")]
        chosen = [line for line in self._process.out if line.startswith("Layout: ")]
        seconds = [0.0, *np.diff(times).round(4).tolist()]
        return {"devices": self._devices, "chosen": chosen, "step_seconds": seconds, "events": events}


@contextlib.contextmanager
def _directory(case: Elastic, network: str) -> Iterator[tuple[pathlib.Path, pathlib.Path]]:
    """Yield the path of random data of a network, and that of a model directory."""
    with tempfile.TemporaryDirectory(prefix="elastic_") as made:
        directory = pathlib.Path(made)
        if network == "cosmoflow":
            data = directory / "volumes"
            train, size = (8, 32) if case.toy else (16, 64)
            cosmology.write_universes(str(data), train=train, test=0, size=size, cell=2.0, seed=case.seed)
        else:
            data = directory / "images.npz"
            random = np.random.default_rng(case.seed)
            count = 4 * case.images
            images = random.integers(0, 256, (count, 32, 32, 3), dtype=np.uint8)
            np.savez(data, x=images, y=random.integers(0, 10, count))
        yield data, directory / "run"


def _devices(count: int) -> list[str]:
    return [f"worker:{index}/cpu:0" for index in range(count)]


def _cpu_seconds(pids: Sequence[int]) -> float:
    times = [psutil.Process(pid).cpu_times() for pid in pids]
    return sum(each.user + each.system for each in times)


def _say_nothing(line: str) -> None:
    del line
