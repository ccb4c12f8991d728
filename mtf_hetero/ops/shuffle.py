"""Pixels out of channels and channels out of pixels: how networks for super-resolution enlarge an image.

Shi et al., "Real-Time Single Image and Video Super-Resolution Using an Efficient Sub-Pixel Convolutional Neural
Network" (2016), section 3.2, call the first one a periodic shuffling.
"""

import itertools
import math
from collections.abc import Callable, Sequence

from mtf_hetero._compat import mtf, tf
from mtf_hetero._support.ops import concat, constant, cut, reshape, zeros
from mtf_hetero.layout.blocks import Box, is_empty, slice_box
from mtf_hetero.ops.backend import Backend
from mtf_hetero.ops.registry import register
from mtf_hetero.ops.whole import lower_slices


class _Shuffle(mtf.Operation):
    """An image whose channels and pixels are exchanged.

    Args:
      x: mtf.Tensor [..., spatial dimensions, channels].
      sizes: pixels of a block, per spatial dimension.
      extents: sizes of the output's spatial dimensions and channels.
    """

    apply: Callable[[tf.Tensor], tf.Tensor]  # from a slice to one of the output

    def __init__(self, x: mtf.Tensor, sizes: Sequence[int], extents: Sequence[int], name: str) -> None:
        super().__init__([x], name=name)
        self.sizes, self.block = tuple(sizes), math.prod(sizes)
        leading, trailing = x.shape.dims[: -len(extents)], x.shape.dims[-len(extents) :]
        trailing = [mtf.Dimension(dim.name, n) for dim, n in zip(trailing, extents, strict=True)]
        self._outputs = [mtf.Tensor(self, mtf.Shape([*leading, *trailing]), x.dtype)]

    def lower(self, lowering: mtf.Lowering) -> None:
        rank = len(self.sizes) + 1
        dims = [dim for t in (*self.inputs, *self.outputs) for dim in t.shape.dims[-rank:]]
        lower_slices(self, lowering, self.apply, whole_dims=dims)


