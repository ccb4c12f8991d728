"""The chief of programs of volumes, and what it asks of its workers: time, memory, bytes read."""

import concurrent.futures
import dataclasses
import pathlib
import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from benchmarks.frameworks import volume_nets
from benchmarks.frameworks.chief import Chief
from benchmarks.frameworks.steps import Step
from mtf_hetero import Layout, tf
from mtf_hetero.cost import calibration, memory, trace, transfers
from mtf_hetero.cost.machines import Machines
from mtf_hetero.cost.sample import EXACT
from mtf_hetero.data import Planes, load_volumes, write_volumes
from mtf_hetero.data.source import TRAIN
from mtf_hetero.mesh import traffic
from mtf_hetero.planner.planning import describe

_TARGETS = ("a", "b", "c", "d")
_Program = tuple[str, tuple[int, ...], int]  # network, extents of a volume, batch size


def _apart(name: str, device: str) -> str:
    return f"{name} on {device} alone"


class VolumeNets(Chief):
    """The chief of these programs; options are those of Chief."""

    def __init__(self, fractions: Sequence[float], seed: int, **options: Any) -> None:
        super().__init__(fractions, **options)
        self._seed = seed
        self._programs: dict[str, _Program] = {}  # {way: what it trains}
        self._machines: dict[tuple[_Program, tuple[str, ...]], Machines] = {}

    def build(
        self, devices: Sequence[str], *, network: str, extents: Sequence[int], **arguments: Any
    ) -> tuple[Step, Mapping[str, np.ndarray]]:
        """Build a step, as in Chief; the arguments are those of volume_nets.build_step."""
        step = volume_nets.build_step(network, extents, devices=devices, seed=self._seed, **arguments)
        return step, volume_nets.initial_values(step, self._seed)

    def count_messages(self, step: Step) -> dict[str, Any]:
        return {"exchanged": volume_nets.exchanged(step), **super().count_messages(step)}

    def bytes_in_full(self, step: Step, estimates: Sequence[memory.Estimate]) -> dict[str, list[int]]:
        """Return the bytes that every worker holds in full: weights, gradients, and TensorFlow's own memory."""
        return {"whole_bytes": [estimate.weights + estimate.gradients + estimate.runtime for estimate in estimates]}

    def add(self, name: str, *args: Any, **arguments: Any) -> dict[str, Any]:
        """Add a way, as in Chief; keep the arguments for `add_apart` and `predict`."""
        self._programs[name] = arguments["network"], tuple(arguments["extents"]), arguments.get("batch_size", 1)
        return super().add(name, *args, **arguments)

    def add_apart(self, name: str) -> None:
        """Build a network of its own on each slab of a way, which exchanges nothing, for `run_apart`."""
        step, (network, extents, batch_size) = self.step(name), self._programs[name]
        for planes, device in zip(step.layout.split(volume_nets.AXIS, extents[0]), step.devices, strict=True):
            program = {"network": network, "extents": (planes, *extents[1:]), "batch_size": batch_size}
            self.add(_apart(name, device), [self.cluster.devices.index(device)], **program)

    def run_apart(self, name: str, steps: int) -> dict[str, Any]:
        """Take steps of all slabs at once, and return the seconds until the last one is done."""
        devices = self.step(name).devices
        begin = time.perf_counter()
        with concurrent.futures.ThreadPoolExecutor(len(devices)) as pool:
            for future in [pool.submit(self.run, _apart(name, device), steps) for device in devices]:
                future.result()
        return {"wall_seconds": time.perf_counter() - begin}

    def trace(self, name: str) -> dict[str, Any]:
        """Each worker's use of a step, the overlap of halo exchange and convolutions, and the bytes."""
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
        """Take one step, and return the seconds that each worker waits for the next slab."""
        events = [event for event in trace.read(self.traced(name)) if event.kind.startswith("IteratorGetNext")]
        return [
            sum(event.seconds for event in events if event.device.replace("/replica:0", "") == device)
            for device in self.step(name).devices
        ]

    def _calibrate(self, name: str) -> Machines:
        """Return the workers of a way, measured on its program as --layout=auto does it, once."""
        program, devices = self._programs[name], self.step(name).devices
        if (program, devices) not in self._machines:
            cluster = dataclasses.replace(self.cluster, devices=devices)
            machines = calibration.calibrate(lambda: volume_nets.build_training(*program).graph, cluster)
            self._machines[program, devices] = machines
        return self._machines[program, devices]

    def predict(self, name: str) -> dict[str, Any]:
        """Return the prediction of the planner's cost model for a step."""
        return _predicted(self._programs[name], self.step(name).layout, self._calibrate(name))

    def project(self, name: str, network: str, edge: int, count: int, groups: int) -> dict[str, Any]:
        """Predicts a step on more workers than there are, each as fast as the first one on the program of a way.

        Args:
          name: of the way.
          network: of volume_nets.NETWORKS.
          edge: of its cubes, of which each group of workers has one.
          count: workers of a group.
          groups: of workers.
        """
        measured = self._calibrate(name)
        like = dataclasses.replace(measured.devices[0], factors={}, memory_bytes=None)  # the kinds are not the same
        devices = tuple(dataclasses.replace(like, name=str(number)) for number in range(count * groups))
        machines = Machines(devices, measured.link_between(0, 1), step_seconds=measured.step_seconds)
        program = network, (edge,) * 3, groups
        layout = volume_nets.plan(*program, count, groups=groups)
        return {**_predicted(program, layout, machines), "flops_per_second": like.flops_per_second}

    def read_bytes(self) -> list[int]:
        """Bytes that each worker has read so far, from files or their cache in memory."""
        files = [pathlib.Path(f"/proc/{pid}/io").read_text(encoding="ascii") for pid in self.local.pids]
        return [int(text.partition("rchar:")[2].split()[0]) for text in files]

    def write_set(self, directory: str, edge: int, count: int) -> dict[str, int]:
        """Write a set of cubes of noise, and return the bytes of a plane, as it is stored."""
        planes = Planes((edge, edge, edge, volume_nets.CHANNELS), "int16", targets=_TARGETS)
        rng = np.random.default_rng(self._seed)
        with write_volumes(directory, planes, provenance={"made": "noise, for a measurement"}) as writer:
            for _ in range(count):
                writer.add(TRAIN, [(rng.integers(0, 99, planes.shape, np.int16), None)], rng.uniform(size=4).tolist())
        return {"plane_bytes": load_volumes(directory).manifest.planes.record_bytes}


def _predicted(program: _Program, layout: Layout, machines: Machines) -> dict[str, Any]:
    """Return the planner's prediction of a step: seconds of it, of the busiest device and of layers, and bytes sent."""
    with tf.Graph().as_default():
        built = volume_nets.build_training(*program)
        plan = describe(built.graph, machines, layout)
        if layout.size > EXACT:  # a few devices stand for all
            sent = sum(sum(layer.sent_bytes) for layer in plan.layers)
        else:
            sent = sum(each.bytes for each in transfers.of_step(built.graph, layout, fetched=[built.loss]))
    computing = dict.fromkeys((span.device for span in plan.timeline), 0.0)
    for span in plan.timeline:
        computing[span.device] += span.end - span.begin
    return {
        "predicted_seconds": plan.seconds,
        "predicted_computing_seconds": max(computing.values()),
        "predicted_layer_seconds": {layer.name: max(layer.seconds) for layer in plan.layers},
        "predicted_bytes": sent,
    }
