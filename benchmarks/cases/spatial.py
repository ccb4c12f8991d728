"""Large 3D CNNs: one sample's depth over several workers, in compute, memory and input (Oyama et al. 2021).

    python -m benchmarks.run spatial [--only=conv/W=128]

Each worker is a process under a CPU quota of the kernel. --only selects one of these parts:

* conv: CosmoFlow's convolutional part, forward, backward and an SGD step, on volumes that the workers make themselves,
  one per step or a batch of four. One worker of a core, two; a fast worker and one of half its speed, with the depth
  split evenly and by shares. All ways of a setting run in turns on the same workers. So do the even slabs as networks
  of their own, at the same time and without exchange: the upper limit on this machine. A traced step shows each
  worker's use of its time, and for how long convolutions run while halos are in flight.
* strong: whole networks on one sample, on 1, 2, 4, 8 workers of a quarter of a core.
* weak: the convolutional part of a sample whose depth grows with the workers.
* memory: the peak of each worker, on workers that return freed memory; each number of workers has its own cluster.
* limit: the largest cube on which CosmoFlow trains within a memory limit that the kernel enforces.
* input: bytes that each worker reads of a set on disk, epoch by epoch, and the time that a step waits for them.
* projected: a step on up to 2,048 workers that this machine does not have. The reports mark modelled figures.

For conv, strong and weak, the workers of a way are measured as `--layout=auto` measures them, and the planner predicts
each step.

Time: on two cores, up to three minutes for a setting of conv, five to fourteen for one of strong, five for weak, memory
and limit, two for input and projected. Expected: two workers are 1.8 times as fast as one, where their slabs without
any exchange are 1.9 times as fast; a fast worker and one of half its speed 1.3 to 1.4 times as fast as the fast one
alone; memory within 5 % of the share and halo.
"""

import contextlib
import dataclasses
import functools
import itertools
import tempfile
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

from benchmarks.child import Child, ChildError
from benchmarks.harness import CHECKED_STEPS, Part, TimedCase, chief, runner, seconds_per_step, timed
from benchmarks.rows import Writer, summarise

_CHIEF = "benchmarks.frameworks.volume_cluster:VolumeNets"
_MEMORY_STEPS = 8  # until a worker takes little more from step to step
_LIMIT_STEPS = 4
_EPOCHS = 3  # of the set that is read
_CLOSE_SECONDS = 30.0
_END_SECONDS = 5.0  # from a worker's last word to its exit code
_TRIAL_SECONDS = 900.0  # for steps under a memory limit, when a lost worker is not noticed
_CORES = 2.0  # that workers share
_LINK_REPEATS = 9
_COUNTS = (1, 2, 4, 8)  # of workers
_MORE = 4  # times as many workers from one projection to the next
CONV, STRONG, WEAK, MEMORY, LIMIT = "conv", "strong", "weak", "memory", "limit"
INPUT, PROJECTED, MODELLED = "input", "projected", "modelled"
ALONE, EVEN = "alone", "even"
_Extents = tuple[int, int, int]


@dataclasses.dataclass(frozen=True)
class Way:
    """A division of a volume."""

    name: str
    extents: _Extents  # (depth, height, width)
    devices: tuple[int, ...]  # numbers of the workers that take part
    shares: tuple[float, ...] | None = None  # of them; None: even
    batch_size: int = 1  # volumes per step

    def arguments(self, network: str) -> dict[str, Any]:
        """Arguments of VolumeNets.add."""
        return {"network": network, **dataclasses.asdict(self)}


@dataclasses.dataclass(frozen=True)
class Setting:
    """Ways of a network of volume_nets.NETWORKS that take turns on one cluster."""

    name: str  # of the variant
    network: str
    fractions: tuple[float, ...]  # cores of each worker
    ways: tuple[Way, ...]  # the first is what the others are compared with


def _cube(edge: int) -> _Extents:
    return (edge, edge, edge)


