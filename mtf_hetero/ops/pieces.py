"""Operations whose output slices are joined from boxes of the inputs: slice, pad, shift, concat, ...

Where the dimension in question is whole, every box lies in the processor's own slice. Only what does not lie there is
sent.
"""

import functools
from collections.abc import Callable, Sequence
from typing import TypeAlias, TypeVar

from mtf_hetero._compat import mtf, tf
from mtf_hetero._support.ops import zeros
from mtf_hetero.layout import Layout
from mtf_hetero.layout.blocks import Box, Interval, slice_box
from mtf_hetero.ops.backend import Backend, Slices
from mtf_hetero.ops.registry import register

Part = tuple[mtf.Tensor, list[Box | None]]  # an input, and the box of it for each processor, or None
# For each output its parts. A box may reach beyond the input, where there are zeros
Parts: TypeAlias = list[list[Part]]
Joined: TypeAlias = (
    mtf.SliceOperation | mtf.PadOperation | mtf.SplitOperation | mtf.ShiftOperation | mtf.ConcatOperation
)
Op = TypeVar("Op", bound=Joined)


def _pieces(op: mtf.Operation, backend: Backend, parts: Parts) -> list[tuple[mtf.Tensor, list[Slices]]]:
    """Return the pieces that each processor has of each output."""
    results = []
    for output, of_output in zip(op.outputs, parts, strict=False):
        pieces = [backend.fetch(x, boxes) for x, boxes in of_output]
        results.append((output, [[x for x in own if x is not None] for own in zip(*pieces, strict=True)]))
    return results


def _register_joined(op_class: type[Op]) -> Callable[[Callable[[Op, Layout], Parts]], Callable[[Op, Layout], Parts]]:
    """Decorate a function that finds the parts of which an operation's outputs are joined along its dimension."""

    def add(find: Callable[[Op, Layout], Parts]) -> Callable[[Op, Layout], Parts]:
        @register(op_class)
        def join(op: Op, backend: Backend) -> None:
            for output, pieces in _pieces(op, backend, find(op, backend.layout)):
                backend.set(output, backend.concat(output, pieces, op._axis))

        return find

    return add


def shift(box: Sequence[Interval], axis: int, offset: int) -> Box:
    """Move a box along one dimension."""
    begin, end = box[axis]
    return with_interval(box, axis, (begin + offset, end + offset))


def with_interval(box: Sequence[Interval], axis: int, interval: Interval) -> Box:
    """Replace the interval of a box along one dimension."""
    return [*box[:axis], interval, *box[axis + 1 :]]


def slices(layout: Layout, tensor: mtf.Tensor) -> list[Box]:
    """Return each processor's slice of a tensor, as (begin, end) per dimension."""
    return [slice_box(layout, tensor.shape.dims, pnum) for pnum in range(layout.size)]


def moved_slices(layout: Layout, tensor: mtf.Tensor, axis: int, offset: int) -> list[Box | None]:
    """Return each processor's slice of a tensor, moved along one dimension."""
    return [shift(box, axis, offset) for box in slices(layout, tensor)]


@_register_joined(mtf.SliceOperation)
def _slice(op: mtf.SliceOperation, layout: Layout) -> Parts:
    return [[(op.inputs[0], moved_slices(layout, op.outputs[0], op._axis, op._begin))]]


@_register_joined(mtf.PadOperation)
def _pad(op: mtf.PadOperation, layout: Layout) -> Parts:
    return [[(op.inputs[0], moved_slices(layout, op.outputs[0], op._axis, -op._paddings[0]))]]


@_register_joined(mtf.SplitOperation)
def _split(op: mtf.SplitOperation, layout: Layout) -> Parts:
    outputs, begin = [], 0
    for output in op.outputs:
        outputs.append([(op.inputs[0], moved_slices(layout, output, op._axis, begin))])
        begin += output.shape.dims[op._axis].size
    return outputs


