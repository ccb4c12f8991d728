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

    def list_fast(self, least_seconds: Callable[[], float]) -> Iterator[tuple[Layout, Timeline]]:
        """Generate layouts for each way to group the devices; one if it takes much longer than the best plan.

        Args:
          least_seconds: returns those of the best plan so far.
        """
        for groups in self._list_groups():
            yield from self._list_runs(groups, least_seconds)

    def _list_groups(self) -> Iterator[_Groups]:
        """Generate the ways to group the devices: with one group, two, and more, in this order and the reverse one."""
        devices = range(len(self._speeds))
        for count in range(1 if self._is_short else 2, min(len(devices), len(self._names)) + 1):
            for begins in itertools.combinations(devices[1:], count - 1):
                groups = [devices[one:other] for one, other in itertools.pairwise([0, *begins, len(devices)])]
                yield from (groups, groups[::-1]) if count > 1 else (groups,)

    def _list_runs(self, groups: _Groups, least_seconds: Callable[[], float]) -> Iterator[tuple[Layout, Timeline]]:
        if (ends := self._divide(self._work, groups, self._speeds)) is None:
            return  # devices are too slow for the shortest run
        best = self._predict(_Way(groups, ends))
        yield best[1:]
        joint = self._with_joint(best)
        if joint is not best:
            best = joint
            yield best[1:]
        saves_time, plain = len(groups) > 1, best
        if saves_time:  # where steps are short, each part more costs its operations' launches
            plain = self._predict(dataclasses.replace(best.way, slots=1, joint=0))
            yield plain[1:]
        if min(_seconds(best), _seconds(plain)) > _NEAR * least_seconds():
            return
        for found in self._with_other_slots(best, saves_time=saves_time):
            yield found[1:]
            best = min(best, found, key=self._key)
        best = min(best, plain, key=self._key)
        is_tight = saves_time and not self._fits(best)
        ends = self._divide(self._bytes, groups, self._limits) if is_tight else None
        if ends is not None and ends != best.way.ends:
            found = self._predict(dataclasses.replace(best.way, ends=ends))
            yield found[1:]
            best = min(best, found, key=self._key)
        for _ in range(_MOVES * self._fits(best)):
            found = min(map(self._predict, self._near(best)), key=self._key, default=best)
            if self._key(found) >= self._key(best):
                return
            best = found
            yield best[1:]

    def _divide(self, work: Sequence[float], groups: _Groups, weights: Sequence[float]) -> tuple[int, ...] | None:
        """Return ends of runs in proportion to the weights of each one's devices; None if a run would have no name."""
        ends = divide_into_runs(work, self._crossing, [math.fsum(weights[i] for i in group) for group in groups])
        return tuple(ends) if self._are_runs(ends) else None

    @functools.cached_property
    def _bytes(self) -> Sequence[int]:
        """The bytes that each name needs on a device of its own."""
        return self._model.bytes_apart(self._names)

    def _with_other_slots(self, best: _Found, *, saves_time: bool) -> Iterator[_Found]:
        """Generate the way with other numbers of slots: fewer, and more until they fit."""
        fits = self._fits(best)
        are_joined = min(self._model.slots_in_progress(best.layout)) >= _FIRST  # no slot frees its memory
        if are_joined and not (fits and saves_time):
            return
        for slots in (*[_FEWER] * fits, *_MORE * (saves_time or not fits)):
            found = self._predict(dataclasses.replace(best.way, slots=slots))
            yield found
            if slots > _FIRST and self._fits(found):
                return

    def _with_joint(self, best: _Found) -> _Found:
        """Return the way with joint names if that makes the step shorter; they must not need too much memory."""
        fits, total, joint = self._fits(best), math.fsum(self._work), 1
        while joint < len(self._names):
            if math.fsum(self._work[-joint:]) < _LIGHT * total:
                joint += 1
                continue
            found = self._predict(dataclasses.replace(best.way, joint=joint))
            if _seconds(found) >= _seconds(best) or (fits and not self._fits(found)):
                break
            best, joint = found, 2 * joint  # a deep network has tens of names, and each prediction takes a second
        return best

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
