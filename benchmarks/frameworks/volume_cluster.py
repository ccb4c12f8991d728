"""The chief of programs of volumes, and what it asks of its workers: time, memory, bytes read."""

import concurrent.futures
import dataclasses
import pathlib
import statistics
import tempfile
import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from benchmarks.frameworks import volume_nets
from benchmarks.frameworks.chief import Chief
from benchmarks.frameworks.steps import Step
from mtf_hetero import memory, profile, tf, trace, traffic
from mtf_hetero.data import Planes, load_volumes, write_volumes
from mtf_hetero.data.source import TRAIN
from mtf_hetero.partition import split_by_share

_CALLS = 30
_TARGETS = ("a", "b", "c", "d")


def _apart(name: str, device: str) -> str:
    return f"{name} on {device} alone"


class VolumeNets(Chief):
    """The chief of these programs; options are those of Chief."""

    def __init__(self, fractions: Sequence[float], seed: int, **options: Any) -> None:
        super().__init__(fractions, **options)
        self._seed = seed
        self._programs: dict[str, tuple[str, tuple[int, ...], int]] = {}  # network, extents of a volume, batch size
        self._measured = tempfile.TemporaryDirectory(prefix="mtf_hetero_profile_")

    def close(self) -> None:
        super().close()
        self._measured.cleanup()

    def build(
        self, devices: Sequence[str], *, network: str, extents: Sequence[int], **arguments: Any
    ) -> tuple[Step, Mapping[str, np.ndarray]]:
        """As in Chief; the arguments are those of volume_nets.build_step."""
        step = volume_nets.build_step(network, extents, devices=devices, seed=self._seed, **arguments)
        return step, volume_nets.initial_values(step, self._seed)

    def counted(self, step: Step) -> dict[str, Any]:
        return {"exchanged": volume_nets.exchanged(step), **super().counted(step)}

    def held(self, step: Step, estimates: Sequence[memory.Estimate]) -> dict[str, list[int]]:
        """What every worker holds whole: weights, gradients, and what TensorFlow itself takes in its first steps."""
        return {"whole_bytes": [estimate.weights + estimate.gradients + estimate.runtime for estimate in estimates]}

    def add(self, name: str, *args: Any, **arguments: Any) -> dict[str, Any]:
        """As in Chief; the arguments are kept, for `add_apart` and `layer_seconds`."""
        self._programs[name] = arguments["network"], tuple(arguments["extents"]), arguments.get("batch_size", 1)
        return super().add(name, *args, **arguments)

    def add_apart(self, name: str) -> None:
        """Builds a network of its own on each slab of a way, which exchanges nothing, for `run_apart`."""
        step, (network, extents, batch_size) = self.step(name), self._programs[name]
        for planes, device in zip(step.layout.split(volume_nets.AXIS, extents[0]), step.devices, strict=True):
            program = {"network": network, "extents": (planes, *extents[1:]), "batch_size": batch_size}
            self.add(_apart(name, device), [self.cluster.devices.index(device)], **program)

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

    def read_bytes(self) -> list[int]:
        """Bytes that each worker has read so far, from files or their cache in memory."""
        files = [pathlib.Path(f"/proc/{pid}/io").read_text(encoding="ascii") for pid in self.local.pids]
        return [int(text.partition("rchar:")[2].split()[0]) for text in files]

    def write_set(self, directory: str, edge: int, count: int) -> dict[str, int]:
        """Writes a set of cubes of noise; returns the bytes of a plane, as it is stored."""
        planes = Planes((edge, edge, edge, volume_nets.CHANNELS), "int16", targets=_TARGETS)
        rng = np.random.default_rng(self._seed)
        with write_volumes(directory, planes, provenance={"made": "noise, for a measurement"}) as writer:
            for _ in range(count):
                writer.add(TRAIN, [(rng.integers(0, 99, planes.shape, np.int16), None)], rng.uniform(size=4).tolist())
        return {"plane_bytes": load_volumes(directory).manifest.planes.record_bytes}