@_register_joined(mtf.ShiftOperation)
def _shift(op: mtf.ShiftOperation, layout: Layout) -> Parts:
    """Read a wrapped shift in two parts: what lies before the beginning is at the end."""
    (x,), (output,), axis, size = op.inputs, op.outputs, op._axis, op._dim.size
    if not op._wrap:
        return [[(x, moved_slices(layout, output, axis, -op._offset))]]
    first: list[Box | None] = []
    second: list[Box | None] = []
    for box in slices(layout, output):
        begin, count = (box[axis][0] - op._offset) % size, box[axis][1] - box[axis][0]
        first.append(with_interval(box, axis, (begin, min(begin + count, size))))
        second.append(with_interval(box, axis, (0, begin + count - size)) if begin + count > size else None)
    return [[(x, first), (x, second)]]


@_register_joined(mtf.ConcatOperation)
def _concat(op: mtf.ConcatOperation, layout: Layout) -> Parts:
    axis, parts, begin = op._axis, [], 0
    for x in op.inputs:
        size = x.shape.dims[axis].size
        boxes: list[Box | None] = []
        for box in slices(layout, op.outputs[0]):
            source = shift(box, axis, -begin)
            interval = (max(source[axis][0], 0), min(source[axis][1], size))
            boxes.append(with_interval(source, axis, interval) if interval[0] < interval[1] else None)
        parts.append((x, boxes))
        begin += size
    return [parts]


def _stack(op: mtf.StackOperation, layout: Layout) -> Parts:
    """Take the inputs that lie in the output's slice."""
    axis, parts = op._axis, []
    for i, x in enumerate(op.inputs):
        boxes: list[Box | None] = []
        for box in slices(layout, op.outputs[0]):
            begin, end = box.pop(axis)
            boxes.append(box if begin <= i < end else None)
        parts.append((x, boxes))
    return [parts]


@register(mtf.StackOperation)
def stack(op: mtf.StackOperation, backend: Backend) -> None:
    """Stack those inputs that lie in the output's slice: none where it is empty."""
    ((output, pieces),) = _pieces(op, backend, _stack(op, backend.layout))

    def put_together(pnum: int, *own: tf.Tensor) -> tf.Tensor:
        size = backend.layout.slice_shape(output.shape, pnum)
        return tf.stack(own, op._axis) if own else zeros(size, output.dtype)

    backend.set(output, backend.make(output, put_together, pieces, lambda pnum: None))


def _unstack(op: mtf.UnstackOperation, layout: Layout) -> Parts:
    """Take every processor's part of each output, from any processor that has it."""
    axis = op._axis
    return [
        [(op.inputs[0], [[*box[:axis], (i, i + 1), *box[axis:]] for box in slices(layout, output)])]
        for i, output in enumerate(op.outputs)
    ]


@register(mtf.UnstackOperation)
def unstack(op: mtf.UnstackOperation, backend: Backend) -> None:
    """Give every processor its part of each output, from whoever has it."""
    for output, pieces in _pieces(op, backend, _unstack(op, backend.layout)):
        backend.set(output, backend.make(output, functools.partial(tf.squeeze, axis=op._axis), pieces))


def _top_k(op: mtf.TopKOperation, layout: Layout) -> Parts:
    """Take the whole dimension."""
    (x,), dim = op.inputs, op._reduced_dim
    axis = x.shape.dims.index(dim)
    outer = [box[:-1] for box in slices(layout, op.outputs[0])]
    return [[(x, [[*box[:axis], (0, dim.size), *box[axis:]] for box in outer])]]


@register(mtf.TopKOperation)
def top_k(op: mtf.TopKOperation, backend: Backend) -> None:
    """Search the whole dimension on every processor, and keep the processor's part of what is found."""
    ((values, pieces),) = _pieces(op, backend, _top_k(op, backend.layout))
    (x,) = op.inputs
    axis = x.shape.dims.index(op._reduced_dim)
    order = [*(i for i in range(x.shape.ndims) if i != axis), axis]

    def search(pnum: int, full: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        top = tf.math.top_k(tf.transpose(full, order), op._k_dim.size)
        begin, end = slice_box(backend.layout, values.shape.dims, pnum)[-1]
        return top.values[..., begin:end], top.indices[..., begin:end]

    def result_key(pnum: int) -> Interval:
        return slice_box(backend.layout, values.shape.dims, pnum)[-1]

    for output, slices in zip(op.outputs, backend.make_all(op.outputs, search, pieces, result_key), strict=True):
        backend.set(output, slices)
