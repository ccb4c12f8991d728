"""Unequal machines: a training step on workers of unequal speed, split by measured speeds and in other ways.

    python -m benchmarks.run heterogeneous [--only=vgg11/1.0,0.33/256]

Each worker is a process under a CPU quota of the kernel. These ways run in turns on the same workers:

* each device alone;
* the batch or the filters split evenly, in proportion to floating-point rates, by the speeds that --list_speed=auto
  measures, and by the best of a grid of shares, which is searched first;
* under the same quotas, PyTorch's DistributedDataParallel over gloo, its batch split evenly and by the best of that
  grid.

All workers have the same memory, so a split by memory is the even one. Heterogeneous efficiency is images per second
over the sum of the devices' images per second alone.

Time: 13 to 30 minutes a variant on two cores. Expected: the batch split by measured speeds is within a few per cent of
the best of the grid, and twice as fast as the even split. The filter split moves activations, and is far slower here,
where messages cost the workers processor time.
"""

import contextlib
import dataclasses
import functools
import itertools
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from benchmarks.child import Child, ChildError
from benchmarks.harness import CHECKED_STEPS, Part, TimedCase, chief, runner, seconds_per_step, timed
from benchmarks.rows import Writer, summarise

_NETS = "benchmarks.frameworks.cluster_nets:ClusterNets"
_RANKS, _RANK = "benchmarks.frameworks.ranks:Ranks", "benchmarks.frameworks.torch_nets:Rank"
EVEN, RATES, MEASURED, ROUNDED, GRID = "even", "by FLOP/s", "measured", "measured, bfloat16 sent", "best of a grid"
DDP = "PyTorch DDP"


@dataclasses.dataclass(frozen=True)
class Setting:
    """A network of benchmarks.networks.NETWORKS on a cluster."""

    network: str
    fractions: tuple[float, ...]  # cores of each worker, the largest first
    batch_size: int  # images per step
    recipes: tuple[str, ...] = ("batch", "filters")  # names in layouts.LAYOUTS

    @property
    def name(self) -> str:
        """The variant's name."""
        return f"{self.network}/{','.join(map(str, self.fractions))}/{self.batch_size}"


SETTINGS = (
    Setting("vgg11", (1.0, 0.33), 256),
    Setting("vgg11", (1.0, 0.33), 1024, ("batch",)),
    Setting("paper_cifar", (1.0, 0.36, 0.07), 64),  # 70, 25, 5
    Setting("paper_mnist", (0.7, 0.7, 0.35), 100),  # 40, 40, 20
    Setting("marques", (1.0, 0.5), 12),
)


def grid(count: int) -> list[tuple[int, ...]]:
    """Shares in per cent, the largest first: of two devices every 5, of three every 10 and some beside."""
    if count == 2:
        return [(share, 100 - share) for share in range(50, 100, 5)]
    coarse = itertools.product(range(10, 100, 10), repeat=count - 1)
    shares = {tuple(sorted((*parts, 100 - sum(parts)), reverse=True)) for parts in coarse if sum(parts) < 100}
    if count == 3:
        shares |= {(90, 5, 5), (80, 15, 5), (75, 20, 5), (70, 25, 5), (65, 30, 5), (45, 45, 10), (40, 40, 20)}
    return sorted(shares, reverse=True)


@dataclasses.dataclass(frozen=True)
class Heterogeneous(TimedCase):
    """The case."""

    name: ClassVar[str] = "heterogeneous"
    summary: ClassVar[str] = "step times on unequal workers, beside PyTorch DDP"
    minutes: ClassVar[float] = 80
    small: ClassVar[Mapping[str, Any]] = {
        "repeats": 2,
        "measuring_seconds": 1.0,
        "settings": (Setting("toy", (0.5, 0.25), 8, ("batch",)),),
    }

    measuring_seconds: float = 600.0  # how long measuring may take, for each recipe: thoroughly
    settings: tuple[Setting, ...] = SETTINGS

    def parts(self) -> Mapping[str, Part]:
        return {setting.name: functools.partial(self._measure, setting) for setting in self.settings}

    def _measure(self, setting: Setting, writer: Writer, bar: Any) -> None:
        """Build all ways, time them in turns, and write a row for each."""
        ways = _Ways(setting)
        common = {"network": setting.network, "batch_size": setting.batch_size, "seed": self.seed}
        with contextlib.ExitStack() as stack:
            cluster = stack.enter_context(chief(_NETS, fractions=setting.fractions, **common))
            ways.add_mtf(cluster, self.measuring_seconds)
            try:
                options = {**common, "fractions": setting.fractions, "channels_last": True}
                ways.add_torch(stack.enter_context(chief(_RANKS, target=_RANK, **options)))
            except ChildError as error:
                ways.rows[f"{DDP}, {EVEN}"] = {"failed": str(error)}
            timings = self.time_ways({name: runner(side, name) for name, side in ways.sides.items()})
            for name, side in ways.sides.items():
                if side is cluster:
                    ways.rows[name]["usage"] = cluster.call("trace", name=name)
            about = {**self.columns(warmup=CHECKED_STEPS), **dataclasses.asdict(setting), **cluster.call("describe")}
        for name, row in ways.rows.items():
            values = {**about, "way": name, "layout": name.partition(",")[0], **row}
            values |= ways.compare(name, timings) if name in timings else {}
            writer.write(f"{setting.name}/{name}", values)


