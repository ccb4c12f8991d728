"""SplitBrain: hybrid data and model parallelism of VGG beside data parallelism and model parallelism alone.

    python -m benchmarks.run splitbrain [--only=vgg11_4096/8]

The networks have the 4096 head and see images of CIFAR-10's shape. Each worker is a process under a CPU quota of the
kernel, and d times k of them form a mesh: convolutions split the batch over all, dense layers are sharded over the k of
a group, their batch at once or in k rounds. All ways of a setting take turns on the same workers. Then each way runs
alone on workers of its own that return memory, which is read: the most that a process holds beyond what it held before.

For meshes that this machine has no cores for, the step is modelled: what a worker takes for its examples alone, and
what the busiest worker sends and receives over the measured link. The reports mark what is modelled.

Time: from two minutes for a setting of two workers to fifteen for one of eight, on two cores. Expected: weights' memory
falls as calculated from the network; on this link, within one machine, images per second of the hybrid ways lie above
those of data parallelism, which sends the gradients of the whole head. Rounds are slower than all at once: with 64
images there is little to gather, and each waits for the one before.
"""

import contextlib
import dataclasses
import random
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, ClassVar

from benchmarks.cases.base import Case, progress
from benchmarks.process import Child, ChildError
from benchmarks.rows import Writer, summarise

_NETS = "benchmarks.frameworks.cluster_nets:ClusterNets"
_WARMUP = 2
_MEMORY_STEPS = 10  # after which a worker hardly takes more
_TOLERANCE = 1e-4  # relative, of the losses before and after the first step
DATA, MODEL, HYBRID, ROUNDS = "data parallel", "model parallel", "hybrid", "in rounds"
MODELLED = "modelled"


