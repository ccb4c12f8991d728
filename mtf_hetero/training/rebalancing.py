"""A hook that gives devices other shares while a training runs."""

import concurrent.futures
import functools
import math
import statistics
import time
from collections.abc import Callable, Mapping
from typing import Any, Generic, TypeVar

from mtf_hetero._compat import tf
from mtf_hetero._support import threads
from mtf_hetero.cluster.devices import shorten
from mtf_hetero.training.balance import FIRST, Balance, Proposal
from mtf_hetero.training.load import DeviceLoad, Sample

_Place = TypeVar("_Place")
_Result = TypeVar("_Result")


class RebalanceHook(tf.train.SessionRunHook, Generic[_Place]):
    """Has a training continue with other shares once devices have become slower or faster.

    Args:
      load: measures the devices; a hook of the same training, before this one.
      propose: from {device: seconds for which it was busy in a step at the beginning} and the same at present to a
        Proposal. It is called in a thread, while training goes on. A ValueError or a NotImplementedError says that
        there are no other sizes.
      switch: called with an accepted Proposal and the reason. It calls Elastic.move.
      fallback: from the seconds of a step at the first place to a Proposal, for a layout that was not tried. It is
        called once, in a thread. None: the layout was tried.
      prepare: called before with the place, in a thread, while training goes on. It calls Estimator.prepare. None:
        nothing is prepared.
      total_steps: the global step at which training ends; None: none is known.
      seconds: at least between two changes.
      pause_seconds: that a change is believed to take; 0: as long as the first step.

    Example:
      >>> hook = RebalanceHook(load, propose, lambda found, why: elastic.move(found.place, why), total_steps=1000)
      >>> estimator.train(input_fn, hooks=[load, hook], max_steps=1000, elastic=elastic)
    """

    def __init__(
        self,
        load: DeviceLoad,
        propose: Callable[[Mapping[str, float], Mapping[str, float]], Proposal[_Place]],
        switch: Callable[[Proposal[_Place], str], object],
        *,
        fallback: Callable[[float], Proposal[_Place]] | None = None,
        prepare: Callable[[_Place], object] | None = None,
        total_steps: int | None = None,
        seconds: float = 0.0,
        pause_seconds: float = 0.0,
    ) -> None:
        self._first_pause_seconds = pause_seconds
        self._load, self._propose, self._switch, self._prepare = load, propose, switch, prepare
        self._total_steps, self._seconds, self._fallback = total_steps, seconds, fallback
        self._first_steps: list[float] = []  # their seconds
        load.listeners.append(self._add)
        self.restart()

    def restart(self) -> None:
        """Begin anew, for other devices."""
        self._balance = Balance(self._seconds, self._first_pause_seconds)
        self._pending: concurrent.futures.Future[Any] | None = None
        self._then: Callable[[Any], object] = self._decide  # with its result

    @property
    def pause_seconds(self) -> float:
        """Return the seconds that a change is believed to take; 0: nothing is known."""
        return self._balance.pause_seconds

    def end_switch(self, pause_seconds: float) -> None:
        """Note how long a change of the place has paused the training."""
        self._balance.end_switch(time.monotonic(), pause_seconds)

    def begin(self) -> None:
        self._began = time.monotonic()

    def after_run(
        self, run_context: tf.train.SessionRunContext | None, run_values: tf.train.SessionRunValues | None
    ) -> None:
        if not self._balance.pause_seconds:  # a switch creates a session as well
            self._balance.pause_seconds = time.monotonic() - self._began
        if self._pending is not None and self._pending.done():
            pending, self._pending = self._pending, None
            try:
                result = pending.result()
            except (ValueError, NotImplementedError) as error:
                tf.logging.info("the shares remain: %s", error)
            else:
                self._then(result)

    def _begin(self, work: Callable[[], _Result], then: Callable[[_Result], object]) -> None:
        """Do some work in a thread, and continue with its result after a later step."""
        self._pending, self._then = threads.begin(work, "rebalance"), then

    def _add(self, sample: Sample) -> None:
        if self._pending is not None or len(sample.busy_seconds) < 2:
            return
        if self._fallback is not None:
            self._first_steps.append(sample.step_seconds)
            if len(self._first_steps) == FIRST:
                self._step_seconds = statistics.median(self._first_steps)
                self._begin(functools.partial(self._fallback, self._step_seconds), self._decide)
                self._fallback = None
                return
        busy = self._balance.add(time.monotonic(), sample.busy_seconds)
        if busy is not None:
            self._step_seconds = sample.step_seconds
            self._begin(functools.partial(self._propose, self._balance.first, busy), self._decide)

    def _decide(self, proposal: Proposal[_Place]) -> None:
        steps = math.inf if self._total_steps is None else self._total_steps - self._load.step
        now = time.monotonic()
        if not self._balance.accepts(proposal, now, step_seconds=self._step_seconds, steps=steps):
            return
        why = proposal.why or _describe_slowness(proposal.slowness)
        why = f"{why}, and a step is predicted to take {1 - proposal.step:.0%} less"
        if self._prepare is None:
            self._switch(proposal, why)
        else:
            prepare = functools.partial(self._prepare, proposal.place)
            self._begin(prepare, lambda _: self._switch(proposal, why))


def _describe_slowness(slowness: Mapping[str, float]) -> str:
    changed = max(slowness, key=lambda device: abs(math.log(slowness[device])))
    return f"{shorten(changed)} is {slowness[changed]:.2f}x as slow as at the beginning"
