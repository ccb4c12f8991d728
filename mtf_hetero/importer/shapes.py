"""Shapes that a trace leaves open: those of one operation at a time, inferred from what it reads."""

from collections.abc import Mapping

import numpy as np

from mtf_hetero._compat import tf
from mtf_hetero._support import facts
from mtf_hetero._support.ops import attribute, create
from mtf_hetero.importer.program import Operation, Value, literal
from mtf_hetero.importer.replaying import replay


def infer(op: Operation) -> list[tf.TensorShape]:
    """Return the shapes of an operation's results, inferred from the values that it reads."""
    if op.type in facts.ELEMENTWISE:  # TensorFlow would take a hundred times as long
        return [tf.TensorShape(np.broadcast_shapes(*(value.shape for value in op.inputs)))]
    if op.type in facts.SEGMENTS and op.inputs[1].array is not None:  # TensorFlow does not look at the numbers
        count = int(op.inputs[1].array[-1]) + 1
        return [tf.TensorShape([count, *op.inputs[0].shape[1:]])]
    with tf.Graph().as_default():
        return [y.shape for y in replay(op, [stand_in(value) for value in op.inputs])]


def stand_in(value: Value) -> tf.Tensor:
    """Return a tensor with the shape of a value, and with its elements if they are known."""
    if value.array is not None:
        return tf.constant(value.array, value.dtype)
    attributes = {"dtype": attribute(value.dtype), "shape": attribute(tf.TensorShape(value.shape))}
    return create("Placeholder", [], [value.dtype], "x", attributes).outputs[0]


def with_limits(op: Operation, makers: Mapping[Value, Operation]) -> Operation:
    """Give an operation the number in place of min(number, max(number, x)), as tf.math.bincount writes a fixed size."""
    op.inputs = [value if (found := _limit(value, makers)) is None else found for value in op.inputs]
    return op


def _limit(value: Value, makers: Mapping[Value, Operation]) -> Value | None:
    """Return the value that the data cannot change; None if they can."""
    shape, limits = value.shape, []
    for kind in ("Minimum", "Maximum"):
        maker = makers.get(value)
        if maker is None or maker.type != kind:
            return None
        limit, value = sorted(maker.inputs, key=lambda operand: operand.array is None)
        limits.append(limit)
    least, most = limits[::-1]
    is_known = most.array is not None and least.array is not None and np.all(least.array >= most.array)
    return most if is_known and most.shape == shape else None


# --- crops


def as_slice(op: Operation, makers: Mapping[Value, Operation]) -> Operation | None:
    """Return a crop at a place that the step computes, x[a : a + n], as a slice; None for any other operation.

    TensorFlow does not know the shape of such a crop. The slice is an error where it leaves the tensor.
    """
    corners = [makers.get(value) for value in op.inputs[1:3]] if op.type == "StridedSlice" else []
    if not corners or any(maker is None or maker.type != "Pack" for maker in corners):
        return None
    x, begin, _, steps = op.inputs
    masks = [op.attr(f"{name}_mask", 0) for name in ("ellipsis", "new_axis", "shrink_axis")]
    if any(masks) or steps.array is None or np.any(steps.array != 1) or steps.shape != (len(x.shape),):
        return None
    ends = zip(*(maker.inputs for maker in corners if maker is not None), strict=True)
    is_open_at, is_endless = (op.attr(f"{name}_mask", 0) for name in ("begin", "end"))
    sizes = []
    for i, (n, (a, b)) in enumerate(zip(x.shape, ends, strict=True)):
        if (is_open_at | is_endless) >> i & 1:  # the slice begins at `a` too, or ends elsewhere
            sizes.append(n if is_endless >> i & 1 and _is_zero(a) else None)
        else:
            sizes.append(_distance(a, b, makers))
    if None in sizes:
        return None
    (y,) = op.outputs
    y.shape = tuple(n for n in sizes if n is not None)
    attributes = {"T": attribute(x.dtype), "Index": attribute(begin.dtype)}
    return Operation("Slice", [x, begin, literal(y.shape, begin.dtype)], [y], attributes)


def _is_zero(value: Value) -> bool:
    return value.array is not None and not value.array


def _distance(begin: Value, end: Value, makers: Mapping[Value, Operation]) -> int | None:
    """Return the number that was added to the begin of a crop to have its end; None if it is not known or negative."""
    maker = makers.get(end)
    if maker is None or maker.type not in ("Add", "AddV2") or begin not in maker.inputs:
        return None
    (other,) = [value for value in maker.inputs if value is not begin] or [begin]
    return None if other.array is None or other.array < 0 else int(other.array)
