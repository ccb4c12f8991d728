"""Unequal machines: a training step on workers of unequal speed, split as measured, and by what users do today.

    python -m benchmarks.run heterogeneous [--only=vgg11/1.0,0.33/256]

Each worker is a process under a CPU quota of the kernel. On the same workers, in turns: each device alone; the batch or
the filters divided evenly, in proportion to floating-point rates, as --list_speed=auto measures, and as the best of a
grid of shares that is searched first. Under the same quotas: PyTorch's DistributedDataParallel over gloo, its batch
divided evenly, and as the best of the same grid. All workers have the same memory, so that a split by memory is the
even one.

Heterogeneous efficiency is images per second over the sum of what the devices do alone.

Time: about ten minutes a variant on two cores. Expected: the batch split as measured within a few per cent of the best
of the grid and twice as fast as the even split; the filter split, which moves activations, far behind it here, where
a message costs the workers processor time.
"""

import contextlib
import dataclasses
import itertools
import random
import socket
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, ClassVar

from benchmarks.cases.base import Case, progress
from benchmarks.process import Child, ChildError, LimitedChildren
from benchmarks.rows import Writer, summarise
from mtf_hetero.models.train import console as command_line

_NETS = "benchmarks.frameworks.cluster_nets:ClusterNets"
_RANK = "benchmarks.frameworks.ddp:Rank"
_WARMUP = 2  # steps when a way is built, whose losses are compared
_TOLERANCE = 1e-4  # relative, of the losses before and after the first step
EVEN, RATES, MEASURED, ROUNDED, GRID = "even", "by FLOP/s", "measured", "measured, bfloat16 sent", "best of a grid"
DDP = "PyTorch DDP"


@dataclasses.dataclass(frozen=True)
class Setting:
    """A network on a cluster.

    Args:
      network: a name in benchmarks.networks.NETWORKS.
      fractions: cores of each worker, the largest first.
      batch_size: images per step.
      recipes: names in layouts.LAYOUTS.
    """

    network: str
    fractions: tuple[float, ...]
    batch_size: int
    recipes: tuple[str, ...] = ("batch", "filters")

    @property
    def name(self) -> str:
        """The variant's name."""
        return f"{self.network}/{','.join(map(str, self.fractions))}/{self.batch_size}"


SETTINGS: Mapping[str, Setting] = MappingProxyType(
    {
        setting.name: setting
        for setting in (
            Setting("vgg11", (1.0, 0.33), 256),
            Setting("vgg11", (1.0, 0.33), 1024, ("batch",)),
            Setting("paper_cifar", (1.0, 0.36, 0.07), 64),  # 70, 25, 5
            Setting("paper_mnist", (0.7, 0.7, 0.35), 100),  # 40, 40, 20
            Setting("marques", (1.0, 0.5), 12),
        )
    }
)


def grid(count: int) -> list[tuple[int, ...]]:
    """Shares in per cent, the largest first: of two devices every 5, of three every 10 and some beside."""
    if count == 2:
        return [(share, 100 - share) for share in range(50, 100, 5)]
    coarse = itertools.product(range(10, 100, 10), repeat=count - 1)
    found = {tuple(sorted((*shares, 100 - sum(shares)), reverse=True)) for shares in coarse if sum(shares) < 100}
    if count == 3:
        found |= {(90, 5, 5), (80, 15, 5), (75, 20, 5), (70, 25, 5), (65, 30, 5), (45, 45, 10), (40, 40, 20)}
    return sorted(found, reverse=True)


