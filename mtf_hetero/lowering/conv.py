"""Convolutions and their gradients, 2D and 3D, and the transposed ones.

Split input channels give partial sums, split filters give slices of the output, a split batch gives partial sums of
the kernel's gradient. Where a layout splits the height, width or depth, each processor convolves its own slice, and
adds what the halo of its neighbours contributes when it has come: nothing is copied, and the exchange overlaps the
interior. The gradient of the kernel needs no more than what the convolution has been sent.

Which boxes of which image that takes is worked out in `conv_boxes`.
"""

from collections.abc import Sequence
from typing import Any

from mtf_hetero import layers
from mtf_hetero._compat import mtf, tf
from mtf_hetero._support.ops import cut, pad, reshape, zeros
from mtf_hetero.blocks import Interval
from mtf_hetero.layers.geometry import crop_or_pad
from mtf_hetero.lowering import convolve
from mtf_hetero.lowering.conv_boxes import KERNEL, LARGE, SMALL, Box, Geometry, roles_of
from mtf_hetero.lowering.halo import Halo, alike, anew, combine, filled, halos
from mtf_hetero.lowering.registry import register, set_output


def _length(interval: Interval) -> int:
    return interval[1] - interval[0]


def _flatten(x: tf.Tensor, geometry: Geometry) -> tf.Tensor:
    return reshape(x, geometry.flat(x.shape.as_list()))


def _cut(x: tf.Tensor, held: Box, wanted: Box) -> tf.Tensor:
    """A box of an image [batch, spatial dimensions, channels]."""
    begins = [w[0] - h[0] for h, w in zip(held, wanted, strict=True)]
    return cut(x, [0, *begins, 0], [x.shape.as_list()[0], *map(_length, wanted), x.shape.as_list()[-1]])


def _cut_taps(w: tf.Tensor, taps: Box) -> tf.Tensor:
    others = w.shape.as_list()[len(taps) :]
    return cut(w, [*(begin for begin, _ in taps), *[0] * len(others)], [*map(_length, taps), *others])


def _added(y: tf.Tensor, held: Box, parts: Sequence[tuple[Box, tf.Tensor]]) -> tf.Tensor:
    """An image to boxes of which parts are added."""
    for box, part in parts:
        y = combine(y, held, part, box)
    return y


def _prepared(geometry: Geometry, x: tf.Tensor, held: Box, small: Box, taps: Box) -> tuple[tf.Tensor, str]:
    """A box of the large image as a box of the small one is to see it, and the padding to ask of TensorFlow."""
    padding = geometry.padding(held, small, taps)
    if padding is not None:
        return x, padding
    return crop_or_pad(x, held, geometry.seen(small, taps)), "VALID"


def _count(op: mtf.Operation, lowering: mtf.Lowering, name: str, kernel: Any, image: Any) -> None:
    computation = mtf.Shape(list(dict.fromkeys([*kernel.dims, *image.dims])))
    lowering.add_counter(name, lowering.mesh_impl(op).laid_out_size(computation))
    lowering.add_counter(name.replace("/", "_unique/"), computation.size)


def _halos(op: mtf.Operation, lowering: mtf.Lowering, geometry: Geometry) -> list[Halo]:
    """What each processor lacks of the image that its slice of the other one takes part in; boxes are of space."""
    received = halos(op, lowering, geometry.image, geometry.needed)
    flat = []
    for device, halo in zip(lowering.mesh_impl(op).devices, received, strict=True):
        with tf.device(device):
            flat.append([(geometry.of_space(box), _flatten(x, geometry)) for box, x in halo])
    return flat


