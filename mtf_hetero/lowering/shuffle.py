"""Pixels made of channels, and channels of pixels: a processor reads the blocks that its slice has a part of."""

import itertools

from mtf_hetero import layers
from mtf_hetero._compat import tf
from mtf_hetero._support.ops import concat, cut, zeros
from mtf_hetero.layout.blocks import is_empty, slice_box
from mtf_hetero.lowering.backend import Backend
from mtf_hetero.lowering.registry import register


@register(layers.DepthToSpaceOperation, layers.SpaceToDepthOperation)
def shuffle(op: layers.DepthToSpaceOperation | layers.SpaceToDepthOperation, backend: Backend) -> None:
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