@dataclasses.dataclass(frozen=True)
class Heterogeneous(Case):
    """The case.

    Args:
      repeats: how often each way is timed.
      steps: training steps per timing.
      measuring_seconds: how long measuring may take, for each recipe.
      settings: what to train on what.
    """

    name: ClassVar[str] = "heterogeneous"
    summary: ClassVar[str] = "seconds per training step on workers of unequal speed, beside what users do today"

    repeats: int = 5
    steps: int = 1
    measuring_seconds: float = 120.0
    settings: tuple[Setting, ...] = tuple(SETTINGS.values())

    def variants(self) -> tuple[str, ...]:
        return tuple(setting.name for setting in self.settings)

    def make_toy(self) -> "Heterogeneous":
        settings = (Setting("toy", (0.5, 0.25), 8, ("batch",)),)
        return dataclasses.replace(self, toy=True, repeats=2, measuring_seconds=1.0, settings=settings)

    def measure(self, writer: Writer, variants: tuple[str, ...]) -> None:
        with progress(len(variants), "settings") as bar:
            for setting in self.settings:
                if setting.name in variants:
                    bar.set_description(setting.name)
                    _Measurement(self, setting).run(writer)
                    bar.update()


class _Torch:
    """The ranks of PyTorch, behind the same methods as the chief of the mtf programs."""

    def __init__(self, setting: Setting, seed: int) -> None:
        self._setting = setting
        with command_line.stderr_held_back():
            from mtf_hetero.cluster import LimitedProcesses
            from mtf_hetero.partition import split_by_share
        self._split_by_share = split_by_share
        self._processes = LimitedProcesses(setting.fractions)
        self._processes.__enter__()
        count = len(setting.fractions)
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        common = {"ranks": count, "port": port, "network": setting.network, "batch_size": setting.batch_size}
        arguments = [{**common, "rank": rank, "seed": seed, "channels_last": True} for rank in range(count)]
        try:
            self._ranks = LimitedChildren(_RANK, arguments, self._processes)
        except BaseException:
            self._processes.close()
            raise

    def add(self, name: str, shares: Sequence[float]) -> dict[str, Any]:
        """Builds a division of the batch; returns the losses before two steps, and the division."""
        division = list(self._split_by_share(self._setting.batch_size, shares))
        found = self._ranks.call("add", name=name, batches=division)
        losses = [sum(parts) for parts in zip(*(answer["losses"] for answer in found), strict=True)]
        return {"losses": losses, "sizes": {"batch": division}}

    def run(self, name: str, steps: int) -> dict[str, Any]:
        """Takes steps; the slowest rank's seconds."""
        return {
            "wall_seconds": max(answer["wall_seconds"] for answer in self._ranks.call("run", name=name, steps=steps))
        }

    def close(self) -> None:
        """Ends the ranks."""
        self._ranks.close()
        self._processes.close()


class _Mesh:
    """The chief of the mtf programs, in a process of its own."""

    def __init__(self, setting: Setting, seed: int) -> None:
        arguments = dataclasses.asdict(setting) | {"seed": seed}
        del arguments["recipes"]
        self._child = Child(_NETS, arguments)

    def __getattr__(self, method: str) -> Any:
        def call(*args: Any, **arguments: Any) -> Any:
            return self._child.call(method, **dict(zip(("name", "steps"), args, strict=False)), **arguments)

        return call

    def close(self) -> None:
        """Ends the chief, and with it the workers."""
        with contextlib.suppress(ChildError):
            self._child.call("close")
        self._child.close()


