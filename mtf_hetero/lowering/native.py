"""TensorFlow's own operations in place of what mtf spells out.

mtf writes the gradients of relu and leaky_relu into its graph as comparisons, casts and products: passes over the
largest tensors of a CNN. They are recognised by their form and lowered as one operation; what only they needed is not
lowered at all.
"""

import dataclasses
import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import CodeType

import numpy as np

from mtf_hetero._compat import mtf, tf
from mtf_hetero.lowering.registry import Rule, set_output

# The code of the function that mtf.cast gives its operation: a name might be another function's too
(_CAST,) = (code for code in mtf.cast.__code__.co_consts if isinstance(code, CodeType) and "tf" in code.co_names)


@dataclasses.dataclass(frozen=True)
class _Masked:
    """dy * mtf.cast(comparison(x, 0), x.dtype).

    Args:
      dy: mtf.Tensor.
      x: mtf.Tensor of the same shape.
      parts: the operations it is made of, from the last to the first.
    """

    dy: mtf.Tensor
    x: mtf.Tensor
    parts: tuple[mtf.Operation, ...]


def _is_zero(x: mtf.Tensor) -> bool:
    """Whether a tf.Tensor is known to be zero everywhere."""
    value = tf.get_static_value(x)
    return value is not None and not np.any(value)


def _masked(product: mtf.Operation, comparison: tf.Tensor) -> _Masked | None:
    """Recognises an operation as a _Masked."""
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


@dataclasses.dataclass(frozen=True)
class _Match:
    """Operations that one operation of TensorFlow can do.

    Args:
      gradient: function of slices.
      inputs: the mtf.Tensors that it is given slices of.
      parts: the operations, from the last, whose output it makes, to the first.
    """

    gradient: Callable[..., tf.Tensor]
    inputs: tuple[mtf.Tensor, ...]
    parts: tuple[mtf.Operation, ...]

    def lower(self, op: mtf.Operation, lowering: mtf.Lowering) -> None:
        """The rule for the last of the operations."""
        values = [lowering.tensors[x] for x in self.inputs]
        set_output(op, lowering, lowering.mesh_impl(op).slicewise(self.gradient, *values))


def _differentiate_relu(dy: tf.Tensor, features: tf.Tensor) -> tf.Tensor:
    return tf.raw_ops.ReluGrad(gradients=dy, features=features)


def _differentiate_leaky_relu(dy: tf.Tensor, features: tf.Tensor, alpha: float) -> tf.Tensor:
    return tf.raw_ops.LeakyReluGrad(gradients=dy, features=features, alpha=alpha)


def _relu_gradient(op: mtf.Operation, relu_of: Mapping[mtf.Tensor, mtf.Tensor]) -> _Match | None:
    """Recognises dy * [x > 0]."""
    masked = _masked(op, tf.greater)
    if masked is None:
        return None
    features = relu_of.get(masked.x, masked.x)  # the relu is positive where x is; with it, x need not be kept
    return _Match(_differentiate_relu, (masked.dy, features), masked.parts)


def _leaky_relu_gradient(op: mtf.Operation) -> _Match | None:
    """Recognises dy * [x > 0] + dy * [x <= 0] * alpha; not in float64, for TensorFlow's alpha is a float32."""
    if not isinstance(op, mtf.AddOperation) or op.outputs[0].dtype == tf.float64:
        return None
    scaled = op.inputs[1].operation
    if not isinstance(scaled, mtf.ScalarMultiplyOperation) or not isinstance(scaled._scalar, float):
        return None
    above = _masked(op.inputs[0].operation, tf.greater)
    below = _masked(scaled.inputs[0].operation, tf.less_equal)
    if above is None or below is None or (above.dy, above.x) != (below.dy, below.x):
        return None
    gradient = functools.partial(_differentiate_leaky_relu, alpha=scaled._scalar)
    return _Match(gradient, (above.dy, above.x), (op, *above.parts, scaled, *below.parts))


def _matches(operations: Iterable[mtf.Operation]) -> dict[mtf.Operation, _Match]:
    """{operation: what can take its place}."""
    relu_of: dict[mtf.Tensor, mtf.Tensor] = {}
    matches = {}
    for op in operations:
        if isinstance(op, mtf.SlicewiseOperation) and op._tf_fn is tf.nn.relu:
            relu_of.setdefault(op.inputs[0], op.outputs[0])
        match = _leaky_relu_gradient(op) or _relu_gradient(op, relu_of)
        if match is not None:
            matches[op] = match
    return matches


def _inputs(op: mtf.Operation, matches: Mapping[mtf.Operation, _Match]) -> Iterable[mtf.Tensor]:
    if op in matches:
        return matches[op].inputs
    if isinstance(op, mtf.WhileLoopOperation):
        return [*op.inputs, *op._body_outputs, op._cond_output]
    return [*op.inputs, *(t for tensors in getattr(op, "results", ()) for t in tensors)]  # of a choice


def inputs_as_lowered(operations: Sequence[mtf.Operation]) -> dict[mtf.Operation, Sequence[mtf.Tensor]]:
    """{operation: the tensors that are read where it is lowered}: by what takes its place, if anything does."""
    matches = _matches(operations)
    return {op: list(_inputs(op, matches)) for op in operations}


def plan(operations: Sequence[mtf.Operation]) -> tuple[dict[mtf.Operation, Rule], set[mtf.Operation]]:
    """Finds what can be lowered as one operation of TensorFlow.

    Args:
      operations: of an mtf graph in its order, with those inside its loops.

    Returns:
      {operation: its rule}, and the operations that none of the others then needs.
    """
    matches = _matches(operations)
    consumers: dict[mtf.Tensor, list[mtf.Operation]] = {}
    for op in operations:
        for x in _inputs(op, matches):
            consumers.setdefault(x, []).append(op)
    unneeded: set[mtf.Operation] = set()
    for op, match in matches.items():
        for part in match.parts:
            if part is not op and unneeded.issuperset(consumers.get(part.outputs[0], ())):
                unneeded.add(part)
    return {op: match.lower for op, match in matches.items() if op not in unneeded}, unneeded
