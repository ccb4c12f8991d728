"""What `mtf_hetero.collectives` would make, as values of a sketch."""

import functools
import math
from collections.abc import Callable, Collection, Mapping, Sequence

from mtf_hetero import blocks, collectives
from mtf_hetero._compat import tf
from mtf_hetero.blocks import Interval, Move, Piece, Window
from mtf_hetero.layout import Dim
from mtf_hetero.planner.transfers.sketch import Sketch, Sum, Value, Values, is_rounded

Halo = list[tuple[list[Interval], Value]]  # as mtf_hetero.lowering.halo.Halo


def _pack(sketch: Sketch, x: Value, processor: int, wire_dtype: tf.DType | None) -> Value:
    if wire_dtype is None or not is_rounded(x.dtype, wire_dtype):
        return x
    return sketch.value(processor, x.shape, wire_dtype, [x])


def _unpack(sketch: Sketch, x: Value, processor: int, dtype: tf.DType) -> Value:
    return x if x.dtype == dtype else sketch.value(processor, x.shape, dtype, [x])


def _cut(sketch: Sketch, x: Value, processor: int, size: tuple[int, ...]) -> Value:
    return x if x.shape == size else sketch.value(processor, size, x.dtype, [x])


def _wire_between(sketch: Sketch, processors: Sequence[int]) -> tf.DType | None:
    return None if sketch.share_memory(processors) else sketch.wire_dtype


def _cutter(sketch: Sketch, xs: Values, wire_dtype: tf.DType | None) -> Callable[[Piece], Value]:
    @functools.cache
    def piece_of(piece: Piece) -> Value:
        part = _cut(sketch, xs[piece.source], piece.source, piece.size)
        return sketch.times(_pack(sketch, part, piece.source, wire_dtype), piece.count)

    return piece_of


@functools.lru_cache(maxsize=2**12)
def _parts_to_reduce(
    elements: int, shares: tuple[float, ...], absent: tuple[int, ...], counts: tuple[int, ...]
) -> tuple[int, ...]:
    """As `collectives.parts_to_reduce`, of one of each that stands for so many: about, where these are more."""
    if max(counts) == 1:
        return collectives.parts_to_reduce(elements, shares, absent)
    present = collectives.present_of(range(len(shares)), absent)
    total = math.fsum(shares[number] * counts[number] for number in present)
    return tuple(round(elements * share / total) if number in present else 0 for number, share in enumerate(shares))


def allreduce(sketch: Sketch, xs: Values, axes: Sequence[int], operation: str, absent: Collection[int] = ()) -> Values:
    """The reduction of what processors have that differ in some mesh axes alone.

    Args:
      sketch: the Sketch.
      xs: one value per processor.
      axes: indices of mesh axes.
      operation: name of the mtf operation that causes it.
      absent: the processors whose addends to a sum are known to be zeros.
    """
    if not axes:
        return xs
    before, sketch.operation = sketch.operation, operation
    results = list(xs)
    for group in sketch.groups(axes):
        places, shares = collectives.absent_within(absent, group), sketch.layout.weights_within(axes)
        reduced = _allreduce(sketch, [xs[pnum] for pnum in group], group, shares, places)
        for pnum, y in zip(group, reduced, strict=True):
            results[pnum] = y
    sketch.operation = before
    return results


def _allreduce(
    sketch: Sketch, xs: Values, group: Sequence[int], shares: Sequence[float], absent: Collection[int]
) -> Values:
    (shape, dtype), wire = (xs[0].shape, xs[0].dtype), sketch.wire_dtype
    present = collectives.present_of(range(len(group)), absent)
    way = _way(sketch, xs[0], group, present)
    first, addends = group[present[0]], [xs[number] for number in present]
    if way is collectives.Way.KEEP:
        return xs
    if way is collectives.Way.SHARE:
        return [added(sketch, addends, first)] * len(group)
    if way is collectives.Way.DIVIDE:
        parts = _parts_to_reduce(
            math.prod(shape), tuple(shares), tuple(absent), tuple(sketch.counts[pnum] for pnum in group)
        )
        return _divide(sketch, xs, group, {number: parts[number] for number in present})
    packed = [_pack(sketch, xs[number], group[number], wire) for number in present]
    if way is collectives.Way.EXCHANGE:
        return [sketch.value(pnum, shape, dtype, packed) for pnum in group]
    total = _pack(sketch, added(sketch, [addends[0], *packed[1:]], first), first, wire)
    own = _unpack(sketch, total, first, dtype)
    return [own if pnum == first else sketch.value(pnum, shape, dtype, [total]) for pnum in group]


def _way(sketch: Sketch, x: Value, group: Sequence[int], present: Sequence[int]) -> collectives.Way:
    """As `collectives.way_to_reduce`; the present processors are those places in the group."""
    count = sum(sketch.counts[pnum] for pnum in group)
    idle = count - sum(sketch.counts[group[number]] for number in present)
    in_memory = sketch.share_memory(group)
    return collectives.way_to_reduce(math.prod(x.shape), x.dtype.size, count, absent=range(idle), in_memory=in_memory)


def join(sketch: Sketch, xs: Values, axes: Sequence[int], absent: Collection[int]) -> Values:
    """As `UnevenMeshImpl.join`: one of the present processors makes it of all slices, or both of two do."""
    results = list(xs)
    for group in sketch.groups(axes) if axes else ():
        places = collectives.present_of(range(len(group)), collectives.absent_within(absent, group))
        present = [group[number] for number in places]
        slices, shape, dtype = [xs[pnum] for pnum in present], xs[present[0]].shape, xs[present[0]].dtype
        if _way(sketch, slices[0], group, places) is collectives.Way.EXCHANGE:
            joint = [added(sketch, slices, pnum) for pnum in group]
        else:
            joint = [added(sketch, slices, present[0])] * len(group)
        for pnum, total in zip(group, joint, strict=True):
            results[pnum] = sketch.value(pnum, shape, dtype, [total])
    return results