def _to_small(op: mtf.Operation, lowering: mtf.Lowering, geometry: Geometry, kernel: mtf.Tensor) -> None:
    """Convolves; sums over the channels."""
    mesh_impl, output = lowering.mesh_impl(op), op.outputs[0]
    pieces = _halos(op, lowering, geometry)

    def part(x: tf.Tensor, held: Box, small: Box, w: tf.Tensor, pnum: int) -> tf.Tensor:
        taps = geometry.taps(held, small)
        x, padding = _prepared(geometry, x, held, small, taps)
        return convolve.forward(x, _cut_taps(w, taps), geometry.strides, padding, mesh_impl.devices[pnum])

    def apply(x: tf.Tensor, w: tf.Tensor, pnum: int) -> tf.Tensor:
        shape, held, small = mesh_impl.slice_shape(output.shape, pnum), geometry.large(pnum), geometry.small(pnum)
        x = _flatten(x, geometry)
        w = anew(w) if pieces[pnum] else w
        if geometry.reached(held, pnum) is None or 0 in w.shape.as_list():
            y = filled(geometry.flat(shape), 0, x.dtype)
        else:
            y = part(x, held, small, w, pnum)
        reached = [(box, value, geometry.reached(box, pnum)) for box, value in pieces[pnum]]
        parts = [(seeing, part(value, box, seeing, w, pnum)) for box, value, seeing in reached if seeing is not None]
        y = _added(y, small, parts)
        return reshape(y, shape)

    processors = alike(op, lowering, pieces, geometry.boxes)
    y = mesh_impl.slicewise(apply, lowering.tensors[geometry.image], lowering.tensors[kernel], processors)
    set_output(op, lowering, y, geometry.summed_dims)


def _to_large(op: mtf.Operation, lowering: mtf.Lowering, geometry: Geometry, kernel: mtf.Tensor) -> None:
    """Does the transposed of a convolution; sums over the filters."""
    mesh_impl, output = lowering.mesh_impl(op), op.outputs[0]
    pieces = _halos(op, lowering, geometry)

    def part(x: tf.Tensor, held: Box, large: Box, w: tf.Tensor, pnum: int) -> tuple[Box, tf.Tensor] | None:
        """What a box of the small image contributes to one of the large image, or to the part of it that it sees."""
        seen = geometry.reached(held, pnum)
        if seen is None or 0 in w.shape.as_list():
            return None
        for target in (large, seen):
            taps = geometry.taps(target, held)
            padding = geometry.padding(target, held, taps)
            if padding is not None:
                break
        else:
            target = geometry.seen(held, taps)
        extents = [
            x.shape.as_list()[0],
            *map(_length, target),
            geometry.flat(mesh_impl.slice_shape(output.shape, pnum))[-1],
        ]
        y = convolve.input_gradient(
            extents, _cut_taps(w, taps), x, geometry.strides, padding or "VALID", mesh_impl.devices[pnum]
        )
        return (target, y) if padding else (seen, _cut(y, target, seen))

    def spread(x: tf.Tensor, w: tf.Tensor, pnum: int) -> tf.Tensor:
        shape, large = mesh_impl.slice_shape(output.shape, pnum), geometry.large(pnum)
        x = _flatten(x, geometry)
        w = anew(w) if pieces[pnum] else w
        interior = part(x, geometry.small(pnum), large, w, pnum)
        if interior is None:
            y = filled(geometry.flat(shape), 0, x.dtype)
        else:
            y = crop_or_pad(interior[1], interior[0], large)
        reached = [part(value, box, large, w, pnum) for box, value in pieces[pnum]]
        return reshape(_added(y, large, [piece for piece in reached if piece is not None]), shape)

    processors = alike(op, lowering, pieces, geometry.boxes)
    y = mesh_impl.slicewise(spread, lowering.tensors[geometry.image], lowering.tensors[kernel], processors)
    set_output(op, lowering, y, geometry.summed_dims)


def _lower(op: mtf.Operation, lowering: mtf.Lowering) -> None:
    _, _, other = roles_of(op)
    geometry = Geometry(op, lowering.mesh_impl(op).layout)
    {SMALL: _to_small, LARGE: _to_large, KERNEL: _kernel_gradient}[geometry.makes](op, lowering, geometry, other)


@register(mtf.Conv2dOperation, mtf.Conv3dOperation, layers.GroupedConv2dOperation)
def lower_conv(op: mtf.Operation, lowering: mtf.Lowering) -> None:
    """From the large image to the small one."""
    _lower(op, lowering)
    _count(op, lowering, f"conv{len(op._strides) - 2}d/forward", op.inputs[1].shape, op.outputs[0].shape)


