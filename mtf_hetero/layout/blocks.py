"""The pieces of slices that make up each slice of another layout, as pure integer arithmetic.

A tensor of old dimensions, laid out one way, is to become a tensor of new dimensions with as many elements in the
same row-major order, laid out another way. For every target processor we work out the box of old coordinates that
covers its new slice, and which processors' slices that box overlaps: those pieces travel, and no others. A rename,
an all-gather, an all-to-all, a local slice and a flattening are all cases of it.
"""

import dataclasses
import itertools
import math
from collections.abc import Hashable, Iterable, Iterator, Sequence
from typing import NamedTuple

from mtf_hetero.layout.layout import Dim, Layout

Interval = tuple[int, int]
Box = list[Interval]  # (begin, end) per dimension


class Piece(NamedTuple):
    """A box of a processor's slice.

    Args:
      source: the processor.
      begin: where the box begins in its slice.
      size: of the box.
      place: where it begins in the tensor.
      count: of how many processors, for which `source` stands, each has such a box; 1 but of a layout that is a sample.
    """

    source: int
    begin: tuple[int, ...]
    size: tuple[int, ...]
    place: tuple[int, ...] = ()
    count: int = 1


@dataclasses.dataclass(frozen=True)
class Move:
    """The recipe of a target slice: pieces are joined, then reshaped and cut.

    Args:
      pieces: the pieces in row-major order over `grid`; none of a slice without elements.
      grid: number of pieces along each old dimension.
      reshapes: steps after joining, each a (shape, begin, size): reshape to `shape`, then cut [begin, begin + size).
      cuts: whether the new slice has fewer elements than the slice that the processor holds.
    """

    pieces: tuple[Piece, ...]
    grid: tuple[int, ...]
    reshapes: tuple[tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]], ...]

    cuts: bool

    @property
    def size(self) -> tuple[int, ...]:
        """Shape of the target slice."""
        return self.reshapes[-1][2]

    def is_local(self, pnum: int) -> bool:
        """Return whether processor `pnum` has all that it needs."""
        return all(piece.source == pnum for piece in self.pieces)


def group_dims(old: Sequence[int], new: Sequence[int]) -> list[tuple[range, range]]:
    """Pairs the smallest runs of old and new dimensions that hold the same number of elements.

    Example:
      >>> group_dims([8, 4, 4, 6], [8, 96])
      [(range(0, 1), range(0, 1)), (range(1, 4), range(1, 2))]
    """
    groups = []
    i = j = 0
    while i < len(old) or j < len(new):
        i_begin, j_begin = i, j
        old_count = new_count = 1
        if i < len(old):
            old_count, i = old[i], i + 1
        if j < len(new):
            new_count, j = new[j], j + 1
        while old_count != new_count:
            if old_count < new_count and i < len(old):
                old_count, i = old_count * old[i], i + 1
            elif new_count < old_count and j < len(new):
                new_count, j = new_count * new[j], j + 1
            else:  # tensors without elements: the rest is one pair
                i, j = len(old), len(new)
                break
        groups.append((range(i_begin, i), range(j_begin, j)))
    return groups


def aligned(old: Sequence[Dim], new: Sequence[Dim]) -> Iterator[tuple[str, str]]:
    """Pairs of names, old and new, that a reshape gives to one and the same dimension."""
    for old_range, new_range in group_dims([dim.size for dim in old], [dim.size for dim in new]):
        old_dims = [old[i] for i in old_range if old[i].size > 1]
        new_dims = [new[i] for i in new_range if new[i].size > 1]
        if len(old_dims) == len(new_dims) == 1 and old_dims[0].name != new_dims[0].name:
            yield old_dims[0].name, new_dims[0].name


def _flat_range(box: Sequence[Interval], sizes: Sequence[int]) -> Interval:
    """Return the interval of row-major indices from the first to the last element of a box.

    Example:
      >>> _flat_range([(1, 3), (2, 5)], [4, 6])  # from element (1, 2) to element (2, 4)
      (8, 17)
    """
    first = last = 0
    for (begin, end), size in zip(box, sizes, strict=True):
        first = first * size + begin
        last = last * size + end - 1
    return first, last + 1


