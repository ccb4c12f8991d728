"""Operations each of whose output slices is put together from boxes of the inputs: slice, pad, shift, concat, ...

Where the dimension in question is whole, every box lies in the processor's own slice and nothing is sent.
"""

from collections.abc import Callable, Sequence

from mtf_hetero import blocks, collectives
from mtf_hetero._compat import mtf, tf
from mtf_hetero._support.alike import parallel
from mtf_hetero._support.ops import concat, zeros
from mtf_hetero.blocks import Interval
from mtf_hetero.lowering.registry import register


def fetch(
    op: mtf.Operation, lowering: mtf.Lowering, tensor: mtf.Tensor, box_of: Callable[[int], Sequence[Interval] | None]
) -> list[tf.Tensor | None]:
    """Gives each processor a box of an mtf.Tensor, with zeros where it reaches beyond the tensor.

    Args:
      op: the operation that needs it.
      lowering: the Lowering.
      tensor: one of its inputs.
      box_of: from a processor to (begin, end) per dimension, or to None if it needs nothing.

    Returns:
      One tf.Tensor, or None, per processor.
    """
    mesh_impl = lowering.mesh_impl(op)
    slices = lowering.tensors[tensor].to_laid_out_tensor().tensor_list
    windows = []
    for pnum in range(mesh_impl.size):
        box = box_of(pnum)
        windows.append(None if box is None else blocks.plan_window(mesh_impl.layout, tensor.shape.dims, box, pnum))
    return collectives.fetch(slices, mesh_impl.devices, windows, wire_dtype=mesh_impl.wire_dtype)


def slice_box(op: mtf.Operation, lowering: mtf.Lowering, shape: mtf.Shape, pnum: int) -> list[Interval]:
    """Processor `pnum`'s slice of a tensor of this shape, as (begin, end) per dimension."""
    return blocks.box_of(lowering.mesh_impl(op).layout, shape.dims, pnum)


def moved(box: Sequence[Interval], axis: int, offset: int) -> list[Interval]:
    """The box, moved along one dimension."""
    begin, end = box[axis]
    return replaced(box, axis, (begin + offset, end + offset))


def replaced(box: Sequence[Interval], axis: int, interval: Interval) -> list[Interval]:
    """The box with another interval along one dimension."""
    return [*box[:axis], interval, *box[axis + 1 :]]


def _set(op: mtf.Operation, lowering: mtf.Lowering, output: mtf.Tensor, slices: list[tf.Tensor]) -> None:
    lowering.set_tensor_lowering(output, lowering.mesh_impl(op).LaidOutTensor(slices))


def _moved_output(op: mtf.Operation, lowering: mtf.Lowering, output: mtf.Tensor, axis: int, offset: int) -> None:
    """An output that is the input, read `offset` further along one dimension."""

    def box(pnum: int) -> list[Interval]:
        return moved(slice_box(op, lowering, output.shape, pnum), axis, offset)

    _set(op, lowering, output, fetch(op, lowering, op.inputs[0], box))


@register(mtf.SliceOperation)
def lower_slice(op: mtf.Operation, lowering: mtf.Lowering) -> None:
    """Reads from where the slice begins."""
    _moved_output(op, lowering, op.outputs[0], op._axis, op._begin)


@register(mtf.PadOperation)
def lower_pad(op: mtf.Operation, lowering: mtf.Lowering) -> None:
    """Reads from before the input begins, where there are zeros."""
    _moved_output(op, lowering, op.outputs[0], op._axis, -op._paddings[0])


@register(mtf.SplitOperation)
def lower_split(op: mtf.Operation, lowering: mtf.Lowering) -> None:
    """Reads each output from where it begins in the input."""
    begin = 0
    for output in op.outputs:
        _moved_output(op, lowering, output, op._axis, begin)
        begin += output.shape.dims[op._axis].size


