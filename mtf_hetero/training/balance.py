"""The decision to give devices other shares while a training runs.

A device is slower if it is busy for longer with the same work. `Balance` follows how busy the devices are, finds a
change that is no noise, and decides whether other sizes are worth a switch. Nothing here measures, plans or moves.
"""

import collections
import dataclasses
import math
import statistics
from collections.abc import Mapping
from typing import Generic, TypeVar

from mtf_hetero._support.units import seconds_text
from mtf_hetero.cluster.devices import shorten

_Place = TypeVar("_Place")
FIRST = 8  # samples that say what is usual
_WINDOWS = (5, 20)  # last samples, whose median is looked at: few for a large change, many for a small one
_SURE = 5.0  # standard errors of a median, which noise does not reach in a training of days
_SURE_GAIN = 1.5  # standard errors of a median, which a correction must gain
_MEDIAN_ERROR = 1.253  # of a median of normal numbers, over that of their mean
_DIFFERENCE = 0.6745 * math.sqrt(2)  # the median of the difference of two normal numbers
_LEAST_NOISE = 0.02
_LEAST_CHANGE = math.log(1.15)
_LEAST_GAIN = 0.05  # of a step
_WORTH = 2.0  # times the pause that a switch saves at least
_PAUSES = 5.0  # as long as a pause, between two switches


@dataclasses.dataclass(frozen=True)
class Proposal(Generic[_Place]):
    """Other sizes.

    Args:
      place: that has them.
      step: the predicted seconds of a step there over those here.
      slowness: {device: for how much longer it is busy with the same work than at the beginning}.
      why: the reason; "": the slowness.
    """

    place: _Place
    step: float
    slowness: Mapping[str, float]
    why: str = ""


def go_back(place: _Place, device: str, seconds: float, step_seconds: float) -> Proposal[_Place]:
    """Return the proposal to continue on one device, whose step is predicted, after some steps of a split."""
    why = f"a step takes {seconds_text(step_seconds)}, on {shorten(device)} alone {seconds_text(seconds)}"
    return Proposal(place, seconds / step_seconds, {}, why)


