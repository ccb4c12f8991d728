"""The tables of rules: which function carries out which class of mtf operation on an uneven mesh.

A rule is a function (operation, backend) -> None that sets the operation's outputs, as `backend` describes. Most
operations that compute slices of outputs from the same processor's slices need no rule: mtf's own lowering is right
for unequal slices.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

from mtf_hetero._compat import mtf
from mtf_hetero.layout import CannotSplitError, Layout
from mtf_hetero.ops.backend import Backend
from mtf_hetero.ops.traits import TRAITS, Traits

Op = TypeVar("Op", bound=mtf.Operation)
T = TypeVar("T")  # a Backend, or the Lowering
Rule = Callable[[Op, T], None]
# Each rule is for operations of its class
LOWERINGS: dict[type, Rule[Any, Any]] = {}  # with TensorFlow
COUNTINGS: dict[type, Rule[Any, Any]] = {}  # without it


def register(
    *op_classes: type[Op], traits: Traits[Op] | None = None
) -> Callable[[Rule[Op, Backend]], Rule[Op, Backend]]:
    """Decorate a function as the rule for these classes of operation.

    Args:
      *op_classes: the classes.
      traits: facts on them for readers of a graph; None: there are none.
    """

    def add(rule: Rule[Op, Backend]) -> Rule[Op, Backend]:
        TRAITS.update({} if traits is None else dict.fromkeys(op_classes, traits))
        LOWERINGS.update(dict.fromkeys(op_classes, lower_by(rule)))
        COUNTINGS.update(dict.fromkeys(op_classes, rule))
        return rule

    return add


def lower_by(rule: Rule[Op, Backend]) -> Rule[Op, Any]:
    """Return the function that carries out a rule with TensorFlow."""
    return lambda op, lowering: rule(op, lowering.backend(op))


def register_lowering(*op_classes: type[Op], is_local: bool = False) -> Callable[[Rule[Op, T]], Rule[Op, T]]:
    """Decorate a function that carries out these classes with TensorFlow, by what no other backend has.

    Args:
      *op_classes: the classes.
      is_local: whether each processor computes its slices of the outputs from its slices of the inputs, so that
        `slice_by_slice` counts them. If not, `count_by` registers a rule.
    """

    def add(lower: Rule[Op, T]) -> Rule[Op, T]:
        LOWERINGS.update(dict.fromkeys(op_classes, lower))
        if is_local:
            COUNTINGS.update(dict.fromkeys(op_classes, slice_by_slice))
        return lower

    return add


def count_by(*op_classes: type[Op]) -> Callable[[Rule[Op, T]], Rule[Op, T]]:
    """Decorate a function as the rule by which these classes are counted."""

    def add(rule: Rule[Op, T]) -> Rule[Op, T]:
        COUNTINGS.update(dict.fromkeys(op_classes, rule))
        return rule

    return add


def slice_by_slice(op: mtf.Operation, backend: Backend) -> None:
    """Have each processor compute its slices of the outputs from its slices of the inputs."""
    backend.mtf_lower(op)


def find_rule(op: mtf.Operation, rules: Mapping[type, Rule[Any, Any]]) -> Rule[Any, Any] | None:
    """Find the rule for an operation in a table. A subclass that has a `lower` of its own keeps it."""
    for op_class in type(op).__mro__:
        if op_class in rules or "lower" in vars(op_class):
            return rules.get(op_class)
    return None


def require_whole(op: mtf.Operation, layout: Layout, dims: Iterable[mtf.Dimension], why: str) -> None:
    """Raise NotImplementedError if the layout splits one of the dimensions.

    Args:
      op: the mtf.Operation.
      layout: the Layout.
      dims: dimensions that its rule needs whole.
      why: what needs them, "convolution" for instance.
    """
    for dim in dims:
        axis = layout.axis_name_of(dim)
        if axis is not None:
            raise CannotSplitError(
                f"{type(op).__name__} {op.name!r}: {why} cannot be split along dimension {dim.name!r}, "
                f"which the layout splits over mesh axis {axis!r}; remove the rule {dim.name}:{axis} from the layout"
            )