def _cover(flat: Interval, sizes: Sequence[int]) -> tuple[Interval, ...]:
    """Return the smallest box with contiguous row-major indices that contains an interval of them.

    Example:
      >>> _cover((5, 9), [4, 6])  # elements 5 to 8 lie in two rows, so both rows are needed
      ((0, 2), (0, 6))
      >>> _cover((7, 9), [4, 6])
      ((1, 2), (1, 3))
    """
    first, last = flat[0], flat[1] - 1
    box: Box = []
    is_full = False
    inner = math.prod(sizes)
    for size in sizes:
        inner //= size
        if is_full:
            box.append((0, size))
            continue
        (i, first), (k, last) = divmod(first, inner), divmod(last, inner)
        box.append((i, k + 1))
        is_full = i != k
    return tuple(box)


def _sizes(box: Sequence[Interval]) -> tuple[int, ...]:
    return tuple(end - begin for begin, end in box)


def is_empty(box: Sequence[Interval]) -> bool:
    """Return whether there is nothing in a box."""
    return any(begin >= end for begin, end in box)


def slice_box(layout: Layout, shape: Sequence[Dim], pnum: int) -> Box:
    """Return the slice of processor `pnum`, as (begin, end) per dimension."""
    return [(begin, begin + size) for begin, size in layout.slices(shape, pnum)]


def _pieces(
    layout: Layout, shape: Sequence[Dim], need: Sequence[Interval], pnum: int
) -> tuple[tuple[Piece, ...], tuple[int, ...]]:
    """Return the pieces of the box `need` of a tensor, for processor `pnum`, and how many along each dimension.

    Where several processors hold the same slice, the one that shares the most mesh coordinates with `pnum` sends it.

    Example:
      Rows split 7 : 3 over two processors. Processor 0 needs rows 5 to 9: two of its own, and two of processor 1.

        row     0 1 2 3 4 5 6 | 7 8 9
        owner   0 0 0 0 0 0 0 | 1 1 1
        needed            x x | x x
    """
    home = layout.coordinates(pnum)
    axes = [layout.axis_of(dim) for dim in shape]
    choices: list[list[tuple[int, int, int, int]]] = []  # per dimension: (coordinate, begin in slice, size, count)
    for dim, axis, (begin, end) in zip(shape, axes, need, strict=True):
        full_range = [(0, begin, end - begin, 1)]
        choices.append(full_range if axis is None else layout.holders(dim, begin, end, pnum))
    pieces = []
    for choice in itertools.product(*choices):
        coordinates = list(home)
        for axis, (coordinate, *_) in zip(axes, choice, strict=True):
            if axis is not None:
                coordinates[axis] = coordinate
        _, begins, sizes, counts = zip(*choice, strict=True) if choice else ((), (), (), ())
        place = tuple(
            begin if axis is None else begin + layout.bounds(dim.name, dim.size)[coordinate]
            for dim, axis, (coordinate, begin, *_) in zip(shape, axes, choice, strict=True)
        )
        pieces.append(Piece(layout.pnum(coordinates), begins, sizes, place, math.prod(counts)))
    return tuple(pieces), tuple(len(c) for c in choices)


def plan_move(layout: Layout, old_shape: Sequence[Dim], new_shape: Sequence[Dim], pnum: int) -> Move:
    """Plan how a processor makes its slice of a reshaped tensor from slices of the tensor.

    Args:
      layout: where both lie.
      old_shape: dimensions with `name` and `size`.
      new_shape: dimensions with as many elements, in the same row-major order.
      pnum: the target processor.

    Example:
      >>> layout = Layout("all:2", "rows:all;flat:all", sizes={"rows": [3, 1], "flat": [4, 4]})
      >>> old, new = [mtf.Dimension("rows", 4), mtf.Dimension("columns", 2)], [mtf.Dimension("flat", 8)]
      >>> move = plan_move(layout, old, new, 1)  # elements 4 to 7 are row 2 of processor 0, and row 3 of its own
      >>> [(piece.source, piece.begin, piece.size) for piece in move.pieces], move.size
      ([(0, (2, 0), (1, 2)), (1, (0, 0), (1, 2))], (4,))
    """
    old_sizes, new_sizes = [d.size for d in old_shape], [d.size for d in new_shape]
    target = slice_box(layout, new_shape, pnum)
    cuts = math.prod(_sizes(target)) < math.prod(layout.slice_shape(old_shape, pnum))
    if is_empty(target):
        return Move((), (), (((), (), _sizes(target)),), cuts)
    need: Box = []  # box of old coordinates to bring together
    flat_shape, flat_begin, flat_size, new_cover = [], [], [], []
    for old, new in group_dims(old_sizes, new_sizes):
        old_group, new_group = [old_sizes[i] for i in old], [new_sizes[j] for j in new]
        cover = _cover(_flat_range([target[j] for j in new], new_group), new_group)
        target_range = _flat_range(cover, new_group)
        source = _cover(target_range, old_group)
        source_range = _flat_range(source, old_group)
        need += source
        new_cover += cover
        flat_shape.append(source_range[1] - source_range[0])
        flat_begin.append(target_range[0] - source_range[0])
        flat_size.append(target_range[1] - target_range[0])
    pieces, grid = _pieces(layout, old_shape, need, pnum)
    begin = tuple(t[0] - c[0] for t, c in zip(target, new_cover, strict=True))
    steps = [(_sizes(new_cover), begin, _sizes(target))]
    if flat_size != flat_shape:
        steps.insert(0, (tuple(flat_shape), tuple(flat_begin), tuple(flat_size)))
    return Move(pieces, grid, tuple(steps), cuts)


