"""The layouts among which a search chooses: names of dimensions, the ways to split each, and tables of their costs.

A variable is the name of a dimension. Its choices are to replicate it, or to split it into one of a few vectors of
sizes. A table has the costs of some operations for each combination of choices, as `cost.Model` predicts them: the
slowest device's arithmetic, and the messages. Two names of one tensor are not split over one mesh axis.
"""

import copy
import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import NamedTuple, TypeAlias

import numpy as np

from mtf_hetero._compat import mtf
from mtf_hetero.cost import work
from mtf_hetero.cost.machines import Machines
from mtf_hetero.cost.model import AXIS, Model
from mtf_hetero.cost.sample import EXACT
from mtf_hetero.graph.units import Unit
from mtf_hetero.layout import Layout
from mtf_hetero.layout.partition import split_among_positive
from mtf_hetero.planner.search import Limit, Table

WHOLE = 0  # the choice not to split
_SHAPES = 2  # meshes of two axes for a number of devices, if these are many
MeshShape: TypeAlias = Sequence[tuple[str, int]]


class Split(NamedTuple):
    """A way to split a dimension.

    Args:
      axis: the mesh axis, by its number.
      sizes: one per coordinate of the axis.
    """

    axis: int
    sizes: tuple[int, ...]


Menus: TypeAlias = Mapping[str, Sequence[Split]]
Splits: TypeAlias = Mapping[str, Split]


