"""Which boxes of its inputs a processor puts its slice of an output together from: slice, pad, shift, concat, ...

Where the dimension in question is whole, every box lies in the processor's own slice.
"""

from collections.abc import Callable, Sequence
from typing import Any

from mtf_hetero._compat import mtf
from mtf_hetero.blocks import Interval, box_of
from mtf_hetero.layout import Layout

Part = tuple[mtf.Tensor, list[list[Interval] | None]]  # an input, and the box of it for each processor, or None
_BOXES: dict[type, Callable[[Any, Layout], list[list[Part]]]] = {}


def parts_of(op: mtf.Operation, layout: Layout) -> list[list[Part]]:
    """The parts of which each output is put together, in their order.

    Args:
      op: a SliceOperation, PadOperation, SplitOperation, ShiftOperation, ConcatOperation, StackOperation,
        UnstackOperation or TopKOperation; of the last, what all outputs are made of counts as that of one.
      layout: the Layout.

    Returns:
      For each output its parts. A box may reach beyond the input, where there are zeros.
    """
    boxes = next(_BOXES[op_class] for op_class in type(op).__mro__ if op_class in _BOXES)
    return boxes(op, layout)


def _register(op_class: type) -> Callable[[Any], Any]:
    def add(function: Any) -> Any:
        _BOXES[op_class] = function
        return function

    return add


def moved(box: Sequence[Interval], axis: int, offset: int) -> list[Interval]:
    """The box, moved along one dimension."""
    begin, end = box[axis]
    return replaced(box, axis, (begin + offset, end + offset))


def replaced(box: Sequence[Interval], axis: int, interval: Interval) -> list[Interval]:
    """The box with another interval along one dimension."""
    return [*box[:axis], interval, *box[axis + 1 :]]


def slices(layout: Layout, tensor: mtf.Tensor) -> list[list[Interval]]:
    """Each processor's slice of a tensor, as (begin, end) per dimension."""
    return [box_of(layout, tensor.shape.dims, pnum) for pnum in range(layout.size)]


def moved_slices(layout: Layout, tensor: mtf.Tensor, axis: int, offset: int) -> list[list[Interval] | None]:
    """Each processor's slice of a tensor, moved along one dimension."""
    return [moved(box, axis, offset) for box in slices(layout, tensor)]


@_register(mtf.SliceOperation)
def _slice(op: mtf.Operation, layout: Layout) -> list[list[Part]]:
    return [[(op.inputs[0], moved_slices(layout, op.outputs[0], op._axis, op._begin))]]


@_register(mtf.PadOperation)
def _pad(op: mtf.Operation, layout: Layout) -> list[list[Part]]:
    return [[(op.inputs[0], moved_slices(layout, op.outputs[0], op._axis, -op._paddings[0]))]]


@_register(mtf.SplitOperation)
def _split(op: mtf.Operation, layout: Layout) -> list[list[Part]]:
    outputs, begin = [], 0
    for output in op.outputs:
        outputs.append([(op.inputs[0], moved_slices(layout, output, op._axis, begin))])
        begin += output.shape.dims[op._axis].size
    return outputs


@_register(mtf.ShiftOperation)
def _shift(op: mtf.Operation, layout: Layout) -> list[list[Part]]:
    """Wrapped, what lies before the beginning is read at the end."""
    (x,), (output,), axis, size = op.inputs, op.outputs, op._axis, op._dim.size
    if not op._wrap:
        return [[(x, moved_slices(layout, output, axis, -op._offset))]]
    first: list[list[Interval] | None] = []
    second: list[list[Interval] | None] = []
    for box in slices(layout, output):
        begin, count = (box[axis][0] - op._offset) % size, box[axis][1] - box[axis][0]
        first.append(replaced(box, axis, (begin, min(begin + count, size))))
        second.append(replaced(box, axis, (0, begin + count - size)) if begin + count > size else None)
    return [[(x, first), (x, second)]]


@_register(mtf.ConcatOperation)
def _concat(op: mtf.Operation, layout: Layout) -> list[list[Part]]:
    axis, parts, begin = op._axis, [], 0
    for x in op.inputs:
        size = x.shape.dims[axis].size
        boxes: list[list[Interval] | None] = []
        for box in slices(layout, op.outputs[0]):
            wanted = moved(box, axis, -begin)
            interval = (max(wanted[axis][0], 0), min(wanted[axis][1], size))
            boxes.append(replaced(wanted, axis, interval) if interval[0] < interval[1] else None)
        parts.append((x, boxes))
        begin += size
    return [parts]


@_register(mtf.StackOperation)
def _stack(op: mtf.Operation, layout: Layout) -> list[list[Part]]:
    """Those inputs that lie in the output's slice."""
    axis, parts = op._axis, []
    for i, x in enumerate(op.inputs):
        boxes: list[list[Interval] | None] = []
        for box in slices(layout, op.outputs[0]):
            begin, end = box.pop(axis)
            boxes.append(box if begin <= i < end else None)
        parts.append((x, boxes))
    return [parts]


@_register(mtf.UnstackOperation)
def _unstack(op: mtf.Operation, layout: Layout) -> list[list[Part]]:
    """Every processor's part of each output, from whoever has it."""
    axis = op._axis
    return [
        [(op.inputs[0], [[*box[:axis], (i, i + 1), *box[axis:]] for box in slices(layout, output)])]
        for i, output in enumerate(op.outputs)
    ]


@_register(mtf.TopKOperation)
def _top_k(op: mtf.Operation, layout: Layout) -> list[list[Part]]:
    """The whole of the dimension."""
    (x,), dim = op.inputs, op._reduced_dim
    axis = x.shape.dims.index(dim)
    held = [box[:-1] for box in slices(layout, op.outputs[0])]
    return [[(x, [[*box[:axis], (0, dim.size), *box[axis:]] for box in held])]]
