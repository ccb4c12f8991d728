"""From a training step and devices to the tables whose cheapest assignment is a layout.

A variable is the name of a dimension, its choices are to keep it whole or to split it into one of a few vectors of
sizes, and a table says for some operations what each combination of choices costs: the slowest device's arithmetic, and
what then has to be sent. Two names of one tensor are not split over one mesh axis.

Names that a reshape gives to one and the same dimension make a family, whose sizes are chosen together: where both
sides are split alike nothing has to be sent.
"""

import collections
import dataclasses
import functools
import itertools
import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

import numpy as np

from mtf_hetero import layers
from mtf_hetero._compat import mtf
from mtf_hetero.blocks import aligned
from mtf_hetero.layout import Layout
from mtf_hetero.lowering.conv_boxes import CONVOLUTIONS, KERNEL, roles_of
from mtf_hetero.lowering.pool import windows_of
from mtf_hetero.partition import split_among_positive
from mtf_hetero.planner import transfers, work
from mtf_hetero.planner.machines import Machine, Machines
from mtf_hetero.planner.search import Table
from mtf_hetero.profile.work import key_of

AXIS = "all"
WHOLE = 0  # the choice not to split
_POOLS = (layers.PoolOperation, layers.PoolGradientOperation, mtf.PoolOperation, mtf.PoolBackPropOperation)


@dataclasses.dataclass(frozen=True, eq=False)
class Unit:
    """Operations that are priced together: one, or a contraction and the reshapes that alone read its result."""

    operations: tuple[mtf.Operation, ...]
    names: tuple[str, ...]  # in the order in which they occur
    key: str  # of units that do the same work


