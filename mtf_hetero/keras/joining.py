"""Steps that by themselves become one call of the session, where they are short and nobody looks between two."""

import collections
import math
import statistics
import time
from collections.abc import Callable, Sequence

from mtf_hetero.importer.lowered import Lowered
from mtf_hetero.training.pace import WARM_UP_STEPS

_SHORT_SECONDS = 0.05  # of a step, above which its call is a small part
_CALL_SHARE = 0.5  # of a short step, which its call is assumed to take until several steps are tried
_LEAST_STEPS, _MOST_STEPS = 4, 16  # in a call: fewer save less than their preparation, more save little
_MOST_BYTES = 2**29  # that a step makes: a device may need the memory of two steps
_SAMPLES = 8  # calls, whose median is compared
_BUILDING = 2  # calls of several steps that are not measured: the second one builds them


class Joining:
    """Decides how many steps of a kind one call takes.

    The first steps are taken one by one. If they are short, and so many are to come that the preparation is worth it,
    calls of several steps and of one are taken in turns, and several steps remain one call if that is faster.

    Args:
      epochs: passes over the data that are to come.
      say: called with a line for the user, once several steps are faster.

    Attributes:
      most: the number of steps that a call takes at most, at present.

    Example:
      >>> joining = Joining(epochs=3, say=print)
      >>> count = joining.count(done=0, total=100, find_row=lambda: lowered)  # 1 at first
      >>> results = joining.measure(lambda: take(count))
    """

    def __init__(self, epochs: int, say: Callable[[str], object]) -> None:
        self._epochs, self._say = epochs, say
        self.most, self._steps, self._is_decided = 1, 0, False
        self._unmeasured = WARM_UP_STEPS
        # Seconds of a step in the last calls, of one step and of several
        self._single, self._joined = (collections.deque[float](maxlen=_SAMPLES) for _ in range(2))

    def count(self, done: int, total: int | None, find_row: Callable[[], Lowered | None]) -> int:
        """Return how many steps the next call takes.

        Args:
          done: steps of this pass over the data.
          total: steps of a pass; None: only its end shows it.
          find_row: returns the step, several of which one call would take; None: it may be no part of such a call.
        """
        if self.most == 1 and not self._is_decided and len(self._single) == _SAMPLES:
            self._begin_trial(total, find_row)
        if not self._is_decided and len(self._single) < len(self._joined):
            return 1
        return self.most if total is None else max(min(self.most, total - done), 1)

    def _begin_trial(self, total: int | None, find_row: Callable[[], Lowered | None]) -> None:
        """Take several steps in a call from now on, if steps are short and the preparation is worth it.

        Of n steps in a call, the preparation takes n times that of one, and the calls an n-th of theirs. The sum is
        least where both are equal.
        """
        seconds = statistics.median(self._single)
        if seconds >= _SHORT_SECONDS or (row := find_row()) is None or row.made_bytes > _MOST_BYTES:
            return
        # Without a known end, as many steps are expected as were taken
        to_come = self._steps if total is None else max(self._epochs * total - self._steps, 0)
        count = math.isqrt(int(_CALL_SHARE * seconds * to_come / row.preparation_seconds))
        count = min(count, row.most_steps, _MOST_STEPS)
        if count >= _LEAST_STEPS:
            self.most, self._unmeasured = count, _BUILDING
            self._single.clear()

    def measure(self, take: Callable[[], Sequence[object]]) -> Sequence[object]:
        """Return the results of the steps of a call, one of each."""
        begin = time.monotonic()
        results = take()
        seconds, count = time.monotonic() - begin, len(results)
        self._steps += count
        if self._is_decided or count not in (1, self.most):
            return results
        if self._unmeasured:
            self._unmeasured -= count == self.most
        else:
            (self._single if count == 1 else self._joined).append(seconds / count)
        if len(self._single) == len(self._joined) == _SAMPLES:
            self._decide(statistics.median(self._single) / statistics.median(self._joined))
        return results

    def _decide(self, gain: float) -> None:
        self._is_decided = True
        if gain > 1.0:
            self._say(f"Steps: {self.most} in one call, {gain:.2f}x faster than one by one")
        else:
            self.most = 1
