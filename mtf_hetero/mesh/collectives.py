"""Communication between processors: functions from one tf.Tensor per processor to one tf.Tensor per processor.

Nothing here knows of a mesh, and no slice need be as large as another. TensorFlow sends a tensor when an operation on
one device reads an operation on another, so where an operation is placed decides what travels: pieces are cut out on
the device that holds them.
"""

import enum
import functools
import math
from collections.abc import Callable, Collection, Hashable, Iterable, Sequence
from typing import TypeVar

from mtf_hetero._compat import tf
from mtf_hetero._support.alike import join_slot
from mtf_hetero._support.ops import concat, constant, cut, pad, reshape, zeros
from mtf_hetero.cluster.devices import complete
from mtf_hetero.layout.blocks import Move, Piece, Window
from mtf_hetero.layout.partition import split_among_positive

T = TypeVar("T")
# Of a tensor, up to which one processor sums for all of them: a message costs as much as some hundred kilobytes
SMALL_BYTES = 2**18

_REDUCTIONS = {
    "SUM": tf.add_n,
    "MAX": functools.partial(functools.reduce, tf.maximum),
    "MIN": functools.partial(functools.reduce, tf.minimum),
}


def reduce(xs: Sequence[tf.Tensor], reduction: str = "SUM") -> tf.Tensor:
    """Return the element-wise "SUM", "MAX" or "MIN" of tensors of one shape.

    Raises:
      ValueError: the reduction is not one of these.
    """
    if reduction not in _REDUCTIONS:
        raise ValueError(f"unknown reduction {reduction!r}; use one of {sorted(_REDUCTIONS)}")
    return _REDUCTIONS[reduction](list(xs)) if len(xs) > 1 else xs[0]


class Way(enum.Enum):
    """Ways in which devices get a reduction."""

    KEEP = enum.auto()  # there is nothing to do
    SHARE = enum.auto()  # the first computes it, and the others read it
    EXCHANGE = enum.auto()  # both send theirs, and both compute it
    COLLECT = enum.auto()  # the first collects all, and sends the result
    DIVIDE = enum.auto()  # each computes a part, and sends that to the others


def present_processors(group: Sequence[int], absent: Collection[int]) -> list[int]:
    """Return the processors of a group whose addends are summed: all but the absent ones, or all if all are absent."""
    return [pnum for pnum in group if pnum not in absent] or list(group)


def absent_within(absent: Collection[int], group: Sequence[int]) -> list[int]:
    """Return the places in a group of the processors that are absent."""
    return [number for number, pnum in enumerate(group) if pnum in absent]


def group_by_device(devices: Sequence[T], numbers: Iterable[int]) -> dict[T, list[int]]:
    """Return {device: those of the processors, given by their numbers, that are its slots}."""
    of_device: dict[T, list[int]] = {}
    for number in numbers:
        of_device.setdefault(devices[number], []).append(number)
    return of_device


def way_to_reduce(elements: int, item_bytes: int, count: int, *, in_memory: bool = False) -> Way:
    """Return the way in which `allreduce` works.

    Args:
      elements: of the tensor.
      item_bytes: of one element.
      count: devices.
      in_memory: whether they share one memory.

    Example:
      >>> way_to_reduce(10**6, 4, 2).name, way_to_reduce(100, 4, 3).name, way_to_reduce(10**6, 4, 3).name
      ('EXCHANGE', 'COLLECT', 'DIVIDE')
    """
    if count == 1 or elements == 0:
        return Way.KEEP
    if in_memory:
        return Way.SHARE
    if count == 2:
        return Way.EXCHANGE
    return Way.COLLECT if elements * item_bytes <= SMALL_BYTES else Way.DIVIDE


