"""Batch normalization and moments over a whole group: the processors that hold parts of it join their moments.

They do so in one exchange. If each holds whole channels there is nothing to join, and TensorFlow's fused operation does
it where it can. `moments` has the functions of slices.
"""

import functools
import math
from collections.abc import Callable, Sequence

from mtf_hetero._compat import mtf, tf
from mtf_hetero._support.ops import unstack
from mtf_hetero.layout import Layout
from mtf_hetero.ops import moments
from mtf_hetero.ops.backend import Backend, Like, Slices, absent_from
from mtf_hetero.ops.registry import register
from mtf_hetero.ops.whole import lower_slices


class _OverGroups(mtf.Operation):
    """An operation with moments of groups: its first input has the values, its last output one value per group."""

    @property
    def group_dims(self) -> list[mtf.Dimension]:
        """The dimensions of x that a group extends over."""
        return [self.inputs[0].shape.dims[axis] for axis in self.axes]

    @property
    def axes(self) -> tuple[int, ...]:
        """The places of these dimensions."""
        remaining = self.outputs[-1].shape.dims
        return tuple(axis for axis, dim in enumerate(self.inputs[0].shape.dims) if dim not in remaining)

    @property
    def count(self) -> int:
        """Number of values per group."""
        return math.prod(dim.size for dim in self.group_dims)


class MomentsOperation(_OverGroups):
    """Computes the mean and the variance over some dimensions, which are its outputs.

    Args:
      x: mtf.Tensor of float32 or float64.
      shape: mtf.Shape of each output: those dimensions of x, in their order, whose every index is a group.
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
        lower_slices(self, lowering, lambda x: unstack(moments.moments(x, self.axes)), whole_dims=self.group_dims)


class BatchNormOperation(_OverGroups):
    """Normalises each group by its moments; the outputs are y, mean and variance.

    Args:
      x: mtf.Tensor [..., channels].
      scale: mtf.Tensor of those dimensions of x, in their order, whose every index is a group: [channels] at least.
      offset: mtf.Tensor of the same.
      epsilon: added to the variance.
    """

    def __init__(self, x: mtf.Tensor, scale: mtf.Tensor, offset: mtf.Tensor, *, epsilon: float, name: str) -> None:
        super().__init__([x, scale, offset], name=name)
        self.epsilon = epsilon
        mean, variance = (mtf.Tensor(self, scale.shape, scale.dtype) for _ in range(2))
        self._outputs = [mtf.Tensor(self, x.shape, x.dtype), mean, variance]

    def gradient(self, grad_ys: Sequence[mtf.Tensor]) -> list[mtf.Tensor]:
        return BatchNormGradientOperation(self, grad_ys[0]).outputs

    def lower(self, lowering: mtf.Lowering) -> None:
        def apply(x: tf.Tensor, scale: tf.Tensor, offset: tf.Tensor) -> tuple[tf.Tensor, ...]:
            mean, variance = unstack(moments.moments(x, self.axes))
            r = moments.inverse_deviation(variance, self.epsilon)
            return moments.normalise(x, mean, r, scale, offset, axes=self.axes), mean, variance

        lower_slices(self, lowering, apply, whole_dims=self.group_dims)


class BatchNormGradientOperation(_OverGroups):
    """The gradients to x, scale and offset.

    Args:
      dy: mtf.Tensor of the shape of its first output.
    """

    def __init__(self, forward: BatchNormOperation, dy: mtf.Tensor) -> None:
        x, scale, offset = forward.inputs
        super().__init__([dy, x, *forward.outputs[1:], scale], name=f"{forward.name}/gradient")
        self.forward = forward
        self._outputs = [mtf.Tensor(self, t.shape, t.dtype) for t in (x, scale, offset)]

    def lower(self, lowering: mtf.Lowering) -> None:
        def differentiate(
            dy: tf.Tensor, x: tf.Tensor, mean: tf.Tensor, variance: tf.Tensor, scale: tf.Tensor
        ) -> tuple[tf.Tensor, ...]:
            r = moments.inverse_deviation(variance, self.forward.epsilon)
            d_offset, d_scale = unstack(moments.gradient_sums(dy, x, mean, r, axes=self.axes))
            sums = d_offset, d_scale
            dx = moments.input_gradient(dy, x, mean, r, scale, *sums, axes=self.axes, count=self.count)
            return dx, d_scale, d_offset

        lower_slices(self, lowering, differentiate, whole_dims=self.group_dims)


def _split_axes(op: _OverGroups, layout: Layout) -> list[int]:
    """Return the mesh axes over which the values of a group are split."""
    axes = {layout.axis_of(dim) for dim in op.group_dims}
    return sorted(axis for axis in axes if axis is not None)


def _is_native(op: _OverGroups, backend: Backend) -> bool:
    """Return whether TensorFlow's fused operation can do all slices: of whole channels, each a group.

    A tensor of one channel may have no dimension for it.
    """
    if not backend.on_cpus or op.outputs[1].shape.ndims != 1 or _split_axes(op, backend.layout):
        return False
    x = op.inputs[0]
    return all(moments.is_native(size, x.dtype) for size in backend.layout.slice_shapes(x.shape))


def _make_outputs(op: mtf.Operation, backend: Backend, function: Callable[..., tuple[tf.Tensor, ...]]) -> None:
    reads = list(zip(*map(backend.slices, op.inputs), strict=True))
    for output, slices in zip(op.outputs, backend.make_all(op.outputs, function, reads), strict=True):
        backend.set(output, slices)


def _pair(op: mtf.Operation) -> Like:
    """Two numbers per group."""
    groups = op.outputs[-1]
    dtype = moments.accumulator_dtype(op.inputs[0].dtype)
    return Like(mtf.Shape([mtf.Dimension("two numbers", 2), *groups.shape.dims]), dtype)


def _unstack(backend: Backend, outputs: Sequence[mtf.Tensor], pairs: Slices) -> list[Slices]:
    return backend.make_all(outputs, unstack, [[pair] for pair in pairs])


def _join(op: _OverGroups, layout: Layout, pnums: Sequence[int], own: Sequence[tf.Tensor]) -> tf.Tensor:
    """Return the moments of what some processors have of a group."""
    if len(own) == 1:
        return own[0]
    return moments.joint_moments(own, [math.prod(layout.slice_shape(op.group_dims, pnum)) for pnum in pnums])


def _joint_moments(op: _OverGroups, backend: Backend) -> Slices:
    """Return the moments of each processor's groups, [2, groups], in one exchange: a part weighs as its size."""
    pair, layout = _pair(op), backend.layout
    own = backend.local(pair, functools.partial(moments.moments, axes=op.axes), backend.slices(op.inputs[0]))
    axes = _split_axes(op, layout)
    if not axes:
        return own
    backend.count(f"allreduce/{axes}/{type(op).__name__}", pair.shape)
    return backend.join(own, axes, absent_from(layout, op.group_dims), functools.partial(_join, op, layout))


