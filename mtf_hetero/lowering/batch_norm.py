"""Batch normalisation and moments: the processors that hold parts of a group join their moments in one exchange.

Where each holds whole channels there is nothing to join, and TensorFlow's fused operation does it where it can.
"""

import functools
import math
from collections.abc import Sequence
from typing import Any

from mtf_hetero import layers
from mtf_hetero._compat import mtf, tf
from mtf_hetero.layers.normalization import is_native, joint_moments, native, native_gradient, own_moments
from mtf_hetero.layout import Layout
from mtf_hetero.lowering.registry import absent_from, register


def split_axes(op: mtf.Operation, layout: Layout) -> list[int]:
    """The mesh axes over which the values of a group are split."""
    axes = {layout.axis_of(op.inputs[0].shape.dims[axis]) for axis in op.axes}
    return sorted(axis for axis in axes if axis is not None)


def absent(op: mtf.Operation, layout: Layout) -> frozenset[int]:
    """The processors that have no value of a group."""
    return absent_from(layout, [op.inputs[0].shape.dims[axis] for axis in op.axes])


def _count_allreduce(op: mtf.Operation, lowering: mtf.Lowering, axes: list[int]) -> None:
    size = 2 * lowering.mesh_impl(op).laid_out_size(op.outputs[1].shape)  # two numbers per group
    lowering.add_counter(f"allreduce/{axes}/{type(op).__name__}", size)


def has_whole_channels(op: mtf.Operation, layout: Layout) -> bool:
    """Whether each slice is of whole channels, each a group."""
    return op.outputs[1].shape.ndims <= 1 and not split_axes(op, layout)


def _is_native(op: mtf.Operation, lowering: mtf.Lowering) -> bool:
    """Whether TensorFlow's fused operation can do all slices: of whole channels, each a group."""
    if not has_whole_channels(op, lowering.mesh_impl(op).layout):
        return False
    slices, devices = lowering.tensors[op.inputs[0]].to_laid_out_tensor().tensor_list, lowering.mesh_impl(op).devices
    return all(map(is_native, slices, devices))


def _set_outputs(op: mtf.Operation, lowering: mtf.Lowering, function: Any) -> None:
    values = lowering.mesh_impl(op).slicewise(function, *[lowering.tensors[t] for t in op.inputs])
    for output, value in zip(op.outputs, values, strict=True):
        lowering.set_tensor_lowering(output, value)


def _join(op: mtf.Operation, mesh_impl: Any, pnums: Sequence[int], own: Sequence[tf.Tensor]) -> tf.Tensor:
    """The moments of what some processors have of a group."""
    if len(own) == 1:
        return own[0]
    slices = [mesh_impl.slice_shape(op.inputs[0].shape, pnum) for pnum in pnums]
    return joint_moments(own, [math.prod(size[axis] for axis in op.axes) for size in slices])


@register(layers.BatchNormOperation)
def lower_batch_norm(op: mtf.Operation, lowering: mtf.Lowering) -> None:
    """Joins the moments of the parts, each with its number of values for a weight."""
    if _is_native(op, lowering):
        _set_outputs(op, lowering, functools.partial(native, epsilon=op.epsilon))
        return
    op.lower_with(lowering, _joint_moments(op, lowering))


@register(layers.MomentsOperation)
def lower_moments(op: mtf.Operation, lowering: mtf.Lowering) -> None:
    """Joins the moments of the parts, as of batch norm."""
    op.lower_with(lowering, _joint_moments(op, lowering))


def _joint_moments(op: mtf.Operation, lowering: mtf.Lowering) -> Any:
    """The moments of each processor's groups, [2, groups], in one exchange."""
    mesh_impl, moments = lowering.mesh_impl(op), own_moments(op, lowering)
    axes = split_axes(op, mesh_impl.layout)
    if not axes:
        return moments
    own = mesh_impl.LaidOutTensor(moments.tensor_list, absent(op, mesh_impl.layout))
    _count_allreduce(op, lowering, axes)
    return mesh_impl.join(own, axes, functools.partial(_join, op, mesh_impl))


@register(layers.BatchNormGradientOperation)
def lower_batch_norm_gradient(op: mtf.Operation, lowering: mtf.Lowering) -> None:
    """Adds up both sums at once."""
    if _is_native(op, lowering):
        _set_outputs(op, lowering, functools.partial(native_gradient, epsilon=op.forward.epsilon))
        return
    mesh_impl = lowering.mesh_impl(op)
    axes = split_axes(op, mesh_impl.layout)
    sums = op.sums(lowering)
    if axes:
        addends = mesh_impl.LaidOutTensor(sums.tensor_list, absent(op, mesh_impl.layout))
        sums = mesh_impl.allreduce(addends, axes, "SUM")
        _count_allreduce(op, lowering, axes)
    op.lower_with(lowering, sums)