class Space:
    """The layouts of a step on a mesh of devices.

    Args:
      model: the step on the devices.
      mesh_shape: (axis, count) of each mesh axis; None: a single one.
    """

    def __init__(self, model: Model, mesh_shape: MeshShape | None = None) -> None:
        self.model = model
        self.mesh_shape = tuple(mesh_shape or [(AXIS, len(model.machines.devices))])
        self.families = model.families.families
        self.extents = model.families.extents
        self.list_operations = model.families.list_operations
        granule = max(machine.granule for machine in model.shown.devices)
        most = max(count for _, count in self.mesh_shape)
        self.granules = work.granules(model.operations, self.families, self.extents, granule, most)
        self._vectors: dict[tuple[int, tuple[float, ...], int], tuple[int, ...]] = {}
        self._costs: dict[tuple[str, tuple], tuple[float, float]] = {}
        self._layouts: dict[frozenset, Layout] = {}

    def on(self, machines: Machines) -> "Space":
        """Return the same layouts on the same devices with other figures; devices that were alike still are."""
        space = copy.copy(self)
        space.model = self.model.on(machines)
        if machines.with_memory(None) != self.model.machines.with_memory(None):
            space._costs = {}
        return space

    def layout(self, splits: Splits) -> Layout:
        """Return the layout with these splits."""
        key = frozenset(splits.items())
        if key not in self._layouts:
            rules = [(name, self.mesh_shape[split.axis][0]) for name, split in splits.items()]
            sizes = {name: split.sizes for name, split in splits.items()}
            self._layouts[key] = Layout(self.mesh_shape, rules, (), sizes)
        return self._layouts[key]

    def splits(self, layout: Layout) -> dict[str, Split]:
        """Return the splits of a layout with exact sizes."""
        axes = ((name, layout.axis_of(name), sizes) for name, sizes in layout.sizes)
        return {name: Split(axis, sizes) for name, axis, sizes in axes if axis is not None}

    def tables(self, menus: Menus, prices: Sequence[float]) -> list[list[Table]]:
        """Return one table per scope, for each price; names without a menu stay whole.

        Args:
          menus: {name: ways to split it}.
          prices: of a second of messages that no product awaits.
        """
        allowed: dict[tuple[str, ...], list[tuple[tuple[int, ...], Splits]]] = {}
        costs: dict[tuple[str, ...], np.ndarray] = {}  # a row for each allowed combination, with all prices
        for unit in self.model.families.units:
            scope = tuple(name for name in unit.names if menus.get(name))
            if scope not in costs:
                allowed[scope] = list(self._allowed(scope, menus))
                costs[scope] = np.zeros([len(allowed[scope]), len(prices)])
            rows = np.flatnonzero(np.isfinite(costs[scope]).all(axis=1))
            seconds = np.array([self._unit_seconds(unit, allowed[scope][row][1]) for row in rows]).reshape(-1, 2)
            costs[scope][rows] += seconds[:, :1] + seconds[:, 1:] * np.asarray(prices)
        found: list[list[Table]] = [[] for _ in prices]
        for scope, of_prices in costs.items():
            for tables, column in zip(found, of_prices.T, strict=True):
                table = np.full([1 + len(menus[name]) for name in scope], np.inf)
                for (places, _), cost in zip(allowed[scope], column, strict=True):
                    table[places] = cost
                tables.append(Table(scope, table))
        return found

    def _unit_seconds(self, unit: Unit, splits: Splits) -> tuple[float, float]:
        """Return the seconds of a unit in two parts, kept for those that are alike: a network repeats its layers."""
        key = unit.key, tuple(splits.get(name) for name in unit.names)
        if key not in self._costs:
            self._costs[key] = self.model.parts_of_seconds(unit.operations, self.layout(splits))
        return self._costs[key]

    def _allowed(self, scope: Sequence[str], menus: Menus) -> Iterator[tuple[tuple[int, ...], Splits]]:
        """Generate the combinations of choices in which no tensor is split twice over one mesh axis, as splits too."""
        conflicts = self.model.families.conflicts

        def conflict(name: str, choice: int, other: str, i: int) -> bool:
            if i == WHOLE or other not in conflicts[name]:
                return False
            return menus[name][choice - 1].axis == menus[other][i - 1].axis

        partial: list[tuple[int, ...]] = [()]
        for name in scope:
            partial = [
                (*places, choice)
                for places in partial
                for choice in range(1 + len(menus[name]))
                if choice == WHOLE or not any(conflict(name, choice, other, i) for i, other in zip(places, scope))
            ]
        for places in partial:
            yield places, {name: menus[name][i - 1] for name, i in zip(scope, places, strict=True) if i != WHOLE}

    def limits(self, menus: Menus) -> list[Limit]:
        """Return the memory of the devices that have a limit, as sums of tables over the names of these menus."""
        limits, whole = [], self.layout({})
        for pnum, machine in zip(self.model.crowd.shown, self.model.shown.devices, strict=True):
            if machine.memory_bytes is None:
                continue
            at = whole.coordinates(pnum)
            part = {
                name: [1.0, *(split.sizes[at[split.axis]] / sum(split.sizes) for split in splits)]
                for name, splits in menus.items()
            }
            tables = []
            for names, size in self.model.footprint.parts.items():
                scope = tuple(dict.fromkeys(name for name in names if menus.get(name)))
                fractions = np.array(1.0)
                for name in scope:
                    fractions = np.multiply.outer(fractions, part[name])
                tables.append(Table(scope, size * fractions))
            limits.append(Limit(f"memory of {machine.name}", tuple(tables), machine.memory_bytes))
        return limits

    def menus(
        self,
        subsets: Sequence[Collection[int]] | None = None,
        used: Mapping[str, Sequence[mtf.Operation]] | None = None,
    ) -> dict[str, list[Split]]:
        """Return {name: ways to split it}: over each axis, its family divided by the devices' speeds.

        Args:
          subsets: on a mesh of one axis, numbers of the devices that get a part; a height or a depth is split among
            the largest subset. None: all.
          used: {first name of a family: the operations that are to balance}; None: all that have a name of it.
        """
        menus: dict[str, list[Split]] = {}
        heights, widths = self.model.families.heights, self.model.families.widths
        sets = None if subsets is None else [frozenset(subset) for subset in subsets]
        for family in self.families:
            operations = self.list_operations(family) if used is None else used.get(family[0], ())
            of_axes = self._speeds(operations)
            for name in family:
                if name in widths:  # images are about as wide as they are high
                    continue
                menus[name] = []
                for axis, speeds in enumerate(of_axes):
                    among = sets or [range(len(speeds))]
                    among = [max(among, key=len)] if name in heights else among
                    vectors = dict.fromkeys(self._divided(name, speeds, subset) for subset in among)
                    menus[name] += [Split(axis, vector) for vector in vectors if vector is not None]
        return menus

    def within_memory(self, splits: Splits, taken: float | None = None) -> dict[str, Split]:
        """Return splits over one mesh axis with sizes that fit the devices' memory, as near to these as can be.

        If none fit, the sizes are in proportion to the memory that is left on each device.

        Args:
          splits: on a mesh of one axis; no two names are of one tensor.
          taken: bytes of each device that are not for what is split; None: what the rest of the step needs.
        """
        parts, sizes = self.model.footprint.parts, {name: split.sizes for name, split in splits.items()}
        divided = sum(size for names, size in parts.items() if not sizes.keys().isdisjoint(names))
        rest = sum(parts.values()) - divided if taken is None else taken
        limits = [machine.memory_bytes for machine in self.model.machines.devices]
        left = [math.inf if limit is None else max(0.0, limit - rest) / max(divided, 1) for limit in limits]
        found = {}
        for name, of_name in sizes.items():
            total, granule = sum(of_name), self.granules.get(name, 1)
            pairs = zip(left, of_name, strict=True)
            caps = [math.floor(min(1.0, fraction) * total) if size else 0 for fraction, size in pairs]
            if sum(cap // granule * granule for cap in caps) >= total:
                vector = split_among_positive(total, of_name, minimum=0, multiple_of=granule, caps=caps)
            elif any(caps):
                vector = split_among_positive(total, caps, multiple_of=granule)
            else:
                return {}
            found[name] = Split(splits[name].axis, vector)
        return found

    def with_memory(self, menus: Menus) -> dict[str, list[Split]]:
        """Return the menus with sizes by the devices' memory too: what is left beside the rest of the step, and all."""
        more = {name: list(splits) for name, splits in menus.items()}
        for family in self.families:
            splits = self.of_family(family, menus)
            for taken in (None, 0.0):
                for name, split in self.within_memory(splits, taken).items():
                    if split not in more[name]:
                        more[name].append(split)
        return more

    def over_all(self, names: Collection[str]) -> dict[str, Split]:
        """Return the splits of those of these names that can be split over all devices, by their speeds at each."""
        splits: dict[str, Split] = {}
        for family in self.families:
            (speeds,) = self._speeds(self.list_operations(family))
            for name in family:
                vector = self._divided(name, speeds, range(len(speeds))) if name in names else None
                if vector is not None:
                    splits[name] = Split(0, vector)
        return splits

    def operations_split(self, splits: Splits) -> dict[str, list[mtf.Operation]]:
        """Return {first name of a family: the operations that a layout splits along one of its names}; all if none."""
        split = {family[0]: self.list_operations(name for name in family if name in splits) for family in self.families}
        return {family[0]: split[family[0]] or self.list_operations(family) for family in self.families}

    def of_family(self, family: Sequence[str], menus: Menus, axis: int = 0) -> dict[str, Split]:
        """Return the splits of as many names of a family as an axis can split together, the first ones first."""

        def first(name: str) -> Split | None:
            return next((split for split in menus.get(name, ()) if split.axis == axis), None)

        return self.model.families.together(family, first)

    def is_allowed(self, splits: Splits) -> bool:
        """Return whether no two of these names are of one tensor, and split over one mesh axis."""
        conflicts = self.model.families.conflicts
        return not any(
            splits[name].axis == splits[other].axis for name in splits for other in conflicts[name] & splits.keys()
        )

    def largest(self, count: int) -> list[tuple[str, ...]]:
        """Return the families with most arithmetic."""
        return sorted(self.families, key=lambda f: self.model.flops(self.list_operations(f)), reverse=True)[:count]

    def _speeds(self, operations: Sequence[mtf.Operation]) -> list[list[float]]:
        """Return one over the seconds of some operations: of each axis, of the slowest device at each coordinate."""
        speeds = [1.0 / seconds if seconds else 1.0 for seconds in self.model.unsplit_seconds(operations)]
        if len(self.mesh_shape) == 1:
            return [speeds]
        slowest = [[math.inf] * count for _, count in self.mesh_shape]
        whole = self.layout({})
        for pnum, speed in enumerate(speeds):
            for axis, coordinate in enumerate(whole.coordinates(pnum)):
                slowest[axis][coordinate] = min(slowest[axis][coordinate], speed)
        return slowest

    def _divided(self, name: str, speeds: Sequence[float], subset: Collection[int]) -> tuple[int, ...] | None:
        least = min(self.extents[name])
        if least < len(subset):
            return None
        weights = tuple(speed if pnum in subset else 0.0 for pnum, speed in enumerate(speeds))
        key = max(self.extents[name]), weights, self.granules.get(name, 1)
        if key not in self._vectors:
            self._vectors[key] = split_among_positive(*key[:2], multiple_of=key[2])
        return self._vectors[key]


def mesh_shapes(count: int) -> list[tuple[int, int]]:
    """Return the meshes of so many processors, at least two rows by two columns; of many, those nearest to a square.

    Example:
      >>> mesh_shapes(8), mesh_shapes(60)
      ([(2, 4), (4, 2)], [(6, 10), (10, 6)])
    """
    shapes = [(rows, count // rows) for rows in range(2, count // 2 + 1) if count % rows == 0]
    return shapes if count <= EXACT else sorted(shapes, key=lambda shape: abs(shape[0] - shape[1]))[:_SHAPES]


def prefixes(count: int) -> tuple[int, ...]:
    """Return the numbers of fastest devices to try: 1, all, and a few between.

    Example:
      >>> prefixes(2), prefixes(16)
      ((1, 2), (1, 8, 16))
    """
    return tuple(range(1, count + 1)) if count <= 3 else (1, count // 2, count)