class _Measurement:
    """All ways of training one network on one cluster."""

    def __init__(self, case: Heterogeneous, setting: Setting) -> None:
        self._case = case
        self._setting = setting
        self._rows: dict[str, dict[str, Any]] = {}
        self._sides: dict[str, Any] = {}  # name -> who trains it

    def run(self, writer: Writer) -> None:
        """Builds all, times them in turns, and writes a row for each."""
        with contextlib.ExitStack() as stack:
            mesh = _Mesh(self._setting, self._case.seed)
            stack.callback(mesh.close)
            self._build_mesh(mesh)
            try:
                torch = _Torch(self._setting, self._case.seed)
                stack.callback(torch.close)
                self._build_torch(torch)
            except ChildError as error:
                self._rows[f"{DDP}, {EVEN}"] = {"failed": str(error)}
            timings: dict[str, list[float]] = {name: [] for name in self._sides}
            rng = random.Random(self._case.seed)
            for _ in range(self._case.repeats):
                for name in rng.sample(sorted(self._sides), len(self._sides)):
                    seconds = self._sides[name].run(name, self._case.steps)["wall_seconds"]
                    timings[name].append(seconds / self._case.steps)
            for name, side in self._sides.items():
                if side is mesh:
                    self._rows[name]["usage"] = mesh.trace(name)
            about = mesh.describe()
        self._write(writer, timings, about)

    def _build_mesh(self, mesh: _Mesh) -> None:
        count = len(self._setting.fractions)
        for index in range(count):
            self._add(mesh, f"device {index} alone", recipe="batch", devices=[index])
        rates = mesh.peak_shares()
        for recipe in self._setting.recipes:
            self._add(mesh, f"{recipe}, {EVEN}", recipe=recipe)
            self._add(mesh, f"{recipe}, {RATES}", recipe=recipe, shares=rates)
            measured = mesh.measure(recipe=recipe, seconds=self._case.measuring_seconds)
            chosen = {"recipe": recipe, "sizes": measured["sizes"], "devices": measured["devices"]}
            found = {"measured": measured}
            self._add(mesh, f"{recipe}, {MEASURED}", found, **chosen)
            if len(measured["devices"]) > 1:
                self._add(mesh, f"{recipe}, {ROUNDED}", found, **chosen, wire_dtype="bfloat16")
            shares, tried = self._search(mesh, recipe=recipe)
            self._add(mesh, f"{recipe}, {GRID}", {"grid": tried}, recipe=recipe, shares=shares)

    def _build_torch(self, torch: _Torch) -> None:
        self._add(torch, f"{DDP}, {EVEN}", shares=[1] * len(self._setting.fractions))
        shares, tried = self._search(torch)
        self._add(torch, f"{DDP}, {GRID}", {"grid": tried}, shares=shares)

    def _add(self, side: Any, name: str, values: Mapping[str, Any] | None = None, **arguments: Any) -> None:
        self._rows[name] = {**side.add(name, **arguments), **(values or {})}
        self._sides[name] = side

    def _search(self, side: Any, **arguments: Any) -> tuple[tuple[int, ...], list[tuple[tuple[int, ...], float]]]:
        """The fastest shares of a grid, and the seconds of all; those by which nothing can be divided are left out."""
        tried = []
        for shares in grid(len(self._setting.fractions)):
            try:
                side.add("trial", shares=shares, **arguments)
            except ValueError:
                continue
            tried.append((shares, min(side.run("trial", 1)["wall_seconds"] for _ in range(2))))
        return min(tried, key=lambda trial: trial[1])[0], tried

    def _write(self, writer: Writer, timings: Mapping[str, Sequence[float]], about: Mapping[str, Any]) -> None:
        setting = self._setting
        alone = [f"device {index} alone" for index in range(len(setting.fractions))]
        reference = self._rows[alone[0]]["losses"]
        for name, row in self._rows.items():
            values = {
                **dataclasses.asdict(setting),
                **about,
                "way": name,
                "layout": name.partition(",")[0],
                "shares": None,
                "seed": self._case.seed,
                "warmup": _WARMUP,
                "steps": self._case.steps,
                "repeats": self._case.repeats,
                **row,
            }
            if name in timings:
                together = [
                    sum(1 / timings[other][i] for other in alone) for i in range(self._case.repeats)
                ]  # steps a second of all devices alone
                seconds = timings[name]
                values["wall_seconds_per_step"] = summarise(seconds)
                values["efficiency"] = summarise(1 / s / sum_ for s, sum_ in zip(seconds, together, strict=True))
                values["speedup"] = summarise(a / s for a, s in zip(timings[alone[0]], seconds, strict=True))
                # bfloat16 on the wire is allowed to differ, and its row says by how much
                errors = [abs(a - b) / abs(b) for a, b in zip(row["losses"], reference, strict=True)]
                values["loss_error"] = max(errors)
                if max(errors) > _TOLERANCE and "bfloat16" not in name:
                    values["failed"] = f"losses {row['losses']} instead of {reference}"
            writer.write(f"{setting.name}/{name}", values)
