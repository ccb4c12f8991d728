"""Keras's constraints of weights after a step, computed by Keras's own code on slices.

A constraint looks at each element by itself, or at the norms over some axes, and any other at the whole weight: what it
looks at has to be whole where it is computed.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

from mtf_hetero._compat import mtf, tf
from mtf_hetero.keras._keras import keras
from mtf_hetero.keras.weights import Weight

_NORMS = tuple(getattr(keras.constraints, name) for name in ("MaxNorm", "MinMaxNorm", "UnitNorm"))


@dataclasses.dataclass(frozen=True)
class _Constraint:
    """A constraint on slices, by what it is.

    Args:
      kind: of the constraint.
      options: its configuration, as text.
      parts: of each of the weight's axes in Keras, how many dimensions the mtf variable has of it.
      axes: the order in which the mtf variable has them.
      constraint: itself.
    """

    kind: str
    options: str
    parts: tuple[int, ...]
    axes: tuple[int, ...]
    constraint: Any = dataclasses.field(compare=False, repr=False)

    def apply(self, x: tf.Tensor) -> tf.Tensor:
        """The slice, constrained."""
        y = tf.transpose(x, np.argsort(self.axes))
        split, sizes, first = y.shape.as_list(), [], 0
        for count in self.parts:
            sizes.append(int(np.prod(split[first : first + count])))
            first += count
        y = tf.cast(self.constraint(tf.reshape(y, sizes)), x.dtype)
        return tf.transpose(tf.reshape(y, split), self.axes)


def constrained(weight: Weight, value: mtf.Tensor, name: str) -> mtf.Tensor:
    """A weight's value after its constraint, if it has one.

    Args:
      weight: what it is in Keras.
      value: mtf.Tensor, after a step.
      name: of the mtf variable.
    """
    constraint = weight.variable.constraint
    if constraint is None:
        return value
    parts = _parts(weight)
    looked_at = _looked_at(constraint, weight, parts)
    options = constraint.get_config() if hasattr(constraint, "get_config") else {}
    function = _Constraint(type(constraint).__name__, str(options), parts, tuple(weight.axes), constraint)
    whole = [
        mtf.Dimension(f"{name}/constrained{i}", dim.size) if i in looked_at else dim
        for i, dim in enumerate(value.shape.dims)
    ]
    free = [dim for i, dim in enumerate(whole) if i not in looked_at]
    x = mtf.reshape(value, whole)
    y = mtf.slicewise(function.apply, [x], x.shape, x.dtype, splittable_dims=free, name=f"{name}/constraint")
    return mtf.reshape(y, value.shape)


def _parts(weight: Weight) -> tuple[int, ...]:
    """Of each axis that a weight has in Keras, how many dimensions of `split` are of it."""
    parts, split = [], list(weight.split)
    for size in weight.variable.shape:
        count, product = 0, 1
        while split and (product < size or (count == 0 and size == 1)):
            product *= split.pop(0)
            count += 1
        if product != size:
            raise NotImplementedError(
                f"weight {weight.variable.path!r} has a constraint, but its axes differ from the axes of the mtf "
                "variable; remove the constraint"
            )
        parts.append(count)
    parts[-1] += len(split)  # dimensions of one
    return tuple(parts)


def _looked_at(constraint: Any, weight: Weight, parts: Sequence[int]) -> set[int]:
    """The dimensions of the mtf variable that a constraint needs whole."""
    if type(constraint) is keras.constraints.NonNeg:
        return set()
    if type(constraint) not in _NORMS:
        return set(range(len(weight.axes)))
    axes = constraint.axis if isinstance(constraint.axis, (list, tuple)) else [constraint.axis]
    wanted = {axis % len(parts) for axis in axes}
    owners = [axis for axis, count in enumerate(parts) for _ in range(count)]  # of each dimension of `split`
    return {place for place, axis in enumerate(weight.axes) if owners[axis] in wanted}
