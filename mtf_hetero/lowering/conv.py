"""Convolutions and their gradients, 2D and 3D, in groups, and the transposed ones.

Split input channels give partial sums, split filters give slices of the output, a split batch gives partial sums of
the kernel's gradient. Where a layout splits the height, width or depth, each processor convolves its own slice, and
adds what the halo of its neighbours contributes when it has come: nothing is copied, and the exchange overlaps the
interior. The gradient of the kernel needs no more than what the convolution has been sent.

`conv_boxes` computes which boxes of which image that takes.
"""

import dataclasses
import functools
from collections.abc import Sequence
from typing import cast, get_args

from mtf_hetero._compat import tf
from mtf_hetero._support.alike import Processor
from mtf_hetero._support.ops import cut, pad, reshape, zeros
from mtf_hetero.graph.operations import KERNEL, SMALL, AnyConvolution
from mtf_hetero.layers.geometry import crop_or_pad
from mtf_hetero.layout.blocks import Interval
from mtf_hetero.lowering import convolve
from mtf_hetero.lowering.backend import Backend, Halo, Slices, has_nothing
from mtf_hetero.lowering.conv_boxes import Box, Geometry
from mtf_hetero.lowering.halo import anew, combine, fill
from mtf_hetero.lowering.registry import register


@dataclasses.dataclass(frozen=True)
class _Reads:
    """The parts of the image that each processor reads: those that its slice of the other image takes part in.

    Args:
      has_own: whether a processor reads its own slice.
      boxes: where the pieces lie that others send to a processor; of space alone.
    """

    geometry: Geometry
    has_own: Sequence[bool]
    boxes: Sequence[Sequence[Box]]

    def parts(self, pnum: int, xs: Sequence[tf.Tensor]) -> list[tuple[Box, Box, tf.Tensor]]:
        """Return where each part lies, the box of the other image's slice that it takes part in, and the part itself.

        A processor's own part comes first. The parts are flattened.
        """
        boxes = [*([self.geometry.own_slice(pnum)] if self.has_own[pnum] else []), *self.boxes[pnum]]
        reached = [cast("Box", self.geometry.reached(box, pnum)) for box in boxes]
        flat = [reshape(x, self.geometry.flat(x.shape.as_list())) for x in xs]
        return list(zip(boxes, reached, flat, strict=True))


@register(*get_args(AnyConvolution))
def convolve_slices(op: AnyConvolution, backend: Backend) -> None:
    """Have each processor compute, of its own part of the image and of its neighbours' pieces, its slice or addend.

    Example:
      A height of 10 split 7 : 3, a kernel of 3. Processor 0 convolves its own slice at once. Then it adds what row 7
      contributes.

        row           0 1 2 3 4 5 6 | 7 8 9
        own part      x x x x x x x
        halo                        | x
        result row 6            x x + x
    """
    geometry, (output,) = Geometry(op, backend.layout), op.outputs
    images, others = backend.slices(geometry.image), backend.slices(geometry.other)
    halos = _halos(geometry, backend)
    has_own = [_reads_own(geometry, pnum) for pnum in backend.processors]
    reads = [_read(pnum, has_own[pnum], halos[pnum], images, others) for pnum in backend.processors]
    boxes = [[box for box, _ in halo] for halo in halos]
    function = _to_kernel if geometry.makes == KERNEL else _to_image
    partial = backend.make(
        output,
        functools.partial(function, _Reads(geometry, has_own, boxes)),
        reads,
        lambda pnum: pnum if boxes[pnum] else tuple(geometry.boxes(pnum)),
    )
    backend.set_sum(output, partial, geometry.summed_dims)
    kind, step = geometry.counter
    backend.count(f"{kind}/{step}", geometry.computation, f"{kind}_unique/{step}")


def _halos(geometry: Geometry, backend: Backend) -> list[Halo]:
    """Return what each processor needs of others' slices of the image; boxes are of space."""
    if geometry.is_space_whole:
        return [[] for _ in backend.processors]
    halos = []
    for pnum, received in enumerate(backend.halos(geometry.image, geometry.required_box)):
        pieces = [(geometry.of_space(box), piece) for box, piece in received]
        halos.append([(box, piece) for box, piece in pieces if geometry.reached(box, pnum) is not None])
    return halos


def _reads_own(geometry: Geometry, pnum: int) -> bool:
    if has_nothing(geometry.layout, pnum, geometry.image.shape, geometry.other.shape, geometry.output.shape):
        return False
    return geometry.is_space_whole or geometry.reached(geometry.own_slice(pnum), pnum) is not None


def _read(pnum: int, has_own: bool, halo: Halo, images: Slices, others: Slices) -> Slices:
    """Return the slice of the other operand and the parts of the image that a processor reads; none if it has none."""
    parts = [*([images[pnum]] if has_own else []), *(piece for _, piece in halo)]
    return [others[pnum], *parts] if parts else []


