"""Convolutions and their gradients, 2D and 3D, in groups, and the transposed ones.

Split input channels give partial sums, split filters give slices of the output, a split batch gives partial sums of
the kernel's gradient. Where a layout splits the height, width or depth, each processor convolves its own slice, and
adds what the halo of its neighbours contributes when it has come: nothing is copied, and the exchange overlaps the
interior. The gradient of the kernel needs no more than what the convolution has been sent.

`geometry` computes which boxes of which image that takes, and `convolve` convolves a slice.
"""

import functools
import math
from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeVar

from mtf_hetero._compat import mtf, tf, windows
from mtf_hetero._support.alike import Processor
from mtf_hetero._support.ops import cut, pad, reshape, zeros
from mtf_hetero.layout import Layout
from mtf_hetero.layout.blocks import Box, Interval
from mtf_hetero.ops import convolve
from mtf_hetero.ops.backend import Backend, Slices
from mtf_hetero.ops.geometry import Geometry, Reads, read_parts
from mtf_hetero.ops.halo import anew, combine, fill
from mtf_hetero.ops.registry import register, require_whole
from mtf_hetero.ops.traits import Images, Traits
from mtf_hetero.ops.windows import Windows, crop_or_pad, same_padding

SMALL, LARGE, KERNEL = "small", "large", "kernel"  # what a convolution makes
Op = TypeVar("Op", bound=mtf.Operation)


class Convolution(NamedTuple):
    """The tensors of a convolution, transposed or not, or of a gradient of one.

    A convolution goes from large to small, its input gradient and the transposed convolution from small to large, the
    gradient of the kernel from both to the kernel.

    Args:
      makes: SMALL, LARGE or KERNEL.
      image: the input of which a processor needs more than its slice.
      other: the other input: the kernel or, for the kernel's gradient, the small image.
      output: what it makes.
      strides: [1, ..., 1].
      padding: "SAME" or "VALID".
      is_transposed: whether it is a transposed convolution or a gradient of one.
    """

    makes: str
    image: mtf.Tensor
    other: mtf.Tensor
    output: mtf.Tensor
    strides: Sequence[int]
    padding: str
    is_transposed: bool = False

    @property
    def large(self) -> mtf.Tensor:
        """The image over which the windows pass."""
        return self.output if self.makes == LARGE else self.image

    @property
    def small(self) -> mtf.Tensor:
        """The image with a value for each window."""
        return {SMALL: self.output, LARGE: self.image, KERNEL: self.other}[self.makes]

    @property
    def kernel(self) -> mtf.Tensor:
        """The kernel, or its gradient."""
        return self.output if self.makes == KERNEL else self.other

    @property
    def window(self) -> list[mtf.Dimension]:
        """The dimensions of a window."""
        return self.kernel.shape.dims[: len(self.strides) - 2]

    @property
    def images(self) -> Images:
        """Both images."""
        sizes = [dim.size for dim in self.window]
        return Images(self.large, self.small, sizes, self.kernel.shape.ndims - 1 - len(sizes))

    @property
    def multiplied_dims(self) -> list[mtf.Dimension]:
        """The dimensions over which it multiplies and adds."""
        return list(dict.fromkeys([*self.kernel.shape.dims, *self.small.shape.dims]))

    @property
    def counter(self) -> tuple[str, str]:
        """The names under which mtf counts the operation: of the convolution, and of the step."""
        is_forward = (self.makes == LARGE) == self.is_transposed
        step = "backprop_filter" if self.makes == KERNEL else "forward" if is_forward else "backprop_input"
        return f"conv{len(self.window)}d{'_trans' if self.is_transposed else ''}", step

    @property
    def computation(self) -> mtf.Shape:
        """The dimensions along which mtf counts products: of the kernel, and of the image that it gives."""
        image = self.large if self.is_transposed else self.small
        return mtf.Shape(list(dict.fromkeys([*self.kernel.shape.dims, *image.shape.dims])))

    def windows(self) -> Windows:
        """Return its windows.

        Raises:
          ValueError: TensorFlow would see another number of windows than the small image has values.
        """
        extents, counts = self.images.space(self.large), self.images.space(self.small)
        sizes, steps = tuple(self.images.sizes), tuple(self.strides[1:-1])
        for pixels, values, size, stride in zip(extents, counts, sizes, steps, strict=True):
            count = windows(pixels.size, size, stride, self.padding)
            if count != values.size or count < 1:
                op = self.output.operation
                raise ValueError(
                    f"{type(op).__name__} {op.name!r}: {pixels.size} pixels of dimension {pixels.name!r} "
                    f"make {max(count, 0)} windows of size {size} and stride {stride} with padding "
                    f"{self.padding!r}, but the output has {values.size}; change the size, the stride or "
                    "the padding"
                )
        before = [
            same_padding(dim.size, size, stride)[0] if self.padding == "SAME" else 0
            for dim, size, stride in zip(extents, sizes, steps, strict=True)
        ]
        return Windows(
            tuple(dim.size for dim in extents), sizes, steps, tuple(before), tuple(dim.size for dim in counts)
        )


