"""Operations each of whose output slices is put together from boxes of the inputs: slice, pad, shift, concat, ...

Which boxes is worked out in `boxes`; only what does not lie in the processor's own slice is sent.
"""

from collections.abc import Callable, Sequence

from mtf_hetero import blocks, collectives
from mtf_hetero._compat import mtf, tf
from mtf_hetero._support.alike import parallel
from mtf_hetero._support.ops import concat, zeros
from mtf_hetero.blocks import Interval, box_of
from mtf_hetero.lowering.boxes import parts_of
from mtf_hetero.lowering.registry import register


def fetch(
    op: mtf.Operation, lowering: mtf.Lowering, tensor: mtf.Tensor, boxes: Sequence[Sequence[Interval] | None]
) -> list[tf.Tensor | None]:
    """Gives each processor a box of an mtf.Tensor, with zeros where it reaches beyond the tensor.

    Args:
      op: the operation that needs it.
      lowering: the Lowering.
      tensor: one of its inputs.
      boxes: (begin, end) per dimension, or None of a processor that needs nothing.

    Returns:
      One tf.Tensor, or None, per processor.
    """
    mesh_impl = lowering.mesh_impl(op)
    slices = lowering.tensors[tensor].to_laid_out_tensor().tensor_list
    windows = blocks.plan_windows(mesh_impl.layout, tensor.shape.dims, boxes)
    return collectives.fetch(slices, mesh_impl.devices, windows, wire_dtype=mesh_impl.wire_dtype)


def _set(op: mtf.Operation, lowering: mtf.Lowering, output: mtf.Tensor, slices: list[tf.Tensor]) -> None:
    lowering.set_tensor_lowering(output, lowering.mesh_impl(op).LaidOutTensor(slices))


@register(mtf.SliceOperation, mtf.PadOperation, mtf.SplitOperation)
def lower_slice(op: mtf.Operation, lowering: mtf.Lowering) -> None:
    """Reads each output from where it begins in the input; around that there are zeros."""
    for output, ((x, boxes),) in zip(op.outputs, parts_of(op, lowering.mesh_impl(op).layout), strict=True):
        _set(op, lowering, output, fetch(op, lowering, x, boxes))


@register(mtf.ShiftOperation, mtf.ConcatOperation)
def lower_concat(op: mtf.Operation, lowering: mtf.Lowering) -> None:
    """Joins what overlaps the output's slice."""
    (parts,) = parts_of(op, lowering.mesh_impl(op).layout)
    pieces = [fetch(op, lowering, x, boxes) for x, boxes in parts]
    if isinstance(op, mtf.ShiftOperation) and not op._wrap:
        (slices,) = pieces
    else:
        slices = _put_together(op, lowering, pieces, lambda pieces: concat(pieces, op._axis))
    _set(op, lowering, op.outputs[0], slices)


def _put_together(
    op: mtf.Operation,
    lowering: mtf.Lowering,
    parts: Sequence[Sequence[tf.Tensor | None]],
    function: Callable[[list[tf.Tensor]], tf.Tensor],
) -> list[tf.Tensor]:
    """Makes each processor's slice of the output of the parts that it has: of none where the slice is empty."""
    mesh_impl, (output,) = lowering.mesh_impl(op), op.outputs

    def put(pnum: int, *pieces: tf.Tensor | None) -> tf.Tensor:
        present = [piece for piece in pieces if piece is not None]
        return function(present) if present else zeros(mesh_impl.slice_shape(output.shape, pnum), output.dtype)

    return parallel(mesh_impl.devices, put, mesh_impl.processors(output.shape).tensor_list, *parts)


@register(mtf.StackOperation)
def lower_stack(op: mtf.Operation, lowering: mtf.Lowering) -> None:
    """Stacks those inputs that lie in the output's slice."""
    (parts,) = parts_of(op, lowering.mesh_impl(op).layout)
    pieces = [fetch(op, lowering, x, boxes) for x, boxes in parts]
    _set(op, lowering, op.outputs[0], _put_together(op, lowering, pieces, lambda pieces: tf.stack(pieces, op._axis)))


@register(mtf.UnstackOperation)
def lower_unstack(op: mtf.Operation, lowering: mtf.Lowering) -> None:
    """Gives every processor its part of each output, from whoever has it."""
    mesh_impl = lowering.mesh_impl(op)
    for output, ((x, boxes),) in zip(op.outputs, parts_of(op, mesh_impl.layout), strict=True):
        parts = fetch(op, lowering, x, boxes)
        _set(op, lowering, output, parallel(mesh_impl.devices, lambda x: tf.squeeze(x, op._axis), parts))


@register(mtf.TopKOperation)
def lower_top_k(op: mtf.Operation, lowering: mtf.Lowering) -> None:
    """Searches the whole dimension on every processor, and keeps the processor's part of what is found."""
    mesh_impl, values = lowering.mesh_impl(op), op.outputs[0].shape
    (((x, boxes),),) = parts_of(op, mesh_impl.layout)
    axis = x.shape.dims.index(op._reduced_dim)

    def search(t: tf.Tensor, pnum: int) -> tuple[tf.Tensor, tf.Tensor]:
        order = [i for i in range(x.shape.ndims) if i != axis]
        top = tf.math.top_k(tf.transpose(t, [*order, axis]), op._k_dim.size)
        begin, end = box_of(mesh_impl.layout, values.dims, pnum)[-1]
        return top.values[..., begin:end], top.indices[..., begin:end]

    whole = mesh_impl.LaidOutTensor(fetch(op, lowering, x, boxes))
    for output, result in zip(op.outputs, mesh_impl.slicewise(search, whole, mesh_impl.laid_out_pnum()), strict=True):
        lowering.set_tensor_lowering(output, result)
