"""Other shares for a training by Keras's loop: an Estimator's measurements and decisions, around Keras's steps."""

import dataclasses
import functools
import time
from collections.abc import Callable, Mapping
from typing import TypeVar

from mtf_hetero._compat import mtf, tf
from mtf_hetero.estimator.load import DeviceLoad
from mtf_hetero.estimator.pace import MeasuringPace, Pace
from mtf_hetero.estimator.rebalance import Proposal, go_back
from mtf_hetero.estimator.rebalance_hook import RebalanceHook
from mtf_hetero.importer.session import Trace
from mtf_hetero.placement import Placement
from mtf_hetero.planner.resizing import Resizer

_Result = TypeVar("_Result")


class Balancing:
    """Measures the devices of a training, and finds other shares for them.

    Args:
      placed: where the training begins.
      build: returns a graph of the step.
      switch: called with a place of other shares, the reason and the predicted gain.
      seconds: at least between two changes.
      steps: of the training; None: it is not known.
      pause_seconds: that a change is believed to take; 0: as long as the first step.
    """

    def __init__(
        self,
        placed: Placement,
        build: Callable[[], mtf.Graph],
        switch: Callable[[Placement, str, float], object],
        *,
        seconds: float,
        steps: int | None,
        pause_seconds: float = 0.0,
    ) -> None:
        self._placed, self._build, self._switch = placed, build, switch
        self._machines = placed.measured_machines
        self._resizer: Resizer | None = None
        self._load = DeviceLoad(placed.devices, placed.cluster.workers)
        options = {"total_steps": steps, "seconds": seconds, "pause_seconds": pause_seconds}
        back = placed.fallback
        if back is not None and back.plan is not None:
            options["fallback"] = functools.partial(go_back, back, back.devices[0], back.plan.seconds)
        self._hook = RebalanceHook(self._load, self._propose, self._decide, **options)
        self._begin_session()

    def _begin_session(self) -> None:
        self._steps, self._pace, self._measuring = 0, Pace(), MeasuringPace()
        self._hook.begin()

    def arrive(self, placed: Placement) -> None:
        """Note that the training continues at a place, whose session is about to begin."""
        if placed.devices != self._placed.devices:
            self._resizer = None
            self._hook.restart()
        self._placed, self._load.devices = placed, placed.devices
        self._begin_session()

    @property
    def pause_seconds(self) -> float:
        """Return the seconds that a change is believed to take; 0: nothing is known."""
        return self._hook.pause_seconds

    def end_switch(self, seconds: float) -> None:
        """Note how long a change of the place has paused the training."""
        self._hook.end_switch(seconds)

    def describe_speed(self, examples: float) -> str:
        """Return examples per second and the busy share of each device, in one line; "" before the second step.

        Args:
          examples: in a batch, on average.
        """
        if self._steps < 2 or not self._pace.steps_per_second:
            return ""
        speed = self._pace.steps_per_second * examples
        busy = ", ".join(f"{device} {share:.0%}" for device, share in self._load.shares().items())
        return f"Speed: {speed:,.{0 if speed >= 100 else 1}f} examples/s{f'; busy: {busy}' if busy else ''}"

    def skip(self) -> None:
        """Note that the devices do other work than training steps."""
        self._load.skip()

    def measure(self, step: Callable[[Trace], _Result]) -> _Result:
        """Return the result of a training step, which is traced if its argument says so."""
        trace = None
        if self._load.options is not None and self._measuring.is_due(self._steps):
            trace = self._load.options, tf.RunMetadata()
        began = time.monotonic()
        self._pace.begin_step()
        self._load.before_run(None)
        result = step(trace)
        self._load.after_run(None, None)
        self._pace.end_step(counted=trace is None)
        self._steps += 1
        if trace is not None:
            self._load.measure(trace[1])
            self._measuring.end_step(time.monotonic() - began, self._pace)
        self._hook.after_run(None, None)
        return result

    def _propose(self, first: Mapping[str, float], busy_seconds: Mapping[str, float]) -> Proposal[Placement]:
        """Return the place with sizes for devices that have become slower or faster."""
        placed, devices = self._placed, self._placed.devices
        if self._resizer is None:
            self._resizer = placed.resizer(self._build, self._machines)
        numbers = ([of[device] for device in devices] for of in (first, busy_seconds))
        found = self._resizer.resize(placed.layout, *numbers)
        place = dataclasses.replace(placed, layout=found.layout, plan=None)
        return Proposal(place, found.step, dict(zip(devices, found.slowness, strict=True)))

    def _decide(self, proposal: Proposal[Placement], why: str) -> None:
        self._switch(proposal.place, why, 1.0 - proposal.step)
