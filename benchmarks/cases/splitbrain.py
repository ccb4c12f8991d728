"""SplitBrain: hybrid data and model parallelism of VGG beside data parallelism and model parallelism alone.

    python -m benchmarks.run splitbrain [--only=vgg11_4096/8]

The networks have the 4096 head and images of CIFAR-10's shape. Each worker is a process under a CPU quota of the
kernel, and d times k of them form a mesh. Convolutions split the batch over all workers; dense layers are sharded over
the k of a group, with their batch at once or in k rounds. All ways of a setting run in turns on the same workers. Then
each way runs alone on other workers, which return freed memory, and their peak is read: the most memory of a process
beyond that before training.

This machine has no cores for larger meshes, so their steps are modelled: the time of a worker for its examples alone,
and the traffic of the busiest worker over the measured link. The reports mark modelled figures.

Time: from three minutes for a setting of two workers to 23 for one of eight, on two cores. Expected: the memory of
weights falls as calculated from the network. On this link, within one machine, the hybrid ways have more images per
second than data parallelism, which sends the gradients of the whole head. Rounds are slower than all at once: with 64
images there is little to gather, and each round waits for the one before.
"""

import contextlib
import dataclasses
import functools
from collections.abc import Mapping
from typing import Any, ClassVar

from benchmarks.child import Child
from benchmarks.harness import CHECKED_STEPS, Part, TimedCase, chief, runner, timed
from benchmarks.rows import Writer, summarise

_NETS = "benchmarks.frameworks.cluster_nets:ClusterNets"
_MODELLED_NETS = "benchmarks.frameworks.cluster_nets:ModelledNets"
_MEMORY_STEPS = 10  # after which a worker hardly takes more
DATA, MODEL, HYBRID, ROUNDS = "data parallel", "model parallel", "hybrid", "in rounds"
MODELLED = "modelled"


def _hybrid(d: int, k: int) -> dict[str, Any]:
    return {"recipe": "hybrid", "mesh_shape": f"data:{d};model:{k}"}


