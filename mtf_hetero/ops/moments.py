"""Functions of slices for batch normalization: moments of a group, and the gradient in closed form.

A group is what has the same index along some dimensions: the channel, and whatever else is to be kept apart. Over N
values of a group, with r = rsqrt(variance + epsilon) and z = (x - mean) r:

    y       = z scale + offset
    d offset = sum dy
    d scale  = sum dy z
    d x      = scale r (dy - d offset / N - z d scale / N)
"""

import math
from collections.abc import Sequence

from mtf_hetero._compat import tf
from mtf_hetero._support.ops import binary, cast, constant, reshape, stack, unstack
from mtf_hetero.ops.sums import channel_sums

_MOST_NATIVE = 2**18  # values of a channel that TensorFlow's fused operation is given: see `is_native`


def accumulator_dtype(dtype: tf.DType) -> tf.DType:
    """Return the type in which sums over a tensor are made: float64 for float64, otherwise float32."""
    return tf.float64 if dtype == tf.float64 else tf.float32


def _are_all_but_last(x: tf.Tensor, axes: Sequence[int]) -> bool:
    return len(axes) == x.shape.rank - 1 and x.shape.rank - 1 not in axes


def _sums(x: tf.Tensor, axes: Sequence[int]) -> tf.Tensor:
    return channel_sums(x) if _are_all_but_last(x, axes) else tf.reduce_sum(x, constant(axes))


def _spread(value: tf.Tensor, x: tf.Tensor, axes: Sequence[int]) -> tf.Tensor:
    """Return a value per group, with dimensions of size 1 where x has those that are summed over."""
    if not _are_all_but_last(x, axes):
        for axis in sorted(axes):
            value = tf.expand_dims(value, axis)
    return value


def _count(x: tf.Tensor, axes: Sequence[int]) -> int:
    """Count the values per group; 1 in a slice that has none, so that its moments are zero and no quotient of zeros."""
    return max(math.prod(x.shape.as_list()[axis] for axis in axes), 1)


def moments(x: tf.Tensor, axes: Sequence[int]) -> tf.Tensor:
    """Mean and variance over some dimensions of a slice: [2, groups]. The mean first, lest the variance lose digits."""
    x = cast(x, accumulator_dtype(x.dtype))
    count = _count(x, axes)
    mean = binary("RealDiv", _sums(x, axes), count)
    squares = _sums(binary("SquaredDifference", x, _spread(mean, x, axes)), axes)
    return stack([mean, binary("RealDiv", squares, count)])


def joint_moments(parts: Sequence[tf.Tensor], counts: Sequence[int]) -> tf.Tensor:
    """Return the moments of a whole from those of its parts (Chan, Golub and LeVeque 1983).

    Unlike the difference E[x^2] - E[x]^2 it loses no digits where the mean is large.

    Args:
      parts: [2, groups] each.
      counts: number of values per group in each.
    """
    total = sum(counts)
    weights = [count / total for count in counts]
    means, variances = zip(*map(unstack, parts), strict=True)

    def average(values: Sequence[tf.Tensor]) -> tf.Tensor:
        return tf.add_n([binary("Mul", value, weight) for value, weight in zip(values, weights, strict=True)])

    mean = average(means)
    squares = [binary("SquaredDifference", each, mean) for each in means]
    return stack([mean, average([binary("AddV2", a, b) for a, b in zip(variances, squares, strict=True)])])


def inverse_deviation(variance: tf.Tensor, epsilon: float) -> tf.Tensor:
    """rsqrt(variance + epsilon), of each group."""
    return tf.raw_ops.Rsqrt(x=binary("AddV2", variance, epsilon))


def normalise(
    x: tf.Tensor, mean: tf.Tensor, r: tf.Tensor, scale: tf.Tensor, offset: tf.Tensor, *, axes: Sequence[int]
) -> tf.Tensor:
    """(x - mean) r scale + offset, of a slice; the others have a value per group."""
    factor = binary("Mul", scale, r)
    mean, factor, offset = (_spread(value, x, axes) for value in (mean, factor, offset))
    centred = binary("Sub", cast(x, mean.dtype), mean)
    return cast(binary("AddV2", binary("Mul", centred, factor), offset), x.dtype)


