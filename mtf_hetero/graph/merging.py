"""Find operations of mtf that one operation of TensorFlow can replace.

mtf writes the gradients of relu and leaky_relu as comparisons, casts and products: passes over the largest tensors of a
CNN. They are recognised by their form. Operations that only they read do not run.
"""

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import CodeType

import numpy as np

from mtf_hetero._compat import mtf, tf

# The code of the function that mtf.cast gives its operation: a name might be another function's too
(_CAST,) = (code for code in mtf.cast.__code__.co_consts if isinstance(code, CodeType) and "tf" in code.co_names)


@dataclasses.dataclass(frozen=True)
class Gradient:
    """Operations that make up the gradient of a relu.

    Args:
      dy: the gradient of the relu's output.
      x: the relu's input, or its output.
      slope: of a leaky relu below zero; None for a relu.
      parts: the operations, from the last, whose output is the gradient, to the first.
    """

    dy: mtf.Tensor
    x: mtf.Tensor
    slope: float | None
    parts: tuple[mtf.Operation, ...]


@dataclasses.dataclass(frozen=True)
class _Masked:
    """dy * mtf.cast(comparison(x, 0), x.dtype), of tensors of one shape; its parts from the last to the first."""

    dy: mtf.Tensor
    x: mtf.Tensor
    parts: tuple[mtf.Operation, ...]


def inputs_as_lowered(operations: Sequence[mtf.Operation]) -> dict[mtf.Operation, Sequence[mtf.Tensor]]:
    """Map each operation to the tensors that it reads as lowered; a gradient may take its place."""
    gradients = _gradients(operations)
    return {op: list(_inputs(op, gradients)) for op in operations}


def plan(operations: Sequence[mtf.Operation]) -> tuple[dict[mtf.Operation, Gradient], set[mtf.Operation]]:
    """Find what can be lowered as one operation of TensorFlow.

    Args:
      operations: of an mtf graph in its order, with those inside its loops.

    Returns:
      {operation: the gradient that takes its place}, and the operations that no other one then needs.
    """
    gradients = _gradients(operations)
    consumers: dict[mtf.Tensor, list[mtf.Operation]] = {}
    for op in operations:
        for x in _inputs(op, gradients):
            consumers.setdefault(x, []).append(op)
    unneeded: set[mtf.Operation] = set()
    for op, gradient in gradients.items():
        for part in gradient.parts:
            if part is not op and unneeded.issuperset(consumers.get(part.outputs[0], ())):
                unneeded.add(part)
    return {op: gradient for op, gradient in gradients.items() if op not in unneeded}, unneeded


def _inputs(op: mtf.Operation, gradients: Mapping[mtf.Operation, Gradient]) -> Iterable[mtf.Tensor]:
    if op in gradients:
        return gradients[op].dy, gradients[op].x
    if isinstance(op, mtf.WhileLoopOperation):
        return [*op.inputs, *op._body_outputs, op._cond_output]
    return [*op.inputs, *(t for tensors in getattr(op, "results", ()) for t in tensors)]  # of a choice


def _gradients(operations: Iterable[mtf.Operation]) -> dict[mtf.Operation, Gradient]:
    """Map operations to the gradients that can take their place."""
    relu_of: dict[mtf.Tensor, mtf.Tensor] = {}
    gradients = {}
    for op in operations:
        if isinstance(op, mtf.SlicewiseOperation) and op._tf_fn is tf.nn.relu:
            relu_of.setdefault(op.inputs[0], op.outputs[0])
        gradient = _leaky_relu_gradient(op) or _relu_gradient(op, relu_of)
        if gradient is not None:
            gradients[op] = gradient
    return gradients


def _relu_gradient(op: mtf.Operation, relu_of: Mapping[mtf.Tensor, mtf.Tensor]) -> Gradient | None:
    """Recognise dy * [x > 0]."""
    masked = _masked(op, tf.greater)
    if masked is None:
        return None
    x = relu_of.get(masked.x, masked.x)  # the relu is positive where x is; with it, x need not be kept
    return Gradient(masked.dy, x, None, masked.parts)


def _leaky_relu_gradient(op: mtf.Operation) -> Gradient | None:
    """Recognise dy * [x > 0] + dy * [x <= 0] * slope; not in float64, for TensorFlow's slope is a float32."""
    if not isinstance(op, mtf.AddOperation) or op.outputs[0].dtype == tf.float64:
        return None
    scaled = op.inputs[1].operation
    if not isinstance(scaled, mtf.ScalarMultiplyOperation) or not isinstance(scaled._scalar, float):
        return None
    above = _masked(op.inputs[0].operation, tf.greater)
    below = _masked(scaled.inputs[0].operation, tf.less_equal)
    if above is None or below is None or (above.dy, above.x) != (below.dy, below.x):
        return None
    return Gradient(above.dy, above.x, scaled._scalar, (op, *above.parts, scaled, *below.parts))


def _masked(product: mtf.Operation, comparison: Callable[..., tf.Tensor]) -> _Masked | None:
    """Recognise an operation as a _Masked."""
    if not isinstance(product, mtf.EinsumOperation) or len(product.inputs) != 2:
        return None
    dy, mask = product.inputs
    cast = mask.operation
    if not isinstance(cast, mtf.SlicewiseOperation) or getattr(cast._tf_fn, "__code__", None) is not _CAST:
        return None
    compare = cast.inputs[0].operation
    if not isinstance(compare, mtf.BinaryOpWithBroadcasting) or compare._tf_fn is not comparison:
        return None
    x, zero = compare.inputs
    constant = zero.operation
    if not isinstance(constant, mtf.ImportOperation) or not _is_zero(constant._tf_tensor):
        return None
    if any(t.shape != x.shape or t.dtype != x.dtype for t in (dy, mask, product.outputs[0])):
        return None
    return _Masked(dy, x, (product, cast, compare, constant))


def _is_zero(x: tf.Tensor) -> bool:
    """Return whether a tf.Tensor is known to be zero everywhere."""
    value = tf.get_static_value(x)
    return value is not None and not np.any(value)
