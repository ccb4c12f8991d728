"""Processor time and memory of dropout on workers with unequal shares of a tensor."""

import dataclasses
import math
import pathlib
import time
from collections.abc import Callable, Sequence
from typing import Any

import mtf_hetero
from mtf_hetero import Layout, mtf, tf
from mtf_hetero.cluster import LocalCluster
from mtf_hetero.cost import memory

_NANO = 1e-9
_IDLE_SECONDS = 5.0  # for which workers are watched at rest
_SMALL = (400, 400)


@dataclasses.dataclass(frozen=True)
class _Measurement:
    """Something that was done: how long it took, the processor time of each worker meanwhile, and the result."""

    seconds: float
    cpu_seconds: list[float]
    result: Any


class Dropout:
    """The chief of workers, each limited to so many cores."""

    def __init__(self, fractions: Sequence[float], *, return_memory: bool = False) -> None:
        self._local = LocalCluster(fractions, return_memory=return_memory)
        self._cluster = self._local.__enter__()

    def close(self) -> None:
        """End the workers."""
        self._local.close()

    def measure(
        self, dim: str, extents: Sequence[int], shares: Sequence[float], seed: int, warmup: int, steps: int
    ) -> dict[str, Any]:
        """Apply dropout to ones, with one dimension divided by shares, and sum the rest.

        Before, it does so with a small matrix: the code that a worker loads for its first step is not the numbers'.

        Returns:
          Per worker the numbers that it has, the processor seconds that it took in each step beyond those of a worker
          at rest for as long, the cores that it takes at rest, and the most memory that it took beyond what it held
          before the first step; and what was left of the ones, a part of one.
        """
        self._run(dim, _SMALL, shares, seed, 1)
        rest = self._measure(lambda: time.sleep(_IDLE_SECONDS))
        idle_cores = [busy / rest.seconds for busy in rest.cpu_seconds]
        peaks = memory.ProcessPeaks(self._local.pids)
        numbers, found = self._run(dim, extents, shares, seed, warmup + steps)
        return {
            "numbers": numbers,
            "cpu_seconds": [
                [busy - cores * step.seconds for busy, cores in zip(step.cpu_seconds, idle_cores, strict=True)]
                for step in found[warmup:]
            ],
            "idle_cores": idle_cores,
            "peak_bytes": list(peaks.read()),
            "mean": found[-1].result,
            "limits": self._local.limits,
        }

    def _run(
        self, dim: str, extents: Sequence[int], shares: Sequence[float], seed: int, steps: int
    ) -> tuple[list[int], list[_Measurement]]:
        """Return the numbers of each worker, and the steps, whose results are the means of what is left."""
        shape = mtf.Shape([mtf.Dimension(name, size) for name, size in zip(("rows", "columns"), extents, strict=True)])
        layout = Layout(f"all:{len(shares)}", f"{dim}:all", {"all": shares})
        with tf.Graph().as_default():
            tf.set_random_seed(seed)
            graph = mtf.Graph()
            mesh = mtf.Mesh(graph, "mesh")
            left = mtf.reduce_mean(mtf.dropout(mtf.ones(mesh, shape), True, rate=0.5))
            mesh_impl = mtf_hetero.UnevenMeshImpl.from_layout(layout, self._cluster.devices)
            fetch = mtf_hetero.Lowering(graph, {mesh: mesh_impl}).export_to_tf_tensor(left)
            with tf.Session(self._cluster.target, config=self._cluster.session_config()) as session:
                found = [self._measure(lambda: float(session.run(fetch))) for _ in range(steps)]
        return [math.prod(mesh_impl.slice_shape(shape, pnum)) for pnum in range(layout.size)], found

    def _measure(self, action: Callable[[], Any]) -> _Measurement:
        """Do something."""
        before, begin = self._processor_seconds(), time.perf_counter()
        result = action()
        seconds, after = time.perf_counter() - begin, self._processor_seconds()
        return _Measurement(seconds, [end - start for start, end in zip(before, after, strict=True)], result)

    def _processor_seconds(self) -> list[float]:
        """Processor time of all threads of each worker so far."""
        return [
            sum(int(path.read_text().split()[0]) for path in pathlib.Path(f"/proc/{pid}/task").glob("*/schedstat"))
            * _NANO
            for pid in self._local.pids
        ]