def allreduce(
    xs: Sequence[tf.Tensor],
    devices: Sequence[str],
    reduction: str = "SUM",
    *,
    shares: Sequence[float] | None = None,
    wire_dtype: tf.DType | None = None,
    absent: Collection[int] = (),
) -> list[tf.Tensor]:
    """Give every processor the reduction of all, with the same bits.

    How, follows from where the devices are, how many there are, and how much there is to send:

    * Slots of one device: it reduces theirs one after another, and takes part once.
    * Devices of one memory: the first computes it, and the others read it.
    * Two devices: each sends its own to the other, both ways at once, and both compute it.
    * More devices, up to SMALL_BYTES: the first collects all and sends the result: the fewest messages.
    * More devices, more bytes: each computes a part, as large as its share, and sends that to the others, so that no
      device has to carry it all, and a slow one carries little.

    An absent device sends nothing and adds nothing up. Its processors have the tensor of the first that is present,
    which is sent if one of them uses it.

    Args:
      xs: one tensor per processor, all of one shape.
      devices: one device per processor.
      reduction: "SUM", "MAX" or "MIN".
      shares: one weight per processor, none negative: how much of the work each does; None: equal weights.
      wire_dtype: the type to which floating-point numbers are rounded before they are sent; None: they are not.
      absent: the processors, by their places, whose addends to a sum are known to be zeros.
    """
    of_device = group_by_device(devices, present_processors(range(len(xs)), absent))
    using, own_slots = list(of_device), [[xs[number] for number in numbers] for numbers in of_device.values()]
    own = _on_each(using, lambda slots: _reduce_slots(slots, reduction), own_slots)
    way = way_to_reduce(xs[0].shape.num_elements(), xs[0].dtype.size, len(own), in_memory=share_memory(using))
    if way is Way.SHARE:
        with tf.device(using[0]):
            own = [reduce(own, reduction)] * len(own)
    elif way is Way.EXCHANGE:
        own = _exchange(own, using, reduction, wire_dtype)
    elif way is Way.COLLECT:
        own = _collect(own, using, reduction, wire_dtype)
    elif way is Way.DIVIDE:
        weights = [sum(shares[number] if shares else 1 for number in numbers) for numbers in of_device.values()]
        own = _divide(own, using, reduction, weights, wire_dtype)
    results = dict(zip(using, own, strict=True))
    return [results.get(device, own[0]) for device in devices]


def _reduce_slots(xs: Sequence[tf.Tensor], reduction: str) -> tf.Tensor:
    """Reduce tensors of the slots of a device, each in its slot's turn, so that one total is in memory."""
    total = xs[0]
    for x in xs[1:]:
        total = reduce([total, x], reduction)
        join_slot(total.op, x.op)
    return total


def _exchange(
    xs: Sequence[tf.Tensor], devices: Sequence[str], reduction: str, wire_dtype: tf.DType | None
) -> list[tf.Tensor]:
    packed = _pack_all(xs, devices, wire_dtype)
    return _on_each(devices, lambda: reduce([_unpack(part, xs[0].dtype) for part in packed], reduction))


def _collect(
    xs: Sequence[tf.Tensor], devices: Sequence[str], reduction: str, wire_dtype: tf.DType | None
) -> list[tf.Tensor]:
    dtype = xs[0].dtype
    packed = _pack_all(xs[1:], devices[1:], wire_dtype)
    with tf.device(devices[0]):
        total = _pack(reduce([xs[0], *(_unpack(part, dtype) for part in packed)], reduction), wire_dtype)
        own = _unpack(total, dtype)
    return [own, *_on_each(devices[1:], lambda: _unpack(tf.identity(total), dtype))]


def _divide(
    xs: Sequence[tf.Tensor],
    devices: Sequence[str],
    reduction: str,
    shares: Sequence[float],
    wire_dtype: tf.DType | None,
) -> list[tf.Tensor]:
    """Have each device sum as many elements as its share says.

    Example:
      The first of three devices sums twice as many elements as each of the others.
        addends   0: aabc   1: aabc   2: aabc
        sums      0: AA     1: B      2: C        each letter is sent to the one that sums it
        results   0: AABC   1: AABC   2: AABC     each sum is sent to the others
    """
    shape, dtype = xs[0].shape.as_list(), xs[0].dtype
    sizes = list(split_among_positive(math.prod(shape), shares, minimum=0))

    def split(x: tf.Tensor) -> list[tf.Tensor]:
        parts = tf.split(reshape(x, [-1]), constant(sizes), constant(0))
        return [_pack(part, wire_dtype) for part in parts]

    def add_up(*parts: tf.Tensor) -> tf.Tensor:
        return _pack(reduce([_unpack(part, dtype) for part in parts], reduction), wire_dtype)

    totals = _on_each(devices, add_up, *_on_each(devices, split, xs))
    return _on_each(devices, lambda: reshape(concat([_unpack(total, dtype) for total in totals], 0), shape))


def share_memory(devices: Sequence[str]) -> bool:
    """Return whether the devices are CPUs of one process, so that nothing has to be sent between them."""
    completed = complete(devices).values()
    return all(device.is_cpu for device in completed) and len({device.process for device in completed}) == 1


def _pack(x: tf.Tensor, wire_dtype: tf.DType | None) -> tf.Tensor:
    """Return a tensor as it is sent: rounded where that makes it smaller."""
    if wire_dtype is None or not x.dtype.is_floating or x.dtype.size <= wire_dtype.size:
        return x
    return tf.cast(x, wire_dtype)


def _pack_all(xs: Sequence[tf.Tensor], devices: Sequence[str], wire_dtype: tf.DType | None) -> list[tf.Tensor]:
    return _on_each(devices, lambda x: _pack(x, wire_dtype), xs)


