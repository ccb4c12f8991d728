"""The units of a step: operations that a search prices together."""

import dataclasses
from collections.abc import Container, Sequence

from mtf_hetero._compat import mtf
from mtf_hetero.graph.identity import group_key
from mtf_hetero.graph.walk import readers
from mtf_hetero.ops.traits import find_traits


@dataclasses.dataclass(frozen=True, eq=False)
class Unit:
    """Operations that are priced together: one, or a product or lookup and the reshapes that alone read its result."""

    operations: tuple[mtf.Operation, ...]
    names: tuple[str, ...]  # in the order in which they occur
    key: str  # of units that do the same work


def _read(op: mtf.Operation) -> Sequence[mtf.Tensor]:
    """Return the tensors that an operation reads: one with a gradient of its own passes on what was made inside."""
    return op._fn_outputs if isinstance(op, mtf.CustomGradientOperation) else op.inputs


def group_units(operations: Sequence[mtf.Operation], splittable: Container[str]) -> list[Unit]:
    """List every operation once; a reshape with the contraction or the lookup whose sum it may scatter.

    Args:
      operations: of a step, in the graph's order.
      splittable: names of dimensions that may be split.
    """
    read_by = readers(operations)
    taken: set[mtf.Operation] = set()
    units = []
    for op in operations:
        if op in taken or not op.outputs:
            continue
        group = [op]
        after = read_by.get(op.outputs[0], [])
        traits = find_traits(op)
        if (traits.is_layer or traits.multiplied) and after and all(isinstance(o, mtf.ReshapeOperation) for o in after):
            group += after
        taken |= set(group)
        tensors = [tensor for o in group for tensor in (*_read(o), *o.outputs)]
        names = dict.fromkeys(name for x in tensors for name in x.shape.dimension_names if name in splittable)
        units.append(Unit(tuple(group), tuple(names), group_key(group, names)))
    return units
