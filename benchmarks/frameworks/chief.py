"""The chief of a local cluster: one set of workers, and a session for each way to train that takes turns on them."""

import abc
import contextlib
import dataclasses
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from benchmarks.frameworks.memory_limit import MemoryLimit
from benchmarks.frameworks.steps import Step, start_session
from mtf_hetero import tf
from mtf_hetero.cluster import Cluster, LocalCluster
from mtf_hetero.cluster.devices import shorten
from mtf_hetero.cost import memory, trace
from mtf_hetero.cost.microbenchmarks import measure_link

_POLL_SECONDS = 0.1
_MESSAGE = 160  # characters of an error that are kept
_CAUSES = ("OOM when", "From /job:")  # what the part of an error begins with that says its cause


class Chief(abc.ABC):
    """Holds the workers and everything that is trained on them.

    Args:
      fractions: cores of each worker.
      memory_bytes: what a worker may take once it is up, by the kernel; None: all there is.
      return_memory: as in mtf_hetero.cluster.LocalCluster.
    """

    def __init__(
        self, fractions: Sequence[float], *, memory_bytes: int | None = None, return_memory: bool = False
    ) -> None:
        self.local = LocalCluster(fractions, return_memory=return_memory)
        self.cluster: Cluster = self.local.__enter__()
        self._ways: dict[str, tuple[Any, Step]] = {}
        self._peaks: memory.ProcessPeaks | None = None
        limited = [] if memory_bytes is None else zip(self.local.pids, self.local.groups, strict=True)
        self._limits = [MemoryLimit(pid, memory_bytes or 0, group) for pid, group in limited]

    @abc.abstractmethod
    def build(self, devices: Sequence[str], **arguments: Any) -> tuple[Step, Mapping[str, np.ndarray]]:
        """Build a step in TensorFlow's default graph, and return the initial values of its variables."""

    def count_messages(self, step: Step) -> dict[str, Any]:
        """Return the counts in the graph of a step."""
        return dict(step.count_traffic())

    def bytes_in_full(self, step: Step, estimates: Sequence[memory.Estimate]) -> dict[str, list[int]]:
        """More of the memory of a step, per worker."""
        del step, estimates
        return {}

    def close(self) -> None:
        """End the workers."""
        alive = not any(self.ended())
        for name in list(self._ways) if alive else ():  # a session waits for a worker that is lost
            self._forget(name)
        self.local.close()
        for limit in self._limits:
            limit.close()

    def describe(self) -> dict[str, Any]:
        """Return the devices and what limits them."""
        limits = self.local.limits
        both = [", ".join(pair) for pair in zip(limits, (limit.by for limit in self._limits), strict=False)]
        return {"devices": [shorten(device) for device in self.cluster.devices], "limits": both or limits}

    def ended(self, within_seconds: float = 0.0) -> list[int | None]:
        """Return the exit code of each worker, as soon as one has ended or the time is over; None of one that runs."""
        end = time.monotonic() + within_seconds
        while True:
            codes = [self.local.exit_code(index) for index in range(len(self.local.pids))]
            if any(code is not None for code in codes) or time.monotonic() >= end:
                return codes
            time.sleep(_POLL_SECONDS)

    def choose(self, devices: Sequence[int] | None) -> list[str]:
        """Return the devices with these numbers; None: all."""
        every = self.cluster.devices
        return list(every) if devices is None else [every[index] for index in devices]

    def session(self) -> Any:
        """Return a session on the cluster, of TensorFlow's default graph."""
        return tf.Session(self.cluster.target, config=self.cluster.session_config())

    def add(
        self,
        name: str,
        devices: Sequence[int] | None = None,
        steps: int = 2,
        watch_memory: bool = False,
        **arguments: Any,
    ) -> dict[str, Any]:
        """Build a way to train, and take steps.

        Args:
          name: how the other methods are to call it.
          devices: numbers of those that take part; None: all.
          steps: how many to take.
          watch_memory: whether `memory` will be asked what it takes to train.
          **arguments: of `build`.

        Returns:
          The losses before the steps, how the dimensions are divided, and what is counted.
        """
        self._forget(name)
        with tf.Graph().as_default(), short_errors():
            step, values = self.build(self.choose(devices), **arguments)
            if watch_memory:
                self.watch_memory()
            session = self.session()
            self._ways[name] = session, step
            start_session(session, step.lowering, values)
        if watch_memory and self._peaks is not None:
            self._peaks.restart()
        return {"losses": self.run(name, steps)["losses"], "sizes": step.sizes(), **self.count_messages(step)}

    def step(self, name: str) -> Step:
        """Return the step of a way."""
        return self._ways[name][1]

    def _forget(self, name: str) -> None:
        if name in self._ways:
            self._ways.pop(name)[0].close()

    def run(self, name: str, steps: int) -> dict[str, Any]:
        """Take steps, and return seconds and the losses before them."""
        session, step = self._ways[name]
        begin = time.perf_counter()
        with short_errors():
            losses = [float(session.run(step.fetches)[0]) for _ in range(steps)]
        return {"wall_seconds": time.perf_counter() - begin, "losses": losses}

    def traced(self, name: str) -> Any:
        """Return the metadata of a traced step."""
        session, step = self._ways[name]
        metadata = tf.RunMetadata()
        session.run(step.fetches, options=trace.run_options(), run_metadata=metadata)
        return metadata

    def link(self, **options: Any) -> dict[str, Any]:
        """Latency and bandwidth between the first two workers; options are those of measure_link."""
        place = {"target": self.cluster.target, "config": self.cluster.session_config()}
        return dataclasses.asdict(measure_link(*self.cluster.devices[:2], **place, **options))

    def watch_memory(self) -> None:
        """Start to record the most memory that each worker holds beyond its present memory."""
        self._peaks = memory.ProcessPeaks(self.local.pids)

    def memory(self, name: str) -> dict[str, list[int]]:
        """Per worker of a way: the most that it took since it was watched, what is estimated, and what it holds."""
        assert self._peaks is not None
        step = self.step(name)
        of_devices = memory.estimate(step.lowering, step.fetches)
        estimates = [of_devices[device] for device in step.devices]
        return {
            "peak_bytes": list(self._peaks.read())[: len(step.devices)],
            "estimated_bytes": [estimate.peak for estimate in estimates],
            **self.bytes_in_full(step, estimates),
        }


@contextlib.contextmanager
def short_errors() -> Iterator[None]:
    """Make one short line of what TensorFlow says where a step fails; its own has the whole call stack."""
    try:
        yield
    except tf.errors.OpError as error:
        text = " ".join(word for word in error.message.split() if any(map(str.isalnum, word)))
        marks = (mark for mark in _CAUSES if mark in text)
        text = next((text[text.index(mark) :] for mark in marks), text).partition(" defined at ")[0]
        raise RuntimeError(shorten(f"{type(error).__name__}: {text[:_MESSAGE]}")) from error
