"""Which piece of which processor's slice makes up each slice of another layout. Pure integer arithmetic.

A tensor of old dimensions, laid out one way, is to become a tensor of new dimensions with as many elements in the
same row-major order, laid out another way. For every target processor we work out the box of old coordinates that
covers its new slice, and which processors' slices that box overlaps: those pieces travel, and no others. A rename,
an all-gather, an all-to-all, a local slice and a flattening are all cases of it.
"""

import dataclasses
import itertools
import math
from collections.abc import Iterator, Sequence

from mtf_hetero.layout import Dim, Layout

Interval = tuple[int, int]


@dataclasses.dataclass(frozen=True)
class Piece:
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
    """How one target slice is made: pieces are joined, then reshaped and cut.

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
        """Whether processor `pnum` has all that it needs."""
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
            if old_count < new_count:
                old_count, i = old_count * old[i], i + 1
            else:
                new_count, j = new_count * new[j], j + 1
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
    """The interval of row-major indices from the first to the last element of a box."""
    first = last = 0
    for (begin, end), size in zip(box, sizes, strict=True):
        first = first * size + begin
        last = last * size + end - 1
    return first, last + 1


def _cover(flat: Interval, sizes: Sequence[int]) -> tuple[Interval, ...]:
    """The smallest box with contiguous row-major indices that contains an interval of them."""
    first, last = flat[0], flat[1] - 1
    box: list[Interval] = []
    whole = False
    inner = math.prod(sizes)
    for size in sizes:
        inner //= size
        if whole:
            box.append((0, size))
            continue
        (i, first), (k, last) = divmod(first, inner), divmod(last, inner)
        box.append((i, k + 1))
        whole = i != k
    return tuple(box)


def _sizes(box: Sequence[Interval]) -> tuple[int, ...]:
    return tuple(end - begin for begin, end in box)


def is_empty(box: Sequence[Interval]) -> bool:
    """Whether there is nothing in a box."""
    return any(begin >= end for begin, end in box)


def box_of(layout: Layout, shape: Sequence[Dim], pnum: int) -> list[Interval]:
    """The slice of processor `pnum`, as (begin, end) per dimension."""
    begin = layout.slice_begin(shape, pnum)
    return [(b, b + s) for b, s in zip(begin, layout.slice_shape(shape, pnum), strict=True)]


def _pieces(
    layout: Layout, shape: Sequence[Dim], need: Sequence[Interval], pnum: int
) -> tuple[tuple[Piece, ...], tuple[int, ...]]:
    """The pieces that make up the box `need` of a tensor, for processor `pnum`, and how many along each dimension.

    Where several processors hold the same slice, the one that shares the most mesh coordinates with `pnum` sends it.
    """
    home = layout.coordinates(pnum)
    axes = [layout.axis_of(dim) for dim in shape]
    choices: list[list[tuple[int, int, int, int]]] = []  # per dimension: (coordinate, begin in slice, size, count)
    for dim, axis, (begin, end) in zip(shape, axes, need, strict=True):
        whole = [(0, begin, end - begin, 1)]
        choices.append(whole if axis is None else layout.holders(dim, begin, end, pnum))
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
    """How processor `pnum` makes its slice of a tensor of `new_shape` out of the slices of one of `old_shape`.

    Args:
      layout: where both lie.
      old_shape: dimensions with `name` and `size`.
      new_shape: dimensions with as many elements, in the same row-major order.
      pnum: the target processor.
    """
    old_sizes, new_sizes = [d.size for d in old_shape], [d.size for d in new_shape]
    target = box_of(layout, new_shape, pnum)
    cuts = math.prod(_sizes(target)) < math.prod(layout.slice_shape(old_shape, pnum))
    if is_empty(target):
        return Move((), (), (((), (), _sizes(target)),), cuts)
    need: list[Interval] = []  # box of old coordinates to bring together
    flat_shape, flat_begin, flat_size, new_cover = [], [], [], []
    for old, new in group_dims(old_sizes, new_sizes):
        old_group, new_group = [old_sizes[i] for i in old], [new_sizes[j] for j in new]
        cover = _cover(_flat_range([target[j] for j in new], new_group), new_group)
        wanted = _flat_range(cover, new_group)
        source = _cover(wanted, old_group)
        held = _flat_range(source, old_group)
        need += source
        new_cover += cover
        flat_shape.append(held[1] - held[0])
        flat_begin.append(wanted[0] - held[0])
        flat_size.append(wanted[1] - wanted[0])
    pieces, grid = _pieces(layout, old_shape, need, pnum)
    begin = tuple(t[0] - c[0] for t, c in zip(target, new_cover, strict=True))
    steps = [(_sizes(new_cover), begin, _sizes(target))]
    if flat_size != flat_shape:
        steps.insert(0, (tuple(flat_shape), tuple(flat_begin), tuple(flat_size)))
    return Move(pieces, grid, tuple(steps), cuts)


@dataclasses.dataclass(frozen=True)
class Window:
    """How one target gets a box of a tensor that may reach beyond it: pieces are joined, and zeros put around them.

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
    """How processor `pnum` gets a box of a tensor: its own slice and a halo, or any other.

    Args:
      layout: where the tensor lies.
      shape: its dimensions, with `name` and `size`.
      box: (begin, end) per dimension; beyond the tensor there are zeros.
      pnum: the processor.
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
    """As `plan_window`, of one box per processor, or None of one that needs nothing."""
    return [None if box is None else plan_window(layout, shape, box, pnum) for pnum, box in enumerate(boxes)]


def place(layout: Layout, shape: Sequence[Dim], piece: Piece) -> list[Interval]:
    """The box of a tensor that a piece of one of its slices is."""
    begins = piece.place or map(sum, zip(layout.slice_begin(shape, piece.source), piece.begin, strict=True))
    return [(begin, begin + size) for begin, size in zip(begins, piece.size, strict=True)]