class _Ways:
    """All ways of training one network on one cluster: {name: what is known of it}, and {name: who trains it}."""

    def __init__(self, setting: Setting) -> None:
        self._setting = setting
        self._count = len(setting.fractions)
        self._alone = [f"device {index} alone" for index in range(self._count)]
        self.rows: dict[str, dict[str, Any]] = {}
        self.sides: dict[str, Any] = {}

    def add_mtf(self, cluster: Child, measuring_seconds: float) -> None:
        """Yield the mtf programs: each device alone; every recipe evenly, by rates, as measured, and from a grid."""
        for index, name in enumerate(self._alone):
            self._add(cluster, name, recipe="batch", devices=[index])
        rates = cluster.call("peak_shares")
        for recipe in self._setting.recipes:
            self._add(cluster, f"{recipe}, {EVEN}", recipe=recipe)
            self._add(cluster, f"{recipe}, {RATES}", recipe=recipe, shares=rates)
            measured = cluster.call("measure", recipe=recipe, seconds=measuring_seconds)
            chosen = {"recipe": recipe, "sizes": measured["sizes"], "devices": measured["devices"]}
            self._add(cluster, f"{recipe}, {MEASURED}", {"measured": measured}, **chosen)
            if len(measured["devices"]) > 1:
                name = f"{recipe}, {ROUNDED}"
                self._add(cluster, name, {"measured": measured}, **chosen, wire_dtype="bfloat16")
            self._add_best(cluster, f"{recipe}, {GRID}", recipe=recipe)

    def add_torch(self, ranks: Child) -> None:
        """PyTorch's ways: even, and from the grid."""
        self._add(ranks, f"{DDP}, {EVEN}", shares=[1] * self._count)
        self._add_best(ranks, f"{DDP}, {GRID}")

    def _add(self, side: Any, name: str, values: Mapping[str, Any] | None = None, **arguments: Any) -> None:
        self.rows[name] = {**side.call("add", name=name, **arguments), **(values or {})}
        self.sides[name] = side

    def _add_best(self, side: Any, name: str, **arguments: Any) -> None:
        """Return the fastest shares of a grid without those that split nothing. The row has their seconds."""
        tried = []
        for shares in grid(self._count):
            with contextlib.suppress(ValueError):
                side.call("add", name="trial", shares=shares, **arguments)
                tried.append((shares, min(seconds_per_step(runner(side, "trial"), 1) for _ in range(2))))
        best, _ = min(tried, key=lambda trial: trial[1])
        self._add(side, name, {"grid": tried}, shares=best, **arguments)

    def compare(self, name: str, timings: Mapping[str, Sequence[float]]) -> dict[str, Any]:
        """Return columns on the speed of a way, beside single devices, and on its losses, beside device 0."""
        seconds, first = timings[name], self._alone[0]
        together = [sum(1 / s for s in turn) for turn in zip(*(timings[one] for one in self._alone), strict=True)]
        compared = timed(self.rows[name], seconds, self.rows[first]["losses"])
        if "bfloat16" in name:  # on the wire it is allowed to differ, and its row says by how much
            compared.pop("failed", None)
        return {
            **compared,
            "efficiency": summarise(1 / s / steps for s, steps in zip(seconds, together, strict=True)),
            "speedup": summarise(a / s for a, s in zip(timings[first], seconds, strict=True)),
        }
