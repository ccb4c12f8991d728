"""Sums of images, piece by piece, as the pieces come from other processors.

A convolution is a sum over the pieces of an image. So each processor convolves its own slice at once, and adds to the
edges what its neighbours' pieces contribute when they have come: the exchange of halos overlaps the interior.
"""

from collections.abc import Sequence

import numpy as np

from mtf_hetero._compat import tf
from mtf_hetero._support.ops import constant, reshape
from mtf_hetero.layout.blocks import Interval
from mtf_hetero.mesh import collectives


def opaque(x: tf.Tensor) -> tf.Tensor:
    """Return the same tensor, which TensorFlow's graph optimizers neither merge with its neighbours nor see through."""
    return tf.placeholder_with_default(x, x.shape)


def anew(x: tf.Tensor) -> tf.Tensor:
    """Return the same values, computed anew in every call of a session: what follows from them may be changed in place.

    TensorFlow computes once, and keeps from one call to the next, what follows from constants alone; and two
    operations that it knows to be equal become one. Neither holds for what follows from a stateful operation, which
    Empty is.
    """
    return x + tf.raw_ops.Empty(shape=constant([]), dtype=x.dtype, init=True)


def fill(shape: Sequence[int], value: float, dtype: tf.DType) -> tf.Tensor:
    """Return a tensor of one value, made anew in every call of a session."""
    return tf.fill(constant(shape), anew(constant(value, dtype)))


def combine(
    x: tf.Tensor, own: Sequence[Interval], part: tf.Tensor, box: Sequence[Interval], reduction: str = "SUM"
) -> tf.Tensor:
    """Add an image to a box of another, in place: TensorFlow's own functions copy images of gigabytes for a few rows.

    Args:
      x: tf.Tensor [..., spatial dimensions, channels], computed of something `anew`, which nothing else reads.
      own: (begin, end) of its spatial dimensions.
      part: tf.Tensor [..., spatial dimensions, channels].
      box: (begin, end) of those of the part, which lie within.
      reduction: "SUM", or "MAX" to take the larger of the two values.

    Returns:
      The same memory as x.

    Example:
      `x` has rows 10 to 14, and the part rows 13 and 14: it is added to the last two rows of `x`.

        x      10 11 12 13 14
        part            13 14
    """
    shape, sizes = x.shape.as_list(), part.shape.as_list()
    partial = [i for i, (h, b) in enumerate(zip(own, box, strict=True)) if tuple(h) != tuple(b)]
    if not partial:
        return collectives.reduce([x, part], reduction)
    rank = len(sizes) - len(own) + partial[-1]  # of the dimensions up to the last that the box does not fill
    begins = [0] * (len(sizes) - len(own) - 1) + [b[0] - h[0] for h, b in zip(own, box, strict=True)]
    ranges = [np.arange(begin, begin + n) for begin, n in zip(begins[:rank], sizes[:rank], strict=True)]
    rows = constant(np.ravel_multi_index(np.ix_(*ranges), shape[:rank]).ravel())
    x, part = reshape(x, [-1, *shape[rank:]]), reshape(part, [-1, *sizes[rank:]])
    if reduction == "MAX":
        result = tf.raw_ops.InplaceUpdate(x=x, i=rows, v=tf.maximum(tf.gather(x, rows), part))
    else:
        result = tf.raw_ops.InplaceAdd(x=x, i=rows, v=part)
    return reshape(result, shape)
