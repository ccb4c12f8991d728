"""The chief of programs of volumes, and what it asks of its workers: time, memory, bytes read."""

import concurrent.futures
import dataclasses
import pathlib
import statistics
import tempfile
import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from benchmarks.frameworks import volume_nets
from benchmarks.frameworks.chief import Chief, short_errors
from benchmarks.frameworks.memory_limit import MemoryLimit
from mtf_hetero import profile, tf, trace, traffic
from mtf_hetero.data import Planes, load_volumes, write_volumes
from mtf_hetero.data.source import TRAIN
from mtf_hetero.partition import split_by_share

_CALLS = 30
_Program = tuple[str, tuple[int, ...], int]  # network, extents of a volume, batch size


def _apart(name: str, device: str) -> str:
    return f"{name} on {device} alone"


class VolumeNets(Chief):
    """Holds the workers and everything that is trained on them.

    Args:
      fractions: cores of each worker.
      seed: of the initial values.
      memory_bytes: what a worker may take once it is up, by the kernel; None: all there is.
      return_memory: as in Chief.
    """

    def __init__(
        self, fractions: Sequence[float], seed: int, memory_bytes: int | None = None, return_memory: bool = False
    ) -> None:
        super().__init__(fractions, return_memory=return_memory)
        self._seed = seed
        self._programs: dict[str, _Program] = {}
        self._measured = tempfile.TemporaryDirectory(prefix="mtf_hetero_profile_")
        self._limits: list[MemoryLimit] = []
        if memory_bytes is not None:
            pairs = zip(self.local.pids, self.local.groups, strict=True)
            self._limits = [MemoryLimit(pid, memory_bytes, group) for pid, group in pairs]

    def close(self) -> None:
        """Ends the workers."""
        super().close()
        for limit in self._limits:
            limit.close()
        self._measured.cleanup()

    def describe(self) -> dict[str, Any]:
        """The devices and what limits them."""
        about = super().describe()
        by = [", ".join(pair) for pair in zip(about["limits"], (limit.by for limit in self._limits), strict=False)]
        return {**about, "limits": by or about["limits"]}

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
        self._programs[name] = network, tuple(extents), batch_size
        with tf.Graph().as_default(), short_errors():
            options = {"batch_size": batch_size, "devices": self.choose(devices), "seed": self._seed, **arguments}
            step = volume_nets.build_step(network, extents, **options)
            self.start(name, step, volume_nets.initial_values(step, self._seed))
        return {
            "losses": self.run(name, steps)["losses"],
            "sizes": step.sizes(),
            "exchanged": volume_nets.exchanged(step),
            **step.sent(),
        }

    def add_apart(self, name: str) -> None:
        """Builds a network of its own on each slab of a way, which exchanges nothing, for `run_apart`."""
        step, (network, extents, batch_size) = self.step(name), self._programs[name]
        for planes, device in zip(step.layout.split(volume_nets.AXIS, extents[0]), step.devices, strict=True):
            index = self.cluster.devices.index(device)
            self.add(_apart(name, device), network, (planes, *extents[1:]), (index,), batch_size)

    def run_apart(self, name: str, steps: int) -> dict[str, Any]:
        """Takes steps of all slabs at once; returns the seconds until the last one is done."""
        devices = self.step(name).devices
        begin = time.perf_counter()
        with concurrent.futures.ThreadPoolExecutor(len(devices)) as pool:
            for future in [pool.submit(self.run, _apart(name, device), steps) for device in devices]:
                future.result()
        return {"wall_seconds": time.perf_counter() - begin}

    def trace(self, name: str) -> dict[str, Any]:
        """How each worker spends a step, how much of the halo exchange goes on beside convolutions, and the bytes."""
        step = self.step(name)
        self.traced(name)  # of a session's first one TensorFlow does not record all transfers
        metadata = self.traced(name)
        events = trace.read(metadata)
        return {
            "usage": [dataclasses.asdict(used) for used in trace.usage(events, step.devices).values()],
            "overlap": volume_nets.overlap(step, events),
            "received_bytes": sum(traffic.received(metadata).values()),
        }

    def wait_for_input(self, name: str) -> list[float]:
        """Takes one step; seconds that it waits, per worker, for the next slab."""
        events = [event for event in trace.read(self.traced(name)) if event.kind.startswith("IteratorGetNext")]
        return [
            sum(event.seconds for event in events if event.device.replace("/replica:0", "") == device)
            for device in self.step(name).devices
        ]

    def call_seconds(self, devices: Sequence[int]) -> float:
        """Seconds of a session's run in which these workers have nothing to do: the median."""
        with tf.Graph().as_default():
            nothing = []
            for device in self.choose(devices):
                with tf.device(device):
                    nothing.append(tf.no_op())
            with self.session() as session:
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
        step, program = self.step(name), self._programs[name]
        count, layout = len(step.devices), step.layout
        cores = dict(zip(self.cluster.devices, self.local.fractions, strict=True))
        first = {cores[device]: device for device in reversed(self.cluster.devices)}
        representatives = [first[cores[device]] for device in step.devices]
        cluster = dataclasses.replace(self.cluster, devices=tuple(dict.fromkeys(representatives)))
        with tf.Graph().as_default():
            graph = volume_nets.build_training(*program).graph
            split = layout if count > 1 else volume_nets.plan(*program, 2)
            options = {"effort": profile.Effort(**effort), "cache_dir": self._measured.name}
            measured = profile.measure(graph, split, cluster, **options)
        seconds: dict[str, list[float]] = {}
        for layer in measured.work.layers:
            units = [layer.units] * count
            if layer.dim is not None and count > 1:
                names = measured.work.dims[layer.dim]
                largest = max(names, key=names.__getitem__)
                units = list(split_by_share(layer.units, layout.split(largest, names[largest])))
            models = [measured.profile.model(device, layer.key).settle() for device in representatives]
            title = f"{layer.name}{'' if layer.dim else ', whole'}"
            others = seconds.get(title, [0.0] * count)
            seconds[title] = [model(n) + other for model, n, other in zip(models, units, others, strict=True)]
        return seconds

    def memory(self, name: str) -> dict[str, list[int]]:
        """Per worker: the most that it took since `watch_memory`, what is estimated, and what every worker holds whole.

        What is whole are weights, their gradients, and what TensorFlow itself takes in its first steps.
        """
        peaks, estimates = self.peaks(name)
        return {
            "peak_bytes": peaks,
            "estimated_bytes": [estimate.peak for estimate in estimates],
            "whole_bytes": [estimate.weights + estimate.gradients + estimate.runtime for estimate in estimates],
        }

    def read_bytes(self) -> list[int]:
        """Bytes that each worker has read so far, from files or their cache in memory."""
        files = [pathlib.Path(f"/proc/{pid}/io").read_text(encoding="ascii") for pid in self.local.pids]
        return [int(text.partition("rchar:")[2].split()[0]) for text in files]

    def write_set(self, directory: str, edge: int, count: int) -> dict[str, int]:
        """Writes a set of cubes of noise; returns the bytes of a plane, as it is stored."""
        planes = Planes((edge, edge, edge, volume_nets.CHANNELS), "int16", targets=("a", "b", "c", "d"))
        rng = np.random.default_rng(self._seed)
        with write_volumes(directory, planes, provenance={"made": "noise, for a measurement"}) as writer:
            for _ in range(count):
                writer.add(TRAIN, [(rng.integers(0, 99, planes.shape, np.int16), None)], rng.uniform(size=4).tolist())
        return {"plane_bytes": load_volumes(directory).manifest.planes.record_bytes}
