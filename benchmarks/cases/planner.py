"""Planned layouts: their step times beside the best simple choices, and beside predictions.

    python -m benchmarks.run planner

For each network and cluster of unequal workers, the workers are measured as `--layout=auto` measures them, and a layout
is planned. Then steps run in turns: under the plan, under each recipe in proportion to the measured speeds, and on each
worker alone. The choice of auto is the way that wins by more than the spread, among the fastest worker alone, the
recipe with the best prediction, and the plan.

Workers are processes of this machine whose processor time the kernel limits. In some clusters it also limits the bytes
that each sends (`tc`, in a network of their own).

The part `every way` runs a small network with all ways to split its layers, each by its batch, its outputs or its
inputs, or not at all; then the fastest take turns with the plan: five minutes. The part `memory` runs plans on workers
that return freed memory, and measures the memory of each: half a minute each.

Time: about 25 minutes for each cluster on two cores; `--only=vgg11/` measures one network, `--only=/1.0,0.5` one
cluster. Expected: the choice is never slower than the fastest worker alone, and within 5 % of the best way; a step is
within 15 % of its prediction.
"""

import dataclasses
import functools
import itertools
from collections.abc import Mapping
from typing import Any, ClassVar

from benchmarks.harness import Case, Part, chief
from benchmarks.rows import Writer, summarise

_TARGET = "benchmarks.frameworks.planner:Planner"
_MEMORY_STEPS = 8
ALONE, PLAN, MEMORY, EVERY = "alone", "plan", "memory", "every way"
IMAGES, VOLUMES = ("batch", "filters"), ("batch", "filters", "spatial")


@dataclasses.dataclass(frozen=True)
class Problem:
    """A step to plan.

    Args:
      network: a name in models.MODELS, or "transformer".
      batch_size: examples of a step.
      recipes: names in layouts.LAYOUTS.
      config: keyword arguments of the model's build.
      image_shape: of an example, in place of the model's own.
    """

    network: str
    batch_size: int
    recipes: tuple[str, ...] = IMAGES
    config: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    image_shape: tuple[int, ...] | None = None


PROBLEMS: Mapping[str, Problem] = {
    "paper_cifar": Problem("paper_cifar", 128),
    "vgg11": Problem("vgg11", 256, config={"head": (512,)}),
    "vgg16": Problem("vgg16", 64),
    "resnet18": Problem("resnet18", 64),
    "cosmoflow": Problem("cosmoflow", 8, VOLUMES, image_shape=(32, 32, 32, 4)),
    "unet3d": Problem("unet3d", 2, VOLUMES, image_shape=(32, 32, 32, 1)),
    "transformer": Problem("transformer", 16),
    "toy": Problem("lenet", 32),
    "small": Problem("lenet", 256, config={"filters": (32, 64), "units": (512,)}),
}
TOY, SMALL = "toy", "small"


@dataclasses.dataclass(frozen=True)
class Planner(Case):
    """The case."""

    name: ClassVar[str] = "planner"
    summary: ClassVar[str] = "step times of plans and recipes, predicted and real"
    minutes: ClassVar[float] = 100
    small: ClassVar[Mapping[str, Any]] = {
        "problems": (TOY,),
        "clusters": (((0.6, 0.3), None),),
        "repeats": 2,
        "memory_clusters": (),
        "exhausted": (),
    }

    repeats: int = 7  # turns of each way
    problems: tuple[str, ...] = tuple(name for name in PROBLEMS if name not in (TOY, SMALL))
    exhausted: tuple[str, ...] = (SMALL,)  # of which all ways are tried
    # cores of each worker, and what the kernel lets it send in a second; None: all
    clusters: tuple[tuple[tuple[float, ...], float | None], ...] = (
        ((1.0, 0.33), None),
        ((1.0, 0.5, 0.25), None),
        ((0.8, 0.8), None),
        ((1.0, 0.33), 400.0),
    )
    memory_clusters: tuple[tuple[float, ...], ...] = ((1.0, 0.33), (1.0, 0.5, 0.25))  # on which memory is measured

    def parts(self) -> Mapping[str, Part]:
        """{variant: what measures it}."""

        def part(variant: str, name: str, fractions: tuple[float, ...], megabits: float | None) -> Part:
            return lambda writer, bar: self._measure(variant, name, fractions, megabits, writer)

        parts = {}
        for fractions, megabits in self.clusters:
            workers = ",".join(map(str, fractions)) + (f"@{megabits:g}Mbit" if megabits else "")
            parts |= {
                f"{name}/{workers}": part(f"{name}/{workers}", name, fractions, megabits) for name in self.problems
            }
        for fractions, name in itertools.product(self.memory_clusters, self.problems):
            variant = f"{MEMORY}/{name} on {','.join(map(str, fractions))}"
            parts[variant] = functools.partial(self._measure_memory, variant, name, fractions)
        for (fractions, megabits), name in itertools.product(self.clusters[:1], self.exhausted):
            variant = f"{EVERY}/{name} on {','.join(map(str, fractions))}"
            parts[variant] = functools.partial(self._exhaust, variant, name, fractions, megabits)
        return parts

    def _exhaust(
        self, variant: str, name: str, fractions: tuple[float, ...], megabits: float | None, writer: Writer, bar: Any
    ) -> None:
        """Compare a plan with all ways to split a small network."""
        problem = dataclasses.asdict(PROBLEMS[name])
        workers = {"fractions": list(fractions), "megabits_per_second": megabits}
        with chief(_TARGET, megabits is not None, **workers) as child:
            common = {**self.columns(warmup=1, steps=1), **child.call("describe"), **workers, **problem}
            found = child.call("exhaust", problem=problem, rounds=self.repeats)
        writer.write(variant, {**common, "layout": PLAN, "part": EVERY, **found})

    def _measure_memory(self, variant: str, name: str, fractions: tuple[float, ...], writer: Writer, bar: Any) -> None:
        """Measures the memory of each worker under a plan, on workers that return freed memory."""
        problem = PROBLEMS[name]
        workers = {"fractions": list(fractions), "megabits_per_second": None}
        with chief(_TARGET, return_memory=True, **workers) as child:
            common = {**self.columns(warmup=0, repeats=1, steps=_MEMORY_STEPS), **child.call("describe"), **workers}
            found = child.call("measure_memory", problem=dataclasses.asdict(problem), steps=_MEMORY_STEPS)
        values = {**dataclasses.asdict(problem), "layout": PLAN, "part": MEMORY, **found}
        writer.write(variant, {**common, **values})

    def _measure(
        self, variant: str, name: str, fractions: tuple[float, ...], megabits: float | None, writer: Writer
    ) -> None:
        problem = PROBLEMS[name]
        workers = {"fractions": list(fractions), "megabits_per_second": megabits}
        with chief(_TARGET, megabits is not None, **workers) as child:
            common = {
                **self.columns(warmup=1, steps=1),
                **child.call("describe"),
                **dataclasses.asdict(problem),
                **workers,
            }
            found = child.call("measure", problem=dataclasses.asdict(problem), rounds=self.repeats)
        for way, row in found.items():
            values = {"way": way, "seconds": summarise(row["turns"]), "layout": way, **row}
            writer.write(f"{variant}/{way}", {**common, **values})
