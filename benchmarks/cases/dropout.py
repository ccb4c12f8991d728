"""Dropout on a tensor of which most workers have a small share: their time and memory against that share.

    python -m benchmarks.run dropout

Four workers have 97, 1, 1 and 1 % of the rows, or of the columns, of a matrix of ones. A step draws the mask, applies
it and computes the mean. Processor time of each worker is counted step by step, less that of a worker at rest, because
a small worker waits for the large one most of the time. Memory is measured on another cluster, whose workers return
freed memory: it is the peak beyond the memory after a step of a small matrix.

Time: about eight minutes on two cores. Expected: each worker's share of time and of memory is its share of the numbers,
within 10 %.
"""

import contextlib
import dataclasses
import functools
from collections.abc import Mapping
from typing import Any, ClassVar

from benchmarks.child import Child
from benchmarks.harness import Case, Part, chief
from benchmarks.rows import Writer, summarise

_CHIEF = "benchmarks.frameworks.dropout:Dropout"
_DIMS = ("rows", "columns")
_CORES = 1.0  # of each worker


@dataclasses.dataclass(frozen=True)
class Dropout(Case):
    """The case."""

    name: ClassVar[str] = "dropout"
    summary: ClassVar[str] = "time and memory of dropout on very unequal shares"
    minutes: ClassVar[float] = 8
    small: ClassVar[Mapping[str, Any]] = {"steps": 2, "warmup": 1, "edge": 400, "shares": (97.0, 3.0)}

    shares: tuple[float, ...] = (97.0, 1.0, 1.0, 1.0)
    edge: int = 28_000  # rows, and columns
    warmup: int = 2  # steps before those that are counted
    steps: int = 5  # that are counted

    def parts(self) -> Mapping[str, Part]:
        return {dim: functools.partial(self._measure, dim) for dim in _DIMS}

    def _measure(self, dim: str, writer: Writer, bar: Any) -> None:
        del bar
        values = self.columns(shares=self.shares, repeats=1, layout=f"{dim}:all")
        arguments = {"dim": dim, "extents": (self.edge, self.edge), "shares": self.shares, "seed": self.seed}
        arguments |= {"warmup": self.warmup}
        with self._chief() as cluster:
            found = cluster.call("measure", **arguments, steps=self.steps)
        with self._chief(return_memory=True) as cluster:
            peaks = cluster.call("measure", **arguments, steps=1)["peak_bytes"]
        seconds = [summarise(of_worker) for of_worker in zip(*found["cpu_seconds"], strict=True)]
        devices = [f"worker:{index}/cpu:0" for index in range(len(self.shares))]
        writer.write(dim, {**values, **found, "devices": devices, "cpu_seconds": seconds, "peak_bytes": peaks})

    def _chief(self, *, return_memory: bool = False) -> contextlib.AbstractContextManager[Child]:
        return chief(_CHIEF, fractions=(_CORES,) * len(self.shares), return_memory=return_memory)
