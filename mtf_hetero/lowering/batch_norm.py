"""Batch normalisation: the processors that hold parts of a channel join their moments in one exchange each way."""

import math
from typing import Any

from mtf_hetero import layers
from mtf_hetero._compat import mtf, tf
from mtf_hetero._layers_batch_norm import joint_moments, moments
from mtf_hetero.lowering.registry import register


def _split_axes(op: Any, lowering: Any) -> list[int]:
    """The mesh axes over which the values of a channel are split."""
    layout = lowering.mesh_impl(op).layout
    axes = {layout.axis_of(dim.name) for dim in op.inputs[0].shape.dims[:-1]}
    return sorted(axis for axis in axes if axis is not None)


def _count_allreduce(op: Any, lowering: Any, axes: list[int]) -> None:
    size = 2 * lowering.mesh_impl(op).laid_out_size(op.outputs[1].shape)  # two numbers per channel
    lowering.add_counter(f"allreduce/{axes}/{type(op).__name__}", size)


@register(layers.BatchNormOperation)
def lower_batch_norm(op: Any, lowering: Any) -> None:
    """Joins the moments of the parts, each with its number of values for a weight."""
    mesh_impl, x = lowering.mesh_impl(op), op.inputs[0]
    own = mesh_impl.slicewise(moments, lowering.tensors[x])
    axes = _split_axes(op, lowering)
    if axes:
        parts, joint = own.tensor_list, [None] * mesh_impl.size
        for group in mtf.processor_groups(mesh_impl.shape, axes):
            counts = [math.prod(mesh_impl.slice_shape(x.shape, pnum)[:-1]) for pnum in group]
            with tf.device(mesh_impl.devices[group[0]]):
                total = joint_moments([parts[pnum] for pnum in group], counts)
            for pnum in group:
                with tf.device(mesh_impl.devices[pnum]):
                    joint[pnum] = tf.identity(total)
        own = mesh_impl.LaidOutTensor(joint)
        _count_allreduce(op, lowering, axes)
    op.lower_with(lowering, own)


@register(layers.BatchNormGradientOperation)
def lower_batch_norm_gradient(op: Any, lowering: Any) -> None:
    """Adds up both sums at once."""
    mesh_impl, axes = lowering.mesh_impl(op), _split_axes(op, lowering)
    sums = op.sums(lowering)
    if axes:
        sums = mesh_impl.allreduce(sums, axes, "SUM")
        _count_allreduce(op, lowering, axes)
    op.lower_with(lowering, sums)
