"""Plan pipelines: each device computes a run of layers, for one part of the batch after another.

The runs are in proportion to the devices' speeds. Then each of their ends is moved as long as the predicted step
becomes shorter, because only the step as a whole shows messages and waiting.
"""

import itertools
from collections.abc import Iterator, Sequence

from mtf_hetero._support import deadline
from mtf_hetero.cost.model import AXIS, Model
from mtf_hetero.cost.timeline import Timeline
from mtf_hetero.graph.runs import count_crossing, divide_into_runs, group_by_name, order_by_layers
from mtf_hetero.layout import Layout
from mtf_hetero.layout.partition import split_among_positive

MOST_DEVICES = 4  # of a pipeline
_FIRST, _OTHERS = 8, (4, 16)  # slots of each device; others are tried if the first are nearly as fast as the best plan
_NEAR = 1.15  # times as long as the best plan
_LEAST_PART = 0.9  # of the work, which belongs to a name of the batch
_MOVES = 4  # of ends of runs, at most


class Pipelines:
    """The pipelines of a step on devices in their order.

    Args:
      model: the step on the devices, of which each is priced by itself.
    """

    def __init__(self, model: Model) -> None:
        self._model, self._count = model, len(model.machines.devices)
        self._names = _find_names(model)
        groups = group_by_name(model.operations, self._names).values()
        self._work = [min(model.unsplit_seconds(each)) for each in groups]

    def list_fast(self, seconds: float) -> Iterator[tuple[Layout, Timeline]]:
        """Generate pipelines, the last one the fastest; one if it takes much longer than so many seconds."""
        if len(self._names) < self._count:
            return
        speeds = [1.0 / each for each in self._model.unsplit_seconds()]
        ends = divide_into_runs(self._work, count_crossing(self._model.operations, self._names), speeds)
        if not _is_without_gaps([0, *ends, len(self._names)]):
            return  # a device is too slow for the shortest run
        best = self._predict(ends, _FIRST)
        yield best
        if best[1].seconds > _NEAR * seconds:
            return
        slots = _FIRST
        for other in _OTHERS:
            found = self._predict(ends, other)
            yield found  # more parts need less memory
            if found[1].seconds < best[1].seconds:
                best, slots = found, other
        for _ in range(_MOVES):
            tried = [(self._predict(moved, slots), moved) for moved in self._moved(ends)]
            found, moved = min(tried, key=lambda pair: pair[0][1].seconds, default=(best, ends))
            if found[1].seconds >= best[1].seconds:
                break
            best, ends = found, moved
        yield best

    def _moved(self, ends: Sequence[int]) -> Iterator[list[int]]:
        """Generate the ends of runs with one of them moved by one name."""
        for number, by in itertools.product(range(len(ends)), (-1, 1)):
            moved = [end + by * (i == number) for i, end in enumerate(ends)]
            if _is_without_gaps([0, *moved, len(self._names)]):
                yield moved

    def _predict(self, ends: Sequence[int], slots: int) -> tuple[Layout, Timeline]:
        deadline.check()
        layout = self._lay_out(ends, slots)
        return layout, self._model.timeline(layout)

    def _lay_out(self, ends: Sequence[int], slots: int) -> Layout:
        sizes = {}
        for number, name in enumerate(self._names):
            owner = sum(end <= number for end in ends)
            extent = max(self._model.families.extents[name])
            count = min(slots, extent)
            parts = [*split_among_positive(extent, [1] * count), *[0] * (slots - count)]
            sizes[name] = [
                size for device in range(self._count) for size in (parts if device == owner else [0] * slots)
            ]
        rules = [(name, AXIS) for name in self._names]
        return Layout([(AXIS, slots * self._count)], rules, (), sizes, {AXIS: [slots] * self._count})


def _is_without_gaps(ends: Sequence[int]) -> bool:
    """Return whether each run has a name."""
    return all(one < other for one, other in itertools.pairwise(ends))


def _find_names(model: Model) -> Sequence[str]:
    """Return the names that reshapes give to a dimension of nearly all operations, one after another; or none."""
    families = model.families

    def is_whole(family: Sequence[str]) -> bool:
        extents = {max(families.extents[name]) for name in family}
        return len(extents) == 1 and len(families.together(family, lambda name: name)) == len(family)

    total = model.flops(model.operations)
    for family in families.families:
        if (
            len(family) > 1
            and is_whole(family)
            and model.flops(families.list_operations(family)) >= _LEAST_PART * total
        ):
            return order_by_layers(model.operations, family)
    return ()
