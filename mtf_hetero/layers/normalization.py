"""Batch normalisation by the moments of all that a group has, however it is split, and its gradient in closed form.

A group is what has the same index along some dimensions: the channel, and whatever else is to be kept apart. Over N
values of a group, with r = rsqrt(variance + epsilon) and z = (x - mean) r:

    y       = z scale + offset
    d offset = sum dy
    d scale  = sum dy z
    d x      = scale r (dy - d offset / N - z d scale / N)
"""

import functools
import math
import weakref
from collections.abc import Sequence
from typing import Any

from mtf_hetero._compat import mtf, tf
from mtf_hetero._support.alike import is_cpu
from mtf_hetero._support.ops import binary, cast, constant, reshape, stack, unstack
from mtf_hetero.layers.sums import channel_sums
from mtf_hetero.layers.whole import require_whole

_MOST_NATIVE = 2**18  # values of a channel that TensorFlow's fused operation is given


def accumulator_of(dtype: tf.DType) -> tf.DType:
    """The type in which sums over a tensor are made: float64 for float64, otherwise float32."""
    return tf.float64 if dtype == tf.float64 else tf.float32


def _are_all_but_last(x: tf.Tensor, axes: Sequence[int]) -> bool:
    return len(axes) == x.shape.rank - 1 and x.shape.rank - 1 not in axes


def _sums(x: tf.Tensor, axes: Sequence[int]) -> tf.Tensor:
    return channel_sums(x) if _are_all_but_last(x, axes) else tf.reduce_sum(x, constant(axes))


def _spread(value: Any, x: tf.Tensor, axes: Sequence[int]) -> tf.Tensor:
    """A value per group, with dimensions of size 1 where x has those that are summed over."""
    if not _are_all_but_last(x, axes):
        for axis in sorted(axes):
            value = tf.expand_dims(value, axis)
    return value


def _count(x: tf.Tensor, axes: Sequence[int]) -> int:
    """Number of values per group; 1 in a slice that has none, so that its moments are zero and no quotient of zeros."""
    return max(math.prod(x.shape.as_list()[axis] for axis in axes), 1)


def moments(x: tf.Tensor, axes: Sequence[int]) -> tf.Tensor:
    """Mean and variance over some dimensions of a slice: [2, groups]. The mean first, lest the variance lose digits."""
    x = cast(x, accumulator_of(x.dtype))
    count = _count(x, axes)
    mean = binary("RealDiv", _sums(x, axes), count)
    squares = _sums(binary("SquaredDifference", x, _spread(mean, x, axes)), axes)
    return stack([mean, binary("RealDiv", squares, count)])


def joint_moments(parts: Sequence[tf.Tensor], counts: Sequence[int]) -> tf.Tensor:
    """The moments of a whole from those of its parts (Chan, Golub and LeVeque 1983).

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
    """A slice's addends to d offset and d scale: [2, groups]."""
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
    """The gradient to a slice, from the sums over all of them.

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


def is_native(x: tf.Tensor, device: str) -> bool:
    """Whether TensorFlow's fused operation does a whole channel: in float32 on a CPU, where its gradient takes moments.

    On a GPU it takes cuDNN's reserve space, which no mtf.Tensor holds. It adds up one value after another: in a volume
    of 128 x 128 x 128 its variance is off by a thousandth.
    """
    return is_cpu(device) and is_native_shape(x.shape.as_list(), x.dtype)


def is_native_shape(shape: Sequence[int], dtype: tf.DType) -> bool:
    """Whether `is_native` holds on a CPU for a slice of this shape and type."""
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
    """The gradients to x, scale and offset, of a slice that holds whole channels."""
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


class _OverGroups(mtf.Operation):
    """An operation with moments of groups: its first input has the values, its last output one value per group."""

    @property
    def axes(self) -> tuple[int, ...]:
        """The dimensions of x that a group extends over."""
        kept = self.outputs[-1].shape.dims
        return tuple(axis for axis, dim in enumerate(self.inputs[0].shape.dims) if dim not in kept)

    @property
    def count(self) -> int:
        """Number of values per group."""
        return math.prod(self.inputs[0].shape.dims[axis].size for axis in self.axes)


def own_moments(op: _OverGroups, lowering: mtf.Lowering) -> Any:
    """Return the moments of each processor's slice, [2, groups]."""
    return lowering.mesh_impl(op).slicewise(functools.partial(moments, axes=op.axes), lowering.tensors[op.inputs[0]])


def whole_moments(op: _OverGroups, lowering: mtf.Lowering) -> Any:
    """Return the moments of each processor's groups, [2, groups], which the mesh may not split."""
    require_whole(op, lowering, [op.inputs[0].shape.dims[axis] for axis in op.axes])
    return own_moments(op, lowering)