def _conv(edge: int, batch_size: int = 1) -> tuple[Setting, ...]:
    """Strong scaling on two workers alike, and on a fast and a slow one."""
    uneven = ((2, 1), (3, 2), (5, 3), (7, 3), (3, 1))
    make = functools.partial(Way, extents=_cube(edge), batch_size=batch_size)
    alone, even = make(ALONE, devices=(0,)), make(EVEN, devices=(0, 1))
    by_shares = [make(f"{a}:{b}", devices=(0, 1), shares=(a, b)) for a, b in uneven]
    name = f"{CONV}/W={edge}" if batch_size == 1 else f"{CONV}/batch={batch_size}/W={edge}"
    return (
        Setting(f"{name}/1.0,1.0", "conv", (1.0, 1.0), (alone, even)),
        Setting(f"{name}/1.0,0.5", "conv", (1.0, 0.5), (alone, even, *by_shares)),
    )


def _growing(name: str, network: str, extents: Callable[[int], _Extents]) -> Setting:
    ways = tuple(Way(str(count), extents(count), tuple(range(count))) for count in _COUNTS)
    return Setting(name, network, (_CORES / max(_COUNTS),) * max(_COUNTS), ways)


def _strong(network: str, edge: int) -> Setting:
    """One cube on more and more workers."""
    return _growing(f"{STRONG}/{network}/W={edge}", network, lambda _: _cube(edge))


SETTINGS = (
    *_conv(128),
    *_conv(128, batch_size=4),
    *_conv(64),
    *(_strong(network, edge) for network in ("cosmoflow", "unet3d") for edge in (128, 64)),
    _growing(f"{WEAK}/conv", "conv", lambda count: (32 * count, 64, 64)),
)
_INPUTS = (((1.0, 1.0), None), ((1.0, 0.5), (2.0, 1.0)), ((0.5,) * 4, None))


