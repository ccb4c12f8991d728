"""mtf programs on a cluster of unequal workers: one chief, one set of workers, and a session per way to split."""

import dataclasses
import math
import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from benchmarks.frameworks.mesh_nets import build_training
from benchmarks.networks import NETWORKS, Network, batch, initial_values
from mtf_hetero import Layout, UnevenMeshImpl, memory, mtf, profile, tf, trace, traffic
from mtf_hetero.cluster import Cluster, LocalCluster, shorten
from mtf_hetero.layouts import LAYOUTS
from mtf_hetero.layouts.hybrid import batch_sizes, member_sizes
from mtf_hetero.models.train import measured
from mtf_hetero.models.train import program as models_network
from mtf_hetero.variables import initial_value_feed

Shares = Sequence[float] | Mapping[str, Sequence[float]] | None
_PEAK_SIZE = 1024  # of the square matrices whose product tells a device's FLOP/s
_PEAK_REPEATS = 10


@dataclasses.dataclass(frozen=True, eq=False)
class Step:
    """A training step on the devices of a mesh, as a graph.

    Args:
      layout: how its tensors lie on the mesh.
      built: the mtf program.
      masters: of each trainable variable the one that mtf made, whose initial value is fed.
      lowering: of the program.
      fetches: what a session runs: the loss, and the step.
    """

    layout: Layout
    built: models_network.Built
    masters: tuple[Any, ...]
    lowering: Any
    fetches: tuple[Any, ...]

    def sends(self) -> tuple[traffic.Send, ...]:
        """What it sends from device to device."""
        return traffic.sends(self.fetches, graph=self.built.graph)

    def sent(self) -> dict[str, int]:
        """The bytes that it sends over all links, and bytes and messages of the link that carries most."""
        sends = self.sends()
        links = traffic.links(sends)
        busiest = next(iter(links), None)
        devices = {device for link in links for device in link}
        return {
            "sent_bytes": sum(links.values()),
            "busiest_worker_bytes": max(
                (sum(size for link, size in links.items() if device in link) for device in devices), default=0
            ),
            "busiest_link_bytes": links[busiest] if busiest else 0,
            "busiest_link_messages": sum((send.source, send.target) == busiest for send in sends),
        }


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
    """Builds a step in TensorFlow's default graph.

    Args:
      network: what to train.
      images: [batch, height, width, channels].
      labels: [batch].
      recipe: a name in layouts.LAYOUTS.
      devices: of the mesh.
      shares: one per device, or {mesh axis: shares}; None: even.
      sizes: exact sizes, in place of shares.
      wire_dtype: as in mtf_hetero.UnevenMeshImpl.
      mesh_shape: of the recipe "hybrid"; None: one axis.
      dense_rounds: as in models.config.Config.
    """
    mesh_shape = mesh_shape or f"all:{len(devices)}"
    own = shares if shares is None or isinstance(shares, Mapping) else {"all": shares}
    examples = [len(labels)]
    if recipe == "hybrid":
        examples = list(batch_sizes(len(labels), mesh_shape, own))
    rounds = member_sizes(examples, mesh_shape, own) if dense_rounds else None
    with tf.Graph().as_default():
        graph = _build(network, images, labels, examples, rounds).graph
        layout = LAYOUTS[recipe](graph, mesh_shape=mesh_shape, shares=own)
    if sizes:
        layout = Layout(layout.mesh_shape, layout.rules, (), dict(sizes))
    mesh_impl = UnevenMeshImpl.from_layout(layout, devices, wire_dtype)
    built = _build(network, images, labels, examples, rounds, mesh_impl)
    masters = tuple(variable.get_master() for variable in built.graph.trainable_variables)
    lowering = models_network.lower(built, layout, devices, wire_dtype)
    with tf.control_dependencies([lowering.lowered_operation(op) for op in built.updates]):
        fetches = lowering.export_to_tf_tensor(built.loss), tf.no_op()
    return Step(layout, built, masters, lowering, fetches)