@dataclasses.dataclass(frozen=True)
class Window:
    """The recipe of a box that may reach beyond its tensor: pieces are joined, and zeros put around them.

    Args:
      pieces: the pieces in row-major order over `grid`; none where the box lies outside of the tensor.
      grid: number of pieces along each dimension.
      padding: zeros before and after, per dimension.
      size: of the box.
    """

    pieces: tuple[Piece, ...]
    grid: tuple[int, ...]
    padding: tuple[tuple[int, int], ...]
    size: tuple[int, ...]


def plan_window(layout: Layout, shape: Sequence[Dim], box: Sequence[Interval], pnum: int) -> Window:
    """Plan how a processor gets a box of a tensor: its own slice and a halo, or any other box.

    Args:
      layout: where the tensor lies.
      shape: its dimensions, with `name` and `size`.
      box: (begin, end) per dimension; beyond the tensor there are zeros.
      pnum: the processor.

    Example:
      >>> layout = Layout("all:2", "height:all", sizes={"height": [7, 3]})
      >>> window = plan_window(layout, [mtf.Dimension("height", 10)], [(-1, 8)], 0)  # its slice and a halo
      >>> [(piece.source, piece.begin, piece.size) for piece in window.pieces], window.padding
      ([(0, (0,), (7,)), (1, (0,), (1,))], ((1, 0),))
    """
    inside = [(max(begin, 0), min(end, dim.size)) for (begin, end), dim in zip(box, shape, strict=True)]
    if is_empty(inside):
        return Window((), (), (), _sizes(box))
    pieces, grid = _pieces(layout, shape, inside, pnum)
    padding = tuple((i[0] - b[0], b[1] - i[1]) for i, b in zip(inside, box, strict=True))
    return Window(pieces, grid, padding, _sizes(box))


def plan_windows(
    layout: Layout, shape: Sequence[Dim], boxes: Sequence[Sequence[Interval] | None]
) -> list[Window | None]:
    """Plan one window per processor; None for one that needs nothing."""
    return [None if box is None else plan_window(layout, shape, box, pnum) for pnum, box in enumerate(boxes)]


def place(layout: Layout, shape: Sequence[Dim], piece: Piece) -> Box:
    """Return the box of a tensor that a piece of one of its slices is."""
    begins = piece.place or map(sum, zip(layout.slice_begin(shape, piece.source), piece.begin, strict=True))
    return [(begin, begin + size) for begin, size in zip(begins, piece.size, strict=True)]


def find_users(boxes: Sequence[Hashable], places: Sequence[Hashable], holders: Iterable[int]) -> list[int]:
    """Return the processor whose slice each one uses: a holder in its own place, or else the first one with the box.

    Args:
      boxes: of each processor, where its slice begins and ends.
      places: of each processor, what its device is.
      holders: the processors that have their slices. Where none of them has a box, each processor uses its own.

    Example:
      >>> find_users(["a", "b", "a", "b"], [0, 0, 1, 1], [0, 1, 3])  # the third one has its slice from the first
      [0, 1, 0, 3]
    """
    there: dict[Hashable, int] = {}
    first: dict[Hashable, int] = {}
    for pnum in sorted(holders):
        there.setdefault((places[pnum], boxes[pnum]), pnum)
        first.setdefault(boxes[pnum], pnum)
    both = enumerate(zip(places, boxes, strict=True))
    return [there.get((place, box), first.get(box, pnum)) for pnum, (place, box) in both]
