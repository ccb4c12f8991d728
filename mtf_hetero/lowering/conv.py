"""Convolutions and their gradients, 2D and 3D, and the transposed ones.

Split input channels give partial sums, split filters give slices of the output, a split batch gives partial sums of
the kernel's gradient. Where a layout splits the height, width or depth, each processor convolves its own slice, and
adds what the halo of its neighbours contributes when it has come: nothing is copied, and the exchange overlaps the
interior. The gradient of the kernel needs no more than what the convolution has been sent.

Of the two images of a convolution, the *large* one is windowed and the *small* one has a value per window: output
position o sees the large image from o * stride - before on, for the length of the kernel; its *taps* count from there.
A convolution goes from large to small, its input gradient and the transposed convolution from small to large.
"""

from collections.abc import Sequence
from typing import Any

from mtf_hetero import layers
from mtf_hetero._compat import mtf, tf, windows
from mtf_hetero._support.ops import cut, pad, reshape, zeros
from mtf_hetero.blocks import Interval
from mtf_hetero.layers.geometry import crop_or_pad, overlap, same_padding
from mtf_hetero.lowering import convolve
from mtf_hetero.lowering.halo import Halo, alike, anew, combine, filled, halos
from mtf_hetero.lowering.registry import register, require_whole, set_output
from mtf_hetero.lowering.windows import slice_box

Box = list[Interval]