def _length(interval: Interval) -> int:
    return interval[1] - interval[0]


def _cut(x: tf.Tensor, source: Box, target: Box) -> tf.Tensor:
    """Return a box of an image [batch, spatial dimensions, channels]."""
    begins = [w[0] - h[0] for h, w in zip(source, target, strict=True)]
    return cut(x, [0, *begins, 0], [x.shape.as_list()[0], *map(_length, target), x.shape.as_list()[-1]])


def _cut_taps(w: tf.Tensor, taps: Box) -> tf.Tensor:
    others = w.shape.as_list()[len(taps) :]
    return cut(w, [*(begin for begin, _ in taps), *[0] * len(others)], [*map(_length, taps), *others])


def _prepared(geometry: Geometry, x: tf.Tensor, large: Box, small: Box, taps: Box) -> tuple[tf.Tensor, str]:
    """Return a box of the large image as a box of the small one is to see it, and the padding to ask of TensorFlow."""
    padding = geometry.padding(large, small, taps)
    if padding is not None:
        return x, padding
    return crop_or_pad(x, large, geometry.receptive_field(small, taps)), "VALID"


def _total(reads: _Reads, processor: Processor, own: Box, parts: Sequence[tuple[Box, tf.Tensor]]) -> tf.Tensor:
    """Return the processor's slice of an image, of parts that lie in boxes of it: its own part fills the slice."""
    geometry = reads.geometry
    shape = geometry.output_slice(processor)
    if reads.has_own[processor]:
        (_, y), *parts = parts
    else:
        y = fill(geometry.flat(shape), 0, geometry.output.dtype)
    for box, part in parts:
        y = combine(y, own, part, box)
    return reshape(y, shape)


def _to_image(reads: _Reads, processor: Processor, *operands: tf.Tensor) -> tf.Tensor:
    """Convolve, or convolve transposed, the parts of one image, and add what they give to a slice of the other."""
    geometry, makes_small = reads.geometry, reads.geometry.makes == SMALL
    if not operands:
        return fill(geometry.output_slice(processor), 0, geometry.output.dtype)
    w, *xs = operands
    if reads.boxes[processor]:
        w = anew(w)  # others' parts are added to what follows from it, in place
    make, own = (_contract, geometry.small(processor)) if makes_small else (_spread, geometry.large(processor))
    parts = []
    for source, reached, x in reads.parts(processor, xs):
        box, y = make(geometry, processor, source, reached, x, w)
        is_own = reads.has_own[processor] and not parts
        parts.append((own, crop_or_pad(y, box, own)) if is_own else (box, y))
    return _total(reads, processor, own, parts)


def _contract(
    geometry: Geometry, processor: Processor, large: Box, small: Box, x: tf.Tensor, w: tf.Tensor
) -> tuple[Box, tf.Tensor]:
    """Return what a box of the large image contributes to a box of the small one."""
    taps = geometry.taps(large, small)
    x, padding = _prepared(geometry, x, large, small, taps)
    return small, convolve.forward(x, _cut_taps(w, taps), geometry.strides, padding, processor.device)


def _spread(
    geometry: Geometry, processor: Processor, small: Box, large: Box, x: tf.Tensor, w: tf.Tensor
) -> tuple[Box, tf.Tensor]:
    """Return what a box of the small image contributes to the processor's large one, or to the part that it sees."""
    for target in (geometry.large(processor), large):
        taps = geometry.taps(target, small)
        padding = geometry.padding(target, small, taps)
        if padding is not None:
            break
    else:
        target = geometry.receptive_field(small, taps)
    channels = geometry.flat(geometry.output_slice(processor))[-1]
    extents = [x.shape.as_list()[0], *map(_length, target), channels]
    y = convolve.input_gradient(extents, _cut_taps(w, taps), x, geometry.strides, padding or "VALID", processor.device)
    return (target, y) if padding else (large, _cut(y, target, large))


def _to_kernel(reads: _Reads, processor: Processor, *operands: tf.Tensor) -> tf.Tensor:
    """Return the kernel's gradient; the sum over the batch and space of slices."""
    geometry = reads.geometry
    shape = geometry.output_slice(processor)
    if not operands:
        return zeros(shape, geometry.output.dtype)
    dy, *xs = operands
    dy = reshape(dy, geometry.flat(dy.shape.as_list()))
    terms = []
    for large, small, x in reads.parts(processor, xs):
        taps = geometry.taps(large, small)
        x, padding = _prepared(geometry, x, large, small, taps)
        dw = convolve.kernel_gradient(
            x,
            [*map(_length, taps), *shape[len(taps) :]],
            _cut(dy, geometry.small(processor), small),
            geometry.strides,
            padding,
            processor.device,
        )
        missing = [(first, k - last) for (first, last), k in zip(taps, geometry.sizes, strict=True)]
        terms.append(pad(dw, [*missing, *[(0, 0)] * (len(shape) - len(taps))]))
    return tf.add_n(terms)
