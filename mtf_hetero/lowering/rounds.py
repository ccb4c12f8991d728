"""Parts of a batch that are brought together one after another, and what comes of them put back where it belongs."""

from collections.abc import Sequence

from mtf_hetero import blocks, collectives, layers
from mtf_hetero._compat import mtf, tf
from mtf_hetero._support.ops import pad, zeros
from mtf_hetero.blocks import Interval
from mtf_hetero.layout import Layout
from mtf_hetero.lowering.boxes import moved_slices
from mtf_hetero.lowering.registry import register, set_output
from mtf_hetero.lowering.windows import fetch


def boxes_of(op: mtf.Operation, layout: Layout) -> list[list[Interval] | None]:
    """What each processor's slice of the output is of the input, and of zeros around it."""
    return moved_slices(layout, op.outputs[0], op.axis, op.begin if isinstance(op, layers.CutOperation) else -op.begin)


def is_scattered(op: mtf.Operation, layout: Layout, axes: Sequence[int], *, is_made: bool) -> bool:
    """Whether each processor gets only its own part of an outstanding sum over mesh axes: of a PlaceOperation."""
    part, whole = (layout.axis_of(tensor.shape.dims[op.axis]) for tensor in (op.inputs[0], op.outputs[0]))
    return not is_made and [None, *axes] == [part, whole]


def plan_parts(op: mtf.Operation, layout: Layout) -> tuple[list[blocks.Window | None], list[blocks.Move | None]]:
    """What each processor gets of a sum: the window of it, and how it is cut out of an addend, or None."""
    windows = blocks.plan_windows(layout, op.inputs[0].shape.dims, boxes_of(op, layout))
    moves = [
        blocks.Move(window.pieces, window.grid, (), cuts=True) if window is not None and window.pieces else None
        for window in windows
    ]
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
    all_windows, all_moves = plan_parts(op, mesh_impl.layout)
    partial, results = x.laid_out_input.tensor_list, [None] * mesh_impl.size
    for group in mtf.processor_groups(mesh_impl.shape, x.mesh_axes):
        windows, moves = ([plans[pnum] for pnum in group] for plans in (all_windows, all_moves))
        devices = [mesh_impl.devices[pnum] for pnum in group]
        sums = collectives.reduce_scatter(
            [partial[pnum] for pnum in group], devices, moves, wire_dtype=mesh_impl.wire_dtype
        )
        for pnum, device, window, total in zip(group, devices, windows, sums, strict=True):
            with tf.device(device):
                results[pnum] = zeros(window.size, op.outputs[0].dtype) if total is None else pad(total, window.padding)
    set_output(op, lowering, mesh_impl.LaidOutTensor(results))
    lowering.add_counter(f"reduce_scatter/{x.mesh_axes}/PlaceOperation", lowering.laid_out_size(op.inputs[0]))
