"""Functions of slices: sums that are all-reduced, and random numbers."""

import functools
import math

from mtf_hetero import layers
from mtf_hetero._compat import mtf, tf
from mtf_hetero._support.ops import cut, reshape, zeros
from mtf_hetero.layout import Layout
from mtf_hetero.lowering.backend import Backend, has_nothing
from mtf_hetero.lowering.lowering import Lowering
from mtf_hetero.lowering.registry import register, register_lowering, require_whole
from mtf_hetero.mesh.tensors import LaidOutTensor


def _require_splittable(op: mtf.Operation, layout: Layout, why: str) -> None:
    dims = {dim for x in (*op.inputs, *op.outputs) for dim in x.shape.dims if dim.name in op.unsplittable_dims}
    require_whole(op, layout, sorted(dims), why)


@register(layers.PartialSumOperation)
def partial_sum(op: layers.PartialSumOperation, backend: Backend) -> None:
    """Sum on each device, then over the mesh axes that split what is summed over."""
    _require_splittable(op, backend.layout, "a slicewise function")
    (output,) = op.outputs
    backend.set_sum(output, backend.local(output, op.function.apply, *map(backend.slices, op.inputs)), op.summed)


@register(layers.DrawOperation)
def draw(op: layers.DrawOperation, backend: Backend) -> None:
    """Draw on each device the rows that its slice is in, or all numbers where that cannot be done."""
    _require_splittable(op, backend.layout, "the state of random numbers")
    (output,), layout = op.outputs, backend.layout

    def draw_slice(pnum: int, *operands: tf.Tensor) -> tf.Tensor:
        size = layout.slice_shape(output.shape, pnum)
        if 0 in size:
            return zeros(size, output.dtype)
        begin = layout.slice_begin(output.shape, pnum)
        if op.part is None or not size:
            return cut(op.function.apply(*operands), begin, size)
        row = output.shape.to_integer_list[1:]
        numbers = op.part(*operands, begin[0] * math.prod(row), size[0] * math.prod(row))
        return cut(reshape(numbers, [size[0], *row]), [0, *begin[1:]], size)

    inputs = [backend.slices(x) for x in op.inputs]
    reads = [
        [] if has_nothing(layout, pnum, output.shape) else [x[pnum] for x in inputs] for pnum in backend.processors
    ]
    begin_of = functools.partial(layout.slice_begin, output.shape)
    backend.set(output, backend.make(output, draw_slice, reads, lambda pnum: tuple(begin_of(pnum))))


@register_lowering(layers.OnceOperation)
def lower_once(op: layers.OnceOperation, lowering: Lowering) -> None:
    """Draws all numbers in the process that trains."""
    _require_splittable(op, lowering.uneven(op).layout, "the state of random numbers")
    (output,) = op.outputs
    with tf.device("/cpu:0"):
        tensor = op.function.apply(*[lowering.export_to_tf_tensor(x) for x in op.inputs])
    lowering.set_tensor_lowering(output, LaidOutTensor(lowering.uneven(op).make_slices(tensor, output.shape)))
