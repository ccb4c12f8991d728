"""Stages: networks on two unequal workers over links of several speeds, planned with slots and without.

    python -m benchmarks.run stages [--only=Transformer/100Mbit]

Each worker is a process under a CPU quota of the kernel, whose link `tc` slows down. These ways take turns:

* a Keras model by mtf_hetero.function: each worker alone; the plan for the batch as it is, and the plan that may place
  layers and compute the batch in slots;
* the same network in PyTorch on processes with the same limits: the fast one alone; DistributedDataParallel over gloo,
  its batch split by the cores; a pipeline (1F1B), cut where measured seconds of the layers suggest, with the best of
  three cuts, and 4 or 8 microbatches.

Time: four to ten minutes for each network and link on two cores, and fifteen or more at 100 Mbit/s. Expected: the plan
is never slower than the fast worker alone. Over slow links it is a pipeline, because stages send the activations of one
cut, and a split batch sends all gradients.
"""

import contextlib
import dataclasses
import functools
from collections.abc import Mapping
from typing import Any, ClassVar

from benchmarks.child import Child, ChildError
from benchmarks.harness import CHECKED_STEPS, Part, TimedCase, chief, loss_error, runner
from benchmarks.networks import STAGED
from benchmarks.rows import Writer, summarise

_PLANNED = "benchmarks.frameworks.stages:Planned"
_RANKS = "benchmarks.frameworks.torch_stages:Ranks"
TORCH = "PyTorch"


@dataclasses.dataclass(frozen=True)
class Stages(TimedCase):
    """The case."""

    name: ClassVar[str] = "stages"
    summary: ClassVar[str] = "plans with slots, beside PyTorch's pipelines and DDP"
    minutes: ClassVar[float] = 110
    small: ClassVar[Mapping[str, Any]] = {"networks": ("toy",), "links": (0,), "repeats": 1}

    repeats: int = 3
    steps: int = 2
    networks: tuple[str, ...] = tuple(name for name in STAGED if name != "toy")
    links: tuple[int, ...] = (0, 1000, 400, 100)  # megabits per second; 0: the loopback
    cores: tuple[float, ...] = (1.0, 0.5)

    def parts(self) -> Mapping[str, Part]:
        """Return a part for each network and link."""
        return {
            f"{network}/{_name(link)}": functools.partial(self._measure, network, link)
            for network in self.networks
            for link in self.links
        }

    def _measure(self, network: str, link: int, writer: Writer, bar: Any) -> None:
        """Build all ways, time them in turns, and write a row for each."""
        settings = {"network": network, "link": link, "fractions": self.cores, "seed": self.seed}
        rows, sides = dict[str, dict[str, Any]](), dict[str, Child]()
        with contextlib.ExitStack() as stack:
            cluster = stack.enter_context(chief(_PLANNED, True, **settings))
            for name, row in cluster.call("plan").items():
                rows[name], sides[name] = {**row, **cluster.call("add", name=name)}, cluster
            try:
                ranks = stack.enter_context(chief(_RANKS, True, **settings))
                for name, arguments in ranks.call("find").items():
                    rows[name], sides[name] = {**arguments, **ranks.call("add", name=name, **arguments)}, ranks
            except ChildError as error:
                rows[TORCH] = {"failed": str(error)}
            timings = self.time_ways({name: runner(side, name) for name, side in sides.items()})
        firsts = {side: next(name for name in sides if sides[name] is side) for side in sides.values()}
        first = next(iter(rows))
        for name, row in rows.items():
            about = {"network": network, "batch_size": STAGED[network].batch_size, "link": link, "way": name}
            about |= {"devices": list(self.cores), "layout": name.partition(",")[0]}
            if name in timings:
                error = loss_error(row["losses"], rows[firsts[sides[name]]]["losses"])
                speedups = (a / s for a, s in zip(timings[first], timings[name], strict=True))
                about |= {"wall_seconds_per_step": summarise(timings[name]), "speedup": summarise(speedups)}
                about |= {"loss_error": error}
            writer.write(f"{network}/{_name(link)}/{name}", self.columns(**about, **row, warmup=CHECKED_STEPS))


def _name(link: int) -> str:
    return f"{link}Mbit" if link else "loopback"