def gradient_sums(dy: tf.Tensor, x: tf.Tensor, mean: tf.Tensor, r: tf.Tensor, *, axes: Sequence[int]) -> tf.Tensor:
    """Return a slice's addends to d offset and d scale: [2, groups]."""
    dy, x = cast(dy, mean.dtype), cast(x, mean.dtype)
    products = binary("Mul", dy, binary("Sub", x, _spread(mean, x, axes)))
    return stack([_sums(dy, axes), binary("Mul", _sums(products, axes), r)])


def input_gradient(
    dy: tf.Tensor,
    x: tf.Tensor,
    mean: tf.Tensor,
    r: tf.Tensor,
    scale: tf.Tensor,
    d_offset: tf.Tensor,
    d_scale: tf.Tensor,
    *,
    axes: Sequence[int],
    count: int,
) -> tf.Tensor:
    """Return the gradient to a slice, from the sums over all of them.

    Args:
      dy: a slice.
      x: a slice.
      mean: [groups].
      r: [groups], as `inverse_deviation` returns it.
      scale: [groups].
      d_offset: [groups].
      d_scale: [groups].
      axes: those of the slice that are summed over.
      count: number of values per group in all slices.
    """
    factor = binary("Mul", scale, r)
    slope = binary("RealDiv", binary("Mul", binary("Mul", factor, r), d_scale), count)
    shift = binary("RealDiv", binary("Mul", factor, d_offset), count)
    mean, factor, slope, shift = (_spread(value, x, axes) for value in (mean, factor, slope, shift))
    scaled = binary("Mul", cast(dy, mean.dtype), factor)
    along = binary("Mul", binary("Sub", cast(x, mean.dtype), mean), slope)
    return cast(binary("Sub", binary("Sub", scaled, along), shift), x.dtype)


def is_native(shape: Sequence[int], dtype: tf.DType) -> bool:
    """Return whether TensorFlow's fused operation does a slice of whole channels on a CPU: in float32.

    Its gradient takes moments on a CPU. On a GPU it takes cuDNN's reserve space, which no mtf.Tensor holds. It adds up
    one value after another: in a volume of 128 x 128 x 128 its variance is off by a thousandth.
    """
    return dtype == tf.float32 and 1 < math.prod(shape[:-1]) <= _MOST_NATIVE


def native(
    x: tf.Tensor, scale: tf.Tensor, offset: tf.Tensor, *, epsilon: float
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """(y, mean, variance) of a slice that holds whole channels; a third of the passes over it."""
    count = math.prod(x.shape.as_list()[:-1])
    fused = tf.raw_ops.FusedBatchNormV3(
        x=_image(x), scale=scale, offset=offset, mean=[], variance=[], epsilon=epsilon, is_training=True
    )
    variance = binary("Mul", fused.batch_variance, (count - 1) / count)  # it is an estimate of the population's
    return reshape(fused.y, x.shape.as_list()), fused.batch_mean, variance


def native_gradient(
    dy: tf.Tensor, x: tf.Tensor, mean: tf.Tensor, variance: tf.Tensor, scale: tf.Tensor, *, epsilon: float
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Return the gradients to x, scale and offset, of a slice that holds whole channels."""
    fused = tf.raw_ops.FusedBatchNormGradV3(
        y_backprop=_image(dy),
        x=_image(x),
        scale=scale,
        reserve_space_1=mean,
        reserve_space_2=variance,
        reserve_space_3=constant([], tf.float32),
        epsilon=epsilon,
        is_training=True,
    )
    return reshape(fused.x_backprop, x.shape.as_list()), fused.scale_backprop, fused.offset_backprop


def _image(x: tf.Tensor) -> tf.Tensor:
    """[..., channels] to four dimensions."""
    shape = x.shape.as_list()
    return x if len(shape) == 4 else reshape(x, [math.prod(shape[:-1]), 1, 1, shape[-1]])
