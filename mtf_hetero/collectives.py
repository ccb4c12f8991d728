"""Communication between processors: functions from one tf.Tensor per processor to one tf.Tensor per processor.

Nothing here knows of a mesh, and no slice need be as large as another. TensorFlow sends a tensor when an operation on
one device reads an operation on another, so where an operation is placed decides what travels: pieces are cut out on
the device that holds them.
"""

import enum
import functools
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from mtf_hetero._compat import tf
from mtf_hetero._support.ops import concat, constant, cut, pad, reshape, zeros
from mtf_hetero.blocks import Move, Piece, Window
from mtf_hetero.cluster.devices import complete
from mtf_hetero.partition import split_among_positive

# Of a tensor, up to which one processor sums for all of them: a message costs as much as some hundred kilobytes
SMALL_BYTES = 2**18

_REDUCTIONS = {
    "SUM": tf.add_n,
    "MAX": functools.partial(functools.reduce, tf.maximum),
    "MIN": functools.partial(functools.reduce, tf.minimum),
}


def reduce(xs: Sequence[tf.Tensor], reduction: str = "SUM") -> tf.Tensor:
    """One tensor, the elementwise "SUM", "MAX" or "MIN" of tensors of one shape.

    Raises:
      ValueError: the reduction is not one of these.
    """
    if reduction not in _REDUCTIONS:
        raise ValueError(f"unknown reduction {reduction!r}; use one of {sorted(_REDUCTIONS)}")
    return _REDUCTIONS[reduction](list(xs)) if len(xs) > 1 else xs[0]


class Way(enum.Enum):
    """How processors get the reduction of what they have."""

    KEEP = enum.auto()  # there is nothing to do
    SHARE = enum.auto()  # the first computes it, and the others read it
    EXCHANGE = enum.auto()  # both send theirs, and both compute it
    COLLECT = enum.auto()  # the first collects all, and sends the result; one that has the only addend sends that
    DIVIDE = enum.auto()  # each computes a part, and sends that to the others


def present_of(group: Sequence[int], absent: Collection[int]) -> list[int]:
    """Those of a group of processors whose addends are added up: all but the absent ones; all, if all are absent."""
    return [pnum for pnum in group if pnum not in absent] or list(group)


def absent_within(absent: Collection[int], group: Sequence[int]) -> list[int]:
    """Those of a group of processors that are absent, by their places in the group."""
    return [number for number, pnum in enumerate(group) if pnum in absent]


def way_to_reduce(
    elements: int, item_bytes: int, count: int, *, absent: Collection[int] = (), in_memory: bool = False
) -> Way:
    """How `allreduce` goes about it.

    Args:
      elements: of the tensor.
      item_bytes: of one element.
      count: processors.
      absent: as in `allreduce`.
      in_memory: whether they share one memory.
    """
    if count == 1 or elements == 0:
        return Way.KEEP
    if in_memory:
        return Way.SHARE
    if len(present_of(range(count), absent)) == 1:
        return Way.COLLECT
    if count == 2:
        return Way.EXCHANGE
    return Way.COLLECT if elements * item_bytes <= SMALL_BYTES else Way.DIVIDE


def parts_to_reduce(elements: int, shares: Sequence[float], absent: Collection[int] = ()) -> tuple[int, ...]:
    """How many elements of a tensor each processor sums up, where they divide it; the absent ones none."""
    present = present_of(range(len(shares)), absent)
    weights = [share if number in present else 0 for number, share in enumerate(shares)]
    return split_among_positive(elements, weights, minimum=0)


def allreduce(
    xs: Sequence[tf.Tensor],
    devices: Sequence[str],
    reduction: str = "SUM",
    *,
    shares: Sequence[float] | None = None,
    wire_dtype: tf.DType | None = None,
    absent: Collection[int] = (),
) -> list[tf.Tensor]:
    """Every processor gets the reduction of all, and all get the same bits.

    How, follows from where the devices are, how many there are, and how much there is to send:

    * Devices of one memory: the first computes it, and the others read it.
    * Two devices: each sends its own to the other, both ways at once, and both compute it.
    * More devices, up to SMALL_BYTES: the first collects all and sends the result: the fewest messages.
    * More devices, more bytes: each computes a part, as large as its share, and sends that to the others, so that no
      device has to carry it all, and a slow one carries little.

    An absent processor sends nothing and adds nothing up: it reads the result. Where one alone is present, what that
    has is the result.

    Args:
      xs: one tensor per processor, all of one shape.
      devices: one device per processor.
      reduction: "SUM", "MAX" or "MIN".
      shares: one weight per processor, none negative: how much of the work each does; None: equal weights.
      wire_dtype: the type to which floating-point numbers are rounded before they are sent; None: they are not.
      absent: the processors, by their places, whose addends to a sum are known to be zeros.
    """
    elements, count, in_memory = xs[0].shape.num_elements(), len(xs), share_memory(devices)
    way = way_to_reduce(elements, xs[0].dtype.size, count, absent=absent, in_memory=in_memory)
    present = present_of(range(count), absent)
    if way is Way.KEEP:
        return list(xs)
    if way is Way.SHARE:
        with tf.device(devices[present[0]]):
            return [reduce([xs[number] for number in present], reduction)] * count
    if way is Way.EXCHANGE:
        return _exchange(xs, devices, reduction, wire_dtype)
    if way is Way.COLLECT:
        return _collect(xs, devices, reduction, wire_dtype, present)
    parts = parts_to_reduce(elements, shares or [1] * count, absent)
    return _divide(xs, devices, reduction, {number: parts[number] for number in present}, wire_dtype)


