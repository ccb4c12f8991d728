"""Reshape and rename between any two layouts."""

import enum
from collections.abc import Sequence

from mtf_hetero._compat import mtf
from mtf_hetero.layout import Layout, blocks
from mtf_hetero.ops.backend import Backend, Slices, Sum
from mtf_hetero.ops.registry import register


class Way(enum.Enum):
    """Ways to reshape an outstanding sum over mesh axes."""

    KEEP = enum.auto()  # its addends are reshaped where they are
    SCATTER = enum.auto()  # each processor gets its part of the sum alone
    MAKE = enum.auto()  # it is made, and the pieces travel


def is_local(moves: Sequence[blocks.Move]) -> bool:
    """Return whether each processor has all that it needs."""
    return all(move.is_local(pnum) for pnum, move in enumerate(moves))


def choose_way(new: mtf.Shape, layout: Layout, moves: Sequence[blocks.Move], x: Sum) -> Way:
    """Return what a reshape does with a sum over mesh axes.

    Args:
      new: the shape of the reshaped tensor.
      layout: the Layout.
      moves: how each processor makes its slice of it.
      x: the sum.

    Example:
      A sum over axis 0 of a mesh of two axes:

        some piece travels to another processor                            MAKE
        no piece travels, axis 0 splits nothing of the new shape           KEEP
        no piece travels, axis 0 splits a dimension of the new shape       SCATTER
    """
    if not is_local(moves):
        return Way.MAKE
    new_axes = {layout.axis_of(dim) for dim in new.dims}
    split_axes = [axis for axis in x.axes if axis in new_axes]
    if not split_axes:
        return Way.KEEP
    return Way.SCATTER if len(split_axes) == len(x.axes) and not x.is_made else Way.MAKE


def _moved_sum(backend: Backend, x: Sum, moves: Sequence[blocks.Move]) -> Sum:
    """Return a reshaped sum that is still outstanding. It is made at most once, also if it has several reshapes.

    It is made of the reshaped addends where these are fewer to add up, and nobody needed the sum of the others.
    """

    def move_made() -> Slices | None:
        if any(move.cuts for move in moves) and not x.is_made:
            return None
        return backend.move(x.make(), moves)

    return backend.derived(x, backend.move(x.partial, moves), x.absent, move_made)


def lie_alike(layout: Layout, old: mtf.Shape, new: mtf.Shape) -> bool:
    """Return whether a reshape is a rename that changes no slice."""
    if old.to_integer_list != new.to_integer_list:
        return False
    return all(
        layout.axis_of(a) == layout.axis_of(b) and layout.split(a.name, a.size) == layout.split(b.name, b.size)
        for a, b in zip(old.dims, new.dims, strict=True)
    )


@register(mtf.ReshapeOperation)
def reshape(op: mtf.ReshapeOperation, backend: Backend) -> None:
    """Move pieces between processors where the layouts of the two sides differ, and only there.

    A sum over mesh axes that is still outstanding stays so where no piece travels and the new layout does not split
    over those axes: adding up is then left to whoever needs the sum. Where the new layout splits over all of them,
    each processor gets its part of the sum alone, which is less to send than the whole. A rename between dimensions
    that are divided alike is no operation.
    """
    (old,), (new,) = op.inputs, op.outputs
    x = backend.laid_out(old)
    if lie_alike(backend.layout, old.shape, new.shape):
        backend.set(new, x)
        return
    moves = backend.plan_moves(old.shape, new.shape)
    if isinstance(x, list):
        backend.set(new, backend.move(x, moves))
        return
    way = choose_way(new.shape, backend.layout, moves, x)
    if way is Way.KEEP:
        backend.set(new, _moved_sum(backend, x, moves))
    elif way is Way.SCATTER:
        backend.set(new, backend.reduce_scatter(x, moves))
        backend.count(f"reduce_scatter/{x.axes}/reshape_op", new.shape)
    else:
        backend.set(new, backend.move(x.make(), moves))
