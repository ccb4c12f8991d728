"""Batch normalisation and moments: the processors that hold parts of a group join their moments in one exchange.

Where each holds whole channels there is nothing to join, and TensorFlow's fused operation does it where it can.
"""

import functools
import math
from collections.abc import Callable, Sequence

from mtf_hetero import layers
from mtf_hetero._compat import mtf, tf
from mtf_hetero._support.ops import unstack
from mtf_hetero.layers import normalization
from mtf_hetero.layout import Layout
from mtf_hetero.lowering.backend import Backend, Like, Slices, absent_from
from mtf_hetero.lowering.registry import register

OverGroups = layers.MomentsOperation | layers.BatchNormOperation | layers.BatchNormGradientOperation


def _split_axes(op: OverGroups, layout: Layout) -> list[int]:
    """Return the mesh axes over which the values of a group are split."""
    axes = {layout.axis_of(dim) for dim in op.group_dims}
    return sorted(axis for axis in axes if axis is not None)


def _is_native(op: OverGroups, backend: Backend) -> bool:
    """Return whether TensorFlow's fused operation can do all slices: of whole channels, each a group.

    A tensor of one channel may have no dimension for it.
    """
    if not backend.on_cpus or op.outputs[1].shape.ndims != 1 or _split_axes(op, backend.layout):
        return False
    x = op.inputs[0]
    return all(normalization.is_native(size, x.dtype) for size in backend.layout.slice_shapes(x.shape))


def _make_outputs(op: mtf.Operation, backend: Backend, function: Callable[..., tuple[tf.Tensor, ...]]) -> None:
    reads = list(zip(*map(backend.slices, op.inputs), strict=True))
    for output, slices in zip(op.outputs, backend.make_all(op.outputs, function, reads), strict=True):
        backend.set(output, slices)


def _pair(op: mtf.Operation) -> Like:
    """Two numbers per group."""
    groups = op.outputs[-1]
    dtype = normalization.accumulator_dtype(op.inputs[0].dtype)
    return Like(mtf.Shape([mtf.Dimension("two numbers", 2), *groups.shape.dims]), dtype)


def _unstack(backend: Backend, outputs: Sequence[mtf.Tensor], pairs: Slices) -> list[Slices]:
    return backend.make_all(outputs, unstack, [[pair] for pair in pairs])


def _join(op: OverGroups, layout: Layout, pnums: Sequence[int], own: Sequence[tf.Tensor]) -> tf.Tensor:
    """Return the moments of what some processors have of a group."""
    if len(own) == 1:
        return own[0]
    return normalization.joint_moments(own, [math.prod(layout.slice_shape(op.group_dims, pnum)) for pnum in pnums])


def _joint_moments(op: OverGroups, backend: Backend) -> Slices:
    """Return the moments of each processor's groups, [2, groups], in one exchange: a part weighs as its size."""
    pair, layout = _pair(op), backend.layout
    own = backend.local(pair, functools.partial(normalization.moments, axes=op.axes), backend.slices(op.inputs[0]))
    axes = _split_axes(op, layout)
    if not axes:
        return own
    backend.count(f"allreduce/{axes}/{type(op).__name__}", pair.shape)
    return backend.join(own, axes, absent_from(layout, op.group_dims), functools.partial(_join, op, layout))


@register(layers.MomentsOperation)
def moments(op: layers.MomentsOperation, backend: Backend) -> None:
    """Join the moments of the parts."""
    for output, slices in zip(op.outputs, _unstack(backend, op.outputs, _joint_moments(op, backend)), strict=True):
        backend.set(output, slices)


@register(layers.BatchNormOperation)
def batch_norm(op: layers.BatchNormOperation, backend: Backend) -> None:
    """Join the moments of the parts, and normalise each slice."""
    if _is_native(op, backend):
        _make_outputs(op, backend, functools.partial(normalization.native, epsilon=op.epsilon))
        return
    x, scale, offset = map(backend.slices, op.inputs)
    y, *outputs = op.outputs
    for output, slices in zip(outputs, _unstack(backend, outputs, _joint_moments(op, backend)), strict=True):
        backend.set(output, slices)
    mean, r = backend.slices(outputs[0]), _inverse_deviation(op, backend)
    function = functools.partial(normalization.normalise, axes=op.axes)
    backend.set(y, backend.local(y, function, x, mean, r, scale, offset))


def _inverse_deviation(op: layers.BatchNormOperation, backend: Backend) -> Slices:
    """Return the inverse standard deviations of a batch norm, which its gradient needs too."""
    if op not in backend.side_results:
        function = functools.partial(normalization.inverse_deviation, epsilon=op.epsilon)
        backend.side_results[op] = backend.local(op.outputs[2], function, backend.slices(op.outputs[2]))
    return backend.side_results[op]


@register(layers.BatchNormGradientOperation)
def batch_norm_gradient(op: layers.BatchNormGradientOperation, backend: Backend) -> None:
    """Add up both sums at once."""
    if _is_native(op, backend):
        _make_outputs(op, backend, functools.partial(normalization.native_gradient, epsilon=op.forward.epsilon))
        return
    dy, x, mean, _, scale = map(backend.slices, op.inputs)
    (dx, d_scale, d_offset), pair, layout = op.outputs, _pair(op), backend.layout
    r, axes = _inverse_deviation(op.forward, backend), _split_axes(op, layout)
    sums = backend.local(pair, functools.partial(normalization.gradient_sums, axes=op.axes), dy, x, mean, r)
    if axes:
        backend.count(f"allreduce/{axes}/{type(op).__name__}", pair.shape)
        sums = backend.allreduce(sums, axes, absent=absent_from(layout, op.group_dims))
    offsets, scales = _unstack(backend, [d_offset, d_scale], sums)
    function = functools.partial(normalization.input_gradient, axes=op.axes, count=op.forward.count)
    backend.set(dx, backend.local(dx, function, dy, x, mean, r, scale, offsets, scales))
    backend.set(d_scale, scales)
    backend.set(d_offset, offsets)
