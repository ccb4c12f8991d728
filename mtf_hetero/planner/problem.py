"""From a training step and devices to the tables whose cheapest assignment is a layout.

A variable is the name of a dimension, its choices are to keep it whole or to split it into one of a few vectors of
sizes, and a table says for some operations what each combination of choices costs: the slowest device's arithmetic, and
what then has to be sent. Two names of one tensor are not split over one mesh axis.

Names that a reshape gives to one and the same dimension make a family, whose sizes are chosen together: where both
sides are split alike nothing has to be sent.
"""

import collections
import copy
import math
from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple, TypeAlias

import numpy as np

from mtf_hetero._compat import mtf
from mtf_hetero.layout import Layout
from mtf_hetero.partition import split_among_positive
from mtf_hetero.planner import steps, transfers, work
from mtf_hetero.planner.machines import Machine, Machines, kinds_of
from mtf_hetero.planner.sample import Crowd, Sample, crowd_of, everyone, product_of
from mtf_hetero.planner.search import Table

AXIS = "all"
WHOLE = 0  # the choice not to split
EXACT = 8  # devices, each of which is priced


class Along(NamedTuple):
    """How a dimension is split on a mesh of several axes.

    Args:
      axis: the mesh axis, by its number.
      sizes: one per coordinate of the axis.
    """

    axis: int
    sizes: tuple[int, ...]


Choice: TypeAlias = tuple[int, ...] | Along  # the sizes alone, on a mesh of one axis
Menus: TypeAlias = Mapping[str, Sequence[Choice]]


def axis_of(choice: Choice) -> int:
    """The number of the mesh axis over which a dimension is split."""
    return choice.axis if isinstance(choice, Along) else 0


def sizes_of(choice: Choice) -> tuple[int, ...]:
    """One size per coordinate of the axis."""
    return choice.sizes if isinstance(choice, Along) else choice


