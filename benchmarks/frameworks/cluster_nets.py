"""mtf programs of images on a cluster of unequal workers, split in several ways."""

import dataclasses
import math
import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from benchmarks.frameworks.chief import Chief
from benchmarks.frameworks.mesh_nets import build_training
from benchmarks.frameworks.steps import Step, lower_step, slices, worker_devices
from benchmarks.networks import NETWORKS, Network, batch, initial_values
from mtf_hetero import Layout, UnevenMeshImpl, mtf, tf
from mtf_hetero._support import logs
from mtf_hetero.cli.train import program
from mtf_hetero.cluster.devices import shorten
from mtf_hetero.cost import calibration, memory, trace
from mtf_hetero.graph.names import Renames
from mtf_hetero.layouts import LAYOUTS
from mtf_hetero.layouts.hybrid import batch_sizes, member_sizes
from mtf_hetero.mesh import traffic
from mtf_hetero.planner import auto

Shares = Sequence[float] | Mapping[str, Sequence[float]] | None
_PEAK_SIZE = 1024  # of the square matrices whose product shows a device's FLOP/s
_PEAK_REPEATS = 10


def build_step(
    network: Network,
    images: np.ndarray,
    labels: np.ndarray,
    *,
    recipe: str,
    devices: Sequence[str],
    shares: Shares = None,
    sizes: Mapping[str, Sequence[int]] | None = None,
    wire_dtype: str | None = None,
    mesh_shape: str | None = None,
    dense_rounds: bool = False,
) -> Step:
    """Build a step in TensorFlow's default graph.

    Args:
      network: what to train.
      images: [batch, height, width, channels].
      labels: [batch].
      recipe: a name in layouts.LAYOUTS.
      devices: of the mesh.
      shares: one per device, or {mesh axis: shares}; None: even.
      sizes: exact sizes, in place of shares; of a dimension under one of its names, at least.
      wire_dtype: as in mtf_hetero.UnevenMeshImpl.
      mesh_shape: of the recipe "hybrid"; None: one axis.
      dense_rounds: as in mtf_hetero.cli.train.config.Config.
    """
    mesh_shape = mesh_shape or f"all:{len(devices)}"
    by_axis = shares if shares is None or isinstance(shares, Mapping) else {"all": shares}
    examples = [len(labels)]
    if recipe == "hybrid":
        examples = list(batch_sizes(len(labels), mesh_shape, by_axis))
    rounds = member_sizes(examples, mesh_shape, by_axis) if dense_rounds else None
    with tf.Graph().as_default():
        graph = _build(network, images, labels, examples, rounds).graph
        layout = LAYOUTS[recipe](graph, mesh_shape=mesh_shape, shares=by_axis)
        if sizes:
            layout = Layout(layout.mesh_shape, layout.rules, (), _completed(sizes, layout, graph))
    mesh_impl = UnevenMeshImpl.from_layout(layout, devices, None if wire_dtype is None else tf.as_dtype(wire_dtype))
    built = _build(network, images, labels, examples, rounds, mesh_impl)
    return lower_step(built, layout, devices, wire_dtype=wire_dtype)


def _completed(sizes: Mapping[str, Sequence[int]], layout: Layout, graph: Any) -> dict[str, Sequence[int]]:
    """Return the sizes under each name of a dimension that a layout splits.

    Rows of before have fewer names: what is renamed today was one dimension, and nothing was sent between its names.
    """
    renames = Renames(graph.operations)
    completed = dict(sizes)
    for dim, _ in layout.rules:
        path = renames.path(dim, set(sizes))
        if path is not None:
            completed[dim] = sizes[path[-1]]
    return completed


def _build(
    network: Network,
    images: np.ndarray,
    labels: np.ndarray,
    examples: Sequence[int],
    rounds: Sequence[int] | None = None,
    mesh_impl: Any = None,
) -> program.Built:
    """Return the step's program; with a mesh, each processor's slices of images and labels lie where it is."""
    tf.train.create_global_step()
    data: list[Any] = [tf.constant(images), tf.constant(labels)]
    if mesh_impl is not None:
        data = [
            _slices(array.reshape([*examples, *array.shape[1:]]), examples, mesh_impl) for array in (images, labels)
        ]
    return build_training(network, *data, batch=examples, config={"dense_rounds": rounds} if rounds else {})


def _slices(array: np.ndarray, examples: Sequence[int], mesh_impl: Any) -> tuple[Any, ...]:
    """Each processor's slice of an array, on its own device."""
    names = (*program.batch_shape(examples), "height", "width", "channels")
    shape = mtf.Shape([mtf.Dimension(name, size) for name, size in zip(names, array.shape, strict=False)])

    def make(begin: Sequence[int], size: Sequence[int]) -> Any:
        return tf.constant(array[tuple(slice(b, b + s) for b, s in zip(begin, size, strict=True))])

    return tuple(slices(mesh_impl, shape, make))