class DepthToSpaceOperation(_Shuffle):
    """Pixels made into blocks of pixels, with a part of the channels each."""

    def __init__(self, x: mtf.Tensor, sizes: Sequence[int], name: str) -> None:
        *space, channels = [dim.size for dim in x.shape.dims[-len(sizes) - 1 :]]
        extents = [n * size for n, size in zip(space, sizes, strict=True)]
        super().__init__(x, sizes, [*extents, channels // math.prod(sizes)], name)

    def gradient(self, grad_ys: Sequence[mtf.Tensor]) -> list[mtf.Tensor]:
        return SpaceToDepthOperation(grad_ys[0], self.sizes, f"{self.name}/gradient").outputs

    def apply(self, x: tf.Tensor) -> tf.Tensor:
        """Return a slice of the output."""
        rank, shape = len(self.sizes), x.shape.as_list()
        batch, space, channels = shape[: -rank - 1], shape[-rank - 1 : -1], shape[-1] // self.block
        x = reshape(x, [*batch, *space, *self.sizes, channels])
        first = len(batch)
        pairs = [axis for i in range(rank) for axis in (first + i, first + rank + i)]
        x = tf.transpose(x, constant([*range(first), *pairs, first + 2 * rank]))
        return reshape(x, [*batch, *(n * size for n, size in zip(space, self.sizes, strict=True)), channels])

    def boxes(self, box: Box) -> tuple[list[Box], Box]:
        """Return the boxes of x, along the channels, whose join `apply` makes a box of the output of; and that box.

        Args:
          box: of the output, (begin, end) per dimension, to be within the second result.
        """
        rank, channels = len(self.sizes), self.outputs[0].shape.dims[-1].size
        batch, space, (begin, end) = box[: -rank - 1], box[-rank - 1 : -1], box[-1]
        source = [(b // size, -(-e // size)) for (b, e), size in zip(space, self.sizes, strict=True)]
        target = [(b * size, e * size) for (b, e), size in zip(source, self.sizes, strict=True)]
        parts = [(i * channels + begin, i * channels + end) for i in range(self.block)]
        if end - begin == channels:
            parts = [(0, self.block * channels)]
        return [[*batch, *source, part] for part in parts], [*batch, *target, (begin, end)]


class SpaceToDepthOperation(_Shuffle):
    """Blocks of pixels made into pixels, with the channels of all."""

    def __init__(self, x: mtf.Tensor, sizes: Sequence[int], name: str) -> None:
        *space, channels = [dim.size for dim in x.shape.dims[-len(sizes) - 1 :]]
        extents = [n // size for n, size in zip(space, sizes, strict=True)]
        super().__init__(x, sizes, [*extents, channels * math.prod(sizes)], name)

    def gradient(self, grad_ys: Sequence[mtf.Tensor]) -> list[mtf.Tensor]:
        return DepthToSpaceOperation(grad_ys[0], self.sizes, f"{self.name}/gradient").outputs

    def apply(self, x: tf.Tensor) -> tf.Tensor:
        """Return a slice of the output, of all its channels."""
        rank, shape = len(self.sizes), x.shape.as_list()
        batch, space, channels = shape[: -rank - 1], shape[-rank - 1 : -1], shape[-1]
        space = [n // size for n, size in zip(space, self.sizes, strict=True)]
        x = reshape(x, [*batch, *(n for pair in zip(space, self.sizes, strict=True) for n in pair), channels])
        first = len(batch)
        order = [*(first + 2 * i for i in range(rank)), *(first + 2 * i + 1 for i in range(rank)), first + 2 * rank]
        return reshape(tf.transpose(x, constant([*range(first), *order])), [*batch, *space, self.block * channels])

    def boxes(self, box: Box) -> tuple[list[Box], Box]:
        """Return the boxes of pixels that make a box of the result whole, and the box that they make."""
        rank, channels = len(self.sizes), self.inputs[0].shape.dims[-1].size
        batch, space = box[: -rank - 1], box[-rank - 1 : -1]
        source = [(b * size, e * size) for (b, e), size in zip(space, self.sizes, strict=True)]
        return [[*batch, *source, (0, channels)]], [*batch, *space, (0, self.block * channels)]


def depth_to_space(x: mtf.Tensor, sizes: int | Sequence[int], *, name: str = "depth_to_space") -> mtf.Tensor:
    """Make an image larger by blocks of pixels out of its channels, as tf.nn.depth_to_space does.

    A layout may split any dimension. Of a split height or width, only the pixels of a block are sent that lie on
    another processor.

    Args:
      x: mtf.Tensor [batch, height, width, channels] or [batch, depth, height, width, channels]. If `sizes` is a
        sequence there may be more batch dimensions, or none.
      sizes: pixels of a block, for all spatial dimensions or for each.
      name: the operation's name.

    Returns:
      mtf.Tensor of dimensions of the same names.

    Raises:
      ValueError: sizes that are not positive or do not fit the image.

    Example:
      >>> depth_to_space(x, 2).shape  # x: [batch=2, height=8, width=8, channels=12]
      Shape[batch=2, height=16, width=16, channels=3]
    """
    each = _check_sizes(x, sizes, name)
    if x.shape.dims[-1].size % math.prod(each):
        raise ValueError(
            f"depth_to_space {name!r}: {x.shape.dims[-1].size} channels make no blocks of {math.prod(each)} pixels; "
            f"give a multiple of {math.prod(each)} channels"
        )
    return DepthToSpaceOperation(x, each, name).outputs[0]


def space_to_depth(x: mtf.Tensor, sizes: int | Sequence[int], *, name: str = "space_to_depth") -> mtf.Tensor:
    """Make an image smaller: the channels of a block of pixels become those of one, as tf.nn.space_to_depth does.

    Args:
      x: as of `depth_to_space`.
      sizes: likewise.
      name: the operation's name.

    Raises:
      ValueError: sizes that are not positive or do not divide the image.

    Example:
      >>> space_to_depth(x, 2).shape  # x: [batch=2, height=16, width=16, channels=3]
      Shape[batch=2, height=8, width=8, channels=12]
    """
    each = _check_sizes(x, sizes, name)
    for dim, size in zip(x.shape.dims[-len(each) - 1 : -1], each, strict=True):
        if dim.size % size:
            raise ValueError(
                f"space_to_depth {name!r}: dimension {dim.name!r} of size {dim.size} has no blocks of {size} pixels; "
                f"give a multiple of {size} pixels"
            )
    return SpaceToDepthOperation(x, each, name).outputs[0]


def _check_sizes(x: mtf.Tensor, sizes: int | Sequence[int], name: str) -> tuple[int, ...]:
    spatial = x.shape.ndims - 2 if isinstance(sizes, int) else len(sizes)
    each = (sizes,) * spatial if isinstance(sizes, int) else tuple(sizes)
    if not 1 <= spatial < x.shape.ndims or min(each) < 1:
        raise ValueError(
            f"{name!r}: sizes are {sizes} for {x.shape.to_string}; give a positive whole number, or one for each "
            "spatial dimension"
        )
    return each


@register(DepthToSpaceOperation, SpaceToDepthOperation)
def shuffle(op: DepthToSpaceOperation | SpaceToDepthOperation, backend: Backend) -> None:
    """Have each processor fetch whole blocks, shuffle them, and keep its slice."""
    (x,), (y,) = op.inputs, op.outputs
    slices = [slice_box(backend.layout, y.shape.dims, pnum) for pnum in backend.processors]
    boxes, covers = zip(*map(op.boxes, slices), strict=True)
    parts = [
        backend.fetch(x, [None if is_empty(own) else box for own, box in zip(slices, each, strict=True)])
        for each in itertools.zip_longest(*boxes)
    ]

    def shuffle_slice(pnum: int, *blocks: tf.Tensor) -> tf.Tensor:
        sizes = [end - begin for begin, end in slices[pnum]]
        if not blocks:
            return zeros(sizes, y.dtype)
        begins = [own[0] - cover[0] for own, cover in zip(slices[pnum], covers[pnum], strict=True)]
        return cut(op.apply(concat(blocks, x.shape.ndims - 1)), begins, sizes)

    reads = [[part for part in own if part is not None] for own in zip(*parts, strict=True)]
    backend.set(y, backend.make(y, shuffle_slice, reads, lambda pnum: (tuple(slices[pnum]), tuple(covers[pnum]))))