class ModelledNets:
    """What a step on workers would send that are not there.

    Args:
      network: a name in benchmarks.networks.NETWORKS.
    """

    def __init__(self, network: str) -> None:
        self._network = NETWORKS[network]

    def sent(self, count: int, batch_size: int, **arguments: Any) -> dict[str, int]:
        """As `Step.sent`, for so many workers; the other arguments are those of `build_step`."""
        devices = [f"/job:worker/task:{index}/device:CPU:0" for index in range(count)]
        data = batch(self._network, batch_size, 0)
        with tf.Graph().as_default():
            return build_step(self._network, *data, devices=devices, **arguments).sent()


def sent_by(network: str, batch_size: int, recipe: str, sizes: Mapping[str, Sequence[int]]) -> dict[str, int]:
    """What `Step.sent` counts of a division over one worker per size; none has to run."""
    count = max(len(parts) for parts in sizes.values())
    return ModelledNets(network).sent(count, batch_size, recipe=recipe, sizes=sizes)


class ClusterNets:
    """The chief: holds the workers and everything that is trained on them.

    Args:
      fractions: cores of each worker.
      network: a name in benchmarks.networks.NETWORKS.
      batch_size: images per step.
      seed: of the initial values, the images and the labels.
      return_memory: as in mtf_hetero.cluster.LocalCluster.
    """

    def __init__(
        self, fractions: Sequence[float], network: str, batch_size: int, seed: int, return_memory: bool = False
    ) -> None:
        self._network = NETWORKS[network]
        self._values = initial_values(self._network, seed)
        self._images, self._labels = batch(self._network, batch_size, seed)
        self._local = LocalCluster(fractions, return_memory=return_memory)
        self._cluster: Cluster = self._local.__enter__()
        self._sessions: dict[str, tuple[Any, Step]] = {}
        self._peaks: memory.ProcessPeaks | None = None
        self._estimates: dict[str, memory.Estimate] = {}

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

        def build() -> Any:
            return _build(self._network, self._images, self._labels).graph

        devices = self._cluster.devices
        with tf.Graph().as_default():
            layout = LAYOUTS[recipe](build(), mesh_shape=f"all:{len(devices)}")
        effort = profile.Effort(budget_seconds=seconds)
        choice = measured.choose(build, layout, self._cluster, keep=False, effort=effort)
        return {
            "seconds": time.perf_counter() - begin,
            "devices": [devices.index(device) for device in choice.devices],
            "sizes": {name: list(sizes) for name, sizes in choice.layout.sizes},
            "predicted_seconds": choice.predicted_seconds,
            "shares": list(choice.shares),
            "reason": shorten("; ".join(choice.lines)),
        }

    def add(
        self,
        name: str,
        recipe: str,
        devices: Sequence[int] | None = None,
        watch_memory: bool = False,
        **arguments: Any,
    ) -> dict[str, Any]:
        """Builds a way to split, and takes two steps.

        Args:
          name: how `run` is to call it.
          recipe: a name in layouts.LAYOUTS.
          devices: numbers of those that take part; None: all.
          watch_memory: whether `memory` will be asked for.
          **arguments: of `build_step`.

        Returns:
          The losses before the two steps, how the dimensions are divided, and what a step sends, as in `Step.sent`.
        """
        self.forget(name)
        chosen = [self._cluster.devices[i] for i in (range(len(self._cluster.devices)) if devices is None else devices)]
        with tf.Graph().as_default():
            step = build_step(self._network, self._images, self._labels, recipe=recipe, devices=chosen, **arguments)
            if watch_memory:
                self._estimates = memory.estimate(step.lowering, step.fetches)
                self._peaks = memory.ProcessPeaks(self._local.pids)
            session = tf.Session(self._cluster.target, config=self._cluster.session_config())
            masters = zip(step.masters, self._values, strict=True)
            feed = initial_value_feed({m.op.name: value.reshape(m.shape.as_list()) for m, value in masters})
            session.run(tf.global_variables_initializer(), feed)
            session.run([tf.local_variables_initializer(), step.lowering.copy_masters_to_slices()])
        if self._peaks is not None:
            self._peaks.restart()
        self._sessions[name] = session, step
        found = {dim.name: dim.size for op in step.built.graph.operations for t in op.outputs for dim in t.shape.dims}
        split = {dim: size for dim, size in found.items() if step.layout.axis_of(dim) is not None}
        divided = {dim: list(step.layout.split(dim, size)) for dim, size in split.items()}
        return {"losses": self.run(name, 2)["losses"], "sizes": divided, **step.sent()}

    def forget(self, name: str) -> None:
        """Frees what `add` made."""
        if name in self._sessions:
            self._sessions.pop(name)[0].close()

    def run(self, name: str, steps: int) -> dict[str, Any]:
        """Takes steps; returns seconds and the losses before them."""
        session, step = self._sessions[name]
        begin = time.perf_counter()
        losses = [float(session.run(step.fetches)[0]) for _ in range(steps)]
        return {"wall_seconds": time.perf_counter() - begin, "losses": losses}

    def trace(self, name: str) -> dict[str, Any]:
        """How each device spends a step: seconds of computing, receiving and waiting."""
        used = trace.usage(trace.read(self._traced(name)), self._cluster.devices)
        return {shorten(device): dataclasses.asdict(seconds) for device, seconds in used.items()}

    def received(self, name: str) -> dict[str, int]:
        """The bytes that the workers receive in a step, by its trace."""
        return {"received_bytes": sum(traffic.received(self._traced(name)).values())}

    def _traced(self, name: str) -> Any:
        session, step = self._sessions[name]
        metadata = tf.RunMetadata()
        session.run(step.fetches, options=trace.run_options(), run_metadata=metadata)
        return metadata

    def link(self) -> dict[str, Any]:
        """Latency and bandwidth between the first two workers."""
        first, second = self._cluster.devices[:2]
        config = self._cluster.session_config()
        return {
            "link": dataclasses.asdict(profile.measure_link(first, second, target=self._cluster.target, config=config))
        }

    def memory(self, name: str) -> dict[str, list[int]]:
        """Per worker: bytes of its weights, the most that it took to train beyond what it held, and the estimate."""
        assert self._peaks is not None
        _, step = self._sessions[name]
        layout = step.layout
        shapes = [variable.shape for variable in step.built.graph.trainable_variables]
        sizes = [sum(math.prod(layout.slice_shape(s, pnum)) for s in shapes) for pnum in range(layout.size)]
        found = [self._estimates[device] for device in self._cluster.devices]
        return {
            "weight_bytes": [4 * size for size in sizes],
            "peak_bytes": list(self._peaks.read()),
            "estimated_bytes": [own.peak for own in found],
        }