@dataclasses.dataclass(frozen=True)
class Setting:
    """A network on a cluster.

    Args:
      network: a name in benchmarks.networks.NETWORKS.
      fractions: cores of each worker.
      batch_size: images per step.
      meshes: (d, k) of the hybrid ways; None: all that make up the workers.
      shares: of the mesh's axes, where they are uneven: {"data": ..., "model": ...}.
    """

    network: str
    fractions: tuple[float, ...]
    batch_size: int = 64
    meshes: tuple[tuple[int, int], ...] | None = None
    shares: Mapping[str, tuple[float, ...]] | None = None

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
        meshes = self.meshes or tuple((count // k, k) for k in range(2, count + 1) if count % k == 0)
        for d, k in meshes:
            mesh = {"recipe": "hybrid", "mesh_shape": f"data:{d};model:{k}"}
            ways[f"{HYBRID} {d} x {k}"] = mesh
            ways[f"{HYBRID} {d} x {k}, {ROUNDS}"] = {**mesh, "dense_rounds": True}
            if self.shares:
                ways[f"{HYBRID} {d} x {k}, by speed"] = {**mesh, "shares": dict(self.shares)}
        return ways


_NETWORKS = ("vgg11_4096", "vgg16", "vgg19")
SETTINGS: Mapping[str, Setting] = MappingProxyType(
    {
        setting.name: setting
        for setting in (
            *(Setting(network, (1.0,)) for network in _NETWORKS),
            Setting("vgg11_4096", (0.8,) * 2),
            Setting("vgg11_4096", (0.4,) * 4),
            *(Setting(network, (0.2,) * 8) for network in _NETWORKS),
            Setting(
                "vgg11_4096", (0.6, 0.2, 0.6, 0.2), meshes=((2, 2),), shares={"data": (1.0, 1.0), "model": (3.0, 1.0)}
            ),
        )
    }
)
_MODELLED = (8, 16, 32, 64)  # workers, of a core each


@dataclasses.dataclass(frozen=True)
class SplitBrain(Case):
    """The case.

    Args:
      repeats: how often each way is timed.
      steps: training steps per timing.
      settings: what to train on what.
    """

    name: ClassVar[str] = "splitbrain"
    summary: ClassVar[str] = "VGG with its convolutions data parallel and its dense layers sharded, on up to 8 workers"

    repeats: int = 5
    steps: int = 1
    settings: tuple[Setting, ...] = tuple(SETTINGS.values())

    def variants(self) -> tuple[str, ...]:
        return tuple(setting.name for setting in self.settings)

    def make_toy(self) -> "SplitBrain":
        settings = (Setting("toy_vgg", (1.0,), 8), Setting("toy_vgg", (1.0, 1.0), 8))
        return dataclasses.replace(self, toy=True, repeats=2, settings=settings)

    def measure(self, writer: Writer, variants: tuple[str, ...]) -> None:
        with progress(len(variants), "settings") as bar:
            for setting in self.settings:
                if setting.name in variants:
                    bar.set_description(setting.name)
                    self._measure(setting, writer)
                    bar.update()

    def _measure(self, setting: Setting, writer: Writer) -> None:
        rows, timings, about = self._time(setting)
        for way in rows:
            rows[way] |= self._memory(setting, way)
        reference = next(iter(rows.values()))["losses"]
        for way, row in rows.items():
            errors = [abs(a - b) / abs(b) for a, b in zip(row["losses"], reference, strict=True)]
            values = {
                **self._settings(setting, way),
                **about,
                **row,
                "wall_seconds_per_step": summarise(timings[way]),
                "loss_error": max(errors),
            }
            if max(errors) > _TOLERANCE:
                values["failed"] = f"losses {row['losses']} instead of {reference}"
            writer.write(f"{setting.name}/{way}", values)
        if len(setting.fractions) == 1:
            self._write_modelled(setting, summarise(timings["alone"])["median"], writer)

    def _settings(self, setting: Setting, way: str) -> dict[str, Any]:
        arguments = setting.ways().get(way, {})
        return {
            **dataclasses.asdict(setting),
            "way": way,
            "layout": arguments.get("recipe"),
            "mesh_shape": arguments.get("mesh_shape"),
            "seed": self.seed,
            "warmup": _WARMUP,
            "steps": self.steps,
            "repeats": self.repeats,
        }

    @contextlib.contextmanager
    def _chief(self, setting: Setting, *, return_memory: bool = False) -> Any:
        arguments = {
            "fractions": setting.fractions,
            "network": setting.network,
            "batch_size": setting.batch_size,
            "seed": self.seed,
            "return_memory": return_memory,
        }
        child = Child(_NETS, arguments)
        try:
            yield child
        finally:
            with contextlib.suppress(ChildError):
                child.call("close")
            child.close()

    def _time(self, setting: Setting) -> tuple[dict[str, dict[str, Any]], dict[str, list[float]], dict[str, Any]]:
        """Builds all ways on one cluster, and times them in turns."""
        with self._chief(setting) as chief:
            rows = {way: chief.call("add", name=way, **arguments) for way, arguments in setting.ways().items()}
            timings: dict[str, list[float]] = {way: [] for way in rows}
            rng = random.Random(self.seed)
            for _ in range(self.repeats):
                for way in rng.sample(sorted(rows), len(rows)):
                    timings[way].append(chief.call("run", name=way, steps=self.steps)["wall_seconds"] / self.steps)
            for way, row in rows.items():
                row |= chief.call("received", name=way)
            about = chief.call("describe")
            if len(setting.fractions) > 1:
                about |= chief.call("link")
        return rows, timings, about

    def _memory(self, setting: Setting, way: str) -> dict[str, Any]:
        """What the workers hold when a way runs alone, on workers that return memory, beside the estimate."""
        with self._chief(setting, return_memory=True) as chief:
            chief.call("add", name=way, watch_memory=True, **setting.ways()[way])
            chief.call("run", name=way, steps=_MEMORY_STEPS)
            return {"return_memory": True, **chief.call("memory", name=way)}

    def _write_modelled(self, setting: Setting, alone_seconds: float, writer: Writer) -> None:
        """Rows of meshes that are too large for this machine, each worker with a core and this setting's batch."""
        counts = (2,) if self.toy else _MODELLED
        with Child(_NETS.replace("ClusterNets", "ModelledNets"), {"network": setting.network}) as child:
            for count in counts:
                batch_size = count * setting.batch_size
                ways: dict[str, dict[str, Any]] = {DATA: {"recipe": "batch"}}
                for k in (2, 4, 8):
                    if k <= count:
                        mesh_shape = f"data:{count // k};model:{k}"
                        ways[f"{HYBRID} {count // k} x {k}"] = {"recipe": "hybrid", "mesh_shape": mesh_shape}
                for way, arguments in ways.items():
                    sent = child.call("sent", count=count, batch_size=batch_size, **arguments)
                    values = {
                        **self._settings(dataclasses.replace(setting, batch_size=batch_size), way),
                        "fractions": [1.0] * count,
                        "layout": arguments["recipe"],
                        "mesh_shape": arguments.get("mesh_shape"),
                        MODELLED: True,
                        "alone_seconds": alone_seconds,
                        **sent,
                    }
                    writer.write(f"{setting.network}/{count}/{way}, {MODELLED}", values)
