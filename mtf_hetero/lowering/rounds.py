"""Parts of a batch that are brought together one after another, and what comes of them put back where it belongs."""

from collections.abc import Sequence

from mtf_hetero import blocks, layers
from mtf_hetero._compat import mtf, tf
from mtf_hetero._support.ops import pad, zeros
from mtf_hetero.blocks import Interval
from mtf_hetero.layout import Layout
from mtf_hetero.lowering.boxes import moved, slices
from mtf_hetero.lowering.registry import register, set_output
from mtf_hetero.lowering.windows import fetch


def boxes_of(op: mtf.Operation, layout: Layout) -> list[list[Interval]]:
    """What each processor's slice of the output is of the input, and of zeros around it."""
    begin = op.begin if isinstance(op, layers.CutOperation) else -op.begin
    return [moved(box, op.axis, begin) for box in slices(layout, op.outputs[0])]


def is_scattered(op: mtf.Operation, layout: Layout, axes: Sequence[int], *, is_made: bool) -> bool:
    """Whether each processor gets only its own part of an outstanding sum over mesh axes: of a PlaceOperation."""
    part, whole = (layout.axis_of(tensor.shape.dims[op.axis]) for tensor in (op.inputs[0], op.outputs[0]))
    return not is_made and [None, *axes] == [part, whole]


def plan_parts(op: mtf.Operation, layout: Layout) -> tuple[list[blocks.Window], list[blocks.Move | None]]:
    """What each processor gets of a sum: the window of it, and how it is cut out of an addend, or None."""
    dims, boxes = op.inputs[0].shape.dims, boxes_of(op, layout)
    windows = [blocks.plan_window(layout, dims, box, pnum) for pnum, box in enumerate(boxes)]
    moves = [blocks.Move(window.pieces, window.grid, (), cuts=True) if window.pieces else None for window in windows]
    return windows, moves


def _fetched(op: mtf.Operation, lowering: mtf.Lowering) -> None:
    mesh_impl = lowering.mesh_impl(op)
    slices = fetch(op, lowering, op.inputs[0], boxes_of(op, mesh_impl.layout))
    set_output(op, lowering, mesh_impl.LaidOutTensor(slices))


@register(layers.CutOperation)
def lower_cut(op: mtf.Operation, lowering: mtf.Lowering) -> None:
    """Those that hold the part send it to all that need it."""
    _fetched(op, lowering)


@register(layers.PlaceOperation)
def lower_place(op: mtf.Operation, lowering: mtf.Lowering) -> None:
    """Each processor keeps what lies in its slice. Where a sum over the mesh is outstanding, it gets no more of it."""
    mesh_impl, x = lowering.mesh_impl(op), lowering.tensors[op.inputs[0]]
    if not isinstance(x, mtf.LazyAllreduceSum) or not is_scattered(
        op, mesh_impl.layout, x.mesh_axes, is_made=bool(x._reduced)
    ):
        _fetched(op, lowering)
        return
    windows, moves = plan_parts(op, mesh_impl.layout)
    results = [None] * mesh_impl.size
    for pnum, total in mesh_impl.reduce_scatter(x.laid_out_input, x.mesh_axes, moves):
        window = windows[pnum]
        with tf.device(mesh_impl.devices[pnum]):
            results[pnum] = zeros(window.size, op.outputs[0].dtype) if total is None else pad(total, window.padding)
    set_output(op, lowering, mesh_impl.LaidOutTensor(results))
    lowering.add_counter(f"reduce_scatter/{x.mesh_axes}/PlaceOperation", lowering.laid_out_size(op.inputs[0]))
