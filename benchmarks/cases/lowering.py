"""Lowering: seconds and graph size of VGG-16's training step against the number of processors.

    python -m benchmarks.run lowering

The graph of a step of 256 images is lowered for 1, 2, 8, 32 and 128 processors, with the filters split and with the
batch split: by mtf_hetero with uneven and with even shares, and by stock Mesh-TensorFlow, which can only be even. Each
measurement has a fresh process. First steps of two images run with the filters split unevenly, in a session as in an
Estimator; their time beyond that of later steps is the cost of the graph. A dimension with fewer units than processors
is replicated, for all alike. The row of a failed lowering has the error.

Time: about half an hour on two cores; `--only=filters/` measures one of the two splits. Expected: at most linear
growth; mtf_hetero several times as fast as stock Mesh-TensorFlow on 128 processors, because its graph is smaller.
"""

import dataclasses
import itertools
import random
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from benchmarks.child import Child, ChildError
from benchmarks.harness import Case, progress
from benchmarks.rows import Writer, summarise

_TARGET = "benchmarks.frameworks.lowering:Probe"
_SHARES = (70, 25, 5)  # over and over
_MEASURED = ("build_seconds", "lower_seconds", "max_memory_bytes")
_STEPS = ("initial_seconds", "first_step_seconds", "step_seconds")
FIRST_STEPS = "first steps"
LOWERINGS = {"mtf_hetero, uneven": (True, False), "mtf_hetero, even": (False, False), "stock mtf, even": (False, True)}


@dataclasses.dataclass(frozen=True)
class Lowering(Case):
    """The case."""

    name: ClassVar[str] = "lowering"
    summary: ClassVar[str] = "seconds to lower VGG-16 on 1 to 128 processors"
    minutes: ClassVar[float] = 30
    small: ClassVar[Mapping[str, Any]] = {
        "repeats": 1,
        "network": "toy",
        "batch_size": 8,
        "recipes": ("filters",),
        "processors": (1, 4),
        "first_steps": (4,),
    }

    repeats: int = 3  # how often each is measured
    network: str = "vgg16"  # a name in benchmarks.networks.NETWORKS
    batch_size: int = 256  # images per step
    recipes: tuple[str, ...] = ("filters", "batch")  # names in layouts.LAYOUTS
    processors: tuple[int, ...] = (1, 2, 8, 32, 128)
    first_steps: tuple[int, ...] = (8, 32, 128)  # processors
    limit_seconds: float = 1800.0  # how long one measurement may take

    def variants(self) -> tuple[str, ...]:
        parts = itertools.product(self.recipes, self.processors, LOWERINGS)
        lowered = (f"{recipe}/{processors}/{lowering}" for recipe, processors, lowering in parts)
        return (*lowered, *(f"filters/{processors}/{FIRST_STEPS}" for processors in self.first_steps))

    def measure(self, writer: Writer, variants: Sequence[str]) -> None:
        """Measures all variants and repeats in a random order."""
        order = [variant for variant in variants for _ in range(self.repeats)]
        random.Random(self.seed).shuffle(order)
        results: dict[str, list[dict[str, Any]]] = {variant: [] for variant in variants}
        failed: set[str] = set()
        with progress(len(order), "measurements") as bar:
            for variant in order:
                bar.set_description(variant)
                done = results[variant]
                if variant not in failed:
                    try:
                        with Child(_TARGET, self._arguments(variant)) as child:
                            done.append(child.call("measure", timeout_seconds=self.limit_seconds))
                    except (ChildError, ValueError) as error:
                        failed.add(variant)
                        writer.write(variant, {**self.settings(variant), "failed": str(error)})
                    if len(done) == self.repeats:
                        names = [name for name in (*_MEASURED, *_STEPS) if name in done[0]]
                        spread = {name: summarise(result[name] for result in done) for name in names}
                        writer.write(variant, {**self.settings(variant), **done[0], **spread})
                bar.update()

    def _arguments(self, variant: str) -> dict[str, Any]:
        recipe, processors, lowering = variant.split("/")
        trains = lowering == FIRST_STEPS
        uneven, stock = (True, False) if trains else LOWERINGS[lowering]
        return {
            "network": self.network,
            "batch_size": 2 if trains else self.batch_size,
            "recipe": recipe,
            "processors": int(processors),
            "shares": list(itertools.islice(itertools.cycle(_SHARES), int(processors))) if uneven else None,
            "stock": stock,
            "steps": 6 if trains else 0,
        }

    def settings(self, variant: str) -> dict[str, Any]:
        """Return the settings in the row of a variant."""
        arguments = self._arguments(variant)
        devices = [f"cpu:{pnum}" for pnum in range(arguments["processors"])]
        lowering = variant.split("/")[-1]
        return {**self.columns(warmup=0, steps=1), **arguments, "lowering": lowering, "devices": devices}
