"""The pace of steps and the load of devices, in a loop without session hooks."""

import time
from collections.abc import Callable, Sequence
from typing import TypeVar

from mtf_hetero._compat import tf
from mtf_hetero.training.load import DeviceLoad
from mtf_hetero.training.pace import MeasuringPace, Pace
from mtf_hetero.training.rebalancing import RebalanceHook
from mtf_hetero.training.runtime import Trace

_WORTH_SAYING = 0.05  # of a step
_Result = TypeVar("_Result")


class Meter:
    """Measures steps: all of them, and devices that only traces tell about in some.

    Args:
      devices: one per processor.
      workers: "host:port" of each.

    Attributes:
      load: of the devices.
    """

    def __init__(self, devices: Sequence[str], workers: Sequence[str]) -> None:
        self.load = DeviceLoad(devices, workers)
        self._hook: RebalanceHook | None = None

    def begin_session(self, hook: RebalanceHook | None = None) -> None:
        """Note that a session begins; `hook` looks at the measurements from now on."""
        self._hook = hook or self._hook
        self._steps, self._pace, self._measuring = 0, Pace(), MeasuringPace()
        self._counts = {1}  # of steps in the calls of the session
        if self._hook is not None:
            self._hook.begin()

    @property
    def pause_seconds(self) -> float:
        """Return the seconds that a change of the place is believed to take; 0: nothing is known."""
        return 0.0 if self._hook is None else self._hook.pause_seconds

    def describe_speed(self, examples: float, waited_seconds: float) -> str:
        """Return examples per second and the busy share of each device, in one line; "" before the second step.

        Args:
          examples: in a batch, on average.
          waited_seconds: for a batch, on average.
        """
        if self._steps < 2 or not self._pace.steps_per_second:
            return ""
        speed = self._pace.steps_per_second * examples
        busy = ", ".join(f"{device} {share:.0%}" for device, share in self.load.shares().items())
        waited = waited_seconds * self._pace.steps_per_second
        said = f"Speed: {speed:,.{0 if speed >= 100 else 1}f} examples/s{f'; busy: {busy}' if busy else ''}"
        return said + (f"; waiting for data: {min(waited, 1.0):.0%}" if waited >= _WORTH_SAYING else "")

    def skip(self) -> None:
        """Note that the devices do other work than training steps."""
        self.load.skip()

    def measure(self, call: Callable[[Trace], _Result], *, steps: int = 1) -> _Result:
        """Return the result of a call that takes training steps, and is traced if its argument says so."""
        trace = None
        if self.load.options is not None and self._measuring.is_due(self._steps):
            trace = self.load.options, tf.RunMetadata()
        began = time.monotonic()
        self._pace.begin_step()
        self.load.before_run(None)
        result = call(trace)
        self.load.end_steps(steps)
        is_prepared = steps in self._counts
        self._pace.end_step(counted=trace is None and is_prepared, steps=steps)
        self._steps += steps
        if not is_prepared:  # TensorFlow prepared the call, which kept devices busy
            self._counts.add(steps)
            self.load.skip()
        if trace is not None:
            self.load.measure(trace[1], steps)
            self._measuring.end_step((time.monotonic() - began) / steps, self._pace)
        if self._hook is not None:
            self._hook.after_run(None, None)
        return result
