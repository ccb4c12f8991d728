"""Communication between processors: functions from one tf.Tensor per processor to one tf.Tensor per processor.

Nothing here knows of a mesh, and no slice need be as large as another. TensorFlow sends a tensor when an operation on
one device reads an operation on another, so where an operation is placed decides what travels: pieces are cut out on
the device that holds them.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any

from mtf_hetero._compat import tf

_REDUCTIONS = {
    "SUM": tf.add_n,
    "MAX": functools.partial(functools.reduce, tf.maximum),
    "MIN": functools.partial(functools.reduce, tf.minimum),
}


def reduce(xs: Sequence[Any], reduction: str = "SUM") -> Any:
    """One tensor, the elementwise "SUM", "MAX" or "MIN" of tensors of one shape.

    Raises:
      ValueError: the reduction is not one of these.
    """
    if reduction not in _REDUCTIONS:
        raise ValueError(f"reduction {reduction!r} is not known; use one of {sorted(_REDUCTIONS)}")
    return _REDUCTIONS[reduction](list(xs)) if len(xs) > 1 else xs[0]


def allreduce(xs: Sequence[Any], devices: Sequence[str], reduction: str = "SUM") -> list[Any]:
    """Every processor gets the reduction of all. It is computed once, so that all get the same bits.

    Args:
      xs: one tensor per processor, all of one shape.
      devices: one device per processor.
      reduction: "SUM", "MAX" or "MIN".
    """
    if len(xs) == 1:
        return list(xs)
    with tf.device(devices[0]):
        total = reduce(xs, reduction)
    return [total, *(_copy(total, device) for device in devices[1:])]


def _copy(x: Any, device: str) -> Any:
    with tf.device(device):
        return tf.identity(x)


def cut(x: Any, begin: Sequence[int], size: Sequence[int]) -> Any:
    """The box [begin, begin + size) of a tensor; the tensor itself where that is all of it."""
    return x if x.shape.rank is not None and x.shape.as_list() == list(size) else tf.slice(x, begin, size)


def reshape(x: Any, shape: Sequence[int]) -> Any:
    """tf.reshape; the tensor itself where it has that shape."""
    return x if x.shape.as_list() == list(shape) else tf.reshape(x, shape)


def join(pieces: Sequence[Any], grid: Sequence[int]) -> Any:
    """Concatenates pieces, in row-major order over `grid`, along every dimension."""
    pieces = list(pieces)
    for axis in reversed(range(len(grid))):
        count = grid[axis]
        if count > 1:
            pieces = [tf.concat(pieces[i : i + count], axis) for i in range(0, len(pieces), count)]
    return pieces[0]


def move(xs: Sequence[Any], devices: Sequence[str], moves: Sequence[Any]) -> list[Any]:
    """Rearranges slices as planned by `mtf_hetero.blocks`: only pieces that a processor lacks travel to it.

    Args:
      xs: one tensor per processor.
      devices: one device per processor.
      moves: one `blocks.Move` per processor.
    """
    piece_of = _cutter(xs, devices)
    results = []
    for device, plan in zip(devices, moves, strict=True):
        with tf.device(device):
            results.append(_reshaped(join([piece_of(piece) for piece in plan.pieces], plan.grid), plan))
    return results


def fetch(xs: Sequence[Any], devices: Sequence[str], windows: Sequence[Any]) -> list[Any]:
    """Gives each processor a box of a tensor, as planned by `mtf_hetero.blocks`: a halo exchange, for instance.

    Args:
      xs: one tensor per processor.
      devices: one device per processor.
      windows: one `blocks.Window` per processor, or None for a processor that needs nothing.

    Returns:
      One tensor per processor, or None.
    """
    piece_of = _cutter(xs, devices)
    results = []
    for x, device, window in zip(xs, devices, windows, strict=True):
        y = None
        if window is not None:
            with tf.device(device):
                if not window.pieces:
                    y = tf.zeros(window.size, x.dtype)
                else:
                    y = join([piece_of(piece) for piece in window.pieces], window.grid)
                    y = tf.pad(y, window.padding) if any(map(any, window.padding)) else y
        results.append(y)
    return results


def _reshaped(x: Any, plan: Any) -> Any:
    """The last steps of a `blocks.Move`, once its pieces are joined."""
    for shape, begin, size in plan.reshapes:
        x = cut(reshape(x, shape), begin, size)
    return x


def _cutter(xs: Sequence[Any], devices: Sequence[str]) -> Callable[[Any], Any]:
    """A function that cuts a piece out where it is; the same piece is cut once, whoever needs it."""

    @functools.cache
    def piece_of(piece: Any) -> Any:
        with tf.device(devices[piece.source]):
            return cut(xs[piece.source], piece.begin, piece.size)

    return piece_of


def reduce_scatter(xs: Sequence[Any], devices: Sequence[str], moves: Sequence[Any]) -> list[Any]:
    """Every processor gets its part of the sum of all: each cuts its addend to that part before it is sent.

    Args:
      xs: one tensor per processor, all of one shape.
      devices: one device per processor.
      moves: one `blocks.Move` per processor, made of one piece; the piece is cut from every addend.
    """
    results = []
    for device, plan in zip(devices, moves, strict=True):
        (piece,) = plan.pieces
        addends = []
        for x, source in zip(xs, devices, strict=True):
            with tf.device(source):
                addends.append(cut(x, piece.begin, piece.size))
        with tf.device(device):
            results.append(_reshaped(reduce(addends), plan))
    return results