@register(MomentsOperation)
def join_moments(op: MomentsOperation, backend: Backend) -> None:
    """Join the moments of the parts."""
    for output, slices in zip(op.outputs, _unstack(backend, op.outputs, _joint_moments(op, backend)), strict=True):
        backend.set(output, slices)


@register(BatchNormOperation)
def normalise(op: BatchNormOperation, backend: Backend) -> None:
    """Join the moments of the parts, and normalise each slice."""
    if _is_native(op, backend):
        _make_outputs(op, backend, functools.partial(moments.native, epsilon=op.epsilon))
        return
    x, scale, offset = map(backend.slices, op.inputs)
    y, *outputs = op.outputs
    for output, slices in zip(outputs, _unstack(backend, outputs, _joint_moments(op, backend)), strict=True):
        backend.set(output, slices)
    mean, r = backend.slices(outputs[0]), _inverse_deviation(op, backend)
    function = functools.partial(moments.normalise, axes=op.axes)
    backend.set(y, backend.local(y, function, x, mean, r, scale, offset))


def _inverse_deviation(op: BatchNormOperation, backend: Backend) -> Slices:
    """Return the inverse standard deviations of a batch norm, which its gradient needs too."""
    if op not in backend.side_results:
        function = functools.partial(moments.inverse_deviation, epsilon=op.epsilon)
        backend.side_results[op] = backend.local(op.outputs[2], function, backend.slices(op.outputs[2]))
    return backend.side_results[op]


@register(BatchNormGradientOperation)
def batch_norm_gradient(op: BatchNormGradientOperation, backend: Backend) -> None:
    """Add up both sums at once."""
    if _is_native(op, backend):
        _make_outputs(op, backend, functools.partial(moments.native_gradient, epsilon=op.forward.epsilon))
        return
    dy, x, mean, _, scale = map(backend.slices, op.inputs)
    (dx, d_scale, d_offset), pair, layout = op.outputs, _pair(op), backend.layout
    r, axes = _inverse_deviation(op.forward, backend), _split_axes(op, layout)
    sums = backend.local(pair, functools.partial(moments.gradient_sums, axes=op.axes), dy, x, mean, r)
    if axes:
        backend.count(f"allreduce/{axes}/{type(op).__name__}", pair.shape)
        sums = backend.allreduce(sums, axes, absent=absent_from(layout, op.group_dims))
    offsets, scales = _unstack(backend, [d_offset, d_scale], sums)
    function = functools.partial(moments.input_gradient, axes=op.axes, count=op.count)
    backend.set(dx, backend.local(dx, function, dy, x, mean, r, scale, offsets, scales))
    backend.set(d_scale, scales)
    backend.set(d_offset, offsets)


class _Update(mtf.Assign):
    """Moves a moving average."""


