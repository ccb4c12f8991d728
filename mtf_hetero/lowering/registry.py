"""The table of lowering rules: which function lowers which class of mtf operation on an uneven mesh.

A rule is a function (operation, lowering) -> None that sets the lowering of the operation's outputs. Most of mtf's own
lowerings are right for unequal slices as they are and have no rule.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from mtf_hetero._compat import mtf
from mtf_hetero.layout import Layout

Rule = Callable[[Any, Any], None]
_RULES: dict[type, Rule] = {}


def register(*op_classes: type) -> Callable[[Rule], Rule]:
    """Decorator: the function lowers these classes of operation."""

    def add(rule: Rule) -> Rule:
        for op_class in op_classes:
            _RULES[op_class] = rule
        return rule

    return add


def rule_of(op: mtf.Operation, rules: Mapping[type, Any] = _RULES) -> Any:
    """The rule for an operation, of a table, or None. A subclass that has a `lower` of its own keeps it."""
    for op_class in type(op).__mro__:
        if op_class in rules or "lower" in vars(op_class):
            return rules.get(op_class)
    return None


def require_whole(op: mtf.Operation, lowering: mtf.Lowering, dims: Iterable[mtf.Dimension], why: str) -> None:
    """Raises NotImplementedError if the layout splits one of the dimensions.

    Args:
      op: the mtf.Operation.
      lowering: the Lowering.
      dims: dimensions that its lowering needs whole.
      why: what needs them, "convolution" for instance.
    """
    check_whole(op, lowering.mesh_impl(op).layout, dims, why)


def check_whole(op: mtf.Operation, layout: Layout, dims: Iterable[mtf.Dimension], why: str) -> None:
    """As `require_whole`, of a Layout."""
    for dim in dims:
        axis = layout.axis_name_of(dim)
        if axis is not None:
            raise NotImplementedError(
                f"{type(op).__name__} {op.name!r}: {why} cannot be split along dimension {dim.name!r}, "
                f"which the layout splits over mesh axis {axis!r}; remove the rule {dim.name}:{axis} from the layout"
            )


def set_output(op: mtf.Operation, lowering: mtf.Lowering, value: Any, dims: Sequence[mtf.Dimension] = ()) -> None:
    """Sets the lowering of an operation's only output, a sum over mesh axes that is made when it is first needed.

    Args:
      op: the mtf.Operation.
      lowering: the Lowering.
      value: a LaidOutTensor, partial sums over the mesh axes of `dims`.
      dims: the dimensions that the operation sums over.

    Raises:
      NotImplementedError: as of `summed_axes`.
    """
    output, mesh_impl = op.outputs[0], lowering.mesh_impl(op)
    axes = summed_axes(op, mesh_impl.layout, dims)
    if axes:
        kind = type(op).__name__

        def count() -> None:
            lowering.add_counter(f"allreduce/{axes}/{kind}", lowering.laid_out_size(output))

        value = outstanding(mesh_impl, value, axes, dims, count)
    lowering.set_tensor_lowering(output, value)


def outstanding(
    mesh_impl: mtf.MeshImpl, value: Any, axes: Sequence[int], dims: Iterable[mtf.Dimension], count: Callable[[], None]
) -> mtf.LazyAllreduceSum:
    """A sum that is made when it is first needed.

    Args:
      mesh_impl: the implementation of the mesh.
      value: a LaidOutTensor, the addends.
      axes: indices of mesh axes.
      dims: the dimensions that are summed over.
      count: called once it is made.
    """
    addends = mesh_impl.LaidOutTensor(value.tensor_list, absent_from(mesh_impl.layout, dims))
    return mtf.LazyAllreduceSum(mesh_impl, addends, axes, add_counter_fn=count)


def absent_from(layout: Layout, dims: Iterable[mtf.Dimension]) -> frozenset[int]:
    """The processors whose addend to a sum over these dimensions is zero: those that have nothing of one of them."""
    dims = [dim for dim in dims if dim.name in layout.emptied]
    processors = range(layout.size if dims else 0)
    return frozenset(pnum for pnum in processors if 0 in layout.slice_shape(dims, pnum))


def summed_axes(op: mtf.Operation, layout: Layout, dims: Iterable[mtf.Dimension]) -> list[int]:
    """The mesh axes over which an operation's only output is a sum, in their order.

    Args:
      op: the mtf.Operation.
      layout: the Layout.
      dims: the dimensions that it sums over.

    Raises:
      NotImplementedError: the output is split over one of these axes too. No tensor need be: a convolution may sum over
        filters on an axis that has a height of its output, but not the height of its input, which is too small for it.
    """
    summed = sorted({axis for axis in map(layout.axis_of, dims) if axis is not None})
    for dim in op.outputs[0].shape.dims if summed else ():
        if layout.axis_of(dim) in summed:
            axis = layout.axis_name_of(dim)
            raise NotImplementedError(
                f"{type(op).__name__} {op.name!r} cannot all-reduce over mesh axis {axis!r}, because its output's "
                f"dimension {dim.name!r} is split over this axis; remove the rule {dim.name}:{axis} from the layout, "
                "or the rule of the summed dimension"
            )
    return summed
