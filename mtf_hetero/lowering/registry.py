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
                f"which the layout splits over mesh axis {axis!r}; take the rule {dim.name}:{axis} out of the layout"
            )


def set_output(op: mtf.Operation, lowering: mtf.Lowering, value: Any, reduced_axes: Sequence[int | None] = ()) -> None:
    """Sets the lowering of an operation's only output, a sum over mesh axes that is made when it is first needed.

    Args:
      op: the mtf.Operation.
      lowering: the Lowering.
      value: a LaidOutTensor, partial sums over `reduced_axes`.
      reduced_axes: indices of mesh axes; None entries are passed over.

    Raises:
      NotImplementedError: as of `summed_axes`.
    """
    output = op.outputs[0]
    axes = summed_axes(op, lowering.mesh_impl(op).layout, reduced_axes)
    if axes:
        kind = type(op).__name__

        def count() -> None:
            lowering.add_counter(f"allreduce/{axes}/{kind}", lowering.laid_out_size(output))

        value = mtf.LazyAllreduceSum(lowering.mesh_impl(op), value, axes, add_counter_fn=count)
    lowering.set_tensor_lowering(output, value)


def summed_axes(op: mtf.Operation, layout: Layout, axes: Iterable[int | None]) -> list[int]:
    """The mesh axes over which an operation's only output is a sum, in their order.

    Args:
      op: the mtf.Operation.
      layout: the Layout.
      axes: indices of mesh axes; None entries are passed over.

    Raises:
      NotImplementedError: the output is split over one of these axes too. No tensor need be: a convolution may sum over
        filters on an axis that has a height of its output, but not the height of its input, which is too small for it.
    """
    summed = sorted({axis for axis in axes if axis is not None})
    for dim in op.outputs[0].shape.dims if summed else ():
        if layout.axis_of(dim) in summed:
            axis = layout.axis_name_of(dim)
            raise NotImplementedError(
                f"{type(op).__name__} {op.name!r} cannot add up over mesh axis {axis!r}, over which its output's "
                f"dimension {dim.name!r} is split; take the rule {dim.name}:{axis} or that of the dimension that is "
                "summed over out of the layout"
            )
    return summed
