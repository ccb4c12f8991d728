"""The chief of programs of volumes: one set of workers, and a session per way to partition."""

import concurrent.futures
import contextlib
import dataclasses
import pathlib
import statistics
import tempfile
import time
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from benchmarks.frameworks import volume_nets
from benchmarks.frameworks.cluster_nets import Step
from benchmarks.frameworks.memory_limit import MemoryLimit
from mtf_hetero import memory, profile, tf, trace, traffic
from mtf_hetero.cluster import Cluster, LocalCluster, shorten
from mtf_hetero.data import Planes, load_volumes, write_volumes
from mtf_hetero.data.source import TRAIN
from mtf_hetero.partition import split_by_share
from mtf_hetero.variables import initial_value_feed

_CALLS = 30
_POLL_SECONDS = 0.1
_MESSAGE = 160  # characters of an error that are kept
_TOLD = ("OOM when", "From /job:")  # what the part of an error that tells begins with


@dataclasses.dataclass(frozen=True, eq=False)
class _Way:
    """What is trained, and where."""

    network: str
    extents: tuple[int, ...]
    batch_size: int
    devices: tuple[str, ...]
    step: Step
    session: Any


def _apart(name: str, device: str) -> str:
    return f"{name} on {device} alone"


class VolumeNets:
    """Holds the workers and everything that is trained on them.

    Args:
      fractions: cores of each worker.
      seed: of the initial values.
      memory_bytes: what a worker may take once it is up, by the kernel; None: all there is.
      return_memory: as in mtf_hetero.cluster.LocalCluster.
    """

    def __init__(
        self, fractions: Sequence[float], seed: int, memory_bytes: int | None = None, return_memory: bool = False
    ) -> None:
        self._seed = seed
        self._ways: dict[str, _Way] = {}
        self._peaks: memory.ProcessPeaks | None = None
        self._measured = tempfile.TemporaryDirectory(prefix="mtf_hetero_profile_")
        self._local = LocalCluster(fractions, return_memory=return_memory)
        self._cluster: Cluster = self._local.__enter__()
        self._limits: list[MemoryLimit] = []
        if memory_bytes is not None:
            pairs = zip(self._local.pids, self._local.groups, strict=True)
            self._limits = [MemoryLimit(pid, memory_bytes, group) for pid, group in pairs]

    def close(self) -> None:
        """Ends the workers."""
        alive = not any(self.ended())
        for name in list(self._ways) if alive else ():  # a session waits for a worker that is lost
            self.forget(name)
        self._local.close()
        for limit in self._limits:
            limit.close()
        self._measured.cleanup()

    def describe(self) -> dict[str, Any]:
        """The devices and what limits them."""
        by = [", ".join(pair) for pair in zip(self._local.limits, (limit.by for limit in self._limits), strict=False)]
        return {"devices": [shorten(device) for device in self._cluster.devices], "limits": by or self._local.limits}

    def ended(self, within_seconds: float = 0.0) -> list[int | None]:
        """The exit code of each worker, as soon as one has ended or the time is over; None of one that runs."""
        end = time.monotonic() + within_seconds
        while True:
            found = [self._local.exit_code(index) for index in range(len(self._local.pids))]
            if any(code is not None for code in found) or time.monotonic() >= end:
                return found
            time.sleep(_POLL_SECONDS)

    def add(
        self,
        name: str,
        network: str,
        extents: Sequence[int],
        devices: Sequence[int],
        batch_size: int = 1,
        steps: int = 2,
        **arguments: Any,
    ) -> dict[str, Any]:
        """Builds a way to partition, and takes steps.

        Args:
          name: how the other methods are to call it.
          network: a name in volume_nets.NETWORKS.
          extents: (depth, height, width).
          devices: numbers of the workers that take part.
          batch_size: volumes per step.
          steps: how many to take.
          **arguments: of volume_nets.build_step.

        Returns:
          The losses before the steps, how the dimensions are divided, and what a step sends, in all and per processor.
        """
        chosen = tuple(self._cluster.devices[index] for index in devices)
        with tf.Graph().as_default(), _short_errors():
            options = {"batch_size": batch_size, "devices": chosen, "seed": self._seed, **arguments}
            step = volume_nets.build_step(network, extents, **options)
            session = tf.Session(self._cluster.target, config=self._cluster.session_config())
            self._ways[name] = _Way(network, tuple(extents), batch_size, chosen, step, session)
            feed = initial_value_feed(volume_nets.initial_values(step, self._seed))
            session.run(tf.global_variables_initializer(), feed)
            copies = step.lowering.copy_masters_to_slices()
            session.run([tf.local_variables_initializer(), copies, tf.tables_initializer()])
        sizes: dict[str, int] = {}
        for dim in (d for op in step.built.graph.operations for x in op.outputs for d in x.shape.dims):
            if step.layout.axis_of(dim.name) is not None:
                sizes.setdefault(dim.name, dim.size)
        return {
            "losses": self.run(name, steps)["losses"],
            "sizes": {dim: list(step.layout.split(dim, size)) for dim, size in sizes.items()},
            "exchanged": volume_nets.exchanged(step, chosen),
            **step.sent(),
        }

    def forget(self, name: str) -> None:
        """Frees what `add` made."""
        self._ways.pop(name).session.close()

    def run(self, name: str, steps: int) -> dict[str, Any]:
        """Takes steps; returns seconds and the losses before them."""
        way = self._ways[name]
        begin = time.perf_counter()
        with _short_errors():
            losses = [float(way.session.run(way.step.fetches)[0]) for _ in range(steps)]
        return {"wall_seconds": time.perf_counter() - begin, "losses": losses}

    def add_apart(self, name: str) -> None:
        """Builds a network of its own on each slab of a way, which exchanges nothing, for `run_apart`."""
        way = self._ways[name]
        for planes, device in zip(way.step.layout.split(volume_nets.AXIS, way.extents[0]), way.devices, strict=True):
            index = self._cluster.devices.index(device)
            self.add(_apart(name, device), way.network, (planes, *way.extents[1:]), (index,), way.batch_size)

    def run_apart(self, name: str, steps: int) -> dict[str, Any]:
        """Takes steps of all slabs at once; returns the seconds until the last one is done."""
        devices = self._ways[name].devices
        begin = time.perf_counter()
        with concurrent.futures.ThreadPoolExecutor(len(devices)) as pool:
            for future in [pool.submit(self.run, _apart(name, device), steps) for device in devices]:
                future.result()
        return {"wall_seconds": time.perf_counter() - begin}

    def trace(self, name: str) -> dict[str, Any]:
        """How each worker spends a step, how much of the halo exchange goes on beside convolutions, and the bytes."""
        way = self._ways[name]
        self._traced(way)  # of a session's first one TensorFlow does not record all transfers
        metadata = self._traced(way)
        events = trace.read(metadata)
        return {
            "usage": [dataclasses.asdict(used) for used in trace.usage(events, way.devices).values()],
            "overlap": volume_nets.overlap(way.step, events, way.devices),
            "received_bytes": sum(traffic.received(metadata).values()),
        }

    def wait_for_input(self, name: str) -> list[float]:
        """Takes one step; seconds that it waits, per worker, for the next slab."""
        way = self._ways[name]
        events = trace.read(self._traced(way))
        next_ = [event for event in events if event.kind.startswith("IteratorGetNext")]
        return [
            sum(event.seconds for event in next_ if event.device.replace("/replica:0", "") == device)
            for device in way.devices
        ]

    def _traced(self, way: _Way) -> Any:
        metadata = tf.RunMetadata()
        way.session.run(way.step.fetches, options=trace.run_options(), run_metadata=metadata)
        return metadata

    def link(self, repeats: int) -> dict[str, float]:
        """Latency and bandwidth between the first two workers."""
        first, second = self._cluster.devices[:2]
        config = self._cluster.session_config()
        options = {"target": self._cluster.target, "config": config, "repeats": repeats}
        return dataclasses.asdict(profile.measure_link(first, second, **options))

    def call_seconds(self, devices: Sequence[int]) -> float:
        """Seconds of a session's run in which these workers have nothing to do: the median."""
        with tf.Graph().as_default():
            nothing = []
            for index in devices:
                with tf.device(self._cluster.devices[index]):
                    nothing.append(tf.no_op())
            with tf.Session(self._cluster.target, config=self._cluster.session_config()) as session:
                samples = []
                for _ in range(_CALLS):
                    begin = time.perf_counter()
                    session.run(nothing)
                    samples.append(time.perf_counter() - begin)
        return statistics.median(samples)

    def layer_seconds(self, name: str, effort: dict[str, Any]) -> dict[str, list[float]]:
        """What each layer's slab takes on each worker of a way, as mtf_hetero.profile times it: one worker, alone.

        Args:
          name: of the way.
          effort: fields of profile.Effort.

        Returns:
          {layer: seconds per worker, forward, backward and update}. Workers with the same cores are measured once.
        """
        way = self._ways[name]
        count, layout = len(way.devices), way.step.layout
        cores = dict(zip(self._cluster.devices, self._local.fractions, strict=True))
        first = {cores[device]: device for device in reversed(self._cluster.devices)}
        representatives = [first[cores[device]] for device in way.devices]
        cluster = dataclasses.replace(self._cluster, devices=tuple(dict.fromkeys(representatives)))
        with tf.Graph().as_default():
            graph = volume_nets.build_training(way.network, way.extents, way.batch_size).graph
            split = layout if count > 1 else volume_nets.plan(way.network, way.extents, way.batch_size, 2)
            options = {"effort": profile.Effort(**effort), "cache_dir": self._measured.name}
            measured = profile.measure(graph, split, cluster, **options)
        found: dict[str, list[float]] = {}
        for layer in measured.work.layers:
            units = [layer.units] * count
            if layer.dim is not None and count > 1:
                names = measured.work.dims[layer.dim]
                largest = max(names, key=names.__getitem__)
                units = list(split_by_share(layer.units, layout.split(largest, names[largest])))
            models = [measured.profile.model(device, layer.key).settle() for device in representatives]
            title = f"{layer.name}{'' if layer.dim else ', whole'}"
            own = [model(n) for model, n in zip(models, units, strict=True)]
            found[title] = [a + b for a, b in zip(own, found.get(title, [0.0] * count), strict=True)]
        return found

    def watch_memory(self) -> None:
        """Counts, from now on, the most that each worker holds beyond what it holds now."""
        self._peaks = memory.ProcessPeaks(self._local.pids)

    def memory(self, name: str) -> dict[str, list[int]]:
        """Per worker: the most that it took since `watch_memory`, what is estimated, and what every worker holds whole.

        What is whole are weights, their gradients, and what TensorFlow itself takes in its first steps.
        """
        assert self._peaks is not None
        way = self._ways[name]
        estimates = memory.estimate(way.step.lowering, way.step.fetches)
        found = [estimates[device] for device in way.devices]
        return {
            "peak_bytes": list(self._peaks.read())[: len(found)],
            "estimated_bytes": [own.peak for own in found],
            "whole_bytes": [own.weights + own.gradients + own.runtime for own in found],
        }

    def read_bytes(self) -> list[int]:
        """Bytes that each worker has read so far, from files or their cache in memory."""
        files = [pathlib.Path(f"/proc/{pid}/io").read_text(encoding="ascii") for pid in self._local.pids]
        return [int(text.partition("rchar:")[2].split()[0]) for text in files]

    def write_set(self, directory: str, edge: int, count: int) -> dict[str, int]:
        """Writes a set of cubes of noise; returns the bytes of a plane, as it is stored."""
        planes = Planes((edge, edge, edge, volume_nets.CHANNELS), "int16", targets=("a", "b", "c", "d"))
        rng = np.random.default_rng(self._seed)
        with write_volumes(directory, planes, provenance={"made": "noise, for a measurement"}) as writer:
            for _ in range(count):
                writer.add(TRAIN, [(rng.integers(0, 99, planes.shape, np.int16), None)], rng.uniform(size=4).tolist())
        return {"plane_bytes": load_volumes(directory).manifest.planes.record_bytes}


@contextlib.contextmanager
def _short_errors() -> Iterator[None]:
    """Makes one short line of what TensorFlow says where a step fails; its own has the whole call stack."""
    try:
        yield
    except tf.errors.OpError as error:
        said = " ".join(word for word in error.message.split() if any(map(str.isalnum, word)))
        marks = (mark for mark in _TOLD if mark in said)
        said = next((said[said.index(mark) :] for mark in marks), said).partition(" defined at ")[0]
        raise RuntimeError(shorten(f"{type(error).__name__}: {said[:_MESSAGE]}")) from error
