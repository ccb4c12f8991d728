"""What dropout takes on workers with unequal parts of a tensor: processor time and memory."""

import math
import pathlib
from collections.abc import Sequence
from typing import Any

import mtf_hetero
from mtf_hetero import Layout, memory, mtf, tf
from mtf_hetero.cluster import LocalCluster

_NANO = 1e-9


class Dropout:
    """The chief of workers, each limited to so many cores.

    Args:
      fractions: cores of each worker.
      return_memory: as in mtf_hetero.cluster.LocalCluster.
    """

    def __init__(self, fractions: Sequence[float], *, return_memory: bool = False) -> None:
        self._local = LocalCluster(fractions, return_memory=return_memory)
        self._cluster = self._local.__enter__()

    def close(self) -> None:
        """Ends the workers."""
        self._local.close()

    def measure(
        self, dim: str, extents: Sequence[int], shares: Sequence[float], seed: int, warmup: int, steps: int
    ) -> dict[str, Any]:
        """Applies dropout to ones, with one dimension divided by shares, and sums what is left.

        Args:
          dim: "rows" or "columns".
          extents: (rows, columns).
          shares: of the workers.
          seed: of the mask.
          warmup: steps before those that are measured.
          steps: how many to measure.

        Returns:
          Per worker the numbers that it has, its processor seconds in each step, and the most memory that it took
          beyond what it held before the first one; and what was left of the ones, a part of one.
        """
        shape = mtf.Shape([mtf.Dimension(name, size) for name, size in zip(("rows", "columns"), extents, strict=True)])
        layout = Layout(f"all:{len(shares)}", f"{dim}:all", {"all": shares})
        with tf.Graph().as_default():
            tf.set_random_seed(seed)
            graph = mtf.Graph()
            mesh = mtf.Mesh(graph, "mesh")
            left = mtf.reduce_mean(mtf.dropout(mtf.ones(mesh, shape), True, rate=0.5))
            mesh_impl = mtf_hetero.UnevenMeshImpl.from_layout(layout, self._cluster.devices)
            fetch = mtf_hetero.Lowering(graph, {mesh: mesh_impl}).export_to_tf_tensor(left)
            peaks = memory.ProcessPeaks(self._local.pids)
            seconds = []
            with tf.Session(self._cluster.target, config=self._cluster.session_config()) as session:
                for _ in range(warmup):
                    session.run(fetch)
                for _ in range(steps):
                    begin = self._processor_seconds()
                    mean = float(session.run(fetch))
                    ends = self._processor_seconds()
                    seconds.append([end - start for start, end in zip(begin, ends, strict=True)])
        return {
            "numbers": [math.prod(mesh_impl.slice_shape(shape, pnum)) for pnum in range(layout.size)],
            "cpu_seconds": seconds,
            "peak_bytes": list(peaks.read()),
            "mean": mean,
            "limits": self._local.limits,
        }

    def _processor_seconds(self) -> list[float]:
        """Processor time of all threads of each worker so far."""
        return [
            sum(int(path.read_text().split()[0]) for path in pathlib.Path(f"/proc/{pid}/task").glob("*/schedstat"))
            * _NANO
            for pid in self._local.pids
        ]
