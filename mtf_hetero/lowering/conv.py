"""Convolutions and their gradients, 2D and 3D, and the transposed ones.

Split input channels give partial sums, split filters give slices of the output, a split batch gives partial sums of
the kernel's gradient. Where a layout splits the height, width or depth, each processor fetches the halo that its
windows reach into and convolves without padding.

Of the two images of a convolution, the *large* one is windowed and the *small* one has a value per window: output
position o sees the large image from o * stride - before on, for the length of the kernel. A convolution goes from
large to small, its input gradient and the transposed convolution from small to large.
"""

from collections.abc import Sequence
from typing import Any

from mtf_hetero._compat import mtf
from mtf_hetero.blocks import Interval
from mtf_hetero.collectives import cut, reshape
from mtf_hetero.lowering import convolve
from mtf_hetero.lowering.registry import register, require_whole, set_output
from mtf_hetero.lowering.windows import fetch, own_box


class _Geometry:
    """Kernel sizes, strides and padding of a convolution between a large and a small image.

    Args:
      op: the mtf.Operation.
      lowering: the Lowering.
      large: shape [..., height, width, channels] of the image that is windowed.
      small: shape [..., height, width, filters] of the image with a value per window.
      kernel: shape [height, width, channels, filters].
    """

    def __init__(self, op: Any, lowering: Any, large: Any, small: Any, kernel: Any) -> None:
        self.rank = kernel.ndims - 1
        spatial = self.rank - 1
        require_whole(op, lowering, kernel.dims[:spatial], "the window of a convolution")
        self.sizes = [dim.size for dim in kernel.dims[:spatial]]
        self.strides = list(op._strides[1:-1])
        self.large = [dim.size for dim in large.dims[-self.rank : -1]]
        self.small = [dim.size for dim in small.dims[-self.rank : -1]]
        layout = lowering.mesh_impl(op).layout
        self.is_split = any(layout.axis_of(dim.name) is not None for dim in large.dims[-self.rank : -1])
        self.before = [0] * spatial
        if op._padding == "SAME":
            needed = [(n - 1) * s + k for n, s, k in zip(self.small, self.strides, self.sizes, strict=True)]
            self.before = [max(n - size, 0) // 2 for n, size in zip(needed, self.large, strict=True)]

    def large_window(self, box: Sequence[Interval]) -> list[Interval]:
        """What an interval of the small image sees of the large one, per spatial dimension."""
        return [
            (begin * s - before, (end - 1) * s - before + k)
            for (begin, end), s, before, k in zip(box, self.strides, self.before, self.sizes, strict=True)
        ]

    def small_window(self, box: Sequence[Interval]) -> list[Interval]:
        """Which values of the small image see an interval of the large one, per spatial dimension."""
        windows = []
        for (begin, end), s, before, k in zip(box, self.strides, self.before, self.sizes, strict=True):
            first = min(-(-(begin + before - k + 1) // s), (begin + before) // s)
            windows.append((first, (end - 1 + before) // s + 1))
        return windows


def flatten_batch(x: Any, rank: int) -> Any:
    """[..., height, width, channels] to [batch, height, width, channels], the last `rank` dimensions kept."""
    shape = x.shape.as_list()
    return reshape(x, [mtf.list_product(shape[:-rank]), *shape[-rank:]])


def _axis(op: Any, lowering: Any, dim: Any) -> int | None:
    return lowering.mesh_impl(op).layout.axis_of(dim.name)


def _count(op: Any, lowering: Any, name: str, kernel: Any, image: Any) -> None:
    computation = mtf.Shape(list(dict.fromkeys([*kernel.dims, *image.dims])))
    lowering.add_counter(name, lowering.mesh_impl(op).laid_out_size(computation))
    lowering.add_counter(name.replace("/", "_unique/"), computation.size)


def _with_window(op: Any, lowering: Any, tensor: Any, geometry: _Geometry, of: Any, *, large: bool) -> Any:
    """The windows of an image that each processor's slice of another, of shape `of`, needs; all of its channels."""
    rank = geometry.rank

    def box(pnum: int) -> list[Interval]:
        target = own_box(op, lowering, of, pnum)
        window = geometry.large_window if large else geometry.small_window
        channels = own_box(op, lowering, tensor.shape, pnum)[-1]
        return [*target[:-rank], *window(target[-rank:-1]), channels]

    return lowering.mesh_impl(op).LaidOutTensor(fetch(op, lowering, tensor, box))


def _to_small(op: Any, lowering: Any, image: Any, kernel: Any) -> None:
    """Convolves; sums over the channels."""
    mesh_impl, output = lowering.mesh_impl(op), op.outputs[0]
    geometry = _Geometry(op, lowering, image.shape, output.shape, kernel.shape)
    x, padding = lowering.tensors[image], op._padding
    if geometry.is_split:
        x, padding = _with_window(op, lowering, image, geometry, output.shape, large=True), "VALID"

    def apply(x: Any, w: Any, pnum: int) -> Any:
        y = convolve.forward(flatten_batch(x, geometry.rank), w, op._strides, padding, mesh_impl.devices[pnum])
        return reshape(y, mesh_impl.slice_shape(output.shape, pnum))

    y = mesh_impl.slicewise(apply, x, lowering.tensors[kernel], mesh_impl.laid_out_pnum())
    set_output(op, lowering, y, [_axis(op, lowering, image.shape.dims[-1])])


def _to_large(op: Any, lowering: Any, image: Any, kernel: Any) -> None:
    """Does the transposed of a convolution; sums over the filters."""
    mesh_impl, output = lowering.mesh_impl(op), op.outputs[0]
    geometry = _Geometry(op, lowering, output.shape, image.shape, kernel.shape)
    rank = geometry.rank
    x, padding = lowering.tensors[image], op._padding
    if geometry.is_split:
        x, padding = _with_window(op, lowering, image, geometry, output.shape, large=False), "VALID"

    def spread(x: Any, w: Any, pnum: int) -> Any:
        shape = mesh_impl.slice_shape(output.shape, pnum)
        x = flatten_batch(x, rank)
        begins, sizes = [0] * (rank - 1), shape[-rank:-1]
        if geometry.is_split:  # the windows begin before the slice, and reach beyond it
            box = own_box(op, lowering, output.shape, pnum)[-rank:-1]
            firsts = geometry.large_window(geometry.small_window(box))
            begins = [b - first for (b, _), (first, _) in zip(box, firsts, strict=True)]
            sizes = [max(e - first, last - first) for (_, e), (first, last) in zip(box, firsts, strict=True)]
        batch = mtf.list_product(shape[:-rank])
        large = [batch, *sizes, shape[-1]]
        y = convolve.input_gradient(large, w, x, op._strides, padding, mesh_impl.devices[pnum])
        return reshape(cut(y, [0, *begins, 0], [batch, *shape[-rank:]]), shape)

    y = mesh_impl.slicewise(spread, x, lowering.tensors[kernel], mesh_impl.laid_out_pnum())
    set_output(op, lowering, y, [_axis(op, lowering, image.shape.dims[-1])])


@register(mtf.Conv2dOperation, mtf.Conv3dOperation)
def lower_conv(op: Any, lowering: Any) -> None:
    """From the large image to the small one."""
    image, kernel = op.inputs
    _to_small(op, lowering, image, kernel)
    _count(op, lowering, f"conv{kernel.shape.ndims - 2}d/forward", kernel.shape, op.outputs[0].shape)


@register(mtf.Conv2dTransposeOperation, mtf.Conv3dTransposeOperation)
def lower_conv_transpose(op: Any, lowering: Any) -> None:
    """From the small image to the large one; the kernel is [..., filters, channels]."""
    image, kernel = op.inputs
    _to_large(op, lowering, image, kernel)
    _count(op, lowering, f"conv{kernel.shape.ndims - 2}d_trans/forward", kernel.shape, op.outputs[0].shape)


@register(mtf.Conv2or3dBackpropInputOperation)
def lower_backprop_input(op: Any, lowering: Any) -> None:
    """Of a convolution, from small to large; of a transposed one, from large to small."""
    dy, kernel = op.inputs
    (_to_small if op._is_transpose else _to_large)(op, lowering, dy, kernel)
    _count(op, lowering, f"conv{op._conv_dimension}d{op._trans}/backprop_input", kernel.shape, dy.shape)


@register(mtf.Conv2or3dBackpropFilterOperation)
def lower_backprop_filter(op: Any, lowering: Any) -> None:
    """Sums over the batch, and over space where it is split."""
    large, small = reversed(op.inputs) if op._is_transpose else op.inputs
    kernel, mesh_impl = op.outputs[0].shape, lowering.mesh_impl(op)
    geometry = _Geometry(op, lowering, large.shape, small.shape, kernel)
    x, padding = lowering.tensors[large], op._padding
    if geometry.is_split:
        x, padding = _with_window(op, lowering, large, geometry, small.shape, large=True), "VALID"

    def differentiate(x: Any, dy: Any, pnum: int) -> Any:
        x, dy = flatten_batch(x, geometry.rank), flatten_batch(dy, geometry.rank)
        shape, device = mesh_impl.slice_shape(kernel, pnum), mesh_impl.devices[pnum]
        return convolve.kernel_gradient(x, shape, dy, op._strides, padding, device)

    dw = mesh_impl.slicewise(differentiate, x, lowering.tensors[small], mesh_impl.laid_out_pnum())
    set_output(op, lowering, dw, [_axis(op, lowering, dim) for dim in small.shape.dims[:-1]])
    _count(op, lowering, f"conv{op._conv_dimension}d{op._trans}/backprop_filter", kernel, op.inputs[1].shape)
