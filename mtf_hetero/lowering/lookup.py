"""Lookups of rows in tables: each processor gathers from its own part, and an all-reduce adds up the parts."""

import contextlib
import functools
from collections.abc import Sequence

from mtf_hetero import layers
from mtf_hetero._compat import mtf, tf
from mtf_hetero._support.alike import Processor, is_cpu
from mtf_hetero._support.ops import zeros
from mtf_hetero.layers.lookups import add_rows, gather, gather_local
from mtf_hetero.layout import Layout
from mtf_hetero.lowering.backend import Backend, Slice, absent_from, has_nothing
from mtf_hetero.lowering.registry import register
from mtf_hetero.mesh.collectives import present_processors


def _checkers(op: layers.LookupOperation, layout: Layout) -> set[int]:
    """Choose the processors that check the ids: one of each group that has the same ids and splits the rows."""
    axis, absent = layout.axis_of(op.rows), absent_from(layout, [op.rows])
    if axis is None:
        return set()
    groups = mtf.processor_groups(mtf.Shape(layout.mesh_shape), [axis])
    first = (present_processors(group, absent)[0] for group in groups)
    return {pnum for pnum in first if not has_nothing(layout, pnum, op.outputs[0].shape)}


@register(layers.LookupOperation)
def look_up(op: layers.LookupOperation, backend: Backend) -> None:
    """Gather rows. If they are split, no processor's gather can find a wrong id, so that a check looks for it."""
    (table, _), (output,), layout = op.inputs, op.outputs, backend.layout
    is_split, checkers = layout.axis_of(op.rows) is not None, functools.cache(lambda: _checkers(op, layout))

    def gather_slice(pnum: Processor, *operands: tf.Tensor) -> tf.Tensor:
        if not operands:
            return zeros(layout.slice_shape(output.shape, pnum), output.dtype)
        part, ids = operands
        if not is_split:
            return gather(part, ids)
        with tf.control_dependencies([_check(op, ids, pnum.device)] if pnum in checkers() else []):
            return gather_local(part, ids, layout.slice_begin(table.shape, pnum)[0])

    def kind_of(pnum: int) -> tuple[int, bool]:
        return layout.slice_begin(table.shape, pnum)[0], pnum in checkers()

    reads = _reads(op, backend, table.shape, output.shape)
    backend.set_sum(output, backend.make(output, gather_slice, reads, kind_of), [op.rows])


def _reads(op: mtf.Operation, backend: Backend, *shapes: mtf.Shape) -> list[Sequence[Slice]]:
    """Return a processor's slices of the inputs; nothing where its slice of one of the shapes is empty."""
    inputs = zip(*map(backend.slices, op.inputs), strict=True)
    return [() if has_nothing(backend.layout, pnum, *shapes) else own for pnum, own in enumerate(inputs)]


def _check(op: layers.LookupOperation, ids: tf.Tensor, device: str) -> tf.Operation:
    """Check the ids on the CPU of the device's process, for a GPU holds no strings."""
    with contextlib.nullcontext() if is_cpu(device) else tf.device("/device:CPU:0"):
        return op.check(ids)


@register(layers.LookupGradientOperation)
def look_up_gradient(op: layers.LookupGradientOperation, backend: Backend) -> None:
    """Sum the rows of each id, first on each processor, then over the mesh axes that split the ids."""
    (dy, ids), (output,), layout = op.inputs, op.outputs, backend.layout

    def add(pnum: int, *operands: tf.Tensor) -> tf.Tensor:
        shape = layout.slice_shape(output.shape, pnum)
        if not operands:
            return zeros(shape, output.dtype)
        rows, ids = operands
        return add_rows(rows, ids, layout.slice_begin(output.shape, pnum)[0], shape[0])

    reads = _reads(op, backend, dy.shape, output.shape)
    partial = backend.make(output, add, reads, lambda pnum: layout.slice_begin(output.shape, pnum)[0])
    backend.set_sum(output, partial, ids.shape.dims)
