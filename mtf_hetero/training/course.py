"""The course of a training: where it goes on when workers are lost, return, join or leave, or devices change speed."""

import dataclasses
import functools
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Generic, Protocol, TypeVar

from mtf_hetero._compat import tf
from mtf_hetero.cluster.claim import find_free, give_back
from mtf_hetero.cluster.probe import ask_all, describe_workers, name_workers
from mtf_hetero.placement import Placement
from mtf_hetero.planner.resizing import Resizer
from mtf_hetero.training import changes
from mtf_hetero.training.balance import Proposal, go_back
from mtf_hetero.training.changes import Row, Split
from mtf_hetero.training.elastic import Elastic, Event
from mtf_hetero.training.load import DeviceLoad
from mtf_hetero.training.rebalancing import RebalanceHook

_ANSWER_SECONDS = 5.0
_Own = TypeVar("_Own", bound="Site")


class Site(Protocol):
    """A step of a training at a place."""

    @property
    def placed(self) -> Placement:
        """The place: devices and layout."""
        ...

    @property
    def split(self) -> Split:
        """The layout as the user sees it."""
        ...

    def resizer(self) -> Resizer:
        """Return what finds other sizes."""
        ...

    def at(self: _Own, placed: Placement) -> _Own:
        """Return the same step at another place."""
        ...


_Site = TypeVar("_Site", bound=Site)


@dataclasses.dataclass(frozen=True, eq=False)
class Stage(Generic[_Site]):
    """A part of a training, between two changes of its place.

    Args:
      site: of its steps.
      begin: called when the training arrives there, before it builds its step. It may return another stage, which
        begins in its place.
    """

    site: _Site
    begin: "Callable[[], Stage[_Site] | None]"


