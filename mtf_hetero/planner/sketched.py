"""What a layout holds in memory, sketched: the shapes that are alive when most is, each device's part of them."""

import math
from collections.abc import Iterable, Sequence

import numpy as np

from mtf_hetero._compat import mtf
from mtf_hetero.layout import Layout
from mtf_hetero.planner import search
from mtf_hetero.planner.problem import Menus, Problem, axis_of, sizes_of
from mtf_hetero.profile.footprint import bytes_by_dim

_SEPARATOR = "\n"


class Held:
    """The tensors of a step at the moment when most of them are alive.

    Args:
      operations: mtf operations of a step, in the graph's order.
    """

    def __init__(self, operations: Sequence[mtf.Operation]) -> None:
        held = bytes_by_dim(operations, lambda shape: _SEPARATOR.join(shape.dimension_names) or None)
        self._held = {tuple(label.split(_SEPARATOR)) if label else (): size for label, size in held.items()}

    def needed(self, layout: Layout, devices: Iterable[int]) -> tuple[int, ...]:
        """Bytes that each of some devices needs."""
        totals = [(name, sizes, sum(sizes), layout.axis_of(name) or 0) for name, sizes in layout.sizes]
        known: dict[tuple[int, ...], int] = {}
        needed = []
        for pnum in devices:
            at = layout.coordinates(pnum)
            own = tuple(sizes[at[axis]] for _, sizes, _, axis in totals)
            if own not in known:
                fractions = {name: sizes[at[axis]] / total for name, sizes, total, axis in totals}
                parts = (
                    size * math.prod(fractions.get(name, 1.0) for name in names) for names, size in self._held.items()
                )
                known[own] = math.ceil(math.fsum(parts))
            needed.append(known[own])
        return tuple(needed)

    def limits(self, menus: Menus, problem: Problem) -> list[search.Limit]:
        """The memory of the devices that have a limit, as sums of tables over the names of these menus."""
        limits = []
        for pnum, machine in zip(problem.crowd.shown, problem.machines.devices, strict=True):
            if machine.memory_bytes is None:
                continue
            at = problem.coordinates(pnum)
            part = {
                name: [1.0, *(sizes_of(choice)[at[axis_of(choice)]] / sum(sizes_of(choice)) for choice in choices)]
                for name, choices in menus.items()
            }
            tables = []
            for names, size in self._held.items():
                scope = tuple(dict.fromkeys(name for name in names if menus.get(name)))
                fractions = np.array(1.0)
                for name in scope:
                    fractions = np.multiply.outer(fractions, part[name])
                tables.append(search.Table(scope, size * fractions))
            limits.append(search.Limit(f"memory of {machine.name}", tuple(tables), machine.memory_bytes))
        return limits
