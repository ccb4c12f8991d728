"""Sums of elements, whose addends may be outstanding sums over mesh axes, and operations that pass tensors on."""

import functools
from collections.abc import Sequence

from mtf_hetero._compat import mtf, tf
from mtf_hetero.ops.backend import Backend
from mtf_hetero.ops.halo import opaque
from mtf_hetero.ops.registry import register


def _add_at_once(x: tf.Tensor, y: tf.Tensor, *, are_sums: Sequence[bool]) -> tf.Tensor:
    """Add, so that TensorFlow's optimizers do not merge the sum with its addends, which would need all at once."""
    x, y = (opaque(addend) if is_sum else addend for addend, is_sum in zip((x, y), are_sums, strict=True))
    return x + y


def is_bias(op: mtf.AddOperation) -> bool:
    """Return whether an AddOperation adds numbers to the last dimension."""
    x, y = op.inputs
    return (
        x.shape == op.outputs[0].shape
        and x.shape.ndims >= 2
        and y.shape.dims == x.shape.dims[-1:]
        and x.dtype.is_floating
    )


@register(mtf.BinaryOpWithBroadcasting)
def binary_operation(op: mtf.BinaryOpWithBroadcasting, backend: Backend) -> None:
    """Add or combine slices otherwise. Of two outstanding sums, the addends are added.

    A bias is added to the last dimension as TensorFlow's operation for it, which is fused with a convolution. A sum of
    sums is added up as its parts come, so that the gradients of rounds are not all held until the last.
    """
    (a, b), (output,) = op.inputs, op.outputs
    if isinstance(op, mtf.AddOperation) and is_bias(op):
        backend.set(output, backend.local(output, tf.nn.bias_add, *map(backend.slices, op.inputs)))
    elif op._tf_fn != tf.add or a.shape != b.shape or a.shape != output.shape:
        backend.mtf_lower(op)
    else:
        are_sums = [isinstance(x.operation, mtf.AddOperation) for x in op.inputs]
        function = functools.partial(_add_at_once, are_sums=are_sums) if any(are_sums) else op._tf_fn
        x, y = backend.laid_out(a), backend.laid_out(b)
        if isinstance(x, list) or isinstance(y, list) or x.axes != y.axes:
            backend.set(output, backend.local(output, function, *map(backend.slices, op.inputs)))
            return
        addends = backend.local(output, function, x.partial, y.partial)
        backend.set(output, backend.derived(x, addends, x.absent & y.absent))


@register(mtf.StopGradient)
def pass_on(op: mtf.StopGradient, backend: Backend) -> None:
    """Return the input itself."""
    backend.set(op.outputs[0], backend.laid_out(op.inputs[0]))


@register(mtf.CustomGradientOperation)
def custom_gradient(op: mtf.CustomGradientOperation, backend: Backend) -> None:
    """Return the results of the operations inside."""
    for inner, output in zip(op._fn_outputs, op.outputs, strict=True):
        backend.set(output, backend.laid_out(inner))
