"""Convolutions and their gradients, 2D and 3D, and the transposed ones.

Split input channels give partial sums, split filters give slices of the output, and a split batch gives partial sums
of the kernel's gradient. The spatial dimensions are whole.
"""

from collections.abc import Sequence
from typing import Any

from mtf_hetero._compat import mtf, tf
from mtf_hetero.collectives import reshape
from mtf_hetero.lowering.registry import register, require_whole, set_output


def _flatten_batch(x: Any, rank: int) -> Any:
    """[..., height, width, channels] to [batch, height, width, channels], the last `rank` dimensions kept."""
    shape = x.shape.as_list()
    return reshape(x, [mtf.list_product(shape[:-rank]), *shape[-rank:]])


def _check(op: Any, lowering: Any, image: Any, kernel: Any, other: Any) -> None:
    spatial = kernel.ndims - 2
    dims = {*image.dims[-spatial - 1 : -1], *other.dims[-spatial - 1 : -1], *kernel.dims[:spatial]}
    require_whole(op, lowering, sorted(dims), "convolution")


def _axis(op: Any, lowering: Any, dim: Any) -> int | None:
    return lowering.mesh_impl(op).layout.axis_of(dim.name)


def _count(op: Any, lowering: Any, name: str, kernel: Any, image: Any) -> None:
    computation = mtf.Shape(list(dict.fromkeys([*kernel.dims, *image.dims])))
    lowering.add_counter(name, lowering.mesh_impl(op).laid_out_size(computation))
    lowering.add_counter(name.replace("/", "_unique/"), computation.size)


def _forward_fn(kernel: Any) -> Any:
    return tf.nn.conv2d if kernel.ndims == 4 else tf.nn.conv3d


def _input_fn(x_shape: Sequence[int], kernel: Any, dy: Any, strides: Any, padding: str) -> Any:
    """The input gradient of a convolution, which is also the forward pass of the transposed one."""
    if len(x_shape) == 4:
        return tf.nn.conv2d_backprop_input(x_shape, kernel, dy, strides, padding)
    return tf.raw_ops.Conv3DBackpropInputV2(
        input_sizes=x_shape, filter=kernel, out_backprop=dy, strides=strides, padding=padding
    )


def _filter_fn(x: Any, kernel_shape: Sequence[int], dy: Any, strides: Any, padding: str) -> Any:
    if len(kernel_shape) == 4:
        return tf.nn.conv2d_backprop_filter(x, kernel_shape, dy, strides, padding)
    return tf.raw_ops.Conv3DBackpropFilterV2(
        input=x, filter_sizes=kernel_shape, out_backprop=dy, strides=strides, padding=padding
    )


def _image_op(op: Any, lowering: Any, image: Any, kernel: Any, *, transposed: bool, reduced: Any) -> None:
    """A convolution of `image` with `kernel`, or the transposed one, into the operation's output."""
    mesh_impl = lowering.mesh_impl(op)
    output = op.outputs[0]
    rank = kernel.shape.ndims - 1
    _check(op, lowering, image.shape, kernel.shape, output.shape)

    def convolve(x: Any, w: Any, pnum: int) -> Any:
        shape = mesh_impl.slice_shape(output.shape, pnum)
        x = _flatten_batch(x, rank)
        if transposed:
            flat_shape = [mtf.list_product(shape[:-rank]), *shape[-rank:]]
            y = _input_fn(flat_shape, w, x, op._strides, op._padding)
        else:
            y = _forward_fn(kernel.shape)(x, w, op._strides, op._padding)
        return reshape(y, shape)

    y = mesh_impl.slicewise(convolve, lowering.tensors[image], lowering.tensors[kernel], mesh_impl.laid_out_pnum())
    set_output(op, lowering, y, [_axis(op, lowering, reduced)])


@register(mtf.Conv2dOperation, mtf.Conv3dOperation)
def lower_conv(op: Any, lowering: Any) -> None:
    """Sums over the input channels."""
    image, kernel = op.inputs
    _image_op(op, lowering, image, kernel, transposed=False, reduced=image.shape.dims[-1])
    _count(op, lowering, f"conv{kernel.shape.ndims - 2}d/forward", kernel.shape, op.outputs[0].shape)


@register(mtf.Conv2dTransposeOperation, mtf.Conv3dTransposeOperation)
def lower_conv_transpose(op: Any, lowering: Any) -> None:
    """Sums over the input channels; the kernel is [..., filters, channels]."""
    image, kernel = op.inputs
    _image_op(op, lowering, image, kernel, transposed=True, reduced=image.shape.dims[-1])
    _count(op, lowering, f"conv{kernel.shape.ndims - 2}d_trans/forward", kernel.shape, op.outputs[0].shape)


@register(mtf.Conv2or3dBackpropInputOperation)
def lower_backprop_input(op: Any, lowering: Any) -> None:
    """Sums over the filters."""
    dy, kernel = op.inputs
    _image_op(op, lowering, dy, kernel, transposed=not op._is_transpose, reduced=dy.shape.dims[-1])
    _count(op, lowering, f"conv{op._conv_dimension}d{op._trans}/backprop_input", kernel.shape, dy.shape)


@register(mtf.Conv2or3dBackpropFilterOperation)
def lower_backprop_filter(op: Any, lowering: Any) -> None:
    """Sums over the batch dimensions."""
    image, dy = op.inputs
    kernel = op.outputs[0].shape
    mesh_impl = lowering.mesh_impl(op)
    rank = kernel.ndims - 1
    _check(op, lowering, image.shape, kernel, dy.shape)

    def differentiate(x: Any, dy: Any, pnum: int) -> Any:
        x, dy = _flatten_batch(x, rank), _flatten_batch(dy, rank)
        if op._is_transpose:
            x, dy = dy, x
        return _filter_fn(x, mesh_impl.slice_shape(kernel, pnum), dy, op._strides, op._padding)

    dw = mesh_impl.slicewise(differentiate, lowering.tensors[image], lowering.tensors[dy], mesh_impl.laid_out_pnum())
    set_output(op, lowering, dw, [_axis(op, lowering, dim) for dim in dy.shape.dims[:-rank]])
    _count(op, lowering, f"conv{op._conv_dimension}d{op._trans}/backprop_filter", kernel, dy.shape)