def _build(
    network: Network,
    images: np.ndarray,
    labels: np.ndarray,
    examples: Sequence[int] | None = None,
    rounds: Sequence[int] | None = None,
    mesh_impl: Any = None,
) -> models_network.Built:
    """The step's program; with a mesh, each processor's slices of images and labels lie where it is."""
    tf.train.create_global_step()
    examples = [len(labels)] if examples is None else list(examples)
    data: list[Any] = [tf.constant(images), tf.constant(labels)]
    if mesh_impl is not None:
        whole = [array.reshape([*examples, *array.shape[1:]]) for array in (images, labels)]
        data = [_slices(array, models_network.batch_shape(examples), mesh_impl) for array in whole]
    config = {"dense_rounds": rounds} if rounds else {}
    return build_training(network, *data, batch=examples, config=config)


def _slices(array: np.ndarray, batch_dims: Mapping[str, int], mesh_impl: Any) -> tuple[Any, ...]:
    """Each processor's slice of an array, on its own device."""
    names = (*batch_dims, "height", "width", "channels")
    shape = mtf.Shape([mtf.Dimension(name, size) for name, size in zip(names, array.shape, strict=False)])
    parts = []
    for pnum, device in enumerate(mesh_impl.devices):
        begin, size = mesh_impl.slice_begin(shape, pnum), mesh_impl.slice_shape(shape, pnum)
        with tf.device(device):
            parts.append(tf.constant(array[tuple(slice(b, b + s) for b, s in zip(begin, size, strict=True))]))
    return tuple(parts)
