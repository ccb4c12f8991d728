"""Residual blocks of one width on workers: all on one, split by the batch, or in stages, with several slots each."""

import time
from collections.abc import Sequence
from typing import Any

from benchmarks.frameworks.slow_link import LinkedCluster
from mtf_hetero import Layout, Lowering, UnevenMeshImpl, mtf, tf
from mtf_hetero.cluster import Cluster
from mtf_hetero.cost.memory.measurement import ProcessPeaks
from mtf_hetero.mesh import traffic

ALONE, BATCH, STAGES = "alone", "batch", "stages"
_STAGES = ("s0/batch", "s1/batch")
_WARM_UP = 2


class Slots:
    """Workers, and what they train."""

    def __init__(
        self, blocks: int, width: int, hidden: int, batch_size: int, link: int, fractions: Sequence[float], seed: int
    ) -> None:
        self._blocks, self._batch_size, self._seed = blocks, batch_size, seed
        self._width, self._hidden = mtf.Dimension("width", width), mtf.Dimension("hidden", hidden)
        self._fractions = list(fractions)
        self._local = LinkedCluster(fractions, link)
        self._cluster: Cluster = self._local.__enter__()

    def close(self) -> None:
        """End the workers."""
        self._local.close()

    def run(self, way: str, slots: int, steps: int) -> dict[str, Any]:
        """Train; returns seconds and loss of each step, the bytes sent in one, and the workers' peaks of memory."""
        with tf.Graph().as_default():
            graph = mtf.Graph()
            mesh = mtf.Mesh(graph, "mesh")
            loss = self._build(mesh)
            variables = graph.trainable_variables
            gradients = mtf.gradients([loss], [v.outputs[0] for v in variables])
            updates = mtf.optimize.SgdOptimizer(0.1).apply_grads(gradients, variables)
            lowering = Lowering(graph, {mesh: self._place(way, slots)})
            fetches = [lowering.export_to_tf_tensor(loss), *map(lowering.lowered_operation, updates)]
            traffic.arrange(fetches)
            peaks = ProcessPeaks(self._local.pids)
            with tf.Session(self._cluster.target, config=self._cluster.session_config()) as session:
                session.run(tf.global_variables_initializer())
                session.run(lowering.copy_masters_to_slices())
                peaks.restart()  # initial values take memory of their own
                losses, seconds = [], []
                for _ in range(_WARM_UP + steps):
                    begin = time.perf_counter()
                    losses.append(float(session.run(fetches)[0]))
                    seconds.append(time.perf_counter() - begin)
            sent = sum(send.bytes for send in traffic.sends(fetches))
        return {
            "seconds": seconds[_WARM_UP:],
            "losses": losses,
            "sent_bytes": sent,
            "peak_bytes": list(peaks.read()),
            "weight_bytes": 8 * self._blocks * self._width.size * self._hidden.size,
        }

    def _build(self, mesh: mtf.Mesh) -> mtf.Tensor:
        def weights(name: str, seed: int, *dims: mtf.Dimension) -> mtf.Tensor:
            initializer = tf.random_normal_initializer(stddev=0.5 / self._width.size**0.5, seed=self._seed + seed)
            return mtf.get_variable(mesh, name, mtf.Shape(dims), initializer=initializer)

        shape = mtf.Shape([mtf.Dimension(_STAGES[0], self._batch_size), self._width])
        with tf.device(self._cluster.devices[0]):
            inputs = tf.random.stateless_uniform(shape.to_integer_list, [self._seed, 1])
        x = mtf.import_tf_tensor(mesh, inputs, shape)
        for block in range(self._blocks):
            if block == self._cut:
                x = mtf.rename_dimension(x, *_STAGES)
            batch = x.shape.dims[0]
            y = mtf.einsum([x, weights(f"in{block}", 2 * block, self._width, self._hidden)], [batch, self._hidden])
            x += mtf.einsum([mtf.relu(y), weights(f"out{block}", 2 * block + 1, self._hidden, self._width)], x.shape)
        return mtf.reduce_mean(mtf.square(x))

    @property
    def _cut(self) -> int:
        """The first block of the second stage: the stages are in proportion to the cores."""
        return round(self._blocks * self._fractions[0] / sum(self._fractions))

    def _place(self, way: str, slots: int) -> UnevenMeshImpl:
        devices = self._cluster.devices[:1] if way == ALONE else self._cluster.devices
        parts = [self._batch_size // slots] * slots
        shares = [share / slots for share in self._fractions[: len(devices)] for _ in range(slots)]
        sizes = {_STAGES[0]: [*parts, *(0 for _ in parts)], _STAGES[1]: [*(0 for _ in parts), *parts]}
        layout = Layout(
            f"all:{len(devices) * slots}",
            [(name, "all") for name in _STAGES],
            {"all": shares},
            sizes if way == STAGES else (),
            {"all": [slots] * len(devices)},
        )
        return UnevenMeshImpl.from_layout(layout, devices)
