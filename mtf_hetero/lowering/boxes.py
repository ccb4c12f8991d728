"""The boxes of inputs that make a processor's slice of an output: slice, pad, shift, concat, ...

Where the dimension in question is whole, every box lies in the processor's own slice.
"""

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from mtf_hetero._compat import mtf
from mtf_hetero.layout import Layout
from mtf_hetero.layout.blocks import Interval, slice_box

Part = tuple[mtf.Tensor, list[list[Interval] | None]]  # an input, and the box of it for each processor, or None
Op = TypeVar("Op", bound=mtf.Operation)
Find = Callable[[Op, Layout], list[list[Part]]]
_BOXES: dict[type, Find[Any]] = {}  # each for operations of its class


def output_parts(op: mtf.Operation, layout: Layout) -> list[list[Part]]:
    """Return the parts of each output, in their order.

    Args:
      op: a SliceOperation, PadOperation, SplitOperation, ShiftOperation, ConcatOperation, StackOperation,
        UnstackOperation or TopKOperation; of the last, what all outputs are made of counts as that of one.
      layout: the Layout.

    Returns:
      For each output its parts. A box may reach beyond the input, where there are zeros.
    """
    boxes = next(_BOXES[op_class] for op_class in type(op).__mro__ if op_class in _BOXES)
    return boxes(op, layout)


def _register(op_class: type[Op]) -> Callable[[Find[Op]], Find[Op]]:
    def add(find: Find[Op]) -> Find[Op]:
        _BOXES[op_class] = find
        return find

    return add


def shift(box: Sequence[Interval], axis: int, offset: int) -> list[Interval]:
    """Move a box along one dimension."""
    begin, end = box[axis]
    return with_interval(box, axis, (begin + offset, end + offset))


def with_interval(box: Sequence[Interval], axis: int, interval: Interval) -> list[Interval]:
    """Replace the interval of a box along one dimension."""
    return [*box[:axis], interval, *box[axis + 1 :]]


def slices(layout: Layout, tensor: mtf.Tensor) -> list[list[Interval]]:
    """Return each processor's slice of a tensor, as (begin, end) per dimension."""
    return [slice_box(layout, tensor.shape.dims, pnum) for pnum in range(layout.size)]


def moved_slices(layout: Layout, tensor: mtf.Tensor, axis: int, offset: int) -> list[list[Interval] | None]:
    """Return each processor's slice of a tensor, moved along one dimension."""
    return [shift(box, axis, offset) for box in slices(layout, tensor)]


@_register(mtf.SliceOperation)
def _slice(op: mtf.SliceOperation, layout: Layout) -> list[list[Part]]:
    return [[(op.inputs[0], moved_slices(layout, op.outputs[0], op._axis, op._begin))]]


@_register(mtf.PadOperation)
def _pad(op: mtf.PadOperation, layout: Layout) -> list[list[Part]]:
    return [[(op.inputs[0], moved_slices(layout, op.outputs[0], op._axis, -op._paddings[0]))]]


@_register(mtf.SplitOperation)
def _split(op: mtf.SplitOperation, layout: Layout) -> list[list[Part]]:
    outputs, begin = [], 0
    for output in op.outputs:
        outputs.append([(op.inputs[0], moved_slices(layout, output, op._axis, begin))])
        begin += output.shape.dims[op._axis].size
    return outputs


@_register(mtf.ShiftOperation)
def _shift(op: mtf.ShiftOperation, layout: Layout) -> list[list[Part]]:
    """Read a wrapped shift in two parts: what lies before the beginning is at the end."""
    (x,), (output,), axis, size = op.inputs, op.outputs, op._axis, op._dim.size
    if not op._wrap:
        return [[(x, moved_slices(layout, output, axis, -op._offset))]]
    first: list[list[Interval] | None] = []
    second: list[list[Interval] | None] = []
    for box in slices(layout, output):
        begin, count = (box[axis][0] - op._offset) % size, box[axis][1] - box[axis][0]
        first.append(with_interval(box, axis, (begin, min(begin + count, size))))
        second.append(with_interval(box, axis, (0, begin + count - size)) if begin + count > size else None)
    return [[(x, first), (x, second)]]


@_register(mtf.ConcatOperation)
def _concat(op: mtf.ConcatOperation, layout: Layout) -> list[list[Part]]:
    axis, parts, begin = op._axis, [], 0
    for x in op.inputs:
        size = x.shape.dims[axis].size
        boxes: list[list[Interval] | None] = []
        for box in slices(layout, op.outputs[0]):
            source = shift(box, axis, -begin)
            interval = (max(source[axis][0], 0), min(source[axis][1], size))
            boxes.append(with_interval(source, axis, interval) if interval[0] < interval[1] else None)
        parts.append((x, boxes))
        begin += size
    return [parts]


@_register(mtf.StackOperation)
def _stack(op: mtf.StackOperation, layout: Layout) -> list[list[Part]]:
    """Take the inputs that lie in the output's slice."""
    axis, parts = op._axis, []
    for i, x in enumerate(op.inputs):
        boxes: list[list[Interval] | None] = []
        for box in slices(layout, op.outputs[0]):
            begin, end = box.pop(axis)
            boxes.append(box if begin <= i < end else None)
        parts.append((x, boxes))
    return [parts]


@_register(mtf.UnstackOperation)
def _unstack(op: mtf.UnstackOperation, layout: Layout) -> list[list[Part]]:
    """Take every processor's part of each output, from any processor that has it."""
    axis = op._axis
    return [
        [(op.inputs[0], [[*box[:axis], (i, i + 1), *box[axis:]] for box in slices(layout, output)])]
        for i, output in enumerate(op.outputs)
    ]


@_register(mtf.TopKOperation)
def _top_k(op: mtf.TopKOperation, layout: Layout) -> list[list[Part]]:
    """Take the whole dimension."""
    (x,), dim = op.inputs, op._reduced_dim
    axis = x.shape.dims.index(dim)
    outer = [box[:-1] for box in slices(layout, op.outputs[0])]
    return [[(x, [[*box[:axis], (0, dim.size), *box[axis:]] for box in outer])]]
