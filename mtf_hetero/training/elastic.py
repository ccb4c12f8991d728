"""A training that continues elsewhere in mid-run: with another layout, on other devices, or without a lost worker.

An Estimator trains at one place after another. A layout changes no result, and the data follow the global step, so the
losses are those of a training that stayed where it was.
"""

import concurrent.futures
import contextlib
import dataclasses
import math
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any, Generic, TypeVar

from mtf_hetero._compat import eagerly, tf
from mtf_hetero._support import threads
from mtf_hetero._support.numbers import check_number
from mtf_hetero.checkpoint import State
from mtf_hetero.cluster.probe import describe_workers, name_workers
from mtf_hetero.layout import CannotSplitError

MEMORY, CHECKPOINT = "memory", "checkpoint"  # from which a training continues
_LOOK_SECONDS, _END_SECONDS = 5.0, 3.0
_Place = TypeVar("_Place")


@dataclasses.dataclass(eq=False)
class Move(Generic[_Place]):
    """A change of the place.

    Args:
      place: the new one.
      why: the reason, for the user.
      state: to continue from, until a session has it; None: the newest checkpoint or copy.
      source: MEMORY or CHECKPOINT; "": by the state.
      is_found: whether Elastic's `within` found it.
    """

    place: _Place
    why: str
    state: State | None = None
    source: str = ""
    is_found: bool = False

    def __post_init__(self) -> None:
        self.source = self.source or (CHECKPOINT if self.state is None else MEMORY)


@dataclasses.dataclass(frozen=True)
class Event:
    """A change of the place that has happened.

    Args:
      step: the number of steps before the first one at the new place.
      why: the reason.
      source: MEMORY or CHECKPOINT.
      repeated_steps: number of steps that are trained again.
      seconds: from the end of the last step before the change to the end of the first one after it.
    """

    step: int
    why: str
    source: str
    repeated_steps: int
    seconds: float

    def __str__(self) -> str:
        again = f", {self.repeated_steps} steps again" if self.repeated_steps else ""
        return f"{self.why}: training continues from step {self.step} ({self.source}{again}) after {self.seconds:.1f} s"


