"""What a processor lacks of a window, piece by piece as it comes from its neighbours.

A convolution is a sum over the pieces of an image. So each processor convolves its own slice at once, and adds to the
edges what its neighbours' pieces contribute when they have come: the exchange of halos overlaps the interior.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from mtf_hetero import blocks, collectives
from mtf_hetero._compat import mtf, tf
from mtf_hetero._support.ops import constant, reshape
from mtf_hetero.blocks import Interval

Halo = list[tuple[list[Interval], Any]]  # where each piece lies in its tensor, by (begin, end) per dimension, and it


def halos(
    op: mtf.Operation, lowering: mtf.Lowering, tensor: mtf.Tensor, box_of: Callable[[int], Sequence[Interval]]
) -> list[Halo]:
    """What each processor lacks of a box of an mtf.Tensor. A piece that several operations need is sent once.

    Args:
      op: the operation that needs it.
      lowering: the Lowering.
      tensor: one of its inputs.
      box_of: from a processor to (begin, end) per dimension, which may reach beyond the tensor, or be empty.

    Returns:
      The pieces, per processor.
    """
    mesh_impl = lowering.mesh_impl(op)
    layout, dims = mesh_impl.layout, tensor.shape.dims
    slices = lowering.tensors[tensor].to_laid_out_tensor().tensor_list
    windows = [blocks.plan_window(layout, dims, box_of(pnum), pnum) for pnum in range(mesh_impl.size)]
    received = collectives.receive(slices, mesh_impl.devices, windows, mesh_impl.wire_dtype, lowering.sent)
    return [[(blocks.place(layout, dims, piece), value) for piece, value in pieces] for pieces in received]


def alike(
    op: mtf.Operation, lowering: mtf.Lowering, pieces: Sequence[Halo], boxes_of: Callable[[int], Sequence[Interval]]
) -> Any:
    """The processors, alike where these boxes and the shape of their slice of the output are.

    One that has pieces from others is like no other.
    """
    shape = op.outputs[0].shape
    return lowering.mesh_impl(op).processors(shape, lambda pnum: pnum if pieces[pnum] else tuple(boxes_of(pnum)))


def opaque(x: tf.Tensor) -> tf.Tensor:
    """The same tensor, which TensorFlow's graph optimizers neither merge with its neighbours nor see through."""
    return tf.placeholder_with_default(x, x.shape)


def anew(x: tf.Tensor) -> tf.Tensor:
    """The same values, computed anew in every call of a session: what follows from them may be changed in place.

    TensorFlow computes once, and keeps from one call to the next, what follows from constants alone; and two
    operations that it knows to be equal become one. Neither holds for what follows from a stateful operation, which
    Empty is.
    """
    return x + tf.raw_ops.Empty(shape=constant([]), dtype=x.dtype, init=True)


def filled(shape: Sequence[int], value: Any, dtype: tf.DType) -> tf.Tensor:
    """A tensor of one value, made anew in every call of a session."""
    return tf.fill(constant(shape), anew(constant(value, dtype)))


def combine(
    x: tf.Tensor, held: Sequence[Interval], part: tf.Tensor, box: Sequence[Interval], reduction: str = "SUM"
) -> tf.Tensor:
    """Adds an image to a box of another, in place: TensorFlow's own functions copy images of gigabytes for a few rows.

    Args:
      x: tf.Tensor [..., spatial dimensions, channels], computed of something `anew`, which nothing else reads.
      held: (begin, end) of its spatial dimensions.
      part: tf.Tensor [..., spatial dimensions, channels].
      box: (begin, end) of those of the part, which lie within.
      reduction: "SUM", or "MAX" to take the larger of the two values.

    Returns:
      The same memory as x.
    """
    shape, sizes = x.shape.as_list(), part.shape.as_list()
    partial = [i for i, (h, b) in enumerate(zip(held, box, strict=True)) if tuple(h) != tuple(b)]
    if not partial:
        return collectives.reduce([x, part], reduction)
    rank = len(sizes) - len(held) + partial[-1]  # of the dimensions up to the last that the box does not fill
    begins = [0] * (len(sizes) - len(held) - 1) + [b[0] - h[0] for h, b in zip(held, box, strict=True)]
    ranges = [np.arange(begin, begin + n) for begin, n in zip(begins[:rank], sizes[:rank], strict=True)]
    rows = constant(np.ravel_multi_index(np.ix_(*ranges), shape[:rank]).ravel())
    x, part = reshape(x, [-1, *shape[rank:]]), reshape(part, [-1, *sizes[rank:]])
    if reduction == "MAX":
        changed = tf.raw_ops.InplaceUpdate(x=x, i=rows, v=tf.maximum(tf.gather(x, rows), part))
    else:
        changed = tf.raw_ops.InplaceAdd(x=x, i=rows, v=part)
    return reshape(changed, shape)
