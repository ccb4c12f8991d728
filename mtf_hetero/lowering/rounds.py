"""Parts of a batch, brought together one after another, and their results, put back in place."""

from mtf_hetero import layers
from mtf_hetero._compat import tf
from mtf_hetero._support.ops import pad, zeros
from mtf_hetero.layout import Layout, blocks
from mtf_hetero.layout.blocks import Interval
from mtf_hetero.lowering.backend import Backend, Sum
from mtf_hetero.lowering.boxes import shift, slices
from mtf_hetero.lowering.registry import register


def cut_boxes(op: layers.CutOperation | layers.PlaceOperation, layout: Layout) -> list[list[Interval]]:
    """Return the box of the input, and of zeros around it, that is each processor's slice of the output."""
    begin = op.begin if isinstance(op, layers.CutOperation) else -op.begin
    return [shift(box, op.axis, begin) for box in slices(layout, op.outputs[0])]


def _is_scattered(op: layers.PlaceOperation, layout: Layout, x: Sum) -> bool:
    """Return whether each processor gets only its own part of an outstanding sum over mesh axes."""
    part, full = (layout.axis_of(tensor.shape.dims[op.axis]) for tensor in (op.inputs[0], op.outputs[0]))
    return not x.is_made and [None, *x.axes] == [part, full]


@register(layers.CutOperation)
def cut(op: layers.CutOperation, backend: Backend) -> None:
    """Have those that hold the part send it to all that need it."""
    backend.set(op.outputs[0], backend.fetch(op.inputs[0], cut_boxes(op, backend.layout)))


@register(layers.PlaceOperation)
def place(op: layers.PlaceOperation, backend: Backend) -> None:
    """Have each processor keep what lies in its slice. Where a sum is outstanding, it gets no more of the sum."""
    (part,), (full,) = op.inputs, op.outputs
    total = backend.laid_out(part)
    if isinstance(total, list) or not _is_scattered(op, backend.layout, total):
        backend.set(full, backend.fetch(part, cut_boxes(op, backend.layout)))
        return
    dims, boxes = part.shape.dims, cut_boxes(op, backend.layout)
    windows = [blocks.plan_window(backend.layout, dims, box, pnum) for pnum, box in enumerate(boxes)]
    moves = [blocks.Move(window.pieces, window.grid, (), cuts=True) if window.pieces else None for window in windows]

    def put(pnum: int, own: tf.Tensor | None = None) -> tf.Tensor:
        window = windows[pnum]
        return zeros(window.size, full.dtype) if own is None else pad(own, window.padding)

    reads = [[] if own is None else [own] for own in backend.reduce_scatter(total, moves)]
    backend.set(full, backend.make(full, put, reads, lambda pnum: windows[pnum].padding))
    backend.count(f"reduce_scatter/{total.axes}/PlaceOperation", part.shape)


@register(layers.AfterOperation)
def after(op: layers.AfterOperation, backend: Backend) -> None:
    """Have each processor wait for its slice, or its addend, of the second input."""
    (x, y), (x_after, y_after) = op.inputs, op.outputs
    xs, ys = backend.slices(x), backend.laid_out(y)
    backend.set(x_after, backend.wait(x_after, xs, ys if isinstance(ys, list) else ys.partial))
    backend.set(y_after, ys)
