"""Pieces of an axis: examples that are joined, as real and made images are, and parted again.

The first axis of joined pieces is a product of their number and of the axis of one piece. So a layout that splits the
examples splits the joined ones too, of each piece a part.
"""

import math
from collections.abc import Callable, Sequence

from mtf_hetero._compat import tf
from mtf_hetero.importer.program import Operation, Value, literal, replacing, synthetic
from mtf_hetero.importer.signature import UnknownArgumentError, strided_ranges

Sizes = Sequence[int]  # of the dimensions whose product an axis is


def regroup(op: Operation, sizes: Sizes) -> list[Operation]:
    """Return operations that do the same on whole pieces of the first axis.

    Args:
      op: the operation, of a type that has a rule.
      sizes: of the dimensions of the first axis of what it reads, the last of which is that of the examples.

    Returns:
      Those that replace it; itself alone if it does not join or part pieces.
    """
    has_none = any(0 in value.shape for value in (*op.inputs, *op.outputs))  # an empty axis has no pieces
    found = RULES[op.type](op, sizes) if op.outputs[0].shape and not has_none else None
    for made in found or ():
        made.source = op.source
    return found or [op]


def _join(op: Operation, sizes: Sizes) -> list[Operation] | None:
    """Stack pieces of one shape, whose axes are merged then."""
    *pieces, axis = op.inputs
    shape = pieces[0].shape
    is_first = axis.array is not None and int(axis.array) in (0, -len(shape))
    # unequal pieces make no product of their number and their rows
    if not is_first or not sizes or len(pieces) < 2 or any(piece.shape != shape for piece in pieces):
        return None
    stacked = synthetic("Pack", pieces, [(len(pieces), *shape)], op.type, N=len(pieces), axis=0)
    return [stacked, reshaped(_used(stacked.outputs[0]), op.outputs[0])]


def _split(op: Operation, sizes: Sizes) -> list[Operation] | None:
    axis, x = op.inputs
    if axis.array is None or int(axis.array) % len(x.shape):
        return None
    parts = [_part(x, y, number * y.shape[0], sizes) for number, y in enumerate(op.outputs)]
    return [made for part in parts for made in part] if all(parts) else None


def _slice(op: Operation, sizes: Sizes) -> list[Operation] | None:
    (x, begin, _), (y,) = op.inputs, op.outputs
    if begin.array is None or x.shape[1:] != y.shape[1:]:
        return None
    return _part(x, y, int(begin.array[0]), sizes)  # an axis of the same size begins at 0: no step is possible


def _strided_slice(op: Operation, sizes: Sizes) -> list[Operation] | None:
    x, y = op.inputs[0], op.outputs[0]
    begin = _begin(op, x.shape)
    return None if begin is None else _part(x, y, begin, sizes)


def _strided_slice_gradient(op: Operation, sizes: Sizes) -> list[Operation] | None:
    x, y = op.inputs[4], op.outputs[0]
    begin = _begin(op, y.shape)
    return None if begin is None else _fill(x, y, begin, sizes)


def _pad(op: Operation, sizes: Sizes) -> list[Operation] | None:
    x, paddings = op.inputs
    if paddings.array is None or paddings.array[1:].any():  # another axis grows too
        return None
    return _fill(x, op.outputs[0], int(paddings.array[0][0]), sizes)


def _begin(op: Operation, large: Sizes) -> int | None:
    """Return where x[begin:end] begins; None if it has a step, or has not all of the other axes."""
    try:
        first, *others = strided_ranges(op, large)
    except UnknownArgumentError:
        return None
    is_part = first.is_kept and not first.is_new and first.step == 1
    return first.begin if is_part and all(each.is_full for each in others) else None


def _part(x: Value, y: Value, begin: int, sizes: Sizes) -> list[Operation]:
    """Take some of the pieces of which an axis is made."""
    size, rest = _piece(sizes[1:], [begin, y.shape[0]]), x.shape[1:]
    if not size:
        return []
    count = y.shape[0] // size
    apart = reshaped(x, Value((x.shape[0] // size, size, *rest), x.dtype))
    corners = literal([begin // size, *[0] * len(x.shape)]), literal([count, size, *rest])
    taken = synthetic("Slice", [_used(apart.outputs[0]), *corners], [(count, size, *rest)], "Slice", Index=tf.int32)
    return [apart, taken, reshaped(_used(taken.outputs[0]), y)]


def _fill(x: Value, y: Value, begin: int, sizes: Sizes) -> list[Operation]:
    """Put zeros before and after pieces."""
    size, rest = _piece(sizes, [begin, y.shape[0]]), x.shape[1:]
    if not size:
        return []
    before, count, total = (number // size for number in (begin, x.shape[0], y.shape[0]))
    apart = reshaped(x, Value((count, size, *rest), x.dtype))
    paddings = literal([(before, total - before - count), *[(0, 0)] * len(x.shape)])
    filled = synthetic("Pad", [_used(apart.outputs[0]), paddings], [(total, size, *rest)], "Pad", Tpaddings=tf.int32)
    return [apart, filled, reshaped(_used(filled.outputs[0]), y)]


def _piece(sizes: Sizes, counts: Sequence[int]) -> int:
    """Return the size of the largest piece, a product of the last dimensions, that some numbers are multiples of."""
    products = [math.prod(sizes[first:]) for first in range(len(sizes))]
    return next((size for size in products if not any(count % size for count in counts)), 0)


def _used(value: Value) -> Value:
    """Return a value that one operation reads."""
    value.uses = 1
    return value


def reshaped(x: Value, result: Value) -> Operation:
    """Return the operation that regroups the axes of a value."""
    return replacing("Reshape", [x, literal(result.shape)], result, Tshape=tf.int32)


RULES: dict[str, Callable[[Operation, Sizes], list[Operation] | None]] = {
    "ConcatV2": _join,
    "Split": _split,
    "Slice": _slice,
    "StridedSlice": _strided_slice,
    "StridedSliceGrad": _strided_slice_gradient,
    "Pad": _pad,
}
