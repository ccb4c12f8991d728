"""mtf programs on a cluster of unequal workers: one chief, one set of workers, and a session per way to split."""

import dataclasses
import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from benchmarks.frameworks.mesh_nets import build_training
from benchmarks.networks import NETWORKS, batch, initial_values
from layouts import LAYOUTS
from models import network as models_network
from mtf_hetero import Layout, UnevenMeshImpl, mtf, profile, tf, trace
from mtf_hetero.cluster import Cluster, LocalCluster, shorten

_PEAK_SIZE = 1024  # of the square matrices whose product tells a device's FLOP/s
_PEAK_REPEATS = 10


class ClusterNets:
    """The chief: holds the workers and everything that is trained on them.

    Args:
      fractions: cores of each worker.
      network: a name in benchmarks.networks.NETWORKS.
      batch_size: images per step.
      seed: of the initial values, the images and the labels.
    """

    def __init__(self, fractions: Sequence[float], network: str, batch_size: int, seed: int) -> None:
        self._network = NETWORKS[network]
        self._values = initial_values(self._network, seed)
        self._images, self._labels = batch(self._network, batch_size, seed)
        self._local = LocalCluster(fractions)
        self._cluster: Cluster = self._local.__enter__()
        self._sessions: dict[str, tuple[Any, Any]] = {}  # name -> session, what it fetches

    def close(self) -> None:
        """Ends the workers."""
        for session, _ in self._sessions.values():
            session.close()
        self._local.close()

    def describe(self) -> dict[str, Any]:
        """The devices and what limits them."""
        return {"devices": [shorten(device) for device in self._cluster.devices], "limits": self._local.limits}

    def peak_shares(self) -> list[float]:
        """Shares in proportion to the floating-point rate of each device on a large product, alone."""
        rates = []
        for device in self._cluster.devices:
            with tf.Graph().as_default(), tf.device(device):
                x = tf.random.normal([_PEAK_SIZE, _PEAK_SIZE])
                loop = tf.while_loop(
                    lambda i, _: i < _PEAK_REPEATS, lambda i, y: (i + 1, tf.matmul(y, y) * 1e-6), [tf.constant(0), x]
                )
                with tf.Session(self._cluster.target, config=self._cluster.session_config()) as session:
                    session.run(loop[1].op)
                    begin = time.perf_counter()
                    session.run(loop[1].op)
                    rates.append(1.0 / (time.perf_counter() - begin))
        return [100 * rate / sum(rates) for rate in rates]

    def measure(self, recipe: str, seconds: float) -> dict[str, Any]:
        """What --list_speed=auto measures, within some seconds, and chooses."""
        begin = time.perf_counter()
        with tf.Graph().as_default():
            graph = self._build(None).graph
            layout = self._layout(graph, recipe, None)
            measured = profile.measure(graph, layout, self._cluster, effort=profile.Effort(budget_seconds=seconds))
        split = measured.best_split()
        devices = self._cluster.devices
        return {
            "seconds": time.perf_counter() - begin,
            "devices": [devices.index(device) for device in split.devices],
            "sizes": {name: list(sizes) for name, sizes in split.sizes.items()},
            "predicted_seconds": split.predicted_seconds,
            "shares": list(measured.shares()),
            "reason": shorten("; ".join([split.reason, *split.left_out.values()])),
        }

    def add(
        self,
        name: str,
        recipe: str,
        shares: Sequence[float] | None = None,
        sizes: Mapping[str, Sequence[int]] | None = None,
        devices: Sequence[int] | None = None,
        wire_dtype: str | None = None,
    ) -> dict[str, Any]:
        """Builds a way to split, and takes two steps.

        Args:
          name: how `run` is to call it.
          recipe: a name in layouts.LAYOUTS.
          shares: one per device; None: even.
          sizes: exact sizes, in place of shares.
          devices: numbers of those that take part; None: all.
          wire_dtype: as in mtf_hetero.UnevenMeshImpl.

        Returns:
          The losses before the two steps and how the dimensions are divided.
        """
        self.forget(name)
        chosen = [self._cluster.devices[i] for i in (range(len(self._cluster.devices)) if devices is None else devices)]
        with tf.Graph().as_default():
            with tf.Graph().as_default():
                layout = self._layout(self._build(None).graph, recipe, shares, len(chosen))
            if sizes:
                layout = Layout(layout.mesh_shape, layout.rules, (), dict(sizes))
            mesh_impl = UnevenMeshImpl.from_layout(layout, chosen, wire_dtype)
            built = self._build(mesh_impl)
            variables = list(built.graph.trainable_variables)
            masters = [variable.get_master() for variable in variables]
            lowering = models_network.lower(built, layout, chosen, wire_dtype)
            with tf.control_dependencies([lowering.lowered_operation(op) for op in built.updates]):
                fetches = [lowering.export_to_tf_tensor(built.loss), tf.no_op()]
            session = tf.Session(self._cluster.target, config=self._cluster.session_config())
            shapes = [variable.shape.to_integer_list for variable in variables]
            feed = {m.initial_value: v.reshape(s) for m, v, s in zip(masters, self._values, shapes, strict=True)}
            session.run(tf.global_variables_initializer(), feed)
            session.run([tf.local_variables_initializer(), lowering.copy_masters_to_slices()])
        self._sessions[name] = session, fetches
        found = {dim.name: dim.size for op in built.graph.operations for t in op.outputs for dim in t.shape.dims}
        divided = {dim: list(layout.split(dim, size)) for dim, size in found.items() if layout.axis_of(dim) is not None}
        return {"losses": self.run(name, 2)["losses"], "sizes": divided}

    def forget(self, name: str) -> None:
        """Frees what `add` made."""
        if name in self._sessions:
            self._sessions.pop(name)[0].close()

    def run(self, name: str, steps: int) -> dict[str, Any]:
        """Takes steps; returns seconds and the losses before them."""
        session, fetches = self._sessions[name]
        begin = time.perf_counter()
        losses = [float(session.run(fetches)[0]) for _ in range(steps)]
        return {"wall_seconds": time.perf_counter() - begin, "losses": losses}

    def trace(self, name: str) -> dict[str, Any]:
        """How each device spends a step: seconds of computing, receiving and waiting."""
        session, fetches = self._sessions[name]
        metadata = tf.RunMetadata()
        session.run(fetches, options=trace.run_options(), run_metadata=metadata)
        used = trace.usage(trace.read(metadata), self._cluster.devices)
        return {shorten(device): dataclasses.asdict(seconds) for device, seconds in used.items()}

    def _layout(self, graph: Any, recipe: str, shares: Sequence[float] | None, count: int | None = None) -> Layout:
        count = len(self._cluster.devices) if count is None else count
        return LAYOUTS[recipe](graph, mesh_shape=f"all:{count}", shares={"all": shares} if shares else None)

    def _build(self, mesh_impl: Any) -> models_network.Built:
        """The step; with a mesh, each processor's slices of images and labels lie where it is."""
        tf.train.create_global_step()
        if mesh_impl is None:
            return build_training(self._network, tf.constant(self._images), tf.constant(self._labels))
        slices = _slices(self._images, mesh_impl), _slices(self._labels, mesh_impl)
        return build_training(self._network, *slices, batch_size=len(self._labels))


def _slices(array: np.ndarray, mesh_impl: Any) -> tuple[Any, ...]:
    """Each processor's slice of an array, on its own device."""
    names = ("batch", "height", "width", "channels")
    shape = mtf.Shape([mtf.Dimension(name, size) for name, size in zip(names, array.shape, strict=False)])
    parts = []
    for pnum, device in enumerate(mesh_impl.devices):
        begin, size = mesh_impl.slice_begin(shape, pnum), mesh_impl.slice_shape(shape, pnum)
        with tf.device(device):
            parts.append(tf.constant(array[tuple(slice(b, b + s) for b, s in zip(begin, size, strict=True))]))
    return tuple(parts)
