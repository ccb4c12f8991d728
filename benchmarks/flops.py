"""Floating-point operations of an mtf program: two for each multiply-add of its convolutions and contractions."""

from collections.abc import Collection
from typing import Any

from mtf_hetero import mtf
from mtf_hetero.graph.walk import ancestors
from mtf_hetero.ops.traits import is_contraction, multiplied_dims


def of_operation(op: Any) -> int:
    """Floating-point operations of one operation; 0 where it is neither a convolution nor a contraction.

    Multiply-adds are the product of all dimensions that take part. Of a convolution and of its gradients alike these
    are the kernel's and those of the result of the forward convolution (batch, its height and width).
    """
    if not is_contraction(op):
        return 0
    dims = multiplied_dims(op)
    if isinstance(op, mtf.EinsumOperation) and (len(op.inputs) < 2 or set(dims) <= set(op.outputs[0].shape.dims)):
        return 0  # a sum, or a product of elements
    return 2 * mtf.Shape(dims).size


def needed_operations(built: Any) -> Collection[Any]:
    """Return the operations that the loss and the updates of a models.network.Built need, forward and backward."""
    return ancestors(x.operation for x in [built.loss, *(x for op in built.updates for x in op.inputs)])


def of_step(built: Any) -> int:
    """Floating-point operations of a training step."""
    return sum(map(of_operation, needed_operations(built)))
