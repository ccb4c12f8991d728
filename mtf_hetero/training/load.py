"""The load of devices: how long each of them is busy in a step, while a training runs."""

import collections
import concurrent.futures
import dataclasses
import functools
import statistics
import time
from collections.abc import Callable, Collection, Mapping, Sequence

from mtf_hetero._compat import tf
from mtf_hetero._support import threads
from mtf_hetero.cluster import claim, processor_time
from mtf_hetero.cluster.devices import Device, complete, shorten
from mtf_hetero.cost import trace
from mtf_hetero.training.pace import WARM_UP_STEPS

WINDOW = 5  # samples whose median is shown: one slow step among them changes nothing
_KEPT = 64
_PAUSE_SECONDS = 0.5  # from an answer to the next question: a worker spends 3 ms on each


@dataclasses.dataclass(frozen=True)
class Sample:
    """A measurement over one step or a few.

    Args:
      step: the global step after them.
      step_seconds: of one step.
      busy_seconds: {device: seconds for which it had work in one step}.
    """

    step: int
    step_seconds: float
    busy_seconds: Mapping[str, float]


class DeviceLoad(tf.train.SessionRunHook):
    """Measures how long each device is busy in a step. A hook; let it be the first.

    A process with one device of the mesh, a CPU, counts its own processor time (`cluster.processor_time`). The hook
    reads it half a second after the last answer. Other devices, GPUs for instance, are measured in traced steps: pass
    `measure` to a MetricsHook as `busy`, with `options`.

    Args:
      devices: of the mesh.
      workers: "host:port" of each, or {index: "host:port"}; training claims them.

    Attributes:
      step: the global step.
    """

    def __init__(self, devices: Sequence[str], workers: Sequence[str] | Mapping[int, str] = ()) -> None:
        self.workers = dict(workers) if isinstance(workers, Mapping) else dict(enumerate(workers))
        self.listeners: list[Callable[[Sample], object]] = []
        self.devices = devices
        self.options = None if self._processes else trace.run_options()
        self.step = 0

    @property
    def devices(self) -> Sequence[str]:
        """The devices of the mesh; new ones begin a new series."""
        return self._devices

    @devices.setter
    def devices(self, devices: Sequence[str]) -> None:
        self._devices = devices
        self._samples: collections.deque[Sample] = collections.deque(maxlen=_KEPT)
        parsed = [Device.parse(device) for device in devices]
        processes = [device.worker for device in parsed]
        is_counted = processor_time.IS_COUNTED and all(device.is_cpu for device in parsed)
        self._processes = dict(zip(devices, processes, strict=True)) if is_counted else {}
        if len(set(processes)) < len(devices):  # a process does not tell the time of one of its devices
            self._processes = {}
        self._begin()

    def after_create_session(self, session: tf.Session, coord: tf.train.Coordinator) -> None:
        self.step = int(session.run(tf.train.get_global_step(session.graph)))
        self._begin()

    def before_run(self, run_context: tf.train.SessionRunContext | None) -> None:
        self._began = time.monotonic()

    def after_run(
        self, run_context: tf.train.SessionRunContext | None, run_values: tf.train.SessionRunValues | None
    ) -> None:
        self.end_steps(1)

    def end_steps(self, count: int) -> None:
        """Note the end of steps, in one call of the session."""
        now = time.monotonic()
        self.step, self._steps = self.step + count, self._steps + count
        self._seconds += now - self._began
        self._warm_up -= self._warm_up > 0
        if self._answer is not None and self._answer.done():
            answer, self._answer = self._answer, None
            self._end_sample(answer.result())
        if self._processes and not self._warm_up and self._answer is None and now >= self._next:
            self._sample()

    def skip(self) -> None:
        """Drop the sample that has begun: the devices do other work than training steps."""
        self._last: Mapping[int | None, float] = {}
        self._answer: concurrent.futures.Future[dict[int | None, float]] | None = None
        self._steps, self._seconds = 0, 0.0

    def measure(self, metadata: tf.RunMetadata, steps: int = 1) -> dict[str, float | dict[str, float]]:
        """Return a row for metrics.jsonl: the seconds of a step, those of each device, and the share that they are.

        Args:
          metadata: of a call that ran with `options`; without, the row is of the last samples.
          steps: that the call took.
        """
        if self.options is not None:
            self._read(metadata, steps)
        if not self._samples:
            return {}
        seconds, busy = self._typical()
        return {"step_seconds": seconds, "busy_seconds": busy, "utilization": _shares(seconds, busy)}

    def shares(self) -> dict[str, float]:
        """Return {device: the share of a step in which it is busy}, of the last samples."""
        return _shares(*self._typical()) if self._samples else {}

    def _typical(self) -> tuple[float, dict[str, float]]:
        """Return the medians of the last samples: the seconds of a step, and those of each device."""
        last = list(self._samples)[-WINDOW:]
        seconds = statistics.median(sample.step_seconds for sample in last)
        busy = {d: statistics.median(sample.busy_seconds[d] for sample in last) for d in last[-1].busy_seconds}
        return seconds, {shorten(device): each for device, each in busy.items()}

    def _begin(self) -> None:
        self._began = self._next = 0.0
        self._warm_up, self._own = WARM_UP_STEPS, processor_time.OwnReader()
        self.skip()

    def _sample(self) -> None:
        """Read the processes: this one at once, workers in a thread, for whose answers training does not wait."""
        self._asked = self.step, self._steps, self._seconds
        self._steps, self._seconds = 0, 0.0
        if set(self._processes.values()) == {None}:
            self._end_sample(_busy_seconds({None}, {}, self._own))
        else:
            work = functools.partial(_busy_seconds, set(self._processes.values()), self.workers, self._own)
            self._answer = threads.begin(work, "processor_time")

    def _end_sample(self, found: dict[int | None, float]) -> None:
        """Take the times of the processes, unless one did not answer; the last ones say for how long each was busy."""
        step, steps, seconds = self._asked
        processes = set(self._processes.values())
        if set(found) == processes and set(self._last) == processes:
            spent = {d: min(max(found[p] - self._last[p], 0.0), seconds) for d, p in self._processes.items()}
            self._add(Sample(step, seconds / steps, {device: each / steps for device, each in spent.items()}))
        self._last = found
        if self._samples:
            self._next = time.monotonic() + _PAUSE_SECONDS

    def _read(self, metadata: tf.RunMetadata, steps: int) -> None:
        try:
            used = trace.usage(trace.read(metadata), self._devices)
        except ValueError as error:  # a device that TensorFlow traces under a name of another kind
            tf.logging.warning("it is not known how busy the devices are: %s", error)
            return
        span = max((sum((each.computing, each.receiving, each.waiting)) for each in used.values()), default=0.0)
        if span:
            full = complete([*used, *self._devices])  # the trace has TensorFlow's names
            computing = {full[name]: each.computing / steps for name, each in used.items()}
            busy = {device: computing.get(full[device], 0.0) for device in self._devices}
            self._add(Sample(self.step, span / steps, busy))

    def _add(self, sample: Sample) -> None:
        self._samples.append(sample)
        for listener in self.listeners:
            listener(sample)


def _shares(step_seconds: float, busy_seconds: Mapping[str, float]) -> dict[str, float]:
    return {device: seconds / step_seconds if step_seconds else 0.0 for device, seconds in busy_seconds.items()}


def _busy_seconds(
    processes: Collection[int | None], workers: Mapping[int, str], this_process: processor_time.OwnReader
) -> dict[int | None, float]:
    """Return {process: seconds for which it had work} of those that answer. The process None is this one."""
    found = dict[int | None, float]()
    if None in processes and (own := this_process.read()) is not None:
        found[None] = own
    found |= claim.busy_seconds({index: address for index, address in workers.items() if index in processes})
    return found