@register(mtf.Conv2dTransposeOperation, mtf.Conv3dTransposeOperation)
def lower_conv_transpose(op: mtf.Operation, lowering: mtf.Lowering) -> None:
    """From the small image to the large one; the kernel is [..., filters, channels]."""
    kernel = op.inputs[1].shape
    _lower(op, lowering)
    _count(op, lowering, f"conv{kernel.ndims - 2}d_trans/forward", kernel, op.outputs[0].shape)


@register(mtf.Conv2or3dBackpropInputOperation)
def lower_backprop_input(op: mtf.Operation, lowering: mtf.Lowering) -> None:
    """Of a convolution, from small to large; of a transposed one, from large to small."""
    dy, kernel = op.inputs
    _lower(op, lowering)
    _count(op, lowering, f"conv{op._conv_dimension}d{op._trans}/backprop_input", kernel.shape, dy.shape)


@register(layers.GroupedConvInputGradient)
def lower_grouped_input_gradient(op: mtf.Operation, lowering: mtf.Lowering) -> None:
    """From the small image to the large one."""
    dy, kernel = op.inputs
    _lower(op, lowering)
    _count(op, lowering, "conv2d/backprop_input", kernel.shape, dy.shape)


@register(layers.GroupedConvKernelGradient)
def lower_grouped_kernel_gradient(op: mtf.Operation, lowering: mtf.Lowering) -> None:
    """As of any convolution."""
    _lower(op, lowering)
    _count(op, lowering, "conv2d/backprop_filter", op.outputs[0].shape, op.inputs[0].shape)


@register(mtf.Conv2or3dBackpropFilterOperation)
def lower_backprop_filter(op: mtf.Operation, lowering: mtf.Lowering) -> None:
    """Of a convolution, and of a transposed one."""
    _lower(op, lowering)
    _count(
        op, lowering, f"conv{op._conv_dimension}d{op._trans}/backprop_filter", op.outputs[0].shape, op.inputs[1].shape
    )


def _kernel_gradient(op: mtf.Operation, lowering: mtf.Lowering, geometry: Geometry, small: mtf.Tensor) -> None:
    """Sums over the batch, and over space where it is split."""
    kernel, mesh_impl = op.outputs[0].shape, lowering.mesh_impl(op)
    pieces = _halos(op, lowering, geometry)

    def part(x: tf.Tensor, held: Box, dy: tf.Tensor, small: Box, pnum: int) -> tf.Tensor:
        """What the pixels of a box contribute through the values that see them."""
        seeing, shape = geometry.reached(held, pnum), mesh_impl.slice_shape(kernel, pnum)
        if seeing is None or 0 in shape:
            return None
        taps = geometry.taps(held, seeing)
        x, padding = _prepared(geometry, x, held, seeing, taps)
        dw = convolve.kernel_gradient(
            x,
            [*map(_length, taps), *shape[len(taps) :]],
            _cut(dy, small, seeing),
            geometry.strides,
            padding,
            mesh_impl.devices[pnum],
        )
        missing = [(first, k - last) for (first, last), k in zip(taps, geometry.sizes, strict=True)]
        return pad(dw, [*missing, *[(0, 0)] * (len(shape) - len(taps))])

    def differentiate(x: tf.Tensor, dy: tf.Tensor, pnum: int) -> tf.Tensor:
        x, dy, small_box = _flatten(x, geometry), _flatten(dy, geometry), geometry.small(pnum)
        parts = [part(value, box, dy, small_box, pnum) for box, value in [(geometry.large(pnum), x), *pieces[pnum]]]
        terms = [dw for dw in parts if dw is not None]
        return tf.add_n(terms) if terms else zeros(mesh_impl.slice_shape(kernel, pnum), x.dtype)

    processors = alike(op, lowering, pieces, geometry.boxes)
    dw = mesh_impl.slicewise(differentiate, lowering.tensors[geometry.image], lowering.tensors[small], processors)
    set_output(op, lowering, dw, geometry.summed_dims)
