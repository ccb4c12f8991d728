"""Reshape and rename between any two layouts."""

import enum
from collections.abc import Sequence
from typing import Any

from mtf_hetero import blocks, collectives
from mtf_hetero._compat import mtf
from mtf_hetero.layout import Layout
from mtf_hetero.lowering.registry import register, set_output


def _move(mesh_impl: mtf.MeshImpl, x: Any, moves: list[blocks.Move]) -> Any:
    return mesh_impl.LaidOutTensor(
        collectives.move(x.tensor_list, mesh_impl.devices, moves, wire_dtype=mesh_impl.wire_dtype)
    )


class Way(enum.Enum):
    """What a reshape does with a sum over mesh axes that is outstanding."""

    KEEP = enum.auto()  # its addends are reshaped where they are
    SCATTER = enum.auto()  # each processor gets its part of the sum alone
    MAKE = enum.auto()  # it is made, and the pieces travel


def plan_moves(op: mtf.Operation, layout: Layout) -> list[blocks.Move]:
    """How each processor makes its slice of a reshape's output."""
    old, new = op.inputs[0].shape.dims, op.outputs[0].shape.dims
    return [blocks.plan_move(layout, old, new, pnum) for pnum in range(layout.size)]


def is_local(moves: Sequence[blocks.Move]) -> bool:
    """Whether each processor has all that it needs."""
    return all(move.is_local(pnum) for pnum, move in enumerate(moves))


def way_of(
    op: mtf.Operation, layout: Layout, moves: Sequence[blocks.Move], axes: Sequence[int], *, is_made: bool
) -> Way:
    """What a reshape does with a sum over mesh axes.

    Args:
      op: the ReshapeOperation.
      layout: the Layout.
      moves: as of `plan_moves`.
      axes: the mesh axes that are summed over.
      is_made: whether the sum was made before, for another operation.
    """
    if not is_local(moves):
        return Way.MAKE
    new_axes = {layout.axis_of(dim) for dim in op.outputs[0].shape.dims}
    split_axes = [axis for axis in axes if axis in new_axes]
    if not split_axes:
        return Way.KEEP
    return Way.SCATTER if len(split_axes) == len(axes) and not is_made else Way.MAKE


def adds_up_moved(moves: Sequence[blocks.Move], *, is_made: bool) -> bool:
    """Whether the sum of reshaped addends is made of these: where there is less to add up, and no sum of the others."""
    return any(move.cuts for move in moves) and not is_made


class _MovedSum(mtf.LazyAllreduceSum):
    """A reshaped sum that is still outstanding. It is made at most once, however many reshapes of it there are."""

    def __init__(self, source: Any, moves: list[blocks.Move]) -> None:
        super().__init__(source.mesh_impl, source.laid_out_input, source.mesh_axes, source.add_counter_fn)
        self._source = source
        self._moves = moves
        moved = self._move(source.laid_out_input).tensor_list
        self.laid_out_input = self.mesh_impl.LaidOutTensor(moved, source.laid_out_input.absent)

    def _move(self, x: Any) -> Any:
        return _move(self.mesh_impl, x, self._moves)

    def to_laid_out_tensor(self) -> Any:
        if not self._reduced:
            if adds_up_moved(self._moves, is_made=bool(self._source._reduced)):
                return super().to_laid_out_tensor()
            self._reduced = self._move(self._source.to_laid_out_tensor())
        return self._reduced


def lie_alike(layout: Layout, old: mtf.Shape, new: mtf.Shape) -> bool:
    """Whether a reshape is a rename that changes no slice."""
    if old.to_integer_list != new.to_integer_list:
        return False
    return all(
        layout.axis_of(a) == layout.axis_of(b) and layout.split(a.name, a.size) == layout.split(b.name, b.size)
        for a, b in zip(old.dims, new.dims, strict=True)
    )


@register(mtf.ReshapeOperation)
def lower_reshape(op: mtf.Operation, lowering: mtf.Lowering) -> None:
    """Moves pieces between processors where the layouts of the two sides differ, and only there.

    A sum over mesh axes that is still outstanding stays so where no piece travels and the new layout does not split
    over those axes: adding up is then left to whoever needs the sum. Where the new layout splits over all of them,
    each processor gets its part of the sum alone, which is less to send than the whole. A rename between dimensions
    that are divided alike is no operation.
    """
    mesh_impl = lowering.mesh_impl(op)
    x = lowering.tensors[op.inputs[0]]
    if lie_alike(mesh_impl.layout, op.inputs[0].shape, op.outputs[0].shape):
        lowering.set_tensor_lowering(op.outputs[0], x)
        return
    moves = plan_moves(op, mesh_impl.layout)
    if isinstance(x, mtf.LazyAllreduceSum):
        way = way_of(op, mesh_impl.layout, moves, x.mesh_axes, is_made=bool(x._reduced))
        if way is Way.KEEP:
            lowering.set_tensor_lowering(op.outputs[0], _MovedSum(x, moves))
            return
        if way is Way.SCATTER:
            parts = dict(mesh_impl.reduce_scatter(x.laid_out_input, x.mesh_axes, moves))
            set_output(op, lowering, mesh_impl.LaidOutTensor([parts[pnum] for pnum in range(mesh_impl.size)]))
            lowering.add_counter(f"reduce_scatter/{x.mesh_axes}/reshape_op", lowering.laid_out_size(op.outputs[0]))
            return
    set_output(op, lowering, _move(mesh_impl, x.to_laid_out_tensor(), moves))
    if not is_local(moves):
        sent = sum(
            mtf.list_product(piece.size)
            for pnum, move in enumerate(moves)
            for piece in move.pieces
            if piece.source != pnum
        )
        lowering.add_counter("reshard/reshape_op", sent)