def _exchange(
    xs: Sequence[tf.Tensor], devices: Sequence[str], reduction: str, wire_dtype: tf.DType | None
) -> list[tf.Tensor]:
    packed = _pack_all(xs, devices, wire_dtype)
    results = []
    for device in devices:
        with tf.device(device):
            results.append(reduce([_unpack(part, xs[0].dtype) for part in packed], reduction))
    return results


def _collect(
    xs: Sequence[tf.Tensor],
    devices: Sequence[str],
    reduction: str,
    wire_dtype: tf.DType | None,
    present: Sequence[int],
) -> list[tf.Tensor]:
    (first, *others), dtype = present, xs[0].dtype
    packed = _pack_all([xs[number] for number in others], [devices[number] for number in others], wire_dtype)
    with tf.device(devices[first]):
        total = _pack(reduce([xs[first], *(_unpack(part, dtype) for part in packed)], reduction), wire_dtype)
        own = _unpack(total, dtype)
    results = []
    for number, device in enumerate(devices):
        with tf.device(device):
            results.append(own if number == first else _unpack(tf.identity(total), dtype))
    return results


def _divide(
    xs: Sequence[tf.Tensor],
    devices: Sequence[str],
    reduction: str,
    parts_of: Mapping[int, int],
    wire_dtype: tf.DType | None,
) -> list[tf.Tensor]:
    """Those who are in `parts_of` sum up so many elements each."""
    shape, dtype, sizes = xs[0].shape.as_list(), xs[0].dtype, list(parts_of.values())
    parts = []  # of each processor, one for each other
    for number in parts_of:
        with tf.device(devices[number]):
            split = tf.split(reshape(xs[number], [-1]), constant(sizes), constant(0))
            parts.append([_pack(part, wire_dtype) for part in split])
    totals = []
    for i, number in enumerate(parts_of):
        with tf.device(devices[number]):
            totals.append(_pack(reduce([_unpack(split[i], dtype) for split in parts], reduction), wire_dtype))
    results = []
    for device in devices:
        with tf.device(device):
            results.append(reshape(concat([_unpack(total, dtype) for total in totals], 0), shape))
    return results


def share_memory(devices: Sequence[str]) -> bool:
    """Whether the devices are CPUs of one process, so that nothing has to be sent between them."""
    completed = complete(devices).values()
    return all(device.is_cpu for device in completed) and len({device.process for device in completed}) == 1


def _pack(x: tf.Tensor, wire_dtype: tf.DType | None) -> tf.Tensor:
    """A tensor as it is sent: rounded where that makes it smaller."""
    if wire_dtype is None or not x.dtype.is_floating or x.dtype.size <= wire_dtype.size:
        return x
    return tf.cast(x, wire_dtype)


def _pack_all(xs: Sequence[tf.Tensor], devices: Sequence[str], wire_dtype: tf.DType | None) -> list[tf.Tensor]:
    packed = []
    for x, device in zip(xs, devices, strict=True):
        with tf.device(device):
            packed.append(_pack(x, wire_dtype))
    return packed


def _unpack(x: tf.Tensor, dtype: tf.DType) -> tf.Tensor:
    return x if x.dtype == dtype else tf.cast(x, dtype)


def _wire_between(devices: Sequence[str], wire_dtype: tf.DType | None) -> tf.DType | None:
    """The type to which numbers are rounded between these devices; None where nothing is sent."""
    return None if wire_dtype is None or share_memory(devices) else wire_dtype


def join(pieces: Sequence[tf.Tensor], grid: Sequence[int]) -> tf.Tensor:
    """Concatenates pieces, in row-major order over `grid`, along every dimension."""
    pieces = list(pieces)
    for axis in reversed(range(len(grid))):
        count = grid[axis]
        if count > 1:
            pieces = [concat(pieces[i : i + count], axis) for i in range(0, len(pieces), count)]
    return pieces[0]


def move(
    xs: Sequence[tf.Tensor], devices: Sequence[str], moves: Sequence[Move], wire_dtype: tf.DType | None = None
) -> list[tf.Tensor]:
    """Rearranges slices as planned by `mtf_hetero.blocks`: only pieces that a processor lacks travel to it.

    Args:
      xs: one tensor per processor.
      devices: one device per processor.
      moves: one `blocks.Move` per processor.
      wire_dtype: as in `allreduce`. Where one piece is rounded all are, so that copies of a slice stay equal.
    """
    wire_dtype = _wire_between(devices, wire_dtype)
    if wire_dtype is not None and all(plan.is_local(pnum) for pnum, plan in enumerate(moves)):
        wire_dtype = None
    piece_of = _cutter(xs, devices, wire_dtype)
    results = []
    for x, device, plan in zip(xs, devices, moves, strict=True):
        with tf.device(device):
            if not plan.pieces:
                results.append(zeros(plan.size, x.dtype))
                continue
            pieces = [_unpack(piece_of(piece), x.dtype) for piece in plan.pieces]
            results.append(_reshaped(join(pieces, plan.grid), plan))
    return results