class _Geometry:
    """Kernel sizes, strides and padding of a convolution between a large and a small image. Boxes are of space alone.

    Args:
      op: the mtf.Operation.
      lowering: the Lowering.
      large: shape [..., height, width, channels] of the image that is windowed.
      small: shape [..., height, width, filters] of the image with a value per window.
      kernel: shape [height, width, channels, filters].
    """

    def __init__(
        self, op: mtf.Operation, lowering: mtf.Lowering, large: mtf.Tensor, small: mtf.Tensor, kernel: mtf.Tensor
    ) -> None:
        self.rank = kernel.ndims - 1  # of an image, without the batch
        spatial = len(op._strides) - 2
        self.channel_dims = self.rank - spatial
        require_whole(op, lowering, kernel.dims[:spatial], "the window of a convolution")
        self.sizes = [dim.size for dim in kernel.dims[:spatial]]
        self.strides = list(op._strides)
        self._op, self._lowering = op, lowering
        self._large, self._small = large, small
        self._check_counts()
        self.before = [0] * spatial
        if op._padding == "SAME":
            extents = [dim.size for dim in large.dims[-self.rank : -self.channel_dims]]
            self.before = [same_padding(n, k, s)[0] for n, k, s in zip(extents, self.sizes, self._steps, strict=True)]

    def _check_counts(self) -> None:
        """Raises unless each window that TensorFlow would see has a value: none is left out in silence."""
        spatial = slice(-self.rank, -self.channel_dims)
        large, small = self._large.dims[spatial], self._small.dims[spatial]
        for whole, values, size, stride in zip(large, small, self.sizes, self._steps, strict=True):
            count = windows(whole.size, size, stride, self._op._padding)
            if count != values.size or count < 1:
                raise ValueError(
                    f"{type(self._op).__name__} {self._op.name!r}: padding {self._op._padding!r} gives {whole.size} "
                    f"pixels of dimension {whole.name!r} {max(count, 0)} windows of size {size} and stride {stride}, "
                    f"and not {values.size}; change the size, the stride or the padding"
                )

    @property
    def _steps(self) -> list[int]:
        return self.strides[1:-1]

    def large(self, pnum: int) -> Box:
        """A processor's part of the large image."""
        return slice_box(self._op, self._lowering, self._large, pnum)[-self.rank : -self.channel_dims]

    def small(self, pnum: int) -> Box:
        """A processor's part of the small image."""
        return slice_box(self._op, self._lowering, self._small, pnum)[-self.rank : -self.channel_dims]

    def seen(self, small: Box, taps: Box | None = None) -> Box:
        """What a box of the small image sees of the large one, with some of the taps; an empty box, nothing."""
        taps = [(0, k) for k in self.sizes] if taps is None else taps
        return [
            (begin * s - before + first, (end - 1) * s - before + last) if begin < end else (0, 0)
            for (begin, end), s, before, (first, last) in zip(small, self._steps, self.before, taps, strict=True)
        ]

    def seeing(self, large: Box) -> Box:
        """Which values of the small image see a box of the large one; there may be none."""
        return [
            (-(-(begin + before - k + 1) // s), (end - 1 + before) // s + 1) if begin < end else (0, 0)
            for (begin, end), s, before, k in zip(large, self._steps, self.before, self.sizes, strict=True)
        ]

    def taps(self, large: Box, small: Box) -> Box:
        """The taps through which a box of the small image sees a box of the large one."""
        ranges = zip(large, self.seen(small, [(0, 1)] * len(small)), self.sizes, strict=True)
        return [(max(b - last + 1, 0), min(e - first, k)) for (b, e), (first, last), k in ranges]

    def padding(self, large: Box, small: Box, taps: Box) -> str | None:
        """The padding by which TensorFlow relates two boxes; None: by none."""
        asked, valid, same = [], [], []
        for (b, e), (o, end), (first, _), (j, last), s in zip(
            large, small, self.seen(small, taps), taps, self._steps, strict=True
        ):
            k = last - j
            asked.append((b - first, end - o))
            valid.append((0, (e - b - k) // s + 1))
            # Eigen's 3D convolution begins elsewhere where pixels are left over
            same.append(same_padding(e - b, k, s) if (end - o - 1) * s + k >= e - b else None)
        return "VALID" if asked == valid else "SAME" if asked == same else None

    def prepared(self, x: tf.Tensor, held: Box, small: Box, taps: Box) -> tuple[tf.Tensor, str]:
        """A box of the large image as a box of the small one is to see it, and the padding to ask of TensorFlow."""
        padding = self.padding(held, small, taps)
        if padding is not None:
            return x, padding
        return crop_or_pad(x, held, self.seen(small, taps)), "VALID"

    def boxes(self, pnum: int) -> Box:
        """A processor's parts of both images."""
        return [*self.large(pnum), *self.small(pnum)]


def _length(interval: Interval) -> int:
    return interval[1] - interval[0]


def _flat(shape: Sequence[int], geometry: _Geometry) -> list[int]:
    """The shape [..., height, width, channels] of an image as [batch, height, width, channels]; of channels, all."""
    space, channels = shape[-geometry.rank : -geometry.channel_dims], shape[-geometry.channel_dims :]
    return [mtf.list_product(shape[: -geometry.rank]), *space, mtf.list_product(channels)]


def _flatten(x: tf.Tensor, geometry: _Geometry) -> tf.Tensor:
    return reshape(x, _flat(x.shape.as_list(), geometry))


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


def _axis(op: mtf.Operation, lowering: mtf.Lowering, dim: mtf.Dimension) -> int | None:
    return lowering.mesh_impl(op).layout.axis_of(dim)


def _count(op: mtf.Operation, lowering: mtf.Lowering, name: str, kernel: Any, image: Any) -> None:
    computation = mtf.Shape(list(dict.fromkeys([*kernel.dims, *image.dims])))
    lowering.add_counter(name, lowering.mesh_impl(op).laid_out_size(computation))
    lowering.add_counter(name.replace("/", "_unique/"), computation.size)


def _halos(
    op: mtf.Operation,
    lowering: mtf.Lowering,
    tensor: mtf.Tensor,
    geometry: _Geometry,
    kernel: mtf.Shape,
    *,
    large: bool,
) -> list[Halo]:
    """What each processor lacks of the image that its slice of the other one takes part in; boxes are of space."""
    rank, channel_dims = geometry.rank, geometry.channel_dims

    def box(pnum: int) -> Box:
        if 0 in lowering.mesh_impl(op).slice_shape(kernel, pnum):
            return [(0, 0)] * tensor.shape.ndims
        held = slice_box(op, lowering, tensor.shape, pnum)
        window = geometry.seen(geometry.small(pnum)) if large else geometry.seeing(geometry.large(pnum))
        return [*held[:-rank], *window, *held[-channel_dims:]]

    received = halos(op, lowering, tensor, box)
    return [[(box[-rank:-channel_dims], _flatten(x, geometry)) for box, x in halo] for halo in received]


def _to_small(op: mtf.Operation, lowering: mtf.Lowering, image: mtf.Tensor, kernel: mtf.Tensor) -> None:
    """Convolves; sums over the channels."""
    mesh_impl, output = lowering.mesh_impl(op), op.outputs[0]
    geometry = _Geometry(op, lowering, image.shape, output.shape, kernel.shape)
    pieces = _halos(op, lowering, image, geometry, kernel.shape, large=True)

    def part(x: tf.Tensor, held: Box, small: Box, w: tf.Tensor, pnum: int) -> tf.Tensor:
        taps = geometry.taps(held, small)
        x, padding = geometry.prepared(x, held, small, taps)
        return convolve.forward(x, _cut_taps(w, taps), geometry.strides, padding, mesh_impl.devices[pnum])

    def apply(x: tf.Tensor, w: tf.Tensor, pnum: int) -> tf.Tensor:
        shape, held, small = mesh_impl.slice_shape(output.shape, pnum), geometry.large(pnum), geometry.small(pnum)
        x = _flatten(x, geometry)
        w = anew(w) if pieces[pnum] else w
        if overlap(geometry.seeing(held), small) is None or 0 in w.shape.as_list():
            y = filled(_flat(shape, geometry), 0, x.dtype)
        else:
            y = part(x, held, small, w, pnum)
        reached = [(box, value, overlap(geometry.seeing(box), small)) for box, value in pieces[pnum]]
        parts = [(seeing, part(value, box, seeing, w, pnum)) for box, value, seeing in reached if seeing is not None]
        y = _added(y, small, parts)
        return reshape(y, shape)

    processors = alike(op, lowering, pieces, geometry.boxes)
    y = mesh_impl.slicewise(apply, lowering.tensors[image], lowering.tensors[kernel], processors)
    set_output(op, lowering, y, [_axis(op, lowering, image.shape.dims[-1])])


def _to_large(op: mtf.Operation, lowering: mtf.Lowering, image: mtf.Tensor, kernel: mtf.Tensor) -> None:
    """Does the transposed of a convolution; sums over the filters."""
    mesh_impl, output = lowering.mesh_impl(op), op.outputs[0]
    geometry = _Geometry(op, lowering, output.shape, image.shape, kernel.shape)
    pieces = _halos(op, lowering, image, geometry, kernel.shape, large=False)

    def part(x: tf.Tensor, held: Box, large: Box, w: tf.Tensor, pnum: int) -> tuple[Box, tf.Tensor] | None:
        """What a box of the small image contributes to one of the large image, or to the part of it that it sees."""
        seen = overlap(geometry.seen(held), large)
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
            _flat(mesh_impl.slice_shape(output.shape, pnum), geometry)[-1],
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
            y = filled(_flat(shape, geometry), 0, x.dtype)
        else:
            y = crop_or_pad(interior[1], interior[0], large)
        reached = [part(value, box, large, w, pnum) for box, value in pieces[pnum]]
        return reshape(_added(y, large, [piece for piece in reached if piece is not None]), shape)

    processors = alike(op, lowering, pieces, geometry.boxes)
    y = mesh_impl.slicewise(spread, lowering.tensors[image], lowering.tensors[kernel], processors)
    set_output(op, lowering, y, [_axis(op, lowering, image.shape.dims[-1])])


@register(mtf.Conv2dOperation, mtf.Conv3dOperation, layers.GroupedConv2dOperation)
def lower_conv(op: mtf.Operation, lowering: mtf.Lowering) -> None:
    """From the large image to the small one."""
    image, kernel = op.inputs
    _to_small(op, lowering, image, kernel)
    _count(op, lowering, f"conv{len(op._strides) - 2}d/forward", kernel.shape, op.outputs[0].shape)


@register(mtf.Conv2dTransposeOperation, mtf.Conv3dTransposeOperation)
def lower_conv_transpose(op: mtf.Operation, lowering: mtf.Lowering) -> None:
    """From the small image to the large one; the kernel is [..., filters, channels]."""
    image, kernel = op.inputs
    _to_large(op, lowering, image, kernel)
    _count(op, lowering, f"conv{kernel.shape.ndims - 2}d_trans/forward", kernel.shape, op.outputs[0].shape)


@register(mtf.Conv2or3dBackpropInputOperation)
def lower_backprop_input(op: mtf.Operation, lowering: mtf.Lowering) -> None:
    """Of a convolution, from small to large; of a transposed one, from large to small."""
    dy, kernel = op.inputs
    (_to_small if op._is_transpose else _to_large)(op, lowering, dy, kernel)
    _count(op, lowering, f"conv{op._conv_dimension}d{op._trans}/backprop_input", kernel.shape, dy.shape)


@register(layers.GroupedConvInputGradient)
def lower_grouped_input_gradient(op: mtf.Operation, lowering: mtf.Lowering) -> None:
    """From the small image to the large one."""
    dy, kernel = op.inputs
    _to_large(op, lowering, dy, kernel)
    _count(op, lowering, "conv2d/backprop_input", kernel.shape, dy.shape)


@register(layers.GroupedConvKernelGradient)
def lower_grouped_kernel_gradient(op: mtf.Operation, lowering: mtf.Lowering) -> None:
    """As of any convolution."""
    dy, x = op.inputs
    _kernel_gradient(op, lowering, x, dy)
    _count(op, lowering, "conv2d/backprop_filter", op.outputs[0].shape, dy.shape)


@register(mtf.Conv2or3dBackpropFilterOperation)
def lower_backprop_filter(op: mtf.Operation, lowering: mtf.Lowering) -> None:
    """Of a convolution, and of a transposed one."""
    large, small = reversed(op.inputs) if op._is_transpose else op.inputs
    _kernel_gradient(op, lowering, large, small)
    _count(
        op, lowering, f"conv{op._conv_dimension}d{op._trans}/backprop_filter", op.outputs[0].shape, op.inputs[1].shape
    )


def _kernel_gradient(op: mtf.Operation, lowering: mtf.Lowering, large: mtf.Tensor, small: mtf.Tensor) -> None:
    """Sums over the batch, and over space where it is split."""
    kernel, mesh_impl = op.outputs[0].shape, lowering.mesh_impl(op)
    geometry = _Geometry(op, lowering, large.shape, small.shape, kernel)
    pieces = _halos(op, lowering, large, geometry, kernel, large=True)

    def part(x: tf.Tensor, held: Box, dy: tf.Tensor, small: Box, pnum: int) -> tf.Tensor:
        """What the pixels of a box contribute through the values that see them."""
        seeing, shape = overlap(geometry.seeing(held), small), mesh_impl.slice_shape(kernel, pnum)
        if seeing is None or 0 in shape:
            return None
        taps = geometry.taps(held, seeing)
        x, padding = geometry.prepared(x, held, seeing, taps)
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
    dw = mesh_impl.slicewise(differentiate, lowering.tensors[large], lowering.tensors[small], processors)
    set_output(op, lowering, dw, [_axis(op, lowering, dim) for dim in small.shape.dims[: -geometry.channel_dims]])
