"""Operations whose output slices are joined from boxes of the inputs: slice, pad, shift, concat, ...

`boxes` computes which boxes these are. Only what does not lie in the processor's own slice is sent.
"""

import functools

from mtf_hetero._compat import mtf, tf
from mtf_hetero._support.ops import zeros
from mtf_hetero.layout.blocks import Interval, slice_box
from mtf_hetero.lowering.backend import Backend, Slices
from mtf_hetero.lowering.boxes import output_parts
from mtf_hetero.lowering.registry import register


def _pieces(op: mtf.Operation, backend: Backend) -> list[tuple[mtf.Tensor, list[Slices]]]:
    """Return the pieces that each processor has of each output."""
    results = []
    for output, parts in zip(op.outputs, output_parts(op, backend.layout), strict=False):
        pieces = [backend.fetch(x, boxes) for x, boxes in parts]
        results.append((output, [[x for x in own if x is not None] for own in zip(*pieces, strict=True)]))
    return results


@register(mtf.SliceOperation, mtf.PadOperation, mtf.SplitOperation, mtf.ShiftOperation, mtf.ConcatOperation)
def concatenate(
    op: mtf.SliceOperation | mtf.PadOperation | mtf.SplitOperation | mtf.ShiftOperation | mtf.ConcatOperation,
    backend: Backend,
) -> None:
    """Join the pieces; most operations have one for each output."""
    for output, pieces in _pieces(op, backend):
        backend.set(output, backend.concat(output, pieces, op._axis))


@register(mtf.StackOperation)
def stack(op: mtf.StackOperation, backend: Backend) -> None:
    """Stack those inputs that lie in the output's slice: none where it is empty."""
    ((output, pieces),) = _pieces(op, backend)

    def put_together(pnum: int, *own: tf.Tensor) -> tf.Tensor:
        size = backend.layout.slice_shape(output.shape, pnum)
        return tf.stack(own, op._axis) if own else zeros(size, output.dtype)

    backend.set(output, backend.make(output, put_together, pieces, lambda pnum: None))


@register(mtf.UnstackOperation)
def unstack(op: mtf.UnstackOperation, backend: Backend) -> None:
    """Give every processor its part of each output, from whoever has it."""
    for output, pieces in _pieces(op, backend):
        backend.set(output, backend.make(output, functools.partial(tf.squeeze, axis=op._axis), pieces))


@register(mtf.TopKOperation)
def top_k(op: mtf.TopKOperation, backend: Backend) -> None:
    """Search the whole dimension on every processor, and keep the processor's part of what is found."""
    ((values, pieces),) = _pieces(op, backend)
    (x,) = op.inputs
    axis = x.shape.dims.index(op._reduced_dim)
    order = [*(i for i in range(x.shape.ndims) if i != axis), axis]

    def search(pnum: int, full: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        top = tf.math.top_k(tf.transpose(full, order), op._k_dim.size)
        begin, end = slice_box(backend.layout, values.shape.dims, pnum)[-1]
        return top.values[..., begin:end], top.indices[..., begin:end]

    def kind_of(pnum: int) -> Interval:
        return slice_box(backend.layout, values.shape.dims, pnum)[-1]

    for output, slices in zip(op.outputs, backend.make_all(op.outputs, search, pieces, kind_of), strict=True):
        backend.set(output, slices)