class _Images(Geometry):
    """The split images of a convolution, which a processor flattens to [batch, height, width, channels]."""

    def __init__(self, convolution: Convolution, layout: Layout) -> None:
        require_whole(convolution.output.operation, layout, convolution.window, "the window of a convolution")
        super().__init__(convolution.windows(), convolution.images, convolution.image, layout)
        self.makes, self.output, self.strides = convolution.makes, convolution.output, list(convolution.strides)

    def output_slice(self, pnum: int) -> list[int]:
        """Return the shape of a processor's slice of the output."""
        return self.layout.slice_shape(self.output.shape, pnum)

    def flat(self, shape: Sequence[int]) -> list[int]:
        """Flatten the shape of an image to [batch, height, width, channels], or with a depth."""
        space, channels = shape[-self.rank : -self.channel_dims], shape[-self.channel_dims :]
        return [math.prod(shape[: -self.rank]), *space, math.prod(channels)]


def register_convolution(*op_classes: type[Op], roles: Callable[[Op], Convolution], is_layer: bool = False) -> None:
    """Register the rule and the facts of classes of convolutions.

    Args:
      *op_classes: the classes.
      roles: returns the tensors of an operation by their roles.
      is_layer: as of `Traits`.
    """
    traits: Traits[Op] = Traits(
        is_layer=is_layer,
        multiplied=lambda op: roles(op).multiplied_dims,
        images=lambda op: roles(op).images,
        leaves_sums=True,
    )
    register(*op_classes, traits=traits)(lambda op, backend: convolve_slices(roles(op), backend))


def convolve_slices(convolution: Convolution, backend: Backend) -> None:
    """Have each processor compute, of its own part of the image and of its neighbours' pieces, its slice or addend.

    Example:
      A height of 10 split 7 : 3, a kernel of 3. Processor 0 convolves its own slice at once. Then it adds what row 7
      contributes.

        row           0 1 2 3 4 5 6 | 7 8 9
        own part      x x x x x x x
        halo                        | x
        result row 6            x x + x
    """
    output, geometry = convolution.output, _Images(convolution, backend.layout)
    reads, parts = read_parts(output.operation, geometry, backend)
    others = backend.slices(convolution.other)
    operands: list[Slices] = [[other, *own] if own else [] for other, own in zip(others, parts, strict=True)]
    function = functools.partial(_to_kernel if convolution.makes == KERNEL else _to_image, geometry, reads)
    partial = backend.make(output, function, operands, reads.result_key)
    is_kernel, small = convolution.makes == KERNEL, convolution.small.shape.dims
    summed_dims = small[: -geometry.channel_dims] if is_kernel else convolution.image.shape.dims[-1:]
    backend.set_sum(output, partial, summed_dims)  # over the batch and space, or over the channels
    kind, step = convolution.counter
    backend.count(f"{kind}/{step}", convolution.computation, f"{kind}_unique/{step}")


def _length(interval: Interval) -> int:
    return interval[1] - interval[0]


def _cut(x: tf.Tensor, source: Box, target: Box) -> tf.Tensor:
    """Return a box of an image [batch, spatial dimensions, channels]."""
    begins = [w[0] - h[0] for h, w in zip(source, target, strict=True)]
    return cut(x, [0, *begins, 0], [x.shape.as_list()[0], *map(_length, target), x.shape.as_list()[-1]])


def _cut_taps(w: tf.Tensor, taps: Box) -> tf.Tensor:
    others = w.shape.as_list()[len(taps) :]
    return cut(w, [*(begin for begin, _ in taps), *[0] * len(others)], [*map(_length, taps), *others])


def _prepared(geometry: _Images, x: tf.Tensor, large: Box, small: Box, taps: Box) -> tuple[tf.Tensor, str]:
    """Return a box of the large image as a box of the small one is to see it, and the padding to ask of TensorFlow."""
    padding = geometry.windows.padding(large, small, taps)
    if padding is not None:
        return x, padding
    return crop_or_pad(x, large, geometry.windows.receptive_field(small, taps)), "VALID"


