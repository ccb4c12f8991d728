"""Count the work of an operation of mtf on each processor: floating-point operations, and bytes of memory.

A contraction multiplies and adds once for each element of the box of all its dimensions. Others read their
inputs and write their outputs; a lookup reads as many rows of its table as it gives. A variable or a reshape has no
work. A function of slices knows its own.
"""

import math
from collections.abc import Iterable, Mapping, Sequence

from mtf_hetero._compat import mtf
from mtf_hetero.layout import Layout
from mtf_hetero.ops.functions import FUNCTIONS, OnceOperation, Work
from mtf_hetero.ops.traits import find_traits, packed_dim

_IDLE = (
    mtf.Variable,
    mtf.ReadVariable,
    mtf.ImportOperation,
    mtf.ImportLaidOutTensorOperation,
    mtf.ReshapeOperation,
    mtf.PrintOperation,
    mtf.ScalarSummaryOperation,
    mtf.StopGradient,
    mtf.CustomGradientOperation,
    OnceOperation,  # the process that trains draws
)


def of_operation(op: mtf.Operation, layout: Layout, pnum: int) -> tuple[int, int]:
    """Return (floating-point operations, bytes read and written) of a processor; (0, 0) for empty slices."""
    return of_processors(op, layout)[pnum]


def of_processors(op: mtf.Operation, layout: Layout) -> list[tuple[int, int]]:
    """Return the work of each processor, as `of_operation` does for one."""
    if isinstance(op, _IDLE):
        return [(0, 0)] * layout.size
    if isinstance(op, FUNCTIONS):
        return _of_function(op, op.function.work, layout)
    tensors, traits = [*op.inputs, *op.outputs], find_traits(op)
    boxes = [tensor.shape.dims for tensor in tensors] + ([] if traits.multiplied is None else [traits.multiplied(op)])
    item_bytes = [tensor.dtype.size for tensor in tensors] if traits.item_bytes is None else traits.item_bytes(op)
    known: dict[tuple, tuple[int, int]] = {}
    amounts = []
    for shapes in zip(*map(layout.slice_shapes, boxes), strict=True):
        if shapes not in known:
            known[shapes] = _amount(shapes, item_bytes)
        amounts.append(known[shapes])
    return amounts


def _of_function(op: mtf.Operation, work: Work, layout: Layout) -> list[tuple[int, int]]:
    amounts = [(0.0, 0.0)] * layout.size
    for dims, (flops, moved) in work.items():
        total = math.prod(dim.size for dim in dims)
        for pnum, shape in enumerate(layout.slice_shapes(list(dims))):
            part = math.prod(shape) / total if total else 0.0
            amounts[pnum] = amounts[pnum][0] + part * flops, amounts[pnum][1] + part * moved
    slices = zip(*(layout.slice_shapes(y.shape) for y in op.outputs), strict=True)
    is_idle = [all(0 in shape for shape in shapes) for shapes in slices]
    return [(0, 0) if idle else (round(f), round(b)) for (f, b), idle in zip(amounts, is_idle, strict=True)]


def _amount(shapes: Sequence[tuple[int, ...]], item_bytes: Sequence[int]) -> tuple[int, int]:
    """Return the work on slices of tensors, and on the box of a contraction, which comes last."""
    sizes = [math.prod(shape) for shape in shapes]
    if 0 in sizes[: len(item_bytes)]:
        return 0, 0
    moved = sum(size * each for size, each in zip(sizes, item_bytes, strict=False))
    return 2 * sum(sizes[len(item_bytes) :]), moved


def paddings(op: mtf.Operation, layout: Layout, granules: Sequence[int]) -> list[float]:
    """Return each processor's time per output channel, over that with all channels.

    Args:
      op: of mtf.
      layout: which may split its output channels.
      granules: the number of channels that each processor computes at a time.

    Example:
      >>> paddings(convolution, layout, [16, 16])  # 18 of 64 filters take as long as 32
      [1.0434..., 1.777...]
    """
    dim = packed_dim(op)
    if dim is None or max(granules) == 1:
        return [1.0] * len(granules)
    sizes = [size for (size,) in layout.slice_shapes([dim])]
    both = zip(sizes, granules, strict=True)
    return [_padded(size, granule) / _padded(dim.size, granule) if size else 1.0 for size, granule in both]


def _padded(size: int, granule: int) -> float:
    return -(-size // granule) * granule / size


def granules(
    operations: Iterable[mtf.Operation],
    families: Iterable[Sequence[str]],
    extents: Mapping[str, set[int]],
    granule: int,
    count: int,
) -> dict[str, int]:
    """Return {name: granule} of dimensions whose parts are to be multiples of it: output channels of convolutions.

    Dimensions that are no multiple themselves, or have fewer than one granule per part, are skipped.

    Args:
      operations: of a step.
      families: names that go together.
      extents: {name: extents}.
      granule: the number of channels that a device computes at a time.
      count: of parts, at most.
    """
    if granule == 1:
        return {}
    packed = {dim.name for op in operations if (dim := packed_dim(op)) is not None}
    return {
        name: granule
        for family in families
        if not packed.isdisjoint(family)
        for name in family
        if min(extents[name]) >= granule * count and not any(extent % granule for extent in extents[name])
    }