class Problem:
    """A step on devices.

    Args:
      operations: mtf operations of a step, in the graph's order.
      machines: the devices, one per processor of a mesh with a single axis.
    """

    def __init__(self, operations: Sequence[mtf.Operation], machines: Machines) -> None:
        self.operations, self.machines = tuple(operations), machines
        self.extents = _extents(operations)
        self.families = _families(operations, self.extents)
        self.units = _units(operations, self.extents)
        self.granules = _granules(operations, self.families, self.extents, machines)
        self._conflicts = _conflicts(operations)
        spaces = [names for op in operations for names in _spaces(op)]
        self._heights = {names[0] for names in spaces}  # or depths, of volumes
        self._not_searched = {name for names in spaces for name in names[1:]}
        self._names_of = {op: frozenset(_names(op)) for op in operations}
        measured = any(machine.factors for machine in machines.devices)
        self._kind_of = {op: work.kind_of(op) if measured else "" for op in operations}
        self._seconds: dict[tuple[mtf.Operation, tuple], tuple[float, ...]] = {}
        self._costs: dict[tuple[str, tuple], float] = {}
        self._layouts: dict[frozenset[tuple[str, tuple[int, ...]]], Layout] = {}

    def layout(self, sizes: Mapping[str, tuple[int, ...]]) -> Layout:
        """The layout that splits these names into these sizes, and nothing else."""
        key = frozenset(sizes.items())
        if key not in self._layouts:
            count = len(self.machines.devices)
            self._layouts[key] = Layout([(AXIS, count)], [(name, AXIS) for name in sizes], (), sizes)
        return self._layouts[key]

    def tables(self, menus: Mapping[str, Sequence[tuple[int, ...]]]) -> list[Table]:
        """One table per scope.

        Args:
          menus: {name: the vectors of sizes into which it may be split}; those without one stay whole.
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

    def _unit_seconds(self, unit: Unit, sizes: Mapping[str, tuple[int, ...]]) -> float:
        """Seconds for a unit, kept for those that are alike: a network repeats its layers."""
        key = unit.key, tuple(sizes.get(name) for name in unit.names)
        if key not in self._costs:
            self._costs[key] = self.seconds(unit.operations, self.layout(sizes))
        return self._costs[key]

    def _allowed(self, scope: Sequence[str], menus: Mapping[str, Sequence[tuple[int, ...]]]) -> Iterator[tuple]:
        """The combinations of choices in which no tensor is split twice."""
        partial: list[tuple[int, ...]] = [()]
        for name in scope:
            partial = [
                (*places, choice)
                for places in partial
                for choice in range(1 + len(menus[name]))
                if choice == WHOLE
                or not any(i != WHOLE and other in self._conflicts[name] for i, other in zip(places, scope))
            ]
        yield from partial

    def seconds(self, operations: Sequence[mtf.Operation], layout: Layout) -> float:
        """Seconds for some operations, one after the other; infinity where they cannot be split so."""
        try:
            sent = transfers.of_step(operations, layout)
        except NotImplementedError:
            return math.inf
        busy = [0.0] * layout.size
        total = math.fsum(max(self.seconds_of(op, layout)) for op in operations)
        for transfer in sent:
            for end in (transfer.source, transfer.target):
                busy[end] += self.machines.devices[end].sending_seconds(transfer.bytes)
        return total + max(busy) + self.sending_seconds(sent)

    def seconds_of(self, op: mtf.Operation, layout: Layout) -> tuple[float, ...]:
        """Seconds that each device computes for an operation; kept by what the layout splits of it."""
        split = tuple(item for item in layout.sizes if item[0] in self._names_of[op])
        key = op, split
        if key not in self._seconds:
            self._seconds[key] = tuple(
                self._seconds_of(op, layout, pnum, machine) for pnum, machine in enumerate(self.machines.devices)
            )
        return self._seconds[key]

    def _seconds_of(self, op: mtf.Operation, layout: Layout, pnum: int, machine: Machine) -> float:
        flops, moved = work.of_operation(op, layout, pnum)
        return machine.seconds(flops * work.padding(op, layout, pnum, machine.granule), moved, self._kind_of[op])

    def sending_seconds(self, sent: Iterable[transfers.Transfer]) -> float:
        """Seconds until all is sent: a device sends one message after another, and receives at the same time."""
        out: dict[int, float] = collections.defaultdict(float)
        into: dict[int, float] = collections.defaultdict(float)
        for transfer in sent:
            seconds = self.machines.link_between(transfer.source, transfer.target).seconds(transfer.bytes)
            out[transfer.source] += seconds
            into[transfer.target] += seconds
        return max([*out.values(), *into.values()], default=0.0)

    def menus(self, subsets: Sequence[Sequence[int]], used: Mapping[str, Sequence[mtf.Operation]] | None = None):
        """{name: vectors of sizes}: its family, divided by the devices' speeds among each subset of them.

        Args:
          subsets: numbers of the devices that are not to have nothing; a height or a depth is divided among the most.
          used: {name of a family's first member: the operations that are to balance}; None: all that have a name of it.
        """
        menus: dict[str, list[tuple[int, ...]]] = {}
        for family in self.families:
            operations = self._operations_of(family) if used is None else used.get(family[0], ())
            speeds = self._speeds(operations)
            for name in family:
                if name in self._not_searched:
                    continue
                among = [max(subsets, key=len)] if name in self._heights else subsets
                vectors = (self._divided(name, speeds, subset) for subset in among)
                menus[name] = list(dict.fromkeys(vector for vector in vectors if vector is not None))
        return menus

    def divided(self, names: Collection[str]) -> dict[str, tuple[int, ...]]:
        """{name: sizes} of those of these names that can be divided over all devices, by their speeds at each."""
        everybody, sizes = range(len(self.machines.devices)), {}
        for family in self.families:
            speeds = self._speeds(self._operations_of(family))
            for name in family:
                if name in names and (vector := self._divided(name, speeds, everybody)) is not None:
                    sizes[name] = vector
        return sizes

    def operations_split(self, sizes: Mapping[str, tuple[int, ...]]) -> dict[str, list[mtf.Operation]]:
        """{first name of a family: the operations that a layout splits along one of its names}."""
        found = {}
        for family in self.families:
            names = {name for name in family if name in sizes}
            found[family[0]] = [op for op in self.operations if names & _names(op)] or self._operations_of(family)
        return found

    def allowed_of(
        self, family: Sequence[str], menus: Mapping[str, Sequence[tuple[int, ...]]]
    ) -> dict[str, tuple[int, ...]]:
        """{name: sizes} for as many names of a family as can be split together, the first ones first."""
        sizes: dict[str, tuple[int, ...]] = {}
        for name in family:
            if menus.get(name) and not self._conflicts[name] & sizes.keys():
                sizes[name] = menus[name][0]
        return sizes

    def is_allowed(self, names: Collection[str]) -> bool:
        """Whether no two of these names are of one tensor."""
        return not any(self._conflicts[name] & set(names) for name in names)

    def work_of(self, family: Sequence[str]) -> float:
        """How much arithmetic operations do that have one of these names."""
        whole = self.layout({})
        return math.fsum(work.of_operation(op, whole, 0)[0] for op in self._operations_of(family))

    def _operations_of(self, family: Sequence[str]) -> list[mtf.Operation]:
        names = set(family)
        return [op for op in self.operations if names & _names(op)]

    def _speeds(self, operations: Sequence[mtf.Operation]) -> list[float]:
        """One over the seconds that each device takes for all of some operations."""
        whole = self.layout({})
        seconds = [
            math.fsum(machine.seconds(*work.of_operation(op, whole, pnum), self._kind_of[op]) for op in operations)
            for pnum, machine in enumerate(self.machines.devices)
        ]
        return [1.0 / s if s else 1.0 for s in seconds]

    def _divided(self, name: str, speeds: Sequence[float], subset: Sequence[int]) -> tuple[int, ...] | None:
        least = min(self.extents[name])
        if least < len(subset):
            return None
        weights = [speed if pnum in subset else 0.0 for pnum, speed in enumerate(speeds)]
        return split_among_positive(max(self.extents[name]), weights, multiple_of=self.granules.get(name, 1))


def _names(op: mtf.Operation) -> set[str]:
    return {name for tensor in (*op.inputs, *op.outputs) for name in tensor.shape.dimension_names}


def _extents(operations: Iterable[mtf.Operation]) -> dict[str, set[int]]:
    """{name: extents} of the dimensions that may be split, in the graph's order."""
    extents: dict[str, set[int]] = {}
    whole: set[str] = set()
    for op in operations:
        whole |= op.unsplittable_dims - {name for names in _spaces(op) for name in names}
        for tensor in (*op.inputs, *op.outputs):
            for dim in tensor.shape.dims:
                extents.setdefault(dim.name, set()).add(dim.size)
    return {name: sizes for name, sizes in extents.items() if name not in whole and max(sizes) > 1}


def _spaces(op: mtf.Operation) -> list[list[str]]:
    """Of each image or volume of a convolution or a pool, the names of the dimensions over which windows pass."""
    if isinstance(op, CONVOLUTIONS):
        makes, image, other = roles_of(op)
        images = [image, other] if makes == KERNEL else [image, op.outputs[0]]
        ndims = (op.outputs[0] if makes == KERNEL else other).shape.ndims - 1
        channels = ndims - (len(op._strides) - 2)
    elif isinstance(op, _POOLS):
        images, ndims, channels = [*op.inputs, *op.outputs], len(windows_of(op).sizes) + 1, 1
    else:
        return []
    return [x.shape.dimension_names[-ndims:-channels] for x in images]


def _conflicts(operations: Iterable[mtf.Operation]) -> dict[str, set[str]]:
    """{name: those that share a tensor with it}."""
    conflicts: dict[str, set[str]] = collections.defaultdict(set)
    for op in operations:
        for tensor in op.outputs:
            for one, other in itertools.permutations(tensor.shape.dimension_names, 2):
                conflicts[one].add(other)
    return conflicts


def _families(operations: Iterable[mtf.Operation], extents: Mapping[str, set[int]]) -> list[tuple[str, ...]]:
    """Names that reshapes give to one dimension, together."""
    leader = {name: name for name in extents}

    def first(name: str) -> str:
        while leader[name] != name:
            name = leader[name]
        return name

    for op in operations:
        if isinstance(op, mtf.ReshapeOperation):
            for old, new in aligned(op.inputs[0].shape.dims, op.outputs[0].shape.dims):
                if old in leader and new in leader:
                    leader[first(new)] = first(old)
    families: dict[str, list[str]] = collections.defaultdict(list)
    for name in extents:
        families[first(name)].append(name)
    return [tuple(family) for family in families.values()]


def _granules(
    operations: Iterable[mtf.Operation],
    families: Iterable[Sequence[str]],
    extents: Mapping[str, set[int]],
    machines: Machines,
) -> dict[str, int]:
    """{name: units of which a part is a multiple} of names of families that have output channels of convolutions.

    Those that are no multiple themselves, or of which each device cannot have so many, are left out.
    """
    granule = int(max(machine.granule for machine in machines.devices))
    if granule == 1:
        return {}
    packed = {dim.name for op in operations if (dim := work.packed_dim(op)) is not None}
    least = granule * len(machines.devices)
    return {
        name: granule
        for family in families
        if not packed.isdisjoint(family)
        for name in family
        if min(extents[name]) >= least and not any(extent % granule for extent in extents[name])
    }


def _units(operations: Sequence[mtf.Operation], extents: Mapping[str, set[int]]) -> list[Unit]:
    """Every operation, once; a reshape with the contraction whose sum it may scatter."""
    readers: dict[mtf.Tensor, list[mtf.Operation]] = collections.defaultdict(list)
    for op in operations:
        for x in op.inputs:
            readers[x].append(op)
    taken: set[mtf.Operation] = set()
    units = []
    for op in operations:
        if op in taken or not op.outputs:
            continue
        group = [op]
        after = readers[op.outputs[0]]
        if work.is_contraction(op) and after and all(isinstance(o, mtf.ReshapeOperation) for o in after):
            group += after
        taken |= set(group)
        tensors = [tensor for o in group for tensor in (*o.inputs, *o.outputs)]
        names = dict.fromkeys(name for x in tensors for name in x.shape.dimension_names if name in extents)
        units.append(Unit(tuple(group), tuple(names), key_of(group, [], frozenset(names), 0)))
    return units


@functools.cache
def prefixes(count: int, most: int = 3) -> tuple[int, ...]:
    """How many of the fastest devices to try: 1, all, and a few between.

    Example:
      >>> prefixes(2), prefixes(16)
      ((1, 2), (1, 8, 16))
    """
    if count <= most:
        return tuple(range(1, count + 1))
    return (1, *sorted({max(2, count >> shift) for shift in range(most - 1)}))
