"""Plan layouts with slots: each device computes one part of its batch after another.

Consecutive devices share a run of layers, and divide its batch in proportion to their speeds. With several runs, this
is a pipeline. With one, it accumulates gradients, which saves memory and no time. The runs are in proportion to the
speeds, too. Then each of their ends is moved as long as the predicted step becomes shorter, because only the step as a
whole shows messages and waiting. Where memory is short, the runs are in proportion to it.

The last layers may wait for all parts and compute them at once. Dense layers of many weights do: a small part of the
batch takes as long as the weights take to be read.
"""

import dataclasses
import functools
import itertools
import math
import operator
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple, TypeAlias

from mtf_hetero._support import deadline
from mtf_hetero.cost.model import AXIS, Model
from mtf_hetero.cost.timeline import Timeline
from mtf_hetero.graph.runs import count_crossing, divide_into_runs, group_by_name, order_by_layers
from mtf_hetero.layout import Layout
from mtf_hetero.layout.partition import split_among_positive, split_by_share

MOST_DEVICES = 4  # each more doubles the ways to group them
_FIRST, _FEWER, _MORE = 8, 4, (16, 32)  # slots of each device; 32 alone took as long to predict as all others
_SAVED = 3  # times as much as few parts save: what more save at most, in nearly all that was tried
_NEAR = 1.15  # times as long as the best plan
_LEAST_PART = 0.9  # of the work, which belongs to a name of the batch
_MOVES = 4  # of ends of runs, at most
_LIGHT = 1e-3  # of the work, which no name is joined for
_NO_LIMIT = 1e15  # bytes, of a device whose memory is not known: infinity has no proportion to that of others

_Groups: TypeAlias = Sequence[Sequence[int]]  # of devices, one for each run


@dataclasses.dataclass(frozen=True)
class _Way:
    """A way to divide the step.

    Args:
      groups: the devices of each run.
      ends: the number of the name after the last one of each run but the last.
      slots: of each device; 1: the runs are placed, and nothing is computed in parts.
      joint: the number of last names of which each device has its part in one slot.
    """

    groups: _Groups
    ends: tuple[int, ...]
    slots: int = _FIRST
    joint: int = 0


class _Found(NamedTuple):
    """A way, with the layout that it gives, and the step that is predicted."""

    way: _Way
    layout: Layout
    timeline: Timeline