class Elastic(Generic[_Place]):
    """Has a training continue elsewhere in mid-run.

    Args:
      without: called with {index: "host:port"} of workers that did not answer for RunConfig.wait_for_workers seconds;
        returns the Place without them, or None: training waits on. None: the loss of a worker ends the training.
      within: called every few seconds, in a thread; returns a place with other workers, of those that were lost and
        answer again for instance, and the reason; None: there are none.
      min_workers: training waits on if fewer workers are left.
      unused: returns the number of workers that take no part at present, because training is faster without them.
      report: called with each Event; None: logs a warning.

    Attributes:
      copy: a state of the training in memory, None if there is none; a checkpoint may be newer.
      first: the global step at which the training began.
      saver: the hook that saves, if it is none of the user's.

    Raises:
      ValueError: min_workers is no positive whole number.

    Example:
      >>> elastic = Elastic()
      >>> threading.Timer(60, elastic.move, [Place(smaller, input_fn), "a device is needed"]).start()
      >>> estimator.train(input_fn, max_steps=1000, elastic=elastic)
    """

    def __init__(
        self,
        *,
        without: Callable[[Mapping[int, str]], _Place | None] | None = None,
        within: Callable[[], tuple[_Place, str] | None] | None = None,
        min_workers: int = 1,
        unused: Callable[[], int] = lambda: 0,
        report: Callable[[Event], object] | None = None,
    ) -> None:
        check_number(min_workers, "Elastic: min_workers", none=False)
        self._without, self._within, self._min_workers, self._unused = without, within, min_workers, unused
        self._report = report or (lambda event: tf.logging.warning("%s", event))
        self._wanted: Move[_Place] | None = None
        self._happening: Move[_Place] | None = None
        self.copy: State | None = None
        self.first = 0
        self.saver: Any = None
        self._changes = 0
        self._refused: set[frozenset[int]] = set()
        self._waits = False  # for lost workers, because training cannot continue without them
        self._last: tuple[int, float] | None = None  # number of finished steps, and when the last one ended

    def move(self, place: _Place, why: str) -> None:
        """Have the training continue at a place once the present step has ended. Any thread, or hook, may call it."""
        self._wanted = Move(place, why)

    @property
    def is_wanted(self) -> bool:
        """Return whether `move` was called since the last change of the place."""
        return self._wanted is not None

    def begin_move(self, state: State | None, source: str = "") -> Move[_Place]:
        """Return the change that `move` asked for."""
        wanted, self._wanted = self._wanted, None
        assert wanted is not None
        source = source if self._happening is None else self._happening.source
        return self._begin(Move(wanted.place, wanted.why, state, source))

    def pause(self) -> None:
        """Note that the training pauses from now on, for a change of the place."""
        if self._last is not None:
            self._last = self._last[0], time.monotonic()

    @contextlib.contextmanager
    def looking(self) -> Iterator[None]:
        """Look for workers to take in, until the end of the context."""
        done = threading.Event()
        looked = None if self._within is None else threads.begin(lambda: self._look(done), "workers_to_take_in")
        try:
            yield
        finally:
            done.set()
            if looked is not None:
                concurrent.futures.wait([looked], _END_SECONDS)

    def _look(self, done: threading.Event) -> None:
        assert self._within is not None
        while not done.wait(_LOOK_SECONDS):
            if self._happening is not None and not self._waits:  # workers of the next place are not yet known
                continue
            changes = self._changes
            try:
                found = self._within()
            except (ValueError, NotImplementedError) as error:
                tf.logging.warning("training continues without more workers: %s", error)
                continue
            # what was found is of no use if the place has changed meanwhile
            if found is not None and not self.is_wanted and changes == self._changes and not done.is_set():
                self._wanted = Move(*found, is_found=True)

    def may_leave(self, lost: Collection[int], workers: Collection[int]) -> bool:
        """Return whether a training need not wait on for lost workers. Others that have come may replace them.

        Args:
          lost: indices of the lost ones.
          workers: indices of all that take part.
        """
        if self._without is None:  # the training ends
            return True
        left = len(workers) - len(lost) + self._unused()
        self._waits = left < self._min_workers or frozenset(lost) in self._refused
        return not self._waits or self._has_found

    @property
    def _has_found(self) -> bool:
        return self._wanted is not None and self._wanted.is_found

    def leave(self, lost: Mapping[int, str], here: _Place, source: str = CHECKPOINT) -> Move[_Place] | None:
        """Find the place without lost workers; None: nobody can tell.

        Args:
          lost: {index: "host:port"} of the lost workers.
          here: the present place.
          source: from which the training continues.
        """
        if self._without is None or not lost:
            return None
        if self._waits and self._has_found:
            return self.begin_move(None, source)
        try:
            with eagerly():  # as the first place was found: a Keras model has no values within the graph of a training
                place, reason = self._without(lost), "no layout fits the devices that are left"
        except (ValueError, CannotSplitError) as error:
            place, reason = None, str(error)
        if place is None:
            self._refused.add(frozenset(lost))
            tf.logging.warning("training waits on for %s: %s", name_workers(lost), reason)
            return Move(here, "")
        self._wanted = None  # it may need what is lost
        return self._begin(Move(place, describe_workers(lost, "was lost", "were lost"), source=source))

    def _begin(self, move: Move[_Place]) -> Move[_Place]:
        """Note a change of the place. An earlier one becomes part of it if no step has ended since."""
        if self._happening is not None:
            move.why = f"{self._happening.why}, and {move.why}"
        self._changes += 1
        self._happening, self._waits = move, False
        self._refused.clear()
        return move

    def end_step(self, step: int) -> None:
        """Note that a step has ended, the first one at a new place for instance.

        Args:
          step: the global step before it.
        """
        now, (last, ended) = time.monotonic(), self._last or (step, math.inf)
        if self._happening is not None:
            move = self._happening
            event = Event(step, move.why, move.source, max(last - step, 0), max(now - ended, 0.0))
            self._happening = None
            self._report(event)
        self._waits = False
        self._last = step + 1, now