class Problem:
    """A step on devices.

    Args:
      operations: mtf operations of a step, in the graph's order.
      machines: the devices, one per processor of the mesh.
      subsets: numbers of the devices among which something may be divided, so that those of a subset are no longer
        like the others. Of more than EXACT devices, a few of those that are alike stand for all, as planner.sample has
        it; None: none does.
      mesh_shape: (axis, count) of each mesh axis; None: a single one. With several, a choice is an Along.
    """

    def __init__(
        self,
        operations: Sequence[mtf.Operation],
        machines: Machines,
        subsets: Iterable[Collection[int]] | None = None,
        mesh_shape: Sequence[tuple[str, int]] | None = None,
    ) -> None:
        self.operations, self.everyone = tuple(operations), machines
        self.mesh_shape = tuple(mesh_shape or [(AXIS, len(machines.devices))])
        self.crowds = self._crowds(subsets)
        self.crowd = product_of(self.crowds)
        self.machines = machines.some(self.crowd.shown) if self.crowd.is_sample else machines  # those that are priced
        self._alone = tuple(machine.alone() for machine in self.machines.devices)
        self.extents = steps.extents(operations)
        self.families = steps.families(operations, self.extents)
        self.units = steps.units(operations, self.extents)
        granule = max(machine.granule for machine in self.machines.devices)
        most = max(count for _, count in self.mesh_shape)
        self.granules = steps.granules(operations, self.families, self.extents, granule, most)
        self._conflicts = steps.conflicts(operations)
        spaces = [names for op in operations for names in steps.spaces(op)]
        self._heights = {names[0] for names in spaces}  # or depths, of volumes
        self._not_searched = {name for names in spaces for name in names[1:]}
        self._names_of = {op: frozenset(steps.names(op)) for op in operations}
        measured = any(machine.factors for machine in machines.devices)
        self._kind_of = {op: work.kind_of(op) if measured else "" for op in operations}
        self._seconds: dict[tuple[mtf.Operation, frozenset], tuple[float, ...]] = {}
        self._amounts: dict[mtf.Operation, tuple[int, int]] = {}
        self._vectors: dict[tuple[int, tuple[float, ...], int], tuple[int, ...]] = {}
        self._costs: dict[tuple[str, tuple], float] = {}
        self._layouts: dict[frozenset, Layout] = {}
        self._sent: dict[tuple, tuple[transfers.Transfer, ...]] = {}
        self._samples: dict[tuple, Sample] = {}

    def _crowds(self, subsets: Iterable[Collection[int]] | None) -> tuple[Crowd, ...]:
        """Of each mesh axis, the coordinates that stand for all."""
        if subsets is None or len(self.everyone.devices) <= EXACT:
            return tuple(everyone(count) for _, count in self.mesh_shape)
        kinds = kinds_of(self.everyone, subsets)
        if len(self.mesh_shape) == 1:
            return (crowd_of(kinds),)
        whole = Layout(self.mesh_shape, ())
        of_axes: list[list[list[Hashable]]] = [[[] for _ in range(count)] for _, count in self.mesh_shape]
        for pnum, kind in enumerate(kinds):
            for axis, coordinate in enumerate(whole.coordinates(pnum)):
                of_axes[axis][coordinate].append(kind)
        return tuple(crowd_of(list(map(tuple, of_axis))) for of_axis in of_axes)

    def with_figures(self, machines: Machines) -> "Problem":
        """Return the same step on the same devices with other figures; what does not depend on these is kept.

        Args:
          machines: one device per processor, alike where they were alike.
        """
        problem = copy.copy(self)
        problem.everyone = machines
        problem.machines = machines.some(self.crowd.shown) if self.crowd.is_sample else machines
        problem._alone = tuple(machine.alone() for machine in problem.machines.devices)
        problem._seconds, problem._costs = {}, {}
        return problem

    def layout(self, sizes: Mapping[str, Choice]) -> Layout:
        """The layout that splits these names into these sizes, and nothing else."""
        key = frozenset(sizes.items())
        if key not in self._layouts:
            rules = [(name, self.mesh_shape[axis_of(choice)][0]) for name, choice in sizes.items()]
            vectors = {name: sizes_of(choice) for name, choice in sizes.items()}
            self._layouts[key] = Layout(self.mesh_shape, rules, (), vectors)
        return self._layouts[key]

    def choices(self, layout: Layout) -> dict[str, Choice]:
        """What a layout splits, and how: {name: choice}."""
        if len(self.mesh_shape) == 1:
            return dict(layout.sizes)
        axes = ((name, layout.axis_of(name), sizes) for name, sizes in layout.sizes)
        return {name: Along(axis, sizes) for name, axis, sizes in axes if axis is not None}

    def coordinates(self, pnum: int) -> tuple[int, ...]:
        """Of a device, on the mesh."""
        return self.layout({}).coordinates(pnum)

    def priced(self, layout: Layout) -> Layout:
        """What is priced of a layout: all of it, or a planner.sample.Sample."""
        if not self.crowd.is_sample or isinstance(layout, Sample):
            return layout
        key = layout.rules, layout.sizes
        if key not in self._samples:
            self._samples[key] = Sample(layout.mesh_shape, layout.rules, layout.shares, layout.sizes, self.crowds)
        return self._samples[key]

    def tables(self, menus: Menus) -> list[Table]:
        """One table per scope.

        Args:
          menus: {name: the ways in which it may be split}; those without one stay whole.
        """
        costs: dict[tuple[str, ...], np.ndarray] = {}
        for unit in self.units:
            scope = tuple(name for name in unit.names if menus.get(name))
            if scope not in costs:
                costs[scope] = np.full([1 + len(menus[name]) for name in scope], np.inf)
                for places in self._allowed(scope, menus):
                    costs[scope][places] = 0.0
            for places in np.argwhere(np.isfinite(costs[scope])):
                sizes = {name: menus[name][i - 1] for name, i in zip(scope, places, strict=True) if i != WHOLE}
                costs[scope][tuple(places)] += self._unit_seconds(unit, sizes)
        return [Table(scope, table) for scope, table in costs.items()]

    def _unit_seconds(self, unit: steps.Unit, sizes: Mapping[str, Choice]) -> float:
        """Seconds for a unit, kept for those that are alike: a network repeats its layers."""
        key = unit.key, tuple(sizes.get(name) for name in unit.names)
        if key not in self._costs:
            self._costs[key] = self.seconds(unit.operations, self.layout(sizes))
        return self._costs[key]

    def _allowed(self, scope: Sequence[str], menus: Menus) -> Iterator[tuple]:
        """The combinations of choices in which no tensor is split twice over one mesh axis."""

        def conflict(name: str, choice: int, other: str, i: int) -> bool:
            if i == WHOLE or other not in self._conflicts[name]:
                return False
            return axis_of(menus[name][choice - 1]) == axis_of(menus[other][i - 1])

        partial: list[tuple[int, ...]] = [()]
        for name in scope:
            partial = [
                (*places, choice)
                for places in partial
                for choice in range(1 + len(menus[name]))
                if choice == WHOLE or not any(conflict(name, choice, other, i) for i, other in zip(places, scope))
            ]
        yield from partial

    def seconds(self, operations: Sequence[mtf.Operation], layout: Layout) -> float:
        """Seconds for some operations, one after the other; infinity where they cannot be split so."""
        layout = self.priced(layout)
        try:
            sent = self.sent(operations, layout)
        except NotImplementedError:
            return math.inf
        busy = [0.0] * layout.size
        total = math.fsum(max(self.seconds_of(op, layout)) for op in operations)
        for transfer in sent:
            for end, times in ((transfer.source, transfer.times), (transfer.target, 1.0)):
                busy[end] += times * transfer.ends_seconds(self.machines.devices[end].sending_seconds)
        return total + max(busy) + self.sending_seconds(sent)

    def sent(self, operations: Sequence[mtf.Operation], layout: Layout) -> tuple[transfers.Transfer, ...]:
        """Return what some operations send in a layout, or in what is priced of it; it is kept."""
        key = tuple(operations), layout.rules, layout.sizes
        if key not in self._sent:
            self._sent[key] = transfers.of_step(operations, layout)
        return self._sent[key]

    def seconds_of(self, op: mtf.Operation, layout: Layout) -> tuple[float, ...]:
        """Seconds that each device that is priced computes for an operation; kept by what the layout splits of it.

        Of one that a single device has, they are those that it takes while the others rest.
        """
        layout = self.priced(layout)
        key = op, layout.sizes_among(self._names_of[op])
        if key not in self._seconds:
            amounts = work.of_processors(op, layout)
            paddings = work.paddings(op, layout, [machine.granule for machine in self.machines.devices])

            def seconds_on(devices: Sequence[Machine]) -> tuple[float, ...]:
                return tuple(
                    machine.seconds(flops * padding, moved, self._kind_of[op])
                    for machine, (flops, moved), padding in zip(devices, amounts, paddings, strict=True)
                )

            seconds = seconds_on(self.machines.devices)
            self._seconds[key] = seconds_on(self._alone) if is_single(seconds) else seconds
        return self._seconds[key]

    def sending_seconds(self, sent: Iterable[transfers.Transfer]) -> float:
        """Seconds until all is sent: a device sends one message after another, and receives at the same time."""
        out: dict[int, float] = collections.defaultdict(float)
        into: dict[int, float] = collections.defaultdict(float)
        for transfer in sent:
            link = self.machines.link_between(transfer.source, transfer.target)
            seconds = transfer.ends_seconds(link.seconds)
            out[transfer.source] += transfer.times * seconds
            into[transfer.target] += seconds
        return max([*out.values(), *into.values()], default=0.0)

    def menus(self, subsets: Sequence[Sequence[int]], used: Mapping[str, Sequence[mtf.Operation]] | None = None):
        """{name: vectors of sizes}: its family, divided by the devices' speeds among each subset of them.

        Args:
          subsets: numbers of the devices that are not to have nothing; a height or a depth is divided among the most.
          used: {name of a family's first member: the operations that are to balance}; None: all that have a name of it.
        """
        menus: dict[str, list[tuple[int, ...]]] = {}
        sets = [frozenset(subset) for subset in subsets]
        for family in self.families:
            operations = self._operations_of(family) if used is None else used.get(family[0], ())
            speeds = self._speeds(operations)
            for name in family:
                if name in self._not_searched:
                    continue
                among = [max(sets, key=len)] if name in self._heights else sets
                vectors = (self._divided(name, speeds, subset) for subset in among)
                menus[name] = list(dict.fromkeys(vector for vector in vectors if vector is not None))
        return menus

    def menus_of_axes(self) -> dict[str, list[Choice]]:
        """As `menus`, on a mesh of several axes: over all coordinates of each, by the slowest device there."""
        menus: dict[str, list[Choice]] = {}
        slowest: list[list[list[int]]] = [[[] for _ in range(count)] for _, count in self.mesh_shape]
        for pnum in range(len(self.everyone.devices)):
            for axis, coordinate in enumerate(self.coordinates(pnum)):
                slowest[axis][coordinate].append(pnum)
        for family in self.families:
            speeds = self._speeds(self._operations_of(family))
            of_axes = [[min(speeds[pnum] for pnum in there) for there in axis] for axis in slowest]
            for name in family:
                if name in self._not_searched:
                    continue
                vectors = [self._divided(name, of_axis, range(len(of_axis))) for of_axis in of_axes]
                menus[name] = [Along(axis, vector) for axis, vector in enumerate(vectors) if vector is not None]
        return menus

    def divided(self, names: Collection[str]) -> dict[str, Choice]:
        """{name: sizes} of those of these names that can be divided over all devices, by their speeds at each."""
        everybody = range(len(self.everyone.devices))
        sizes: dict[str, Choice] = {}
        for family in self.families:
            speeds = self._speeds(self._operations_of(family))
            for name in family:
                if name in names and (vector := self._divided(name, speeds, everybody)) is not None:
                    sizes[name] = vector
        return sizes

    def operations_split(self, sizes: Mapping[str, Choice]) -> dict[str, list[mtf.Operation]]:
        """{first name of a family: the operations that a layout splits along one of its names}."""
        found = {}
        for family in self.families:
            names = {name for name in family if name in sizes}
            found[family[0]] = [op for op in self.operations if names & self._names_of[op]] or self._operations_of(
                family
            )
        return found

    def allowed_of(self, family: Sequence[str], menus: Menus, axis: int = 0) -> dict[str, Choice]:
        """{name: choice} for as many names of a family as can be split together over an axis, the first ones first."""
        sizes: dict[str, Choice] = {}
        for name in family:
            choices = [choice for choice in menus.get(name, ()) if axis_of(choice) == axis]
            if choices and not self._conflicts[name] & sizes.keys():
                sizes[name] = choices[0]
        return sizes

    def is_allowed(self, sizes: Mapping[str, Choice]) -> bool:
        """Whether no two of these names are of one tensor, and split over one mesh axis."""
        return not any(
            axis_of(sizes[name]) == axis_of(sizes[other])
            for name in sizes
            for other in self._conflicts[name] & sizes.keys()
        )

    def work_of(self, family: Sequence[str]) -> float:
        """How much arithmetic operations do that have one of these names."""
        return math.fsum(self._amount(op)[0] for op in self._operations_of(family))

    def _amount(self, op: mtf.Operation) -> tuple[int, int]:
        """What a device computes of an operation that is whole on each."""
        if op not in self._amounts:
            self._amounts[op] = work.of_operation(op, self.priced(self.layout({})), 0)
        return self._amounts[op]

    def _operations_of(self, family: Sequence[str]) -> list[mtf.Operation]:
        names = set(family)
        return [op for op in self.operations if names & self._names_of[op]]

    def _speeds(self, operations: Sequence[mtf.Operation]) -> list[float]:
        """One over the seconds that each of all devices takes for all of some operations."""
        seconds = [
            math.fsum(machine.seconds(*self._amount(op), self._kind_of[op]) for op in operations)
            for machine in self.machines.devices
        ]
        speeds = [1.0 / s if s else 1.0 for s in seconds]
        return [speeds[place] for place in self.crowd.stands]

    def _divided(self, name: str, speeds: Sequence[float], subset: Collection[int]) -> tuple[int, ...] | None:
        least = min(self.extents[name])
        if least < len(subset):
            return None
        weights = tuple(speed if pnum in subset else 0.0 for pnum, speed in enumerate(speeds))
        key = max(self.extents[name]), weights, self.granules.get(name, 1)
        if key not in self._vectors:
            self._vectors[key] = split_among_positive(*key[:2], multiple_of=key[2])
        return self._vectors[key]


def is_single(seconds: Iterable[float]) -> bool:
    """Whether a single device takes some time for an operation, of all."""
    return sum(map(bool, seconds)) == 1


def problem_of(
    operations: Sequence[mtf.Operation],
    machines: Machines,
    layout: Layout,
    subsets: Iterable[Collection[int]] = (),
) -> Problem:
    """A problem in which devices stand for others only where these have like sizes: as large, or one unit less or more.

    Args:
      operations: as of `Problem`.
      machines: likewise.
      layout: with exact sizes.
      subsets: as of `Problem`, beside those that have something of a name; only of a mesh with one axis.
    """
    shape = layout.mesh_shape
    if len(shape) > 1:
        subsets = ()
    else:
        having = {tuple(map(bool, vector)) for _, vector in layout.sizes}
        subsets = [*subsets, *(frozenset(n for n, has in enumerate(of_all) if has) for of_all in having)]
    problem = Problem(operations, machines, subsets, shape)
    for axis, vector in {(layout.axis_of(name), vector) for name, vector in layout.sizes}:
        for group in problem.crowds[axis or 0].groups:
            of_group = [vector[coordinate] for coordinate in group]
            if max(of_group) > min(of_group) + 1:
                return Problem(operations, machines, None, shape)
    return problem