class ModelledNets:
    """The traffic of a network of benchmarks.networks.NETWORKS on workers that need not exist."""

    def __init__(self, network: str) -> None:
        self._network = NETWORKS[network]

    def count_traffic(self, count: int, batch_size: int, **arguments: Any) -> dict[str, int]:
        """Return the counts of `Step.count_traffic` for a number of workers; `build_step` takes the other arguments."""
        data = batch(self._network, batch_size, 0)
        with tf.Graph().as_default():
            return build_step(self._network, *data, devices=worker_devices(count), **arguments).count_traffic()


def sent_by(network: str, batch_size: int, recipe: str, sizes: Mapping[str, Sequence[int]]) -> dict[str, int]:
    """Return the counts of `Step.count_traffic` for a split over one worker per size, none of which has to run."""
    count = max(len(parts) for parts in sizes.values())
    with logs.log_level(tf.logging.WARN):  # mtf lists each variable
        return ModelledNets(network).count_traffic(count, batch_size, recipe=recipe, sizes=sizes)


class ClusterNets(Chief):
    """The chief of these programs: of one network and batch; other options are those of Chief."""

    def __init__(self, fractions: Sequence[float], network: str, batch_size: int, seed: int, **options: Any) -> None:
        self._network = NETWORKS[network]
        self._values = initial_values(self._network, seed)
        self._data = batch(self._network, batch_size, seed)
        super().__init__(fractions, **options)

    def build(self, devices: Sequence[str], **arguments: Any) -> tuple[Step, Mapping[str, np.ndarray]]:
        step = build_step(self._network, *self._data, devices=devices, **arguments)
        return step, step.initial_values(self._values)

    def bytes_in_full(self, step: Step, estimates: Sequence[memory.Estimate]) -> dict[str, list[int]]:
        """Bytes of a worker's weights."""
        shapes = [variable.shape for variable in step.built.graph.trainable_variables]
        processors = range(step.layout.size)
        weights = [sum(math.prod(step.layout.slice_shape(shape, pnum)) for shape in shapes) for pnum in processors]
        return {"weight_bytes": [4 * count for count in weights]}

    def peak_shares(self) -> list[float]:
        """Shares in proportion to the floating-point rate of each device on a large product, alone."""
        rates = []
        for device in self.cluster.devices:
            with tf.Graph().as_default(), tf.device(device):
                x = tf.random.normal([_PEAK_SIZE, _PEAK_SIZE])
                loop = tf.while_loop(
                    lambda i, _: i < _PEAK_REPEATS, lambda i, y: (i + 1, tf.matmul(y, y) * 1e-6), [tf.constant(0), x]
                )
                with self.session() as session:
                    session.run(loop[1].op)
                    begin = time.perf_counter()
                    session.run(loop[1].op)
                    rates.append(1.0 / (time.perf_counter() - begin))
        return [100 * rate / sum(rates) for rate in rates]

    def measure(self, recipe: str, seconds: float) -> dict[str, Any]:
        """Return the measurement and choice of --list_speed=auto; no trial begins after the given seconds."""
        begin = time.perf_counter()

        def build() -> Any:
            return _build(self._network, *self._data, examples=[len(self._data[1])]).graph

        devices = self.cluster.devices
        with tf.Graph().as_default():
            layout = LAYOUTS[recipe](build(), mesh_shape=f"all:{len(devices)}")
        names = {name for name, _ in layout.rules}
        choice = auto.choose(build, self.cluster, {}, names=names, seconds=seconds)
        with tf.Graph().as_default():
            speeds = calibration.speeds(build(), choice.machines)
        return {
            "seconds": time.perf_counter() - begin,
            "devices": [devices.index(device) for device in choice.plan.devices],
            "sizes": {name: list(sizes) for name, sizes in choice.plan.layout.sizes},
            "predicted_seconds": choice.plan.seconds,
            "shares": [100.0 * speed / sum(speeds) for speed in speeds],
            "reason": shorten("; ".join(choice.lines)),
        }

    def trace(self, name: str) -> dict[str, Any]:
        """Each device's use of a step: seconds of computing, receiving and waiting."""
        used = trace.usage(trace.read(self.traced(name)), self.cluster.devices)
        return {shorten(device): dataclasses.asdict(seconds) for device, seconds in used.items()}

    def received(self, name: str) -> dict[str, int]:
        """Return the bytes that the workers receive in a step, by its trace."""
        return {"received_bytes": sum(traffic.received(self.traced(name)).values())}
