"""Parts of a batch that are brought together one after another, and what comes of them put back where it belongs."""

from mtf_hetero import blocks, collectives, layers
from mtf_hetero._compat import mtf, tf
from mtf_hetero._support.ops import pad, zeros
from mtf_hetero.lowering.registry import register, set_output
from mtf_hetero.lowering.windows import fetch, moved, slice_box


def _fetched(op: mtf.Operation, lowering: mtf.Lowering, offset: int) -> None:
    """The output is the input, read `offset` further on, and zero beyond it."""
    shape = op.outputs[0].shape
    slices = fetch(op, lowering, op.inputs[0], lambda p: moved(slice_box(op, lowering, shape, p), op.axis, offset))
    set_output(op, lowering, lowering.mesh_impl(op).LaidOutTensor(slices))


@register(layers.CutOperation)
def lower_cut(op: mtf.Operation, lowering: mtf.Lowering) -> None:
    """Those that hold the part send it to all that need it."""
    _fetched(op, lowering, op.begin)


@register(layers.PlaceOperation)
def lower_place(op: mtf.Operation, lowering: mtf.Lowering) -> None:
    """Each processor keeps what lies in its slice. Where a sum over the mesh is outstanding, it gets no more of it."""
    mesh_impl, x = lowering.mesh_impl(op), lowering.tensors[op.inputs[0]]
    part, whole = op.inputs[0].shape, op.outputs[0].shape
    axes = [mesh_impl.layout.axis_of(shape.dims[op.axis]) for shape in (part, whole)]
    if not isinstance(x, mtf.LazyAllreduceSum) or x._reduced or [None, *x.mesh_axes] != axes:
        _fetched(op, lowering, -op.begin)
        return
    partial, results = x.laid_out_input.tensor_list, [None] * mesh_impl.size
    for group in mtf.processor_groups(mesh_impl.shape, x.mesh_axes):
        boxes = [moved(slice_box(op, lowering, whole, pnum), op.axis, -op.begin) for pnum in group]
        windows = [
            blocks.plan_window(mesh_impl.layout, part.dims, box, pnum) for box, pnum in zip(boxes, group, strict=True)
        ]
        moves = [
            blocks.Move(window.pieces, window.grid, (), cuts=True) if window.pieces else None for window in windows
        ]
        devices = [mesh_impl.devices[pnum] for pnum in group]
        sums = collectives.reduce_scatter(
            [partial[pnum] for pnum in group], devices, moves, wire_dtype=mesh_impl.wire_dtype
        )
        for pnum, device, window, total in zip(group, devices, windows, sums, strict=True):
            with tf.device(device):
                results[pnum] = zeros(window.size, op.outputs[0].dtype) if total is None else pad(total, window.padding)
    set_output(op, lowering, mesh_impl.LaidOutTensor(results))
    lowering.add_counter(f"reduce_scatter/{x.mesh_axes}/PlaceOperation", lowering.laid_out_size(op.inputs[0]))
