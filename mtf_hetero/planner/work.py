"""What an operation of mtf computes on one processor's slices: floating-point operations, and bytes of memory.

A contraction multiplies and adds once for each element of the box of all its dimensions; anything else reads its inputs
and writes its outputs; a lookup reads no more rows of its table than it gives. What only hands a tensor on - a
variable, a reshape - does neither. A function of slices knows its own work: of several operations of TensorFlow, each
counts. Random numbers that every device draws are drawn as a whole on each.
"""

import math
from collections.abc import Iterable, Sequence

from mtf_hetero import layers
from mtf_hetero._compat import mtf
from mtf_hetero.layers.slices import FUNCTIONS
from mtf_hetero.layout import Layout
from mtf_hetero.lowering.conv_boxes import CONVOLUTIONS
from mtf_hetero.profile.work import CONTRACTIONS, LOOKUPS, key_of

_CONTRACTIONS = (
    *CONTRACTIONS,
    layers.GroupedConv2dOperation,
    layers.GroupedConvInputGradient,
    layers.GroupedConvKernelGradient,
)
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
    layers.OnceOperation,  # the process that trains draws
)


def is_contraction(op: mtf.Operation) -> bool:
    """Whether an operation is a convolution or a product, or a gradient of one."""
    return isinstance(op, _CONTRACTIONS)


def leaves_sums(op: mtf.Operation) -> bool:
    """Return whether an operation's outputs may be partial sums that an all-reduce completes."""
    return is_contraction(op) or isinstance(op, (mtf.ReduceOperation, layers.PartialSumOperation, *LOOKUPS))


def kind_of(op: mtf.Operation) -> str:
    """A name for all operations that do the same: of its class, its attributes and the shapes of its tensors."""
    return key_of([op])


def of_operation(op: mtf.Operation, layout: Layout, pnum: int) -> tuple[int, int]:
    """(floating-point operations, bytes read and written) of a processor; (0, 0) where its slices are empty."""
    return of_processors(op, layout)[pnum]


def of_processors(op: mtf.Operation, layout: Layout) -> list[tuple[int, int]]:
    """As `of_operation`, of all processors in their order; what is alike is worked out once."""
    if isinstance(op, _IDLE):
        return [(0, 0)] * layout.size
    if isinstance(op, FUNCTIONS):
        return _of_function(op, layout)
    tensors = [*op.inputs, *op.outputs]
    boxes = [tensor.shape.dims for tensor in tensors] + ([_box(op)] if is_contraction(op) else [])
    item_bytes = _item_bytes(op, tensors)
    known: dict[tuple, tuple[int, int]] = {}
    amounts = []
    for shapes in zip(*map(layout.slice_shapes, boxes), strict=True):
        if shapes not in known:
            known[shapes] = _amount(shapes, item_bytes)
        amounts.append(known[shapes])
    return amounts


def _of_function(op: mtf.Operation, layout: Layout) -> list[tuple[int, int]]:
    amounts = [(0.0, 0.0)] * layout.size
    for dims, (flops, moved) in op.function.work.items():
        total = math.prod(dim.size for dim in dims)
        for pnum, shape in enumerate(layout.slice_shapes(list(dims))):
            part = math.prod(shape) / total if total else 0.0
            amounts[pnum] = amounts[pnum][0] + part * flops, amounts[pnum][1] + part * moved
    slices = zip(*(layout.slice_shapes(y.shape) for y in op.outputs), strict=True)
    is_idle = [all(0 in shape for shape in shapes) for shapes in slices]
    return [(0, 0) if idle else (round(f), round(b)) for (f, b), idle in zip(amounts, is_idle, strict=True)]


def _item_bytes(op: mtf.Operation, tensors: Sequence[mtf.Tensor]) -> list[int]:
    """Count the bytes per element of each tensor: a lookup reads as much of its table as it writes."""
    sizes = [tensor.dtype.size for tensor in tensors]
    if isinstance(op, layers.LookupOperation):
        (table, ids, output) = sizes
        return [0, ids, table + output]
    return sizes


def _amount(shapes: Sequence[tuple[int, ...]], item_bytes: Sequence[int]) -> tuple[int, int]:
    """Of slices of tensors, and of the box of a contraction after them."""
    sizes = [math.prod(shape) for shape in shapes]
    if 0 in sizes[: len(item_bytes)]:
        return 0, 0
    moved = sum(size * each for size, each in zip(sizes, item_bytes, strict=False))
    return 2 * sum(sizes[len(item_bytes) :]), moved


def packed_dim(op: mtf.Operation) -> mtf.Dimension | None:
    """The dimension of which a device computes several units at a time: the output channels of a convolution.

    They are the last dimension of what it gives: of an image, its filters; of an image's gradient, its channels; of a
    kernel's, its filters. None: of no other operation that is known.
    """
    return op.outputs[0].shape.dims[-1] if isinstance(op, CONVOLUTIONS) else None


def paddings(op: mtf.Operation, layout: Layout, granules: Sequence[int]) -> list[float]:
    """How many times as long each processor computes for an output channel as it does where it has all of them.

    Args:
      op: of mtf.
      layout: that may split its output channels.
      granules: how many channels each processor computes at a time.

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


def _box(op: mtf.Operation) -> list[mtf.Dimension]:
    """The dimensions over which a contraction multiplies and adds, each once."""
    if isinstance(op, mtf.EinsumOperation):
        return _union([*op.inputs, *op.outputs])
    kernel, small = _kernel_and_small(op)
    return list(dict.fromkeys([*kernel.shape.dims, *small.shape.dims]))


def _union(tensors: Iterable[mtf.Tensor]) -> list[mtf.Dimension]:
    return list(dict.fromkeys(dim for tensor in tensors for dim in tensor.shape.dims))


def _kernel_and_small(op: mtf.Operation) -> tuple[mtf.Tensor, mtf.Tensor]:
    """The kernel of a convolution, and that of its two images which has a value for each window."""
    if isinstance(op, mtf.Conv2or3dBackpropFilterOperation):
        return op.outputs[0], op.inputs[0] if op._is_transpose else op.inputs[1]
    if isinstance(op, layers.GroupedConvKernelGradient):
        return op.outputs[0], op.inputs[0]
    if isinstance(op, mtf.Conv2or3dBackpropInputOperation):
        return op.inputs[1], op.outputs[0] if op._is_transpose else op.inputs[0]
    if isinstance(op, layers.GroupedConvInputGradient):
        return op.inputs[1], op.inputs[0]
    is_transpose = isinstance(op, (mtf.Conv2dTransposeOperation, mtf.Conv3dTransposeOperation))
    return op.inputs[1], op.inputs[0] if is_transpose else op.outputs[0]