def batch_norm(
    x: mtf.Tensor,
    *,
    training: bool,
    momentum: float = 0.9,
    epsilon: float = 1e-5,
    per: Sequence[str] = (),
    name: str | None = None,
) -> mtf.Tensor:
    """Batch normalisation (Ioffe and Szegedy 2015) over all dimensions but the last, and those of `per`.

    In training a channel's moments are those of the whole batch, whoever holds which part of it, and moving averages
    of them are made ready to be updated: run `batch_norm_updates` with each step. Otherwise the moving averages take
    the moments' place. Sums are made in float32, of float64 in float64.

    A group of less than the batch is said by dimensions, not by processors, so that it is the same on every layout:
    each index of the dimensions `per` has moments of its own. With a batch in two dimensions, [groups, batch, ...],
    `per=["groups"]` takes the moments of each group's examples, wherever their parts lie; with a depth in two,
    [groups, batch, blocks, depth, ...], `per=["groups", "blocks"]` those of each group's block. A layout that splits
    just these dimensions sends the moving averages, and no moments.

    Args:
      x: mtf.Tensor [..., channels].
      training: whether to normalise by the batch.
      momentum: what a moving average keeps of itself in a step; the rest is the batch's mean, or its variance
        sum (x - mean)^2 / N.
      epsilon: added to the variance.
      per: names of dimensions of x, not the last, each index of which is normalised by itself. The moving averages take
        the mean over the groups, of their means and of their variances.
      name: variable scope of `scale`, `offset`, `moving_mean` and `moving_variance`, each [channels], which layers of
        one name share. None: "batch_norm", and a number where that is taken.

    Returns:
      mtf.Tensor of the shape of x.

    Raises:
      ValueError: x has no dimension but the last, is no floating-point tensor, the momentum is not in [0, 1], or `per`
        names no dimension of x that there is, or all of them.
    """
    if x.shape.ndims < 2 or not x.dtype.is_floating:
        raise ValueError(
            f"batch norm {name!r}: x is {x.shape.to_string} of {x.dtype.name}; give a floating-point tensor "
            "[batch, ..., channels]"
        )
    if not 0 <= momentum <= 1:
        raise ValueError(f"batch norm {name!r}: momentum is {momentum}; it must be from 0 to 1")
    names = x.shape.dimension_names[:-1]
    if not set(per) <= set(names) or set(per) == set(names):
        raise ValueError(f"batch norm {name!r}: per is {list(per)}; name some, not all, of {', '.join(names)}")
    dtype = moments.accumulator_dtype(x.dtype)

    def variable(name: str, initializer: Callable[[], object], trainable: bool) -> mtf.Tensor:
        shape = mtf.Shape(x.shape.dims[-1:])
        return mtf.get_variable(x.mesh, name, shape, dtype=dtype, initializer=initializer(), trainable=trainable)

    with tf.variable_scope(name, default_name="batch_norm") as scope:
        scale = variable("scale", tf.ones_initializer, True)
        offset = variable("offset", tf.zeros_initializer, True)
        moving_mean = variable("moving_mean", tf.zeros_initializer, False)
        moving_variance = variable("moving_variance", tf.ones_initializer, False)
    if not training:
        factor = scale * mtf.rsqrt(moving_variance + epsilon)
        return mtf.cast(mtf.cast(x, dtype) * factor + (offset - moving_mean * factor), x.dtype)
    groups = mtf.Shape([dim for dim in x.shape.dims[:-1] if dim.name in per] + scale.shape.dims)
    scale, offset = (mtf.broadcast(t, groups) if per else t for t in (scale, offset))
    y, mean, variance = BatchNormOperation(x, scale, offset, epsilon=epsilon, name=scope.name).outputs
    for moving, new in ((moving_mean, mean), (moving_variance, variance)):
        new = mtf.reduce_mean(new, output_shape=moving.shape) if per else new
        average = moving * momentum + mtf.stop_gradient(new) * (1 - momentum)
        assert isinstance(moving.operation, mtf.Variable)
        update_average(moving.operation, average, name=f"{scope.name}/update")
    return y


def update_average(variable: mtf.Variable, value: mtf.Tensor, *, name: str) -> mtf.Operation:
    """Return an operation, of those that `batch_norm_updates` finds, that sets a moving average.

    Args:
      variable: the moving average, an mtf.Variable.
      value: what it is set to.
      name: the operation's name.
    """
    return _Update([variable], [value], name=name)


def batch_norm_updates(graph: mtf.Graph) -> list[mtf.Operation]:
    """Return the mtf operations that move the moving averages of a graph; of several for one variable, the first.

    Run their lowered operations with each training step, as those of an optimizer.
    """
    updates: dict[mtf.Variable, mtf.Operation] = {}
    for op in graph.operations:
        if isinstance(op, _Update):
            updates.setdefault(op.variables[0], op)
    return list(updates.values())