@dataclasses.dataclass(frozen=True)
class Spatial(TimedCase):
    """The case."""

    name: ClassVar[str] = "spatial"
    summary: ClassVar[str] = "3D CNNs with depth split: time, memory, input"
    minutes: ClassVar[float] = 55
    small: ClassVar[Mapping[str, Any]] = {
        "repeats": 2,
        "settings": (Setting("conv/batch=2/W=8/1.0,1.0", "toy", (1.0, 1.0), _conv(8, batch_size=2)[1].ways[:3]),),
        "memory_edges": (),  # memory takes minutes
        "memory_limits": (),
        "inputs": (((1.0, 1.0), (2.0, 1.0)),),
        "input_edge": 16,
        "input_count": 4,
        "network": "toy",
        "whole_network": "toy",
        "projected_from": 8,
        "projected_edge": 8,
        "projected_counts": (2,),
        "projected_most": 8,
    }

    settings: tuple[Setting, ...] = SETTINGS
    memory_edges: tuple[int, ...] = (64, 128)  # cubes whose memory is measured
    memory_limits: tuple[float, ...] = (0.5e9,)  # bytes that a worker may take
    limit_edges: tuple[int, ...] = (32, 64, 128, 256)  # cubes that are tried under them
    counts: tuple[int, ...] = _COUNTS  # numbers of workers of the memory measurements
    inputs: tuple[tuple[tuple[float, ...], tuple[float, ...] | None], ...] = _INPUTS  # cores and shares of readers
    input_edge: int = 64  # of a set's cubes
    input_count: int = 16
    network: str = "conv"  # of the memory measurements
    whole_network: str = "cosmoflow"  # of limit and input
    projected_from: int = 128  # cubes on which the workers are measured that are not there
    projected_edge: int = 512
    projected_counts: tuple[int, ...] = (8, 16)  # workers per sample
    projected_most: int = 2048  # workers in all

    def parts(self) -> Mapping[str, Part]:
        parts: dict[str, Part] = {setting.name: functools.partial(self._time, setting) for setting in self.settings}
        for edge in self.memory_edges:
            parts[f"{MEMORY}/W={edge}"] = functools.partial(self._measure_memory, edge)
        for size in self.memory_limits:
            parts[f"{LIMIT}/{size / 1e9:g}GB"] = functools.partial(self._search, size)
        for fractions, shares in self.inputs:
            name = f"{INPUT}/{','.join(map(str, fractions))}"
            parts[name] = functools.partial(self._read, name, fractions, shares)
        parts[f"{PROJECTED}/W={self.projected_edge}"] = self._project
        return parts

    def _about(self, part: str, network: str, fractions: Sequence[float], **values: Any) -> dict[str, Any]:
        """Return the settings in a row."""
        about = {"part": part, "network": network, "fractions": list(fractions), "layout": "spatial"}
        return {**about, **self.columns(warmup=CHECKED_STEPS), **values}

    def _chief(self, fractions: Sequence[float], **arguments: Any) -> contextlib.AbstractContextManager[Child]:
        return chief(_CHIEF, fractions=fractions, seed=self.seed, **arguments)

    def _time(self, setting: Setting, writer: Writer, bar: Any) -> None:
        """Build all ways on one cluster, time them in turns, and predict them."""
        with self._chief(setting.fractions) as cluster:
            rows = {way.name: cluster.call("add", **way.arguments(setting.network)) for way in setting.ways}
            turns = [("run", name) for name in rows]
            if EVEN in rows:
                cluster.call("add_apart", name=EVEN)
                turns.append(("run_apart", EVEN))
            timings = self.time_ways({turn: runner(cluster, turn[1], turn[0]) for turn in turns})
            about = cluster.call("describe")
            about["link"] = self._link(cluster)
            for way in setting.ways:
                rows[way.name] |= cluster.call("trace", name=way.name)
                rows[way.name] |= cluster.call("predict", name=way.name)
        references: dict[_Extents, list[float]] = {}
        for way in setting.ways:
            row = rows[way.name]
            values = {
                **self._about(setting.name.partition("/")[0], setting.network, setting.fractions, shares=way.shares),
                "setting": setting.name,
                "way": way.name,
                "extents": way.extents,
                "batch_size": way.batch_size,
                "workers": way.devices,
                **about,
                **timed(row, timings["run", way.name], references.setdefault(way.extents, row["losses"])),
            }
            if ("run_apart", way.name) in timings:
                values["apart_seconds_per_step"] = summarise(timings["run_apart", way.name])
            writer.write(f"{setting.name}/{way.name}", values)

    def _link(self, cluster: Child) -> dict[str, Any]:
        return cluster.call("link", repeats=1 if self.toy else _LINK_REPEATS)

    def _shared(self, count: int) -> tuple[float, ...]:
        """Cores of each of so many workers."""
        return (min(1.0, _CORES / count),) * count

    def _measure_memory(self, edge: int, writer: Writer, bar: Any) -> None:
        """Measures the workers' memory, for each number of workers in a cluster of its own."""
        for count in self.counts:
            fractions, way = self._shared(count), Way("way", _cube(edge), tuple(range(count)))
            with self._chief(fractions, return_memory=True) as cluster:
                cluster.call("watch_memory")
                row = cluster.call("add", steps=_MEMORY_STEPS, **way.arguments(self.network))
                values = {
                    **self._about(MEMORY, self.network, fractions, steps=_MEMORY_STEPS, warmup=0, repeats=1),
                    "edge": edge,
                    **row,
                    "split": row["sizes"].get("depth", [edge]),
                    **cluster.call("memory", name=way.name),
                    **cluster.call("describe"),
                }
            writer.write(f"{MEMORY}/W={edge}/{count}", values)

    def _search(self, size: float, writer: Writer, bar: Any) -> None:
        """Try larger and larger cubes under a memory limit, for each number of workers."""
        for count in self.counts:
            fractions = self._shared(count)
            for edge in self.limit_edges:
                values = {
                    **self._about(LIMIT, self.whole_network, fractions, steps=_LIMIT_STEPS, warmup=0, repeats=1),
                    "edge": edge,
                    "memory_limit_bytes": size,
                    **self._try(edge, fractions, size),
                }
                writer.write(f"{LIMIT}/{size / 1e9:g}GB/{count}/W={edge}", values)
                if not values["trained"]:
                    break

    def _try(self, edge: int, fractions: tuple[float, ...], size: float) -> dict[str, Any]:
        """Try to train on a cube; a failure has the error and the workers' exit codes."""
        way = Way("way", _cube(edge), tuple(range(len(fractions))))
        with self._chief(fractions, memory_bytes=round(size), return_memory=True) as cluster:
            values = cluster.call("describe")
            cluster.call("watch_memory")
            try:
                limits = {"steps": _LIMIT_STEPS, "timeout_seconds": _TRIAL_SECONDS}
                row = cluster.call("add", **limits, **way.arguments(self.whole_network))
                values |= {"trained": True, "losses": row["losses"], **cluster.call("memory", name=way.name)}
            except ChildError as error:
                values |= {"trained": False, "error": str(error)}
                with contextlib.suppress(ChildError):  # it is gone where the time was over
                    wait = {"within_seconds": _END_SECONDS, "timeout_seconds": _CLOSE_SECONDS}
                    values["exit_codes"] = cluster.call("ended", **wait)
        return values

    def _read(
        self, name: str, fractions: tuple[float, ...], shares: Sequence[float] | None, writer: Writer, bar: Any
    ) -> None:
        """Trains on a set on disk; what each worker reads per epoch, and how long a step waits for it."""
        edge, count = self.input_edge, self.input_count
        workers = list(range(len(fractions)))
        common = {"network": self.whole_network, "extents": _cube(edge), "devices": workers, "shares": shares}
        with tempfile.TemporaryDirectory() as parent, self._chief(fractions) as cluster:
            directory = f"{parent}/set"
            written = cluster.call("write_set", directory=directory, edge=edge, count=count)
            cluster.call("add", name="made", **common)
            before = cluster.call("read_bytes")
            made = seconds_per_step(runner(cluster, "made"), count)
            without = _difference(before, cluster.call("read_bytes"))
            row = cluster.call("add", name="read", directory=directory, epochs=_EPOCHS, steps=0, **common)
            counted, waits, seconds = [cluster.call("read_bytes")], [], []
            for _ in range(_EPOCHS):
                seconds.append(seconds_per_step(runner(cluster, "read"), count - 1))
                waits.append(cluster.call("wait_for_input", name="read"))
                counted.append(cluster.call("read_bytes"))
            values = {
                **self._about(INPUT, self.whole_network, fractions, steps=count, warmup=0, repeats=1, shares=shares),
                **cluster.call("describe"),
                **written,
                "edge": edge,
                "volumes": count,
                "split": row["sizes"]["depth"],
                "read_bytes": [_difference(*pair) for pair in itertools.pairwise(counted)],
                "read_bytes_without_input": without,
                "wait_seconds": waits,
                "epoch_seconds_per_step": seconds,
                "made_seconds_per_step": made,
            }
        writer.write(name, values)

    def _project(self, writer: Writer, bar: Any) -> None:
        """Measure steps on more and more equal workers; each group shares a sample."""
        edge, workers = self.projected_edge, [0, 1]
        with self._chief((1.0, 1.0)) as cluster:
            cluster.call("add", name=EVEN, network=self.network, extents=_cube(self.projected_from), devices=workers)
            measured = {**cluster.call("describe"), "link": self._link(cluster)}
            for count in self.projected_counts:
                groups = 1
                while count * groups <= self.projected_most:
                    step = {"network": self.whole_network, "edge": edge, "count": count, "groups": groups}
                    values = {
                        **self._about(PROJECTED, self.whole_network, [1.0], warmup=0, repeats=1),
                        **step,
                        **measured,
                        MODELLED: True,
                        "measured_network": self.network,
                        "measured_edge": self.projected_from,
                        **cluster.call("project", name=EVEN, **step),
                    }
                    writer.write(f"{PROJECTED}/W={edge}/{count} x {groups}, {MODELLED}", values)
                    groups *= _MORE


def _difference(before: Sequence[int], after: Sequence[int]) -> list[int]:
    return [b - a for a, b in zip(before, after, strict=True)]
