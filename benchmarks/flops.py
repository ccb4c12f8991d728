"""Floating-point operations of an mtf program: two for each multiply-add of its convolutions and contractions."""

from collections.abc import Collection
from typing import Any

from mtf_hetero import mtf
from mtf_hetero.layouts import anatomy


def of_operation(op: Any) -> int:
    """Floating-point operations of one operation; 0 where it is neither a convolution nor a contraction.

    Multiply-adds are the product of all dimensions that take part. Of a convolution and of its gradients alike these
    are the kernel's and those of the result of the forward convolution (batch, its height and width).
    """
    dims = [dim for x in op.inputs for dim in x.shape.dims]  # of a gradient of the inputs: of dy and the kernel
    if isinstance(op, mtf.EinsumOperation):
        if len(op.inputs) < 2 or set(dims) <= set(op.outputs[0].shape.dims):
            return 0  # a sum, or a product of elements
    elif isinstance(op, (mtf.Conv2dOperation, mtf.Conv3dOperation, mtf.Conv2or3dBackpropFilterOperation)):
        dims = [*op.inputs[1].shape.dims, *op.outputs[0].shape.dims]  # of kernel and result; of dy and the gradient
    elif not isinstance(op, mtf.Conv2or3dBackpropInputOperation):
        return 0
    return 2 * mtf.Shape(list(dict.fromkeys(dims))).size


def needed(built: Any) -> Collection[Any]:
    """The operations that the loss and the updates of a models.network.Built need, forward and backward."""
    return anatomy.ancestors([built.loss, *[x for op in built.updates for x in op.inputs]])


def of_step(built: Any) -> int:
    """Floating-point operations of a training step."""
    return sum(map(of_operation, needed(built)))
