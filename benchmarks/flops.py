"""Floating-point operations of an mtf program: two for each multiply-add of its convolutions and contractions."""

from typing import Any

from mtf_hetero import mtf
from mtf_hetero.layouts import anatomy


def of_operation(op: Any) -> int:
    """Floating-point operations of one operation; 0 where it is neither a convolution nor a contraction.

    Multiply-adds are the product of all dimensions that take part. Of a convolution and of its gradients alike these
    are the kernel's and those of the result of the forward convolution (batch, its height and width).
    """
    if isinstance(op, mtf.EinsumOperation):
        dims = [dim for x in op.inputs for dim in x.shape.dims]
        if len(op.inputs) < 2 or set(dims) <= set(op.outputs[0].shape.dims):
            return 0  # a sum, or a product of elements
    elif isinstance(op, mtf.Conv2or3dBackpropInputOperation):
        dims = [dim for x in op.inputs for dim in x.shape.dims]  # of dy and the kernel
    elif isinstance(op, mtf.Conv2or3dBackpropFilterOperation):
        dims = [*op.inputs[1].shape.dims, *op.outputs[0].shape.dims]  # of dy and the kernel's gradient
    elif isinstance(op, (mtf.Conv2dOperation, mtf.Conv3dOperation)):
        dims = [*op.inputs[1].shape.dims, *op.outputs[0].shape.dims]
    else:
        return 0
    return 2 * mtf.Shape(list(dict.fromkeys(dims))).size


def of_step(built: Any) -> int:
    """Floating-point operations of a training step: what the loss and the updates need, forward and backward.

    Args:
      built: models.network.Built.
    """
    needed = anatomy.ancestors([built.loss, *[x for op in built.updates for x in op.inputs]])
    return sum(of_operation(op) for op in needed)