def added(sketch: Sketch, addends: Values, processor: int) -> Value:
    """What a processor makes of addends: of one alone, nothing else."""
    first = addends[0]
    if len(addends) == 1:
        return first
    return sketch.value(processor, first.shape, first.dtype, map(sketch.of_all, addends))


def _divide(sketch: Sketch, xs: Values, group: Sequence[int], parts_of: Mapping[int, int]) -> Values:
    shape, dtype, sizes = xs[0].shape, xs[0].dtype, parts_of.values()
    sent_dtype = sketch.wire_dtype if is_rounded(dtype, sketch.wire_dtype) else dtype
    counts = {number: sketch.counts[group[number]] for number in parts_of}
    parts = [
        [sketch.value(group[number], (size,), sent_dtype, [xs[number]], count=counts[number]) for size in sizes]
        for number in parts_of
    ]
    totals = [
        sketch.value(group[number], (size,), sent_dtype, [split[i] for split in parts], count=counts[number])
        for i, (number, size) in enumerate(parts_of.items())
    ]
    return [sketch.value(pnum, shape, dtype, totals) for pnum in group]


def _joined(
    sketch: Sketch, pieces: Values, processor: int, size: tuple[int, ...], dtype: tf.DType, *, changed: bool
) -> Value:
    """What is put together of pieces: a single one itself, unless it is changed."""
    return pieces[0] if len(pieces) == 1 and not changed else sketch.value(processor, size, dtype, pieces)


def _is_changed(size: tuple[int, ...], plan: Move) -> bool:
    """Whether the last steps of a Move do anything to what was joined."""
    return any(tuple(shape) != size or tuple(part) != size for shape, _, part in plan.reshapes)


def move(sketch: Sketch, xs: Values, moves: Sequence[Move]) -> Values:
    """Rearranges slices."""
    wire = _wire_between(sketch, sketch.processors)
    if all(plan.is_local(pnum) for pnum, plan in enumerate(moves)):
        wire = None
    piece_of = _cutter(sketch, xs, wire)
    results = []
    for pnum, plan in enumerate(moves):
        dtype, size = xs[pnum].dtype, tuple(plan.size)
        pieces = [_unpack(sketch, piece_of(piece), pnum, dtype) for piece in plan.pieces]
        changed = bool(pieces) and _is_changed(plan.pieces[0].size, plan)
        results.append(_joined(sketch, pieces, pnum, size, dtype, changed=changed))
    return results


def fetch(sketch: Sketch, xs: Values, windows: Sequence[Window | None]) -> list[Value | None]:
    """Gives each processor a box of a tensor, or None where it needs nothing."""
    wire = _wire_between(sketch, sketch.processors)
    local = _cutter(sketch, xs, None)
    sent = local if wire is None else _cutter(sketch, xs, wire)
    results: list[Value | None] = []
    for pnum, window in enumerate(windows):
        if window is None:
            results.append(None)
            continue
        dtype = xs[pnum].dtype
        pieces = [(local if piece.source == pnum else sent)(piece) for piece in window.pieces]
        pieces = [_unpack(sketch, piece, pnum, dtype) for piece in pieces]
        changed = any(map(any, window.padding))
        results.append(_joined(sketch, pieces, pnum, tuple(window.size), dtype, changed=changed))
    return results


def fetch_boxes(
    sketch: Sketch, xs: Values, shape: Sequence[Dim], boxes: Sequence[Sequence[Interval] | None]
) -> list[Value | None]:
    """As `fetch`, of boxes of a tensor of this shape."""
    return fetch(sketch, xs, blocks.plan_windows(sketch.layout, shape, boxes))


def halos(sketch: Sketch, xs: Values, shape: Sequence[Dim], box_of: Callable[[int], Sequence[Interval]]) -> list[Halo]:
    """What each processor lacks of a box of a tensor. A piece that several operations need is sent once."""
    cut_out = _cutter(sketch, xs, _wire_between(sketch, sketch.processors))
    results = []
    for pnum in sketch.processors:
        lacking: Halo = []
        for piece in blocks.plan_window(sketch.layout, shape, box_of(pnum), pnum).pieces:
            if piece.source != pnum:
                key = (xs[piece.source], piece.begin, piece.size, piece.count)
                if key not in sketch.sent:
                    sketch.sent[key] = cut_out(piece)
                received = _unpack(sketch, sketch.sent[key], pnum, xs[pnum].dtype)
                lacking.append((blocks.place(sketch.layout, shape, piece), received))
        results.append(lacking)
    return results


def reduce_scatter(sketch: Sketch, total: Sum, moves: Sequence[Move | None]) -> list[Value | None]:
    """Every processor gets its part of an outstanding sum."""
    xs = total.partial
    results: list[Value | None] = [None] * len(xs)
    for group in sketch.groups(total.axes):
        wire, present = _wire_between(sketch, group), collectives.present_of(group, total.absent)
        for pnum in group:
            plan, dtype = moves[pnum], xs[pnum].dtype
            if plan is None:
                continue
            addends = [
                sketch.of_all(_pack(sketch, _cut(sketch, xs[source], source, plan.pieces[0].size), source, wire))
                for source in (present if plan.pieces else ())
            ]
            addends = [_unpack(sketch, addend, pnum, dtype) for addend in addends]
            size = plan.size if plan.reshapes else plan.pieces[0].size
            changed = bool(addends) and _is_changed(plan.pieces[0].size, plan)
            results[pnum] = _joined(sketch, addends, pnum, tuple(size), dtype, changed=changed)
    return results
