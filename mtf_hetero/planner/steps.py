"""What a step is to a search: names of dimensions, those that go together, and operations that are priced together."""

import collections
import dataclasses
import itertools
from collections.abc import Iterable, Mapping, Sequence

from mtf_hetero import layers
from mtf_hetero._compat import mtf
from mtf_hetero.blocks import aligned
from mtf_hetero.layers.lookups import split_shapes
from mtf_hetero.lowering.conv_boxes import CONVOLUTIONS, KERNEL, roles_of
from mtf_hetero.lowering.loop import operations_within
from mtf_hetero.lowering.pool import windows_of
from mtf_hetero.planner import work
from mtf_hetero.profile.work import key_of

_POOLS = (layers.PoolOperation, layers.PoolGradientOperation, mtf.PoolOperation, mtf.PoolBackPropOperation)


@dataclasses.dataclass(frozen=True, eq=False)
class Unit:
    """Operations that are priced together: one, or a product or lookup and the reshapes that alone read its result."""

    operations: tuple[mtf.Operation, ...]
    names: tuple[str, ...]  # in the order in which they occur
    key: str  # of units that do the same work


def names(op: mtf.Operation) -> set[str]:
    """The names of an operation's dimensions."""
    return {name for tensor in (*op.inputs, *op.outputs) for name in tensor.shape.dimension_names}


def extents(operations: Sequence[mtf.Operation]) -> dict[str, set[int]]:
    """{name: extents} of the dimensions that may be split, in the graph's order."""
    extents: dict[str, set[int]] = {}
    whole: set[str] = set()
    for op in operations_within(operations):
        whole |= op.unsplittable_dims - {name for names in spaces(op) for name in names}
    for op in operations:
        for tensor in (*op.inputs, *op.outputs):
            for dim in tensor.shape.dims:
                extents.setdefault(dim.name, set()).add(dim.size)
    return {name: sizes for name, sizes in extents.items() if name not in whole and max(sizes) > 1}


def granules(
    operations: Iterable[mtf.Operation],
    families: Iterable[Sequence[str]],
    extents: Mapping[str, set[int]],
    granule: int,
    count: int,
) -> dict[str, int]:
    """{name: units of which a part is a multiple} of families that have output channels of convolutions.

    Those that are no multiple themselves, or of which not every part can have so many, are left out.

    Args:
      operations: of a step.
      families: names that go together.
      extents: {name: extents}.
      granule: how many channels a device computes at a time.
      count: of parts, at most.
    """
    if granule == 1:
        return {}
    packed = {dim.name for op in operations if (dim := work.packed_dim(op)) is not None}
    return {
        name: granule
        for family in families
        if not packed.isdisjoint(family)
        for name in family
        if min(extents[name]) >= granule * count and not any(extent % granule for extent in extents[name])
    }


def spaces(op: mtf.Operation) -> list[list[str]]:
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


def conflicts(operations: Iterable[mtf.Operation]) -> dict[str, set[str]]:
    """{name: those that cannot be split over its mesh axis}, because they share a tensor or a lookup with it."""
    conflicts: dict[str, set[str]] = collections.defaultdict(set)
    for op in operations_within(operations):
        for shape in split_shapes(op):
            for one, other in itertools.permutations(shape.dimension_names, 2):
                conflicts[one].add(other)
    return conflicts


def families(operations: Iterable[mtf.Operation], extents: Mapping[str, set[int]]) -> list[tuple[str, ...]]:
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


def units(operations: Sequence[mtf.Operation], extents: Mapping[str, set[int]]) -> list[Unit]:
    """Every operation, once; a reshape with the contraction or the lookup whose sum it may scatter."""
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
        is_product = work.is_contraction(op) or isinstance(op, layers.LookupOperation)
        if is_product and after and all(isinstance(o, mtf.ReshapeOperation) for o in after):
            group += after
        taken |= set(group)
        tensors = [tensor for o in group for tensor in (*o.inputs, *o.outputs)]
        names = dict.fromkeys(name for x in tensors for name in x.shape.dimension_names if name in extents)
        units.append(Unit(tuple(group), tuple(names), key_of(group, names)))
    return units
