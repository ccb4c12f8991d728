"""The chief of a local cluster: one set of workers, and a session for each way to train that takes turns on them."""

import contextlib
import dataclasses
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from mtf_hetero import Layout, memory, profile, tf, trace, traffic
from mtf_hetero.cluster import Cluster, LocalCluster, shorten
from mtf_hetero.models.train import program
from mtf_hetero.variables import initial_value_feed

_POLL_SECONDS = 0.1
_MESSAGE = 160  # characters of an error that are kept
_CAUSES = ("OOM when", "From /job:")  # what the part of an error begins with that says its cause


@dataclasses.dataclass(frozen=True, eq=False)
class Step:
    """A training step on the devices of a mesh, as a graph.

    Args:
      layout: how its tensors lie on the mesh.
      devices: one per processor.
      built: the mtf program.
      masters: of each trainable variable the one that mtf made, whose initial value is fed.
      lowering: of the program.
      fetches: what a session runs: the loss, and the step.
    """

    layout: Layout
    devices: tuple[str, ...]
    built: program.Built
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
        of_devices = [sum(size for link, size in links.items() if device in link) for device in devices]
        return {
            "sent_bytes": sum(links.values()),
            "busiest_worker_bytes": max(of_devices, default=0),
            "busiest_link_bytes": links[busiest] if busiest else 0,
            "busiest_link_messages": sum((send.source, send.target) == busiest for send in sends),
        }

    def sizes(self) -> dict[str, list[int]]:
        """How the dimensions are divided that are split at all."""
        sizes: dict[str, int] = {}
        for dim in (dim for op in self.built.graph.operations for x in op.outputs for dim in x.shape.dims):
            if self.layout.axis_of(dim) is not None:
                sizes.setdefault(dim.name, dim.size)
        return {name: list(self.layout.split(name, size)) for name, size in sizes.items()}


def lower_step(built: program.Built, layout: Layout, devices: Sequence[str], wire_dtype: str | None = None) -> Step:
    """Lowers a program in TensorFlow's default graph."""
    masters = tuple(variable.get_master() for variable in built.graph.trainable_variables)
    lowering = program.lower(built, layout, devices, wire_dtype)
    with tf.control_dependencies([lowering.lowered_operation(op) for op in built.updates]):
        fetches = lowering.export_to_tf_tensor(built.loss), tf.no_op()
    return Step(layout, tuple(devices), built, masters, lowering, fetches)


def worker_devices(count: int) -> list[str]:
    """The names of so many workers that need not be there."""
    return [f"/job:worker/task:{index}/device:CPU:0" for index in range(count)]


class Chief:
    """Holds the workers and everything that is trained on them.

    Args:
      fractions: cores of each worker.
      return_memory: as in mtf_hetero.cluster.LocalCluster.
    """

    def __init__(self, fractions: Sequence[float], *, return_memory: bool = False) -> None:
        self.local = LocalCluster(fractions, return_memory=return_memory)
        self.cluster: Cluster = self.local.__enter__()
        self._ways: dict[str, tuple[Any, Step]] = {}
        self._peaks: memory.ProcessPeaks | None = None

    def close(self) -> None:
        """Ends the workers."""
        alive = not any(self.ended())
        for name in list(self._ways) if alive else ():  # a session waits for a worker that is lost
            self.forget(name)
        self.local.close()

    def describe(self) -> dict[str, Any]:
        """The devices and what limits them."""
        return {"devices": [shorten(device) for device in self.cluster.devices], "limits": self.local.limits}

    def ended(self, within_seconds: float = 0.0) -> list[int | None]:
        """The exit code of each worker, as soon as one has ended or the time is over; None of one that runs."""
        end = time.monotonic() + within_seconds
        while True:
            codes = [self.local.exit_code(index) for index in range(len(self.local.pids))]
            if any(code is not None for code in codes) or time.monotonic() >= end:
                return codes
            time.sleep(_POLL_SECONDS)

    def choose(self, devices: Sequence[int] | None) -> list[str]:
        """The devices with these numbers; None: all."""
        return [
            self.cluster.devices[index] for index in (range(len(self.cluster.devices)) if devices is None else devices)
        ]

    def session(self) -> Any:
        """A session on the cluster, of TensorFlow's default graph."""
        return tf.Session(self.cluster.target, config=self.cluster.session_config())

    def start(self, name: str, step: Step, values: Mapping[str, np.ndarray]) -> None:
        """Opens a session for a step of TensorFlow's default graph, whose masters have these initial values."""
        session = self.session()
        self._ways[name] = session, step
        with short_errors():
            session.run(tf.global_variables_initializer(), initial_value_feed(values))
            copies = step.lowering.copy_masters_to_slices()
            session.run([tf.local_variables_initializer(), copies, tf.tables_initializer()])

    def step(self, name: str) -> Step:
        """The step of a way."""
        return self._ways[name][1]

    def forget(self, name: str) -> None:
        """Frees a way, where it is known."""
        if name in self._ways:
            self._ways.pop(name)[0].close()

    def run(self, name: str, steps: int) -> dict[str, Any]:
        """Takes steps; returns seconds and the losses before them."""
        session, step = self._ways[name]
        begin = time.perf_counter()
        with short_errors():
            losses = [float(session.run(step.fetches)[0]) for _ in range(steps)]
        return {"wall_seconds": time.perf_counter() - begin, "losses": losses}

    def traced(self, name: str) -> Any:
        """The metadata of a traced step."""
        session, step = self._ways[name]
        metadata = tf.RunMetadata()
        session.run(step.fetches, options=trace.run_options(), run_metadata=metadata)
        return metadata

    def link(self, **options: Any) -> dict[str, Any]:
        """Latency and bandwidth between the first two workers; options are those of profile.measure_link."""
        place = {"target": self.cluster.target, "config": self.cluster.session_config()}
        return dataclasses.asdict(profile.measure_link(*self.cluster.devices[:2], **place, **options))

    def watch_memory(self) -> None:
        """Counts, from now on, the most that each worker holds beyond what it holds now."""
        self._peaks = memory.ProcessPeaks(self.local.pids)

    def peaks(self, name: str) -> tuple[list[int], list[memory.Estimate]]:
        """Per worker of a way: the most that it took since `watch_memory`, and what is estimated."""
        assert self._peaks is not None
        step = self.step(name)
        estimates = memory.estimate(step.lowering, step.fetches)
        return list(self._peaks.read())[: len(step.devices)], [estimates[device] for device in step.devices]


@contextlib.contextmanager
def short_errors() -> Iterator[None]:
    """Makes one short line of what TensorFlow says where a step fails; its own has the whole call stack."""
    try:
        yield
    except tf.errors.OpError as error:
        text = " ".join(word for word in error.message.split() if any(map(str.isalnum, word)))
        marks = (mark for mark in _CAUSES if mark in text)
        text = next((text[text.index(mark) :] for mark in marks), text).partition(" defined at ")[0]
        raise RuntimeError(shorten(f"{type(error).__name__}: {text[:_MESSAGE]}")) from error
