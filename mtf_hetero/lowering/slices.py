"""Functions of slices: sums that are all-reduced, and random numbers."""

import math
from typing import Any

from mtf_hetero import layers
from mtf_hetero._compat import mtf, tf
from mtf_hetero._support.ops import cut, reshape, zeros
from mtf_hetero.lowering.registry import register, require_whole, set_output


def _require_splittable(op: mtf.Operation, lowering: mtf.Lowering, why: str) -> None:
    dims = {dim for x in (*op.inputs, *op.outputs) for dim in x.shape.dims if dim.name in op.unsplittable_dims}
    require_whole(op, lowering, sorted(dims), why)


@register(layers.PartialSumOperation)
def lower_partial_sum(op: mtf.Operation, lowering: mtf.Lowering) -> None:
    """Sums on each device, then over the mesh axes that split what is summed over."""
    _require_splittable(op, lowering, "a slicewise function")
    value = lowering.mesh_impl(op).slicewise(op.function.apply, *[lowering.tensors[x] for x in op.inputs])
    set_output(op, lowering, value, op.summed)


@register(layers.DrawOperation)
def lower_draw(op: mtf.Operation, lowering: mtf.Lowering) -> None:
    """Draws on each device the rows that its slice is in, or all numbers where that cannot be done."""
    _require_splittable(op, lowering, "the state of random numbers")
    mesh_impl, (output,) = lowering.mesh_impl(op), op.outputs

    def draw(*operands: Any) -> tf.Tensor:
        *slices, pnum = operands
        size = mesh_impl.slice_shape(output.shape, pnum)
        if 0 in size:
            return zeros(size, output.dtype)
        begin = mesh_impl.slice_begin(output.shape, pnum)
        if op.part is None or not size:
            return cut(op.function.apply(*slices), begin, size)
        row = output.shape.to_integer_list[1:]
        numbers = op.part(*slices, begin[0] * math.prod(row), size[0] * math.prod(row))
        return cut(reshape(numbers, [size[0], *row]), [0, *begin[1:]], size)

    processors = mesh_impl.processors(output.shape, lambda pnum: tuple(mesh_impl.slice_begin(output.shape, pnum)))
    set_output(op, lowering, mesh_impl.slicewise(draw, *[lowering.tensors[x] for x in op.inputs], processors))


@register(layers.OnceOperation)
def lower_once(op: mtf.Operation, lowering: mtf.Lowering) -> None:
    """Draws all numbers in the process that trains."""
    _require_splittable(op, lowering, "the state of random numbers")
    (output,) = op.outputs
    with tf.device("/cpu:0"):
        whole = op.function.apply(*[lowering.export_to_tf_tensor(x) for x in op.inputs])
    lowering.set_tensor_lowering(output, lowering.mesh_impl(op).import_tf_tensor(output, whole))
