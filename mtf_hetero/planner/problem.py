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
from mtf_hetero.planner.machines import Machines
from mtf_hetero.planner.sample import Crowd, Sample, crowd_of, everyone
from mtf_hetero.planner.search import Table
from mtf_hetero.profile.work import key_of

AXIS = "all"
WHOLE = 0  # the choice not to split
EXACT = 8  # devices, each of which is priced
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
      subsets: numbers of the devices among which something may be divided, so that those of a subset are no longer
        like the others. Of more than EXACT devices, a few of those that are alike stand for all, as planner.sample has
        it; None: none does.
    """

    def __init__(
        self,
        operations: Sequence[mtf.Operation],
        machines: Machines,
        subsets: Iterable[Collection[int]] | None = None,
    ) -> None:
        self.operations, self.everyone = tuple(operations), machines
        self.crowd = everyone(len(machines.devices)) if subsets is None else crowd_of_devices(machines, subsets)
        self.machines = machines.only(self.crowd.shown) if self.crowd.is_sample else machines  # those that are priced
        self.extents = _extents(operations)
        self.families = _families(operations, self.extents)
        self.units = _units(operations, self.extents)
        self._conflicts = _conflicts(operations)
        spaces = [names for op in operations for names in _spaces(op)]
        self._heights = {names[0] for names in spaces}  # or depths, of volumes
        self._not_searched = {name for names in spaces for name in names[1:]}
        self._names_of = {op: frozenset(_names(op)) for op in operations}
        measured = any(machine.factors for machine in machines.devices)
        self._kind_of = {op: work.kind_of(op) if measured else "" for op in operations}
        self._seconds: dict[tuple[mtf.Operation, frozenset], tuple[float, ...]] = {}
        self._amounts: dict[mtf.Operation, tuple[int, int]] = {}
        self._vectors: dict[tuple[int, tuple[float, ...]], tuple[int, ...]] = {}
        self._costs: dict[tuple[str, tuple], float] = {}
        self._layouts: dict[frozenset[tuple[str, tuple[int, ...]]], Layout] = {}
        self._samples: dict[frozenset[tuple[str, tuple[int, ...]]], Sample] = {}

    def layout(self, sizes: Mapping[str, tuple[int, ...]]) -> Layout:
        """The layout that splits these names into these sizes, and nothing else."""
        key = frozenset(sizes.items())
        if key not in self._layouts:
            count = len(self.everyone.devices)
            self._layouts[key] = Layout([(AXIS, count)], [(name, AXIS) for name in sizes], (), sizes)
        return self._layouts[key]

    def priced(self, layout: Layout) -> Layout:
        """What is priced of a layout: all of it, or a planner.sample.Sample."""
        if not self.crowd.is_sample or isinstance(layout, Sample):
            return layout
        key = frozenset(layout.sizes)
        if key not in self._samples:
            given = layout.mesh_shape, layout.rules, layout.shares, layout.sizes
            self._samples[key] = Sample(*given, crowds=(self.crowd,))
        return self._samples[key]

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
        layout = self.priced(layout)
        try:
            sent = transfers.of_step(operations, layout)
        except NotImplementedError:
            return math.inf
        busy = [0.0] * layout.size
        total = math.fsum(max(self.seconds_of(op, layout)) for op in operations)
        for transfer in sent:
            for end, times in ((transfer.source, transfer.times), (transfer.target, 1.0)):
                busy[end] += times * transfer.ends_seconds(self.machines.devices[end].sending_seconds)
        return total + max(busy) + self.sending_seconds(sent)

    def seconds_of(self, op: mtf.Operation, layout: Layout) -> tuple[float, ...]:
        """Seconds that each device that is priced computes for an operation; kept by what the layout splits of it."""
        layout = self.priced(layout)
        key = op, layout.sizes_among(self._names_of[op])
        if key not in self._seconds:
            self._seconds[key] = tuple(
                machine.seconds(*amount, self._kind_of[op])
                for machine, amount in zip(self.machines.devices, work.of_processors(op, layout), strict=True)
            )
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

    def operations_split(self, sizes: Mapping[str, tuple[int, ...]]) -> dict[str, list[mtf.Operation]]:
        """{first name of a family: the operations that a layout splits along one of its names}."""
        found = {}
        for family in self.families:
            names = {name for name in family if name in sizes}
            found[family[0]] = [op for op in self.operations if names & self._names_of[op]] or self._operations_of(
                family
            )
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
        key = max(self.extents[name]), weights
        if key not in self._vectors:
            self._vectors[key] = split_among_positive(*key)
        return self._vectors[key]


def problem_of(
    operations: Sequence[mtf.Operation],
    machines: Machines,
    sizes: Mapping[str, Sequence[int]],
    subsets: Iterable[Collection[int]] = (),
) -> Problem:
    """A problem in which devices stand for others only where these have like sizes: as large, or one unit less or more.

    Args:
      operations: as of `Problem`.
      machines: likewise.
      sizes: {name: one size per device}.
      subsets: as of `Problem`, beside those that have something of a name.
    """
    vectors = set(sizes.values())
    having = {tuple(map(bool, vector)) for vector in vectors}
    subsets = [*subsets, *(frozenset(n for n, has in enumerate(of_all) if has) for of_all in having)]
    problem = Problem(operations, machines, subsets)
    for vector, group in itertools.product(vectors, problem.crowd.groups):
        of_group = [vector[number] for number in group]
        if max(of_group) > min(of_group) + 1:
            return Problem(operations, machines)
    return problem


def crowd_of_devices(machines: Machines, subsets: Iterable[Collection[int]]) -> Crowd:
    """The devices that stand for all: of equal figures, and in the same subsets. Up to EXACT, each is its own."""
    if len(machines.devices) <= EXACT:
        return everyone(len(machines.devices))
    named = {name for pair in machines.links for name in pair}
    subsets = [frozenset(subset) for subset in subsets]
    kinds = []
    for number, machine in enumerate(machines.devices):
        figures = dataclasses.astuple(dataclasses.replace(machine, name="", factors={}))[:-1]
        own = machine.name if machine.name in named else ""
        is_in = tuple(number in subset for subset in subsets)
        kinds.append((figures, tuple(sorted(machine.factors.items())), own, is_in))
    return crowd_of(kinds)


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