class Balance:
    """Decides when devices get other shares.

    The first samples at a place say for how long each device is usually busy. A device has changed if the median of its
    last samples differs by more than 15 %, and by more than five standard errors of the two. The noise is that between
    one sample and the next, so that a change is no part of it. Each change is looked at once. After a switch, the first
    samples at the new place are looked at as well, which corrects the prediction. A correction must gain more than the
    noise of these samples.

    Args:
      seconds: at least between two switches; in any case five times as long as a switch pauses the training.
      pause_seconds: that a switch is believed to take, until one has happened.

    Attributes:
      first: {device: seconds for which it was busy in a step at the beginning}; empty until they are known.

    Example:
      >>> balance = Balance(pause_seconds=5.0)
      >>> if busy := balance.add(now, {"worker:0/cpu:0": 0.8, "worker:1/cpu:0": 2.4}):
      ...     proposal = propose(balance.first, busy)
      ...     if balance.accepts(proposal, now, step_seconds=2.4, steps=1000):
      ...         elastic.move(proposal.place, "worker 1 is slower")
    """

    def __init__(self, seconds: float = 0.0, pause_seconds: float = 0.0) -> None:
        self._seconds, self.pause_seconds = seconds, pause_seconds
        self._rows: collections.deque[dict[str, float]] = collections.deque(maxlen=max(_WINDOWS) + 1)
        self._differences: dict[str, collections.deque[float]] = {}
        self.first: Mapping[str, float] = {}
        self._usual: dict[str, float] = {}  # logarithms; empty: not known at this place
        self._usual_count = 0  # the samples of which they are the medians
        self._corrects = False  # whether the next first samples correct a switch
        self._least_gain = _LEAST_GAIN
        self._not_before = -math.inf

    def add(self, now: float, busy: Mapping[str, float]) -> Mapping[str, float] | None:
        """Take a sample.

        Args:
          now: seconds of any clock.
          busy: {device: seconds for which it was busy in a step}.

        Returns:
          {device: seconds for which it is busy now} if other sizes may be better; None: nothing has changed.
        """
        row = {device: math.log(max(seconds, 1e-9)) for device, seconds in busy.items()}
        if self._rows:
            for device, value in row.items():
                differences = self._differences.setdefault(device, collections.deque(maxlen=3 * max(_WINDOWS)))
                differences.append(abs(value - self._rows[-1][device]))
        self._rows.append(row)
        if now < self._not_before:
            return None
        if not self._usual:
            return self._begin() if len(self._rows) >= FIRST else None
        for count in _WINDOWS:
            if len(self._rows) > count and (found := self._changed(count)):
                self._least_gain = _LEAST_GAIN
                return found
        return None

    def accepts(self, proposal: Proposal[_Place], now: float, *, step_seconds: float, steps: float) -> bool:
        """Return whether the proposed sizes are worth a switch, which then is believed to happen.

        Args:
          proposal: made for the result of `add`.
          now: as of `add`.
          step_seconds: of a step here.
          steps: that remain.
        """
        gain = 1.0 - proposal.step
        if gain < self._least_gain or gain * step_seconds * steps < _WORTH * self.pause_seconds:
            return False
        self._corrects = True
        self._leave(now)
        return True

    def end_switch(self, now: float, pause_seconds: float) -> None:
        """Note how long a switch has paused the training."""
        self.pause_seconds = pause_seconds
        self._leave(now)

    def _leave(self, now: float) -> None:
        """Forget the samples of the last place."""
        self._usual = {}
        self._rows.clear()
        self._not_before = now + max(self._seconds, _PAUSES * self.pause_seconds)

    def _begin(self) -> Mapping[str, float] | None:
        """Note what is usual at this place; return it if it corrects a switch."""
        found = self._set_usual(FIRST)
        self.first = self.first or found
        error = _MEDIAN_ERROR * max(map(self._noise, found)) / math.sqrt(FIRST)
        self._least_gain = max(_LEAST_GAIN, _SURE_GAIN * error)
        corrects, self._corrects = self._corrects, False
        return found if corrects else None

    def _changed(self, count: int) -> Mapping[str, float]:
        """Return {device: its seconds} if the last samples differ from what is usual; else it is empty.

        The samples before the last one show the change. So it has begun before the newer half, whose mean is returned.
        The result is also empty if the last sample differs from the newer half as much: the change has just begun.
        """
        medians, newer = self._medians(count + 1, -1), self._medians(count // 2 + 1)
        error = _MEDIAN_ERROR * math.sqrt(1 / count + 1 / self._usual_count)
        limits = {device: max(_SURE * error * self._noise(device), _LEAST_CHANGE) for device in medians}
        has_changed = any(abs(medians[d] - self._usual[d]) > limits[d] for d in medians)
        is_steady = all(abs(self._rows[-1][d] - newer[d]) <= limits[d] for d in medians)
        return self._set_usual(count // 2 + 1) if has_changed and is_steady else {}

    def _set_usual(self, count: int) -> Mapping[str, float]:
        """Take the last samples for what is usual, forget those before, and return {device: mean seconds}.

        Workers answer at different moments of a step. Only the mean does not depend on these.
        """
        self._usual, self._usual_count = self._medians(count), count
        while len(self._rows) > count:  # a longer window would see the change again
            self._rows.popleft()
        return {device: statistics.fmean(math.exp(row[device]) for row in self._rows) for device in self._usual}

    def _medians(self, count: int, end: int | None = None) -> dict[str, float]:
        rows = list(self._rows)[-count:end]
        return {device: statistics.median(row[device] for row in rows) for device in rows[-1]}

    def _noise(self, device: str) -> float:
        """Return the standard deviation of one sample of a device, as a logarithm."""
        return max(statistics.median(self._differences[device]) / _DIFFERENCE, _LEAST_NOISE)
