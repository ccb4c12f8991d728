"""Lookups of rows in tables: each processor gathers from its own part, and an all-reduce adds up the parts."""

import contextlib

from mtf_hetero import layers
from mtf_hetero._compat import mtf, tf
from mtf_hetero._support.alike import is_cpu
from mtf_hetero._support.ops import zeros
from mtf_hetero.collectives import present_of
from mtf_hetero.layers.lookups import add_rows, gather, gather_local
from mtf_hetero.layout import Layout
from mtf_hetero.lowering.registry import absent_from, register, set_output


def is_idle(layout: Layout, pnum: int, *shapes: mtf.Shape) -> bool:
    """Return whether a processor gathers and sums nothing, because its slice of one of the shapes is empty."""
    return any(0 in layout.slice_shape(shape, pnum) for shape in shapes)


def _checkers(op: mtf.Operation, layout: Layout) -> set[int]:
    """Choose the processors that check the ids: one of each group that has the same ids and splits the rows."""
    axis, absent = layout.axis_of(op.rows), absent_from(layout, [op.rows])
    if axis is None:
        return set()
    groups = mtf.processor_groups(mtf.Shape(layout.mesh_shape), [axis])
    first = (present_of(group, absent)[0] for group in groups)
    return {pnum for pnum in first if not is_idle(layout, pnum, op.outputs[0].shape)}


@register(layers.LookupOperation)
def lower_lookup(op: mtf.Operation, lowering: mtf.Lowering) -> None:
    """Gathers rows. If they are split, no processor's gather can find a wrong id, so that a check looks for it."""
    mesh_impl, (table, _), (output,) = lowering.mesh_impl(op), op.inputs, op.outputs
    layout = mesh_impl.layout
    is_split, checkers = layout.axis_of(op.rows) is not None, _checkers(op, layout)

    def look_up(part: tf.Tensor, ids: tf.Tensor, pnum: int) -> tf.Tensor:
        if is_idle(layout, pnum, table.shape, output.shape):
            return zeros(layout.slice_shape(output.shape, pnum), output.dtype)
        if not is_split:
            return gather(part, ids)
        with tf.control_dependencies([_check(op, ids, mesh_impl.devices[pnum])] if pnum in checkers else []):
            return gather_local(part, ids, layout.slice_begin(table.shape, pnum)[0])

    def kind_of(pnum: int) -> tuple[int, bool]:
        return layout.slice_begin(table.shape, pnum)[0], pnum in checkers

    processors = mesh_impl.processors(output.shape, kind_of)
    values = [lowering.tensors[x] for x in op.inputs]
    set_output(op, lowering, mesh_impl.slicewise(look_up, *values, processors), [op.rows])


def _check(op: mtf.Operation, ids: tf.Tensor, device: str) -> tf.Operation:
    """Check the ids on the CPU of the device's process, for a GPU holds no strings."""
    with contextlib.nullcontext() if is_cpu(device) else tf.device("/device:CPU:0"):
        return op.check(ids)


@register(layers.LookupGradientOperation)
def lower_lookup_gradient(op: mtf.Operation, lowering: mtf.Lowering) -> None:
    """Sums the rows of each id, first on each processor, then over the mesh axes that split the ids."""
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
