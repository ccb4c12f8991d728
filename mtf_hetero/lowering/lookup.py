"""Lookups of rows in tables: each processor gathers those that it has, and what a split table gives is added up."""

import contextlib

from mtf_hetero import layers
from mtf_hetero._compat import mtf, tf
from mtf_hetero._support.alike import is_cpu
from mtf_hetero._support.ops import zeros
from mtf_hetero.collectives import present_of
from mtf_hetero.layers.lookup import add_rows, gather, gather_own
from mtf_hetero.layout import Layout
from mtf_hetero.lowering.registry import absent_from, register, set_output


def is_idle(layout: Layout, pnum: int, *shapes: mtf.Shape) -> bool:
    """Whether a processor has nothing to gather or to add, because its slice of one of the shapes is empty."""
    return any(0 in layout.slice_shape(shape, pnum) for shape in shapes)


def _checking(op: mtf.Operation, layout: Layout) -> set[int]:
    """The processors that check the ids: of those that have parts of one table and the same ids, the first."""
    axis, absent = layout.axis_of(op.rows), absent_from(layout, [op.rows])
    if axis is None:
        return set()
    groups = mtf.processor_groups(mtf.Shape(layout.mesh_shape), [axis])
    first = (present_of(group, absent)[0] for group in groups)
    return {pnum for pnum in first if not is_idle(layout, pnum, op.outputs[0].shape)}


@register(layers.LookupOperation)
def lower_lookup(op: mtf.Operation, lowering: mtf.Lowering) -> None:
    """A gather where the rows are whole. Where they are split, ids are checked, for nobody else would miss a row."""
    mesh_impl, (table, _), (output,) = lowering.mesh_impl(op), op.inputs, op.outputs
    layout = mesh_impl.layout
    is_split, checking = layout.axis_of(op.rows) is not None, _checking(op, layout)

    def look_up(part: tf.Tensor, ids: tf.Tensor, pnum: int) -> tf.Tensor:
        if is_idle(layout, pnum, table.shape, output.shape):
            return zeros(layout.slice_shape(output.shape, pnum), output.dtype)
        if not is_split:
            return gather(part, ids)
        with tf.control_dependencies([_check(op, ids, mesh_impl.devices[pnum])] if pnum in checking else []):
            return gather_own(part, ids, layout.slice_begin(table.shape, pnum)[0])

    def kind_of(pnum: int) -> tuple[int, bool]:
        return layout.slice_begin(table.shape, pnum)[0], pnum in checking

    processors = mesh_impl.processors(output.shape, kind_of)
    values = [lowering.tensors[x] for x in op.inputs]
    set_output(op, lowering, mesh_impl.slicewise(look_up, *values, processors), [op.rows])


def _check(op: mtf.Operation, ids: tf.Tensor, device: str) -> tf.Operation:
    """Raises where an id is no row's, from the CPU of the device's process: a GPU has no strings."""
    with contextlib.nullcontext() if is_cpu(device) else tf.device("/device:CPU:0"):
        return op.check(ids)


@register(layers.LookupGradientOperation)
def lower_lookup_gradient(op: mtf.Operation, lowering: mtf.Lowering) -> None:
    """Each processor adds up its ids' rows; a sum over the processors that have others."""
    mesh_impl, (dy, ids), (output,) = lowering.mesh_impl(op), op.inputs, op.outputs
    layout = mesh_impl.layout

    def add(rows: tf.Tensor, ids: tf.Tensor, pnum: int) -> tf.Tensor:
        shape = layout.slice_shape(output.shape, pnum)
        if is_idle(layout, pnum, dy.shape, output.shape):
            return zeros(shape, output.dtype)
        return add_rows(rows, ids, layout.slice_begin(output.shape, pnum)[0], shape[0])

    processors = mesh_impl.processors(output.shape, lambda pnum: layout.slice_begin(output.shape, pnum)[0])
    value = mesh_impl.slicewise(add, lowering.tensors[dy], lowering.tensors[ids], processors)
    set_output(op, lowering, value, ids.shape.dims)