def _on_each(devices: Sequence[str], make: Callable[..., T], *values: Sequence[object]) -> list[T]:
    """Call a function on each device, with an argument of each list of values."""
    results = []
    for device, *own in zip(devices, *values, strict=True):
        with tf.device(device):
            results.append(make(*own))
    return results


def _unpack(x: tf.Tensor, dtype: tf.DType) -> tf.Tensor:
    return x if x.dtype == dtype else tf.cast(x, dtype)


def _wire_between(devices: Sequence[str], wire_dtype: tf.DType | None) -> tf.DType | None:
    """Return the type to which numbers are rounded between these devices; None where nothing is sent."""
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
    """Rearranges slices as planned by `mtf_hetero.layout.blocks`: only pieces that a processor lacks travel to it.

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

    def make(x: tf.Tensor, plan: Move) -> tf.Tensor:
        if not plan.pieces:
            return zeros(plan.size, x.dtype)
        return _reshaped(join([_unpack(piece_of(piece), x.dtype) for piece in plan.pieces], plan.grid), plan)

    return _on_each(devices, make, xs, moves)


def fetch(
    xs: Sequence[tf.Tensor],
    devices: Sequence[str],
    windows: Sequence[Window | None],
    wire_dtype: tf.DType | None = None,
) -> list[tf.Tensor | None]:
    """Give each processor a box of a tensor, as planned by `mtf_hetero.layout.blocks`: a halo exchange, for instance.

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
    remote = local if wire_dtype is None else _cutter(xs, devices, wire_dtype)

    def make(pnum: int, x: tf.Tensor, window: Window | None) -> tf.Tensor | None:
        if window is None:
            return None
        if not window.pieces:
            return zeros(window.size, x.dtype)
        pieces = [(local if piece.source == pnum else remote)(piece) for piece in window.pieces]
        return pad(join([_unpack(piece, x.dtype) for piece in pieces], window.grid), window.padding)

    return _on_each(devices, make, range(len(xs)), xs, windows)


def receive(
    xs: Sequence[tf.Tensor],
    devices: Sequence[str],
    windows: Sequence[Window],
    wire_dtype: tf.DType | None = None,
    sent_pieces: dict[Hashable, tf.Tensor] | None = None,
) -> list[list[tuple[Piece, tf.Tensor]]]:
    """Return the pieces that each processor lacks of a box, as they come: a halo that is not joined to the slice.

    Args:
      xs: one tensor per processor.
      devices: one device per processor.
      windows: one `blocks.Window` per processor.
      wire_dtype: as in `allreduce`.
      sent_pieces: a dict for what is sent, {}; with the same one, a piece that is received again is not sent again.

    Returns:
      (blocks.Piece, tensor) of each, per processor.
    """
    wire_dtype = _wire_between(devices, wire_dtype)
    cut_out = _cutter(xs, devices, wire_dtype)
    sent_pieces = {} if sent_pieces is None else sent_pieces
    results = []
    for pnum, (device, window) in enumerate(zip(devices, windows, strict=True)):
        lacking = []
        for piece in window.pieces:
            if piece.source != pnum:
                key = (xs[piece.source].ref(), piece.begin, piece.size)
                if key not in sent_pieces:
                    sent_pieces[key] = cut_out(piece)
                with tf.device(device):
                    lacking.append((piece, _unpack(sent_pieces[key], xs[0].dtype)))
        results.append(lacking)
    return results


def _reshaped(x: tf.Tensor, plan: Move) -> tf.Tensor:
    """Return the last steps of a `blocks.Move`, once its pieces are joined."""
    for shape, begin, size in plan.reshapes:
        x = cut(reshape(x, shape), begin, size)
    return x


def _cutter(
    xs: Sequence[tf.Tensor], devices: Sequence[str], wire_dtype: tf.DType | None
) -> Callable[[Piece], tf.Tensor]:
    """Return a function that cuts a piece out where it is, as it is sent; the same piece is cut once."""

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
    """Give every processor its part of the sum: each addend is cut to that part before it is sent.

    Args:
      xs: one tensor per processor, all of one shape.
      devices: one device per processor.
      moves: one `blocks.Move` per processor, made of one piece, which is cut from every addend, or of none where the
        slice is empty; or None for a processor that needs nothing.
      wire_dtype: as in `allreduce`.
      absent: as in `allreduce`.

    Returns:
      One tensor per processor, or None.

    Example:
      Two processors, whose results have three columns and one column.

        addends   0: abcd   1: efgh
        sent      0 -> 1: d         1 -> 0: efg
        results   0: a+e b+f c+g    1: d+h
    """
    wire_dtype, present = _wire_between(devices, wire_dtype), present_processors(range(len(xs)), absent)
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
