"""Plan layouts with slots: each device computes one part of its batch after another.

Consecutive devices share a run of layers, and divide its batch in proportion to their speeds. With several runs, this
is a pipeline. With one, it accumulates gradients, which saves memory and no time. The runs are in proportion to the
speeds, too. Then each of their ends is moved as long as the predicted step becomes shorter, because only the step as a
whole shows messages and waiting.
"""

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import TypeAlias

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

_Groups: TypeAlias = Sequence[Sequence[int]]  # of devices, one for each run


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
        speeds = [math.fsum(self._speeds[device] for device in group) for group in groups]
        ends = divide_into_runs(self._work, self._crossing, speeds)
        if not self._are_runs(ends):
            return  # devices are too slow for the shortest run
        best, slots = self._predict(groups, ends, _FIRST), _FIRST
        yield best
        fits, saves_time = self._fits(best[0]), len(groups) > 1
        are_joined = min(self._model.slots_in_progress(best[0])) >= _FIRST  # as by a batch norm: none frees its memory
        if best[1].seconds > _NEAR * least_seconds() or (are_joined and not (fits and saves_time)):
            return
        for other in (*[_FEWER] * fits, *_MORE * (saves_time or not fits)):
            found = self._predict(groups, ends, other)
            yield found
            if found[1].seconds < best[1].seconds:
                best, slots = found, other
            if other > _FIRST and self._fits(found[0]):
                fits = True
                break
        for _ in range(_MOVES * fits):
            tried = [(self._predict(groups, moved, slots), moved) for moved in self._moved(ends)]
            found, moved = min(tried, key=lambda pair: pair[0][1].seconds, default=(best, ends))
            if found[1].seconds >= best[1].seconds:
                return
            best, ends = found, moved
            yield best

    def _fits(self, layout: Layout) -> bool:
        return self._model.memory_use(layout) <= 1

    def _moved(self, ends: Sequence[int]) -> Iterator[list[int]]:
        """Generate the ends of runs with one of them moved by one name."""
        for number, by in itertools.product(range(len(ends)), (-1, 1)):
            moved = [end + by * (i == number) for i, end in enumerate(ends)]
            if self._are_runs(moved):
                yield moved

    def _are_runs(self, ends: Sequence[int]) -> bool:
        """Return whether each run has a name."""
        return all(one < other for one, other in itertools.pairwise([0, *ends, len(self._names)]))

    def _predict(self, groups: _Groups, ends: Sequence[int], slots: int) -> tuple[Layout, Timeline]:
        deadline.check()
        layout = self._lay_out(groups, ends, slots)
        return layout, self._model.timeline(layout)

    def _lay_out(self, groups: _Groups, ends: Sequence[int], slots: int) -> Layout:
        devices, sizes = range(len(self._speeds)), {}
        for number, name in enumerate(self._names):
            group = groups[sum(end <= number for end in ends)]
            shares = [self._speeds[device] for device in group]
            extent = max(self._model.families.extents[name])
            own = dict(zip(group, split_by_share(extent, shares, minimum=0), strict=True))
            sizes[name] = [part for device in devices for part in _divide(own.get(device, 0), slots)]
        rules = [(name, AXIS) for name in self._names]
        return Layout([(AXIS, slots * len(devices))], rules, (), sizes, {AXIS: [slots] * len(devices)})


def _divide(extent: int, slots: int) -> Sequence[int]:
    """Return the extents of slots: those of the first ones, if there are more slots than units."""
    count = min(slots, extent)
    return (*(split_among_positive(extent, [1] * count) if count else ()), *[0] * (slots - count))


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