def _to_image(geometry: _Images, reads: Reads, processor: Processor, *operands: tf.Tensor) -> tf.Tensor:
    """Convolve, or convolve transposed, the parts of one image, and add what they give to a slice of the other."""
    shape = geometry.output_slice(processor)
    if not operands:
        return fill(shape, 0, geometry.output.dtype)
    w, *xs = operands
    if reads.boxes[processor]:
        w = anew(w)  # others' parts are added to what follows from it, in place
    y = None if reads.has_own[processor] else fill(geometry.flat(shape), 0, geometry.output.dtype)
    is_small = geometry.makes == SMALL
    make, own = (_contract, geometry.small(processor)) if is_small else (_spread, geometry.large(processor))
    for (source, reached), x in zip(reads.parts(processor), xs, strict=True):
        box, part = make(geometry, processor, source, reached, reshape(x, geometry.flat(x.shape.as_list())), w)
        y = crop_or_pad(part, box, own) if y is None else combine(y, own, part, box)
    assert y is not None
    return reshape(y, shape)


def _contract(
    geometry: _Images, processor: Processor, large: Box, small: Box, x: tf.Tensor, w: tf.Tensor
) -> tuple[Box, tf.Tensor]:
    """Return what a box of the large image contributes to a box of the small one."""
    taps = geometry.windows.taps(large, small)
    x, padding = _prepared(geometry, x, large, small, taps)
    return small, convolve.forward(x, _cut_taps(w, taps), geometry.strides, padding, processor.device)


def _spread(
    geometry: _Images, processor: Processor, small: Box, large: Box, x: tf.Tensor, w: tf.Tensor
) -> tuple[Box, tf.Tensor]:
    """Return what a box of the small image contributes to the processor's large one, or to the part that it sees."""
    for target in (geometry.large(processor), large):
        taps = geometry.windows.taps(target, small)
        padding = geometry.windows.padding(target, small, taps)
        if padding is not None:
            break
    else:
        target = geometry.windows.receptive_field(small, taps)
    channels = geometry.flat(geometry.output_slice(processor))[-1]
    extents = [x.shape.as_list()[0], *map(_length, target), channels]
    y = convolve.input_gradient(extents, _cut_taps(w, taps), x, geometry.strides, padding or "VALID", processor.device)
    return (target, y) if padding else (large, _cut(y, target, large))


def _to_kernel(geometry: _Images, reads: Reads, processor: Processor, *operands: tf.Tensor) -> tf.Tensor:
    """Return the kernel's gradient; the sum over the batch and space of slices."""
    shape = geometry.output_slice(processor)
    if not operands:
        return zeros(shape, geometry.output.dtype)
    dy, *xs = operands
    dy = reshape(dy, geometry.flat(dy.shape.as_list()))
    terms = []
    for (large, small), x in zip(reads.parts(processor), xs, strict=True):
        taps = geometry.windows.taps(large, small)
        x, padding = _prepared(geometry, reshape(x, geometry.flat(x.shape.as_list())), large, small, taps)
        dw = convolve.kernel_gradient(
            x,
            [*map(_length, taps), *shape[len(taps) :]],
            _cut(dy, geometry.small(processor), small),
            geometry.strides,
            padding,
            processor.device,
        )
        missing = [(first, k - last) for (first, last), k in zip(taps, geometry.windows.sizes, strict=True)]
        terms.append(pad(dw, [*missing, *[(0, 0)] * (len(shape) - len(taps))]))
    return tf.add_n(terms)


def _forward(op: mtf.Conv2dOperation | mtf.Conv3dOperation) -> Convolution:
    (x, kernel), (y,) = op.inputs, op.outputs
    return Convolution(SMALL, x, kernel, y, op._strides, op._padding)


def _transposed(op: mtf.Conv2dTransposeOperation | mtf.Conv3dTransposeOperation) -> Convolution:
    (x, kernel), (y,) = op.inputs, op.outputs
    return Convolution(LARGE, x, kernel, y, op._strides, op._padding, is_transposed=True)


def _input_gradient(op: mtf.Conv2or3dBackpropInputOperation) -> Convolution:
    (dy, kernel), (dx,), makes = op.inputs, op.outputs, SMALL if op._is_transpose else LARGE
    return Convolution(makes, dy, kernel, dx, op._strides, op._padding, op._is_transpose)


def _kernel_gradient(op: mtf.Conv2or3dBackpropFilterOperation) -> Convolution:
    first, second = op.inputs
    large, small = (second, first) if op._is_transpose else (first, second)
    return Convolution(KERNEL, large, small, op.outputs[0], op._strides, op._padding, op._is_transpose)


register_convolution(mtf.Conv2dOperation, mtf.Conv3dOperation, roles=_forward, is_layer=True)
register_convolution(mtf.Conv2dTransposeOperation, mtf.Conv3dTransposeOperation, roles=_transposed, is_layer=True)
register_convolution(mtf.Conv2or3dBackpropInputOperation, roles=_input_gradient)
register_convolution(mtf.Conv2or3dBackpropFilterOperation, roles=_kernel_gradient)
