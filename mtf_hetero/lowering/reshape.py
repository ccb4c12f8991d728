"""Reshape and rename between any two layouts."""

from typing import Any

from mtf_hetero import blocks, collectives
from mtf_hetero._compat import mtf
from mtf_hetero.lowering.registry import register, set_output


def _move(mesh_impl: mtf.MeshImpl, x: Any, moves: list[blocks.Move]) -> Any:
    return mesh_impl.LaidOutTensor(
        collectives.move(x.tensor_list, mesh_impl.devices, moves, wire_dtype=mesh_impl.wire_dtype)
    )


class _MovedSum(mtf.LazyAllreduceSum):
    """A reshaped sum that is still outstanding. It is made at most once, however many reshapes of it there are."""

    def __init__(self, source: Any, moves: list[blocks.Move]) -> None:
        super().__init__(source.mesh_impl, source.laid_out_input, source.mesh_axes, source.add_counter_fn)
        self._source = source
        self._moves = moves
        self.laid_out_input = self._move(source.laid_out_input)

    def _move(self, x: Any) -> Any:
        return _move(self.mesh_impl, x, self._moves)

    def to_laid_out_tensor(self) -> Any:
        if not self._reduced:
            if any(move.cuts for move in self._moves) and not self._source._reduced:  # less to add up than before
                return super().to_laid_out_tensor()
            self._reduced = self._move(self._source.to_laid_out_tensor())
        return self._reduced


@register(mtf.ReshapeOperation)
def lower_reshape(op: mtf.Operation, lowering: mtf.Lowering) -> None:
    """Moves pieces between processors where the layouts of the two sides differ, and only there.

    A sum over mesh axes that is still outstanding stays so where no piece travels and the new layout does not split
    over those axes: adding up is then left to whoever needs the sum. Where the new layout splits over all of them,
    each processor gets its part of the sum alone, which is less to send than the whole.
    """
    mesh_impl = lowering.mesh_impl(op)
    old, new = op.inputs[0].shape, op.outputs[0].shape
    x = lowering.tensors[op.inputs[0]]
    moves = [blocks.plan_move(mesh_impl.layout, old.dims, new.dims, pnum) for pnum in range(mesh_impl.size)]
    local = all(move.is_local(pnum) for pnum, move in enumerate(moves))
    if isinstance(x, mtf.LazyAllreduceSum) and local:
        new_axes = {mesh_impl.layout.axis_of(dim) for dim in new.dims}
        split_axes = [axis for axis in x.mesh_axes if axis in new_axes]
        if not split_axes:
            lowering.set_tensor_lowering(op.outputs[0], _MovedSum(x, moves))
            return
        if len(split_axes) == len(x.mesh_axes) and not x._reduced:
            _reduce_scatter(op, lowering, x, moves)
            return
    set_output(op, lowering, _move(mesh_impl, x.to_laid_out_tensor(), moves))
    if not local:
        sent = sum(
            mtf.list_product(piece.size)
            for pnum, move in enumerate(moves)
            for piece in move.pieces
            if piece.source != pnum
        )
        lowering.add_counter("reshard/reshape_op", sent)


def _reduce_scatter(op: mtf.Operation, lowering: mtf.Lowering, x: Any, moves: list[blocks.Move]) -> None:
    mesh_impl = lowering.mesh_impl(op)
    partial = x.laid_out_input.tensor_list
    results: list[Any] = [None] * mesh_impl.size
    for group in mtf.processor_groups(mesh_impl.shape, x.mesh_axes):
        parts = collectives.reduce_scatter(
            [partial[p] for p in group],
            [mesh_impl.devices[p] for p in group],
            [moves[p] for p in group],
            wire_dtype=mesh_impl.wire_dtype,
        )
        for pnum, part in zip(group, parts, strict=True):
            results[pnum] = part
    set_output(op, lowering, mesh_impl.LaidOutTensor(results))
    lowering.add_counter(f"reduce_scatter/{x.mesh_axes}/reshape_op", lowering.laid_out_size(op.outputs[0]))