class Course(Generic[_Site]):
    """Finds the next site of a training, and tells about each change.

    A lost worker is looked for until it answers again. Where it is taken in, or another worker, is decided by a new
    search for a layout. The sizes follow the measured load of the devices.

    Args:
      first: the site with all workers.
      without: from {index: "host:port"} of lost workers to the site on the devices that remain.
      report: called with a line about a change, the step before the next one, and a row for a log.
      outlives: whether a lost worker is left behind; else its loss ends the training.
      min_workers: training waits on if fewer workers are left.
      members: returns "host:port" of the present workers; None: they are always the same.
      joined: from lost workers, and "host:port" of new ones, to the site with these; None: nobody can join.
      arrive: called with each new site.
      wrap: from a Stage to what `elastic` moves the training to; None: the Stage itself.

    Attributes:
      elastic: moves the training.
      first: the site with all workers.
      site: the present one.
    """

    def __init__(
        self,
        first: _Site,
        without: Callable[[Mapping[int, str]], _Site],
        report: Callable[[str, int, Row], object],
        *,
        outlives: bool = True,
        min_workers: int = 1,
        members: Callable[[], Sequence[str]] | None = None,
        joined: Callable[[Mapping[int, str], Collection[str]], _Site] | None = None,
        arrive: Callable[[_Site], object] = lambda site: None,
        wrap: Callable[[Stage[_Site]], object] | None = None,
    ) -> None:
        self.site = self.first = first
        self._leave, self._show, self._joined, self._arrived = without, report, joined, arrive
        self._members = members or (lambda: self.first.placed.cluster.workers)
        self._min_workers = min_workers
        self._wrap = wrap or (lambda stage: stage)
        self._lost: Mapping[int, str] = {}  # workers that take no part at present
        self._known = set(first.placed.cluster.workers)
        # workers that are not listed any more, but without which there is no layout
        self._needed: Mapping[int, str] = {}
        self._split = first.split
        self._gain: float | None = None  # predicted, of the last change of the shares
        self._resizer: Resizer | None = None
        self._load: DeviceLoad | None = None
        self._balancing: RebalanceHook[_Site] | None = None
        self.elastic: Elastic = Elastic(
            without=(lambda lost: self._wrap(self.without(lost))) if outlives else None,
            within=self._within if outlives and first.placed.cluster.workers else None,
            unused=lambda: len(self.site.placed.cluster.workers_not_in_use.keys() - self._lost.keys()),
            min_workers=min_workers,
            report=self._report,
        )

    def begin_without(self, lost: Mapping[int, str], site: _Site) -> None:
        """Note that the training begins without some workers, {index: "host:port"}, at a site."""
        self.site, self._lost, self._split = site, lost, site.split

    def balance(
        self,
        load: DeviceLoad,
        seconds: float | None,
        *,
        total_steps: int | None = None,
        prepare: Callable[[_Site], object] | None = None,
        pause_seconds: float = 0.0,
    ) -> RebalanceHook[_Site] | None:
        """Return the hook that gives devices other shares; None: they stay.

        Args:
          load: measures the devices.
          seconds: at least between two changes; None: the shares stay.
          total_steps: as of RebalanceHook, like the others.
          prepare: called with a site, in a thread, before the training moves there.
          pause_seconds: that a change is believed to take.
        """
        self._load = load
        if seconds is None or len(self.site.placed.devices) < 2:
            return None
        back, fallback = self.site.placed.fallback, None
        if back is not None and back.plan is not None:
            fallback = functools.partial(go_back, self.site.at(back), back.devices[0], back.plan.seconds)
        options = {"fallback": fallback, "prepare": prepare, "total_steps": total_steps}
        options |= {"seconds": seconds, "pause_seconds": pause_seconds}
        self._balancing = RebalanceHook(load, self._propose, self._switch, **options)
        return self._balancing

    def without(self, lost: Mapping[int, str]) -> Stage[_Site]:
        """Return the stage without some workers, {index: "host:port"}, and without those that were lost before."""
        return self._place({**self._lost, **lost})

    def stay(self) -> Stage[_Site]:
        """Return the stage that begins anew at the present site."""
        return self._at(self.site, self._lost)

    def _within(self) -> tuple[object, str] | None:
        """Return where to go if workers were removed, lost ones answer again, or new ones have come; and the reason."""
        found = self._find_within()
        return None if found is None else (self._wrap(found[0]), found[1])

    def _find_within(self) -> tuple[Stage[_Site], str] | None:
        lost, present = self._lost, self._members()
        if (found := self._without_removed(present)) is not None:
            return found
        back = find_free({index: address for index, address in lost.items() if address in present})
        if back:
            stage = self._place({i: lost[i] for i in lost.keys() - back.keys()})
            return stage, describe_workers(back, "answers again", "answer again")
        new = [address for address in present if address not in self._known]
        answers = ask_all(new, _ANSWER_SECONDS).values()
        new = [address for address, answer in zip(new, answers, strict=True) if not answer.failure]
        if not new:
            return None
        here = dataclasses.replace(self._place(lost), begin=lambda: self._take_in(new))
        return here, f"{', '.join(f'worker {address}' for address in new)} joined"

    def _without_removed(self, present: Collection[str]) -> tuple[Stage[_Site], str] | None:
        """Return a stage without workers that are not listed any more, and give these back. Lost ones do not count."""
        lost, workers = self._lost, self.first.placed.cluster.workers_in_use
        removed = {i: address for i, address in workers.items() if i not in lost and address not in present}
        removed = {i: removed[i] for i, answer in ask_all(removed, _ANSWER_SECONDS).items() if not answer.failure}
        if not removed or removed == self._needed:
            return None
        self._needed = removed
        try:
            left = len(workers) - len(lost) - len(removed)
            if left < self._min_workers:
                raise ValueError(f"{left} would be left, and min_workers is {self._min_workers}")
            stage = self._place({**lost, **removed})
        except (ValueError, NotImplementedError) as error:
            tf.logging.warning("training continues with %s: %s", name_workers(removed), error)
            return None

        def begin() -> Stage[_Site] | None:
            give_back(removed)
            return stage.begin()

        why = describe_workers(removed, "was removed", "were removed")
        return dataclasses.replace(stage, begin=begin), why

    def _take_in(self, new: Collection[str]) -> Stage[_Site] | None:
        """Return a stage on more devices, found while the training pauses; None: it stays where it is."""
        assert self._joined is not None  # who has members has it
        self._known |= set(new)
        try:
            self.first = self._joined(self._lost, new)
        except (ValueError, NotImplementedError) as error:
            tf.logging.warning("training continues without %s: %s", ", ".join(new), error)
            return None
        self._known -= set(self._lost.values())  # if they answer again, they are measured again
        stage = self._place({})
        stage.begin()
        return stage

    def _place(self, lost: Mapping[int, str]) -> Stage[_Site]:
        return self._at(self._leave(lost) if lost else self.first, lost)

    def _at(self, site: _Site, lost: Mapping[int, str], gain: float | None = None) -> Stage[_Site]:
        """Return the stage at a site; `gain` is predicted of a change of the shares."""

        def begin() -> None:
            if site.placed.devices != self.site.placed.devices:
                self._resizer = None
                if self._balancing is not None:
                    self._balancing.restart()
            self.site, self._lost, self._gain = site, lost, gain
            if self._load is not None:
                placed = site.placed
                self._load.devices, self._load.workers = placed.devices, dict(enumerate(placed.cluster.workers))
            self._arrived(site)

        return Stage(site, begin)

    def _propose(self, first: Mapping[str, float], busy_seconds: Mapping[str, float]) -> Proposal[_Site]:
        """Return the site with sizes for devices that have become slower or faster."""
        placed = self.site.placed
        if self._resizer is None:
            self._resizer = self.site.resizer()
        numbers = ([of[device] for device in placed.devices] for of in (first, busy_seconds))
        found = self._resizer.resize(placed.layout, *numbers)
        slowness = dict(zip(placed.devices, found.slowness, strict=True))
        resized = dataclasses.replace(placed, layout=found.layout, plan=None)
        return Proposal(self.site.at(resized), found.step, slowness)

    def _switch(self, proposal: Proposal[_Site], why: str) -> None:
        self.elastic.move(self._wrap(self._at(proposal.place, self._lost, 1.0 - proposal.step)), why)

    def _report(self, event: Event) -> None:
        """Tell of a change in one line, and in one row."""
        before, self._split = self._split, self.site.split
        if self._balancing is not None:
            self._balancing.end_switch(event.seconds)
        row = changes.row(event, before, self._split, self._gain)
        self._show(changes.describe(event, self._split, self._gain), event.step, row)