class Slotted:
    """The layouts of a step with slots, on devices in their order.

    Args:
      model: the step on the devices, of which each is priced by itself.
      is_short: whether they are short of memory, so that one run counts as well.
    """

    def __init__(self, model: Model, *, is_short: bool) -> None:
        self._model, self._is_short = model, is_short
        self._names = _find_names(model)
        self._speeds = [1.0 / seconds for seconds in model.unsplit_seconds()]
        self._limits = [each.memory_bytes or _NO_LIMIT for each in model.machines.devices]
        groups = group_by_name(model.operations, self._names).values()
        self._work = [min(model.unsplit_seconds(each)) for each in groups]
        self._crossing = count_crossing(model.operations, self._names)

    def list_fast(
        self, least_seconds: Callable[[], float], shown_seconds: Callable[[], float] = lambda: 0.0
    ) -> Iterator[tuple[Layout, Timeline]]:
        """Generate layouts for each way to group the devices; few if they take much longer than the best plan.

        Args:
          least_seconds: returns those of the best plan so far.
          shown_seconds: returns those up to which a slower layout is shown beside it.
        """
        for groups in self._list_groups():
            yield from self._list_runs(groups, least_seconds, shown_seconds)

    def _list_groups(self) -> Iterator[_Groups]:
        """Generate the ways to group the devices: with one group, two, and more, in this order and the reverse one."""
        devices = range(len(self._speeds))
        for count in range(1 if self._is_short else 2, min(len(devices), len(self._names)) + 1):
            for begins in itertools.combinations(devices[1:], count - 1):
                groups = [devices[one:other] for one, other in itertools.pairwise([0, *begins, len(devices)])]
                yield from (groups, groups[::-1]) if count > 1 else (groups,)

    def _list_runs(
        self, groups: _Groups, least_seconds: Callable[[], float], shown_seconds: Callable[[], float]
    ) -> Iterator[tuple[Layout, Timeline]]:
        if (ends := self._divide(self._work, groups, self._speeds)) is None:
            return  # devices are too slow for the shortest run
        found: list[_Found] = []
        for each in self._list_ways(groups, ends, lambda: _NEAR * least_seconds(), shown_seconds):
            if each.way not in (other.way for other in found):  # few parts come first, and as another number of slots
                yield each[1:]
                found.append(each)
        if not found or min(map(_seconds, found)) > _NEAR * least_seconds():
            return
        best = min(found, key=self._key)
        is_tight = len(groups) > 1 and not self._fits(best)
        by_memory = self._divide(self._bytes, groups, self._limits) if is_tight else None
        if by_memory is not None and by_memory != ends:
            other = self._predict(dataclasses.replace(best.way, ends=by_memory))
            yield other[1:]
            best = min(best, other, key=self._key)
        for _ in range(_MOVES * self._fits(best)):
            near = [way for way in self._near(best) if max(self._split_seconds(way)) <= _NEAR * least_seconds()]
            moved = min(map(self._predict, near), key=self._key, default=best)
            if self._key(moved) >= self._key(best):
                return
            best = moved
            yield best[1:]

    def _list_ways(
        self,
        groups: _Groups,
        ends: tuple[int, ...],
        most_seconds: Callable[[], float],
        shown_seconds: Callable[[], float],
    ) -> Iterator[_Found]:
        """Generate the ways with these ends of runs that may be fast enough: without parts, then with them.

        One whose device computes for longer need not be predicted. What is not split takes each device as long in parts
        as without. Nor are more parts predicted if few hardly save time, as where all wait for each normalization of
        the batch, or for a slow link.
        """
        whole, found = _Way(groups, ends, slots=1), list[_Found]()
        unsplit: Sequence[float] = [0.0 for _ in self._speeds]

        def may_win(way: _Way) -> bool:
            return max(map(operator.add, self._split_seconds(way), unsplit)) <= max(most_seconds(), shown_seconds())

        if len(groups) > 1 and may_win(whole):  # where steps are short, each part more costs its operations' launches
            found.append(self._predict(whole))
            yield found[0]
            found.append(self._predict(dataclasses.replace(whole, slots=_FEWER)))
            yield found[1]
            if self._least_seconds(*found) > max(most_seconds(), shown_seconds()):
                return
            busy = map(found[0].timeline.busy_seconds, range(len(self._speeds)))
            unsplit = list(map(operator.sub, busy, self._split_seconds(whole)))
        in_parts = self._with_joint(filter(may_win, self._list_joint(_Way(groups, ends))))
        yield from in_parts
        if in_parts and min(map(_seconds, (*found, *in_parts))) <= most_seconds():
            yield from self._with_other_slots(in_parts[-1], may_win, saves_time=len(groups) > 1)

    def _least_seconds(self, whole: _Found, few: _Found) -> float:
        """Return the seconds that a way takes in many parts at least, from those without parts and with few.

        If one run or link has work from the first part to the last, four parts save three quarters of what many save.
        A third was enough in all that was tried but one setting, where devices share a run. What few parts compute for
        longer than one, such as a layer that reads its weights again for each, is left out: joint names do not.
        """
        longer = math.fsum(self._split_seconds(few.way)) - math.fsum(self._split_seconds(whole.way))
        return _seconds(whole) - _SAVED * (_seconds(whole) + longer - _seconds(few))

    def _split_seconds(self, way: _Way) -> Sequence[float]:
        """Return the seconds that each device computes its parts of what is split."""
        layout = self._lay_out(way)
        of_names = [self._model.split_seconds(name, layout) for name in self._names]
        return list(map(math.fsum, zip(*of_names, strict=True)))

    def _divide(self, work: Sequence[float], groups: _Groups, weights: Sequence[float]) -> tuple[int, ...] | None:
        """Return ends of runs in proportion to the weights of each one's devices; None if a run would have no name."""
        ends = divide_into_runs(work, self._crossing, [math.fsum(weights[i] for i in group) for group in groups])
        return tuple(ends) if self._are_runs(ends) else None

    @functools.cached_property
    def _bytes(self) -> Sequence[int]:
        """The bytes that each name needs on a device of its own."""
        return self._model.bytes_apart(self._names)

    def _with_other_slots(self, best: _Found, may_win: Callable[[_Way], bool], *, saves_time: bool) -> Iterator[_Found]:
        """Generate the way with other numbers of slots: fewer, and more until they fit."""
        fits = self._fits(best)
        are_joined = min(self._model.slots_in_progress(best.layout)) >= best.way.slots  # no slot frees its memory
        if are_joined and not (fits and saves_time):
            return
        counts = (*[_FEWER] * fits, *_MORE * (saves_time or not fits))
        ways = [dataclasses.replace(best.way, slots=slots) for slots in counts if slots != best.way.slots]
        for way in filter(may_win, ways):
            found = self._predict(way)
            yield found
            if self._fits(found) and (way.slots > _FIRST or _seconds(found) < _seconds(best)):
                return  # if fewer are faster, more are slower

    def _list_joint(self, way: _Way) -> Iterator[_Way]:
        """Generate the way with no joint name, and with more and more: each prediction takes a second.

        With more than half of the names joint, the runs are nearly those without parts.
        """
        yield way
        total, joint = math.fsum(self._work), 1
        while 2 * joint <= len(self._names):
            if math.fsum(self._work[-joint:]) < _LIGHT * total:
                joint += 1
            else:
                yield dataclasses.replace(way, joint=joint)
                joint *= 2

    def _with_joint(self, ways: Iterator[_Way]) -> Sequence[_Found]:
        """Return the first ways, each faster than the one before; joint names must not need too much memory."""
        found: list[_Found] = []
        for way in ways:
            new = self._predict(way)
            if found and (_seconds(new) >= _seconds(found[-1]) or (self._fits(found[-1]) and not self._fits(new))):
                break
            found.append(new)
        return found

    def _key(self, found: _Found) -> tuple[float, float]:
        """Return by how much memory is short, then the seconds."""
        return max(1.0, self._model.memory_use(found.layout)), _seconds(found)

    def _fits(self, found: _Found) -> bool:
        return self._model.memory_use(found.layout) <= 1

    def _near(self, found: _Found) -> Iterator[_Way]:
        """Generate ways with one end of a run moved by one name."""
        way = found.way
        for number, by in itertools.product(range(len(way.ends)), (-1, 1)):
            moved = tuple(end + by * (i == number) for i, end in enumerate(way.ends))
            if self._are_runs(moved):
                yield dataclasses.replace(way, ends=moved)

    def _are_runs(self, ends: Sequence[int]) -> bool:
        """Return whether each run has a name."""
        return all(one < other for one, other in itertools.pairwise([0, *ends, len(self._names)]))

    def _predict(self, way: _Way) -> _Found:
        deadline.check()
        layout = self._lay_out(way)
        return _Found(way, layout, self._model.timeline(layout))

    def _lay_out(self, way: _Way) -> Layout:
        devices, sizes = range(len(self._speeds)), {}
        for number, name in enumerate(self._names):
            group = way.groups[sum(end <= number for end in way.ends)]
            shares = [self._speeds[device] for device in group]
            extent = max(self._model.families.extents[name])
            own = dict(zip(group, split_by_share(extent, shares, minimum=0), strict=True))
            count = 1 if number >= len(self._names) - way.joint else way.slots
            sizes[name] = [part for device in devices for part in _divide(own.get(device, 0), way.slots, count)]
        rules = [(name, AXIS) for name in self._names]
        slots = {AXIS: [way.slots] * len(devices)} if way.slots > 1 else {}
        return Layout([(AXIS, way.slots * len(devices))], rules, (), sizes, slots)


def _seconds(found: _Found) -> float:
    return found.timeline.seconds


def _divide(extent: int, slots: int, count: int) -> Sequence[int]:
    """Return the extents of slots, of which so many have a part: the last ones, which have what all wait for."""
    count = min(count, extent)
    return (*[0] * (slots - count), *(split_among_positive(extent, [1] * count) if count else ()))


def _find_names(model: Model) -> Sequence[str]:
    """Return the names of a dimension of nearly all operations, which reshapes give one after another; or none."""
    families = model.families

    def is_whole(family: Sequence[str]) -> bool:
        extents = {max(families.extents[name]) for name in family}
        return len(extents) == 1 and len(families.together(family, lambda name: name)) == len(family)

    total = model.flops(model.operations)
    for family in families.families:
        if is_whole(family) and model.flops(families.list_operations(family)) >= _LEAST_PART * total:
            return order_by_layers(model.operations, family)
    return ()