@register(mtf.ShiftOperation)
def lower_shift(op: mtf.Operation, lowering: mtf.Lowering) -> None:
    """Reads from `offset` before; wrapped, what lies before the beginning is read at the end."""
    output, axis = op.outputs[0], op._axis
    if not op._wrap:
        _moved_output(op, lowering, output, axis, -op._offset)
        return
    size = op._dim.size

    def boxes(pnum: int) -> tuple[list[Interval], list[Interval] | None]:
        box = slice_box(op, lowering, output.shape, pnum)
        begin, count = (box[axis][0] - op._offset) % size, box[axis][1] - box[axis][0]
        first = replaced(box, axis, (begin, min(begin + count, size)))
        return first, replaced(box, axis, (0, begin + count - size)) if begin + count > size else None

    parts = [fetch(op, lowering, op.inputs[0], lambda pnum, i=i: boxes(pnum)[i]) for i in range(2)]
    _set(op, lowering, output, _put_together(op, lowering, parts, lambda pieces: concat(pieces, axis)))


@register(mtf.ConcatOperation)
def lower_concat(op: mtf.Operation, lowering: mtf.Lowering) -> None:
    """Reads from each input what overlaps the output's slice."""
    output, axis = op.outputs[0], op._axis
    parts, begin = [], 0
    for x in op.inputs:
        size = x.shape.dims[axis].size

        def box(pnum: int, begin: int = begin, size: int = size) -> list[Interval] | None:
            wanted = moved(slice_box(op, lowering, output.shape, pnum), axis, -begin)
            interval = (max(wanted[axis][0], 0), min(wanted[axis][1], size))
            return replaced(wanted, axis, interval) if interval[0] < interval[1] else None

        parts.append(fetch(op, lowering, x, box))
        begin += size
    _set(op, lowering, output, _put_together(op, lowering, parts, lambda pieces: concat(pieces, axis)))


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
    output, axis = op.outputs[0], op._axis
    parts = []
    for i, x in enumerate(op.inputs):

        def box(pnum: int, i: int = i) -> list[Interval] | None:
            output_box = slice_box(op, lowering, output.shape, pnum)
            begin, end = output_box.pop(axis)
            return output_box if begin <= i < end else None

        parts.append(fetch(op, lowering, x, box))

    _set(op, lowering, output, _put_together(op, lowering, parts, lambda pieces: tf.stack(pieces, axis)))


@register(mtf.UnstackOperation)
def lower_unstack(op: mtf.Operation, lowering: mtf.Lowering) -> None:
    """Gives every processor its part of each output, from whoever has it."""
    axis = op._axis
    for i, output in enumerate(op.outputs):

        def box(pnum: int, i: int = i, output: mtf.Tensor = output) -> list[Interval]:
            output_box = slice_box(op, lowering, output.shape, pnum)
            return [*output_box[:axis], (i, i + 1), *output_box[axis:]]

        parts = fetch(op, lowering, op.inputs[0], box)
        squeezed = parallel(lowering.mesh_impl(op).devices, lambda x: tf.squeeze(x, axis), parts)
        _set(op, lowering, output, squeezed)


@register(mtf.TopKOperation)
def lower_top_k(op: mtf.Operation, lowering: mtf.Lowering) -> None:
    """Searches the whole dimension on every processor, and keeps the processor's part of what is found."""
    x, mesh_impl = op.inputs[0], lowering.mesh_impl(op)
    values = op.outputs[0].shape
    axis = x.shape.dims.index(op._reduced_dim)

    def box(pnum: int) -> list[Interval]:
        output_box = slice_box(op, lowering, values, pnum)[:-1]
        return [*output_box[:axis], (0, op._reduced_dim.size), *output_box[axis:]]

    def search(t: tf.Tensor, pnum: int) -> tuple[tf.Tensor, tf.Tensor]:
        order = [i for i in range(x.shape.ndims) if i != axis]
        top = tf.math.top_k(tf.transpose(t, [*order, axis]), op._k_dim.size)
        begin, end = slice_box(op, lowering, values, pnum)[-1]
        return top.values[..., begin:end], top.indices[..., begin:end]

    whole = mesh_impl.LaidOutTensor(fetch(op, lowering, x, box))
    for output, result in zip(op.outputs, mesh_impl.slicewise(search, whole, mesh_impl.laid_out_pnum()), strict=True):
        lowering.set_tensor_lowering(output, result)
