"""Slots: memory of accumulation on one device, and steps of a pipeline on two.

    python -m benchmarks.run slots

Residual blocks of two dense layers, which share one width. A device with several slots computes its part of the batch
one after another.

* memory: one worker, the whole batch in 1 to 16 slots: the peak of its memory, and the seconds of a step.
* pipeline: two workers, links of several speeds: the fast one alone; the batch split, in proportion to the cores; the
  blocks in two stages, in proportion too, with one slot or several.
* limit: a Keras model that fits on none of three unequal workers, whose memory is limited: on the first one, and in
  stages with slots; the peak of each worker beside the one that the lowered graph predicts.

Time: about twelve minutes on two cores. Expected: with eight slots, activations need an eighth of the memory, and a
step takes as long. Stages send the activations of one cut where a split batch sends all gradients, so that they win on
slow links.
"""

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any, ClassVar

from benchmarks.child import Child, ChildError
from benchmarks.frameworks.slots import ALONE, BATCH, STAGES
from benchmarks.harness import Case, Part, chief, compare_losses, take_turns
from benchmarks.rows import Writer, summarise

_TARGET = "benchmarks.frameworks.slots:Slots"
_LIMITED = "benchmarks.frameworks.slots_limit:LimitedSlots"
_RUN_SECONDS = 300.0
MEMORY, PIPELINE, LIMIT = "memory", "pipeline", "limit"


@dataclasses.dataclass(frozen=True)
class Slots(Case):
    """The case."""

    name: ClassVar[str] = "slots"
    summary: ClassVar[str] = "accumulation, pipelines, a model that fits no worker"
    minutes: ClassVar[float] = 12
    small: ClassVar[Mapping[str, Any]] = {
        "links": (0,),
        "blocks": 2,
        "width": 16,
        "hidden": 16,
        "batch_size": 16,
        "slots": (1, 2),
        "microbatches": (1, 2),
        "cores": ((1.0, 0.5),),
        "repeats": 1,
        "steps": 1,
        "limit_shape": {"blocks": 4, "width": 16, "hidden": 16, "batch_size": 16},
        "limit_bytes": (1e9, 1e9),
        "limit_cores": (1.0, 0.5),
        "limit_slots": 2,
    }

    repeats: int = 2
    steps: int = 5  # of each way in a turn
    links: tuple[int, ...] = (0, 1000, 100)  # megabits per second; 0: the loopback
    cores: tuple[tuple[float, float], ...] = ((1.0, 1.0), (1.0, 0.5))
    slots: tuple[int, ...] = (1, 2, 4, 8, 16)
    microbatches: tuple[int, ...] = (1, 4, 8)  # slots of each stage
    blocks: int = 8
    width: int = 512
    hidden: int = 1024
    batch_size: int = 1024
    deep_factor: int = 4  # examples of the memory part over those of the pipeline
    limit_shape: Mapping[str, int] = dataclasses.field(
        default_factory=lambda: {"blocks": 8, "width": 512, "hidden": 2048, "batch_size": 2048}
    )
    limit_bytes: tuple[float, ...] = (0.27e9, 0.16e9, 0.14e9)  # that each worker may take
    limit_cores: tuple[float, ...] = (1.0, 0.5, 0.5)
    limit_slots: int = 8

    def parts(self) -> Mapping[str, Part]:
        """Return a part for the memory, and one for each link and each pair of workers."""
        settings = {
            f"{PIPELINE}/{'-'.join(map(str, cores))}/{link or 'loopback'}": (cores, link)
            for cores in self.cores
            for link in self.links
        }
        pipelines = {name: functools.partial(self._steps, name, *setting) for name, setting in settings.items()}
        return {f"{MEMORY}/1.0/loopback": self._memory, **pipelines, LIMIT: self._limit}

    def _settings(self, batch_size: int, link: int) -> dict[str, Any]:
        shape = {"blocks": self.blocks, "width": self.width, "hidden": self.hidden}
        return {**shape, "batch_size": batch_size, "link": link}

    def _memory(self, writer: Writer, bar: Any) -> None:
        settings, reference = self._settings(self.deep_factor * self.batch_size, 0), None
        for slots in self.slots:
            found = []
            with chief(_TARGET, True, **settings, fractions=[1.0], seed=self.seed) as child:  # memory stays with one
                found.append(child.call("run", way=ALONE, slots=slots, steps=self.steps))
            reference = reference or found[0]["losses"]
            self._write(writer, f"{MEMORY}/1.0/loopback", [1.0], settings, (ALONE, slots), found, reference)
            bar.update()

    def _limit(self, writer: Writer, bar: Any) -> None:
        """Train on one worker without a limit, then within the limits: on the first worker, and in stages."""
        limits, slots, reference = list(self.limit_bytes), self.limit_slots, None
        ways = {
            "alone, no limit": (ALONE, self.limit_cores[:1], []),
            "alone": (ALONE, self.limit_cores[:1], limits[:1]),
            "stages": (STAGES, self.limit_cores, limits),
        }
        for name, (way, cores, allowed) in ways.items():
            row = {"network": "residual blocks, Keras", **self.limit_shape, "way": name, "slots": slots, "layout": way}
            row |= {"devices": list(cores), "limit_bytes": allowed, "limits": []}
            settings = {**self.limit_shape, "fractions": cores, "limits": allowed, "seed": self.seed}
            with chief(_LIMITED, **settings) as child:
                row |= child.call("predict", way=way, slots=slots)
                try:
                    row |= child.call("run", way=way, slots=slots, steps=self.steps, timeout_seconds=_RUN_SECONDS)
                except (ChildError, ValueError) as error:  # a user gets a ValueError for a lost worker
                    row |= {"trained": False, "error": str(error)}
                else:
                    reference = reference or row["losses"]
                    row |= {"trained": True, **compare_losses(row["losses"], reference)}
            writer.write(f"{LIMIT}/{name}", self.columns(**row))
            bar.update()

    def _steps(self, part: str, cores: tuple[float, float], link: int, writer: Writer, bar: Any) -> None:
        settings = self._settings(self.batch_size, link)
        with chief(_TARGET, True, **settings, fractions=cores, seed=self.seed) as child:
            ways = {way: functools.partial(self._run, child, *way) for way in self._ways}
            found = take_turns(ways, self.repeats, self.seed)
        for way, runs in found.items():
            self._write(writer, part, cores, settings, way, runs, found[ALONE, 1][0]["losses"])
            bar.update()

    @property
    def _ways(self) -> list[tuple[str, int]]:
        return [(ALONE, 1), (BATCH, 1), *((STAGES, slots) for slots in self.microbatches)]

    def _run(self, child: Child, way: str, slots: int) -> dict[str, Any]:
        return child.call("run", way=way, slots=slots, steps=self.steps)

    def _write(
        self,
        writer: Writer,
        part: str,
        cores: Any,
        settings: Mapping[str, Any],
        way: tuple[str, int],
        runs: list[dict[str, Any]],
        reference: list[float],
    ) -> None:
        row = {"network": "residual blocks", **settings, "way": way[0], "slots": way[1], "devices": list(cores)}
        row["layout"] = way[0]
        row |= {"wall_seconds_per_step": summarise([each for run in runs for each in run["seconds"]])}
        row |= {name: runs[-1][name] for name in ("sent_bytes", "weight_bytes", "losses")}
        row |= {"peak_bytes": summarise([run["peak_bytes"][0] for run in runs])}
        row |= compare_losses(row["losses"], reference)
        writer.write(f"{part}/{way[0]}-{way[1]}", self.columns(**row))

    @property
    def units(self) -> int:
        return len(self._ways)