class MomentsOperation(_OverGroups):
    """Computes the mean and the variance over some dimensions, which are its outputs.

    Args:
      x: mtf.Tensor of float32 or float64.
      shape: mtf.Shape of each output: those dimensions of x, in their order, whose every index is a group.
      name: the operation's name.
    """

    def __init__(self, x: mtf.Tensor, shape: mtf.Shape, *, name: str = "moments") -> None:
        super().__init__([x], name=name)
        self._outputs = [mtf.Tensor(self, shape, x.dtype) for _ in range(2)]

    def gradient(self, grad_ys: Sequence[mtf.Tensor | None]) -> list[mtf.Tensor]:
        x, (d_mean, d_variance) = self.inputs[0], grad_ys
        terms = [] if d_mean is None else [mtf.broadcast(d_mean, x.shape)]
        if d_variance is not None:
            terms.append((x - self.outputs[0]) * (2.0 * d_variance))
        return [mtf.add_n(terms) * (1.0 / self.count)]

    def lower(self, lowering: mtf.Lowering) -> None:
        self.lower_with(lowering, whole_moments(self, lowering))

    def lower_with(self, lowering: mtf.Lowering, moments: Any) -> None:
        """Lowers the rest, once each processor has the moments of its groups, [2, groups]."""
        for output, value in zip(self.outputs, lowering.mesh_impl(self).slicewise(unstack, moments), strict=True):
            lowering.set_tensor_lowering(output, value)


class BatchNormOperation(_OverGroups):
    """Normalises each group by its moments; the outputs are y, mean and variance.

    Args:
      x: mtf.Tensor [..., channels].
      scale: mtf.Tensor of those dimensions of x, in their order, whose every index is a group: [channels] at least.
      offset: mtf.Tensor of the same.
      epsilon: added to the variance.
      name: the operation's name.
    """

    def __init__(self, x: mtf.Tensor, scale: mtf.Tensor, offset: mtf.Tensor, *, epsilon: float, name: str) -> None:
        super().__init__([x, scale, offset], name=name)
        self.epsilon = epsilon
        self._inverse_deviations: weakref.WeakKeyDictionary[mtf.Lowering, Any] = weakref.WeakKeyDictionary()
        moments = [mtf.Tensor(self, scale.shape, scale.dtype) for _ in range(2)]
        self._outputs = [mtf.Tensor(self, x.shape, x.dtype), *moments]

    def gradient(self, grad_ys: Sequence[mtf.Tensor]) -> list[mtf.Tensor]:
        return BatchNormGradientOperation(self, grad_ys[0]).outputs

    def lower(self, lowering: mtf.Lowering) -> None:
        self.lower_with(lowering, whole_moments(self, lowering))

    def lower_with(self, lowering: mtf.Lowering, moments: Any) -> None:
        """Lowers the rest, once each processor has the moments of its groups, [2, groups]."""
        mesh_impl = lowering.mesh_impl(self)
        x, scale, offset = (lowering.tensors[t] for t in self.inputs)
        mean, variance = mesh_impl.slicewise(unstack, moments)
        for output, value in zip(self.outputs[1:], (mean, variance), strict=True):
            lowering.set_tensor_lowering(output, value)
        r = self._inverse_deviations[lowering] = self._invert(lowering)
        y = mesh_impl.slicewise(functools.partial(normalise, axes=self.axes), x, mean, r, scale, offset)
        lowering.set_tensor_lowering(self.outputs[0], y)

    def inverse_deviation(self, lowering: mtf.Lowering) -> Any:
        """rsqrt(variance + epsilon) of each processor's groups, which the gradient reads too."""
        known = self._inverse_deviations.get(lowering)
        return self._invert(lowering) if known is None else known

    def _invert(self, lowering: mtf.Lowering) -> Any:
        function = functools.partial(inverse_deviation, epsilon=self.epsilon)
        return lowering.mesh_impl(self).slicewise(function, lowering.tensors[self.outputs[2]])


class BatchNormGradientOperation(mtf.Operation):
    """The gradients to x, scale and offset.

    Args:
      forward: the BatchNormOperation.
      dy: mtf.Tensor of the shape of its first output.
    """

    def __init__(self, forward: BatchNormOperation, dy: mtf.Tensor) -> None:
        x, scale, offset = forward.inputs
        super().__init__([dy, x, *forward.outputs[1:], scale], name=f"{forward.name}/gradient")
        self.forward = forward
        self.axes = forward.axes
        self._outputs = [mtf.Tensor(self, t.shape, t.dtype) for t in (x, scale, offset)]

    def sums(self, lowering: mtf.Lowering) -> Any:
        """Each processor's addends to d offset and d scale, [2, groups]."""
        dy, x, mean = (lowering.tensors[t] for t in self.inputs[:3])
        function = functools.partial(gradient_sums, axes=self.axes)
        return lowering.mesh_impl(self).slicewise(function, dy, x, mean, self.forward.inverse_deviation(lowering))

    def lower(self, lowering: mtf.Lowering) -> None:
        require_whole(self, lowering, [self.inputs[0].shape.dims[axis] for axis in self.axes])
        self.lower_with(lowering, self.sums(lowering))

    def lower_with(self, lowering: mtf.Lowering, sums: Any) -> None:
        """Lowers the rest, once each processor has the sums of its groups."""
        mesh_impl, forward = lowering.mesh_impl(self), self.forward
        dy, x, mean, _, scale = (lowering.tensors[t] for t in self.inputs)
        d_offset, d_scale = mesh_impl.slicewise(unstack, sums)
        differentiate = functools.partial(input_gradient, axes=self.axes, count=forward.count)
        r = forward.inverse_deviation(lowering)
        dx = mesh_impl.slicewise(differentiate, dy, x, mean, r, scale, d_offset, d_scale)
        for output, value in zip(self.outputs, (dx, d_scale, d_offset), strict=True):
            lowering.set_tensor_lowering(output, value)