def fetch(
    xs: Sequence[tf.Tensor],
    devices: Sequence[str],
    windows: Sequence[Window | None],
    wire_dtype: tf.DType | None = None,
) -> list[tf.Tensor | None]:
    """Gives each processor a box of a tensor, as planned by `mtf_hetero.blocks`: a halo exchange, for instance.

    Args:
      xs: one tensor per processor.
      devices: one device per processor.
      windows: one `blocks.Window` per processor, or None for a processor that needs nothing.
      wire_dtype: as in `allreduce`; what a processor has itself is not rounded.

    Returns:
      One tensor per processor, or None.
    """
    local = _cutter(xs, devices, None)
    wire_dtype = _wire_between(devices, wire_dtype)
    sent = local if wire_dtype is None else _cutter(xs, devices, wire_dtype)
    results = []
    for pnum, (x, device, window) in enumerate(zip(xs, devices, windows, strict=True)):
        y = None
        if window is not None:
            with tf.device(device):
                if not window.pieces:
                    y = zeros(window.size, x.dtype)
                else:
                    pieces = [(local if piece.source == pnum else sent)(piece) for piece in window.pieces]
                    y = join([_unpack(piece, x.dtype) for piece in pieces], window.grid)
                    y = pad(y, window.padding)
        results.append(y)
    return results


def receive(
    xs: Sequence[tf.Tensor],
    devices: Sequence[str],
    windows: Sequence[Window],
    wire_dtype: tf.DType | None = None,
    sent: Any = None,
) -> list[list[tuple[Any, Any]]]:
    """The pieces that each processor lacks of a box, as they come: a halo that is not joined to the slice.

    Args:
      xs: one tensor per processor.
      devices: one device per processor.
      windows: one `blocks.Window` per processor.
      wire_dtype: as in `allreduce`.
      sent: a dict for what is sent, {}; with the same one, a piece that is received again is not sent again.

    Returns:
      (blocks.Piece, tensor) of each, per processor.
    """
    wire_dtype = _wire_between(devices, wire_dtype)
    cut_out = _cutter(xs, devices, wire_dtype)
    sent = {} if sent is None else sent
    results = []
    for pnum, (device, window) in enumerate(zip(devices, windows, strict=True)):
        lacking = []
        for piece in window.pieces:
            if piece.source != pnum:
                key = (xs[piece.source].ref(), piece.begin, piece.size)
                if key not in sent:
                    sent[key] = cut_out(piece)
                with tf.device(device):
                    lacking.append((piece, _unpack(sent[key], xs[0].dtype)))
        results.append(lacking)
    return results


def _reshaped(x: tf.Tensor, plan: Move) -> tf.Tensor:
    """The last steps of a `blocks.Move`, once its pieces are joined."""
    for shape, begin, size in plan.reshapes:
        x = cut(reshape(x, shape), begin, size)
    return x


def _cutter(
    xs: Sequence[tf.Tensor], devices: Sequence[str], wire_dtype: tf.DType | None
) -> Callable[[Piece], tf.Tensor]:
    """A function that cuts a piece out where it is, as it is sent; the same piece is cut once, whoever needs it."""

    @functools.cache
    def piece_of(piece: Piece) -> tf.Tensor:
        with tf.device(devices[piece.source]):
            return _pack(cut(xs[piece.source], piece.begin, piece.size), wire_dtype)

    return piece_of


def reduce_scatter(
    xs: Sequence[tf.Tensor],
    devices: Sequence[str],
    moves: Sequence[Move | None],
    wire_dtype: tf.DType | None = None,
    absent: Collection[int] = (),
) -> list[tf.Tensor | None]:
    """Every processor gets its part of the sum of all: each cuts its addend to that part before it is sent.

    Args:
      xs: one tensor per processor, all of one shape.
      devices: one device per processor.
      moves: one `blocks.Move` per processor, made of one piece, which is cut from every addend, or of none where the
        slice is empty; or None for a processor that needs nothing.
      wire_dtype: as in `allreduce`.
      absent: as in `allreduce`.

    Returns:
      One tensor per processor, or None.
    """
    wire_dtype, present = _wire_between(devices, wire_dtype), present_of(range(len(xs)), absent)
    results = []
    for device, plan in zip(devices, moves, strict=True):
        if plan is None:
            results.append(None)
            continue
        if not plan.pieces:
            with tf.device(device):
                results.append(zeros(plan.size, xs[0].dtype))
            continue
        (piece,) = plan.pieces
        addends = []
        for number in present:
            with tf.device(devices[number]):
                addends.append(_pack(cut(xs[number], piece.begin, piece.size), wire_dtype))
        with tf.device(device):
            results.append(_reshaped(reduce([_unpack(addend, xs[0].dtype) for addend in addends]), plan))
    return results