@dataclasses.dataclass(frozen=True)
class Setting:
    """A network of benchmarks.networks.NETWORKS on a cluster."""

    network: str
    fractions: tuple[float, ...]  # cores of each worker
    batch_size: int = 64  # images per step
    meshes: tuple[tuple[int, int], ...] | None = None  # (d, k) of the hybrid ways; None: all that make up the workers
    shares: Mapping[str, tuple[float, ...]] | None = None  # of the axes "data" and "model", where they are uneven

    @property
    def name(self) -> str:
        """The variant's name."""
        uneven = "" if len(set(self.fractions)) == 1 else "/" + ",".join(map(str, self.fractions))
        return f"{self.network}/{len(self.fractions)}{uneven}"

    def ways(self) -> dict[str, dict[str, Any]]:
        """{way: arguments of ClusterNets.add}."""
        count = len(self.fractions)
        if count == 1:
            return {"alone": {"recipe": "batch"}}
        ways: dict[str, dict[str, Any]] = {DATA: {"recipe": "batch"}, MODEL: {"recipe": "filters"}}
        for d, k in self.meshes or ((count // k, k) for k in range(2, count + 1) if count % k == 0):
            mesh = _hybrid(d, k)
            ways[f"{HYBRID} {d} x {k}"] = mesh
            ways[f"{HYBRID} {d} x {k}, {ROUNDS}"] = {**mesh, "dense_rounds": True}
            if self.shares:
                ways[f"{HYBRID} {d} x {k}, by speed"] = {**mesh, "shares": dict(self.shares)}
        return ways


_NETWORKS = ("vgg11_4096", "vgg16", "vgg19")
_BY_SPEED: Any = {"meshes": ((2, 2),), "shares": {"data": (1.0, 1.0), "model": (3.0, 1.0)}}
SETTINGS = (
    *(Setting(network, (1.0,)) for network in _NETWORKS),
    Setting("vgg11_4096", (0.8,) * 2),
    Setting("vgg11_4096", (0.4,) * 4),
    *(Setting(network, (0.2,) * 8) for network in _NETWORKS),
    Setting("vgg11_4096", (0.6, 0.2, 0.6, 0.2), **_BY_SPEED),
)
_MODELLED = (8, 16, 32, 64)  # workers, of a core each


@dataclasses.dataclass(frozen=True)
class SplitBrain(TimedCase):
    """The case."""

    name: ClassVar[str] = "splitbrain"
    summary: ClassVar[str] = "VGG with sharded dense layers: time, memory, traffic"
    minutes: ClassVar[float] = 105
    small: ClassVar[Mapping[str, Any]] = {
        "repeats": 2,
        "settings": (Setting("toy_vgg", (1.0,), 8), Setting("toy_vgg", (1.0, 1.0), 8)),
        "left_out": (MODEL, f"{HYBRID} 1 x 2"),  # like the other two
    }

    settings: tuple[Setting, ...] = SETTINGS
    left_out: tuple[str, ...] = ()  # ways of the settings

    def parts(self) -> Mapping[str, Part]:
        return {setting.name: functools.partial(self._measure, setting) for setting in self.settings}

    def _measure(self, setting: Setting, writer: Writer, bar: Any) -> None:
        """Build all ways on one cluster, time them in turns, and run each alone where memory is read."""
        ways = {way: arguments for way, arguments in setting.ways().items() if way not in self.left_out}
        with self._chief(setting) as cluster:
            rows = {way: cluster.call("add", name=way, **arguments) for way, arguments in ways.items()}
            timings = self.time_ways({way: runner(cluster, way) for way in rows})
            for way, row in rows.items():
                row |= cluster.call("received", name=way)
            about = cluster.call("describe")
            if len(setting.fractions) > 1:
                about["link"] = cluster.call("link", **({"repeats": 1} if self.toy else {}))
        reference = next(iter(rows.values()))["losses"]
        for way, row in rows.items():
            values = {**self._settings(setting, way, ways[way]), **about, **self._memory(setting, way)}
            writer.write(f"{setting.name}/{way}", {**values, **timed(row, timings[way], reference)})
        if len(setting.fractions) == 1:
            self._write_modelled(setting, summarise(timings["alone"])["median"], writer)

    def _settings(self, setting: Setting, way: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
        layout = {"layout": arguments["recipe"], "mesh_shape": arguments.get("mesh_shape")}
        return {**self.columns(warmup=CHECKED_STEPS), **dataclasses.asdict(setting), "way": way, **layout}

    def _chief(self, setting: Setting, *, return_memory: bool = False) -> contextlib.AbstractContextManager[Child]:
        about = {name: getattr(setting, name) for name in ("fractions", "network", "batch_size")}
        return chief(_NETS, **about, seed=self.seed, return_memory=return_memory)

    def _memory(self, setting: Setting, way: str) -> dict[str, Any]:
        """Return the memory of workers that run a way alone and return freed memory, beside the estimate."""
        with self._chief(setting, return_memory=True) as cluster:
            cluster.call("add", name=way, watch_memory=True, **setting.ways()[way])
            cluster.call("run", name=way, steps=_MEMORY_STEPS)
            return {"return_memory": True, **cluster.call("memory", name=way)}

    def _write_modelled(self, setting: Setting, alone_seconds: float, writer: Writer) -> None:
        """Rows of meshes that are too large for this machine, each worker with a core and this setting's batch."""
        with Child(_MODELLED_NETS, {"network": setting.network}) as child:
            for count in (2,) if self.toy else _MODELLED:
                batch_size = count * setting.batch_size
                larger = dataclasses.replace(setting, batch_size=batch_size, fractions=(1.0,) * count)
                ways: dict[str, dict[str, Any]] = {DATA: {"recipe": "batch"}}
                ways |= {f"{HYBRID} {count // k} x {k}": _hybrid(count // k, k) for k in (2, 4, 8) if k <= count}
                for way, arguments in ways.items():
                    sent = child.call("count_traffic", count=count, batch_size=batch_size, **arguments)
                    values = {**self._settings(larger, way, arguments), MODELLED: True, "alone_seconds": alone_seconds}
                    writer.write(f"{setting.network}/{count}/{way}, {MODELLED}", {**values, **sent})
