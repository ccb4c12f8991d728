"""A sketch of a lowered graph: the place, the shape and the type of each tensor, and the tensors that it is made of.

The messages of a step follow from a sketch. It has a `Value` for each tensor that the lowering would make on one
processor. It is coarser than TensorFlow's operations: one value may stand for several that are made of the same values
on the same processor.
"""

import functools
import math
from collections.abc import Callable, Collection, Hashable, Iterable, Sequence
from typing import Self

from mtf_hetero._compat import mtf, tf
from mtf_hetero.cost.sample import Sample
from mtf_hetero.cost.transfers.values import CHIEF, Sum, Value, Values
from mtf_hetero.graph.residents import Residents
from mtf_hetero.layout import Layout, blocks
from mtf_hetero.layout.blocks import Box, Interval, Move, Piece
from mtf_hetero.layout.partition import split_among_positive
from mtf_hetero.mesh import collectives
from mtf_hetero.ops.backend import BackendOf, Function, KindOf, Like

_MOST_PLANS = 2**13
_plans: dict[tuple, Sequence[Move]] = {}  # of reshapes: a network repeats its layers, and a search asks again


def _uncalled(*_: object) -> tf.Tensor:
    """Stand for a function of slices, which a sketch does not call."""
    raise NotImplementedError


@functools.lru_cache(maxsize=2**12)
def _parts_to_reduce(elements: int, shares: tuple[float, ...], counts: tuple[int, ...]) -> tuple[int, ...]:
    """Return how many elements each processor sums of a tensor that they divide; an estimate if it stands for many."""
    if max(counts) == 1:
        return split_among_positive(elements, shares, minimum=0)
    total = math.fsum(share * count for share, count in zip(shares, counts, strict=True))
    return tuple(round(elements * share / total) for share in shares)


class Sketch(BackendOf[Value]):
    """Make values of what rules describe, and of what `mtf_hetero.mesh.collectives` would make of slices.

    No function of slices is called. Each processor has a memory of its own, and is a CPU. A sum knows the sketch that
    makes it. So a sketch is a context manager, and drops its tensors at the end.

    Args:
      layout: the Layout.
      residents: who holds each variable.
      lower: sketches an operation that was skipped, once its result is needed; returns False if it was not skipped.
    """

    on_cpus = True

    def __init__(
        self,
        layout: Layout,
        residents: Residents,
        lower: Callable[[mtf.Operation, "Sketch"], bool] = lambda op, sketch: False,
    ) -> None:
        super().__init__(layout)
        self.residents = residents
        self.values: list[Value] = []  # in the order in which they are made
        self.tensors: dict[mtf.Tensor, Values | Sum] = {}
        self.operations: dict[mtf.Operation, Values] = {}  # of an assignment, what does it on each processor
        self.sent: dict[Hashable, Value] = {}  # pieces of slices that went to other processors
        self.operation = ""  # name of the one that is sketched
        self._lower = lower
        self._hides_empty = bool(layout.emptied)
        is_sample = isinstance(layout, Sample)
        self.counts = layout.crowd.counts if is_sample else (1,) * layout.size  # for how many each processor stands
        self._mesh_shape = mtf.Shape(layout.shown_shape if is_sample else layout.mesh_shape)
        self._groups: dict[tuple[int, ...], list[list[int]]] = {}
        # Of each processor, the first slot of its device, which stands for it
        first: dict[int, int] = {}
        self.first_slots = [first.setdefault(place, pnum) for pnum, place in enumerate(layout.places)]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.tensors.clear()

    def value(
        self,
        processor: int,
        shape: Iterable[int],
        dtype: tf.DType,
        reads: Iterable[Value] = (),
        waits: Sequence[Value] = (),
        count: int = 1,
    ) -> Value:
        """Return a new value."""
        made = Value(
            processor if processor == CHIEF else self.first_slots[processor],
            tuple(shape),
            dtype,
            tuple(reads),
            waits,
            self.operation,
            count,
            processor,
        )
        self.values.append(made)
        return made

    def _times(self, x: Value, count: int) -> Value:
        """Return a value that counts as so many."""
        return x if count == x.count else self.value(x.processor, x.shape, x.dtype, [x], count=count)

    def _of_all(self, x: Value) -> Value:
        """Return a value that counts for all processors for which its processor stands."""
        return self._times(x, self.counts[x.processor])

    def laid_out(self, tensor: mtf.Tensor) -> Values | Sum:
        if tensor not in self.tensors and not self._lower(tensor.operation, self):
            self.tensors[tensor] = self.make_like(tensor)  # from elsewhere; each processor has its own
        return self.tensors[tensor]

    def make(
        self,
        output: mtf.Tensor | Like,
        function: Function,
        reads: Sequence[Sequence[Value]],
        kind_of: KindOf | None = None,
    ) -> Values:
        made: dict[Hashable, Value] = {}
        results = []
        for pnum, (size, own) in enumerate(zip(self.layout.slice_shapes(output.shape), reads, strict=True)):
            place = self.first_slots[pnum]
            box = None if own else tuple(self.layout.slices(output.shape, pnum))  # of an array, or of a variable
            key = place, size, kind_of and kind_of(pnum), box, *map(id, own)
            if key not in made:
                made[key] = self.value(pnum, size, output.dtype, own)
            results.append(made[key])
        return results

    def make_all(
        self,
        outputs: Sequence[mtf.Tensor | Like],
        function: Callable[..., tuple[tf.Tensor, ...]],
        reads: Sequence[Sequence[Value]],
        kind_of: KindOf | None = None,
    ) -> list[Values]:
        return [self.make(output, _uncalled, reads, kind_of) for output in outputs]

    def make_like(self, output: mtf.Tensor | Like, *inputs: Values) -> Values:
        """Return a value that each processor makes of its own slices, with the shape of its slice of the output."""
        return self.local(output, _uncalled, *inputs)

    def mtf_lower(self, op: mtf.Operation) -> None:
        inputs = [self.slices(x) for x in op.inputs]
        for output in op.outputs:
            self.set(output, self.make_like(output, *inputs))

    def concat(self, output: mtf.Tensor, pieces: Sequence[Sequence[Value]], axis: int) -> Values:
        sizes = self.layout.slice_shapes(output.shape)
        return [
            own[0] if len(own) == 1 else self.value(pnum, size, output.dtype, own)
            for pnum, (own, size) in enumerate(zip(pieces, sizes, strict=True))
        ]

    def wait(self, output: mtf.Tensor, xs: Values, others: Values) -> Values:
        both = zip(self.processors, xs, others, strict=True)
        return [self.value(pnum, x.shape, x.dtype, [x], [other]) for pnum, x, other in both]

    def set(self, tensor: mtf.Tensor, laid_out: Values | Sum) -> None:
        """Set the slices of a tensor as a `Lowering` does: some are another processor's, and some empty."""
        sources = self.residents.sources(tensor)
        if sources is not None and isinstance(laid_out, list):
            laid_out = [laid_out[source] for source in sources]
        self.tensors[tensor] = laid_out
        if self._hides_empty:
            slices = laid_out.partial if isinstance(laid_out, Sum) else laid_out
            for pnum, x in enumerate(slices):
                if 0 in x.shape:
                    slices[pnum] = self.value(pnum, x.shape, x.dtype)

    def list_needed(self, roots: Iterable[Value]) -> list[Value]:
        """Return the roots and all that they wait for, in the order in which they were made."""
        left = list(roots)
        seen = set(left)
        while left:
            x = left.pop()
            for before in (*x.reads, *x.waits):
                if before not in seen:
                    seen.add(before)
                    left.append(before)
        return [x for x in self.values if x in seen]

    # --- sums over mesh axes

    def outstanding(
        self, output: mtf.Tensor, partial: Values, axes: Sequence[int], absent: Collection[int] = ()
    ) -> Sum:
        return Sum(partial, axes, absent, self.operation, self._add_up)

    def derived(
        self,
        source: Sum,
        partial: Values,
        absent: Collection[int],
        move: Callable[[], Values | None] | None = None,
    ) -> Sum:
        if move is None:
            return Sum(partial, source.axes, absent, self.operation, self._add_up)
        return Sum(partial, source.axes, absent, source.operation, lambda total: move() or self._add_up(total))

    def _add_up(self, total: Sum) -> Values:
        """Make a sum, for the operation whose result it is."""
        before, self.operation = self.operation, total.operation
        made = self.allreduce(total.partial, total.axes, absent=total.absent)
        self.operation = before
        return made

    def _groups_along(self, axes: Sequence[int]) -> list[list[int]]:
        """Return the groups of processors that differ in these mesh axes alone; none without an axis."""
        key = tuple(axes)
        if key not in self._groups:
            self._groups[key] = mtf.processor_groups(self._mesh_shape, key) if key else []
        return self._groups[key]

    def allreduce(
        self, xs: Values, axes: Sequence[int], reduction: str = "SUM", absent: Collection[int] = ()
    ) -> Values:
        results, known = list(xs), {}
        for group in self._groups_along(axes):
            key = *(xs[pnum] for pnum in group), *(self.first_slots[pnum] for pnum in group)
            if key not in known:
                places, shares = collectives.absent_within(absent, group), self.layout.weights_within(axes)
                known[key] = self._allreduce([xs[pnum] for pnum in group], group, shares, places)
            for pnum, y in zip(group, known[key], strict=True):
                results[pnum] = y
        return results

    def _allreduce(self, xs: Values, group: Sequence[int], shares: Sequence[float], absent: Collection[int]) -> Values:
        shape, dtype = xs[0].shape, xs[0].dtype
        places = [self.first_slots[pnum] for pnum in group]
        present = collectives.present_processors(range(len(group)), absent)
        of_device = collectives.group_by_device(places, present)
        addends, using = [self._added([xs[n] for n in own], place) for place, own in of_device.items()], list(of_device)
        way = self._way(xs[0], using)
        if way is collectives.Way.KEEP:
            reduced = addends
        elif way is collectives.Way.DIVIDE:
            counts = tuple(self.counts[pnum] for pnum in using)
            weights = tuple(sum(shares[number] for number in own) for own in of_device.values())
            reduced = self._divide(addends, using, _parts_to_reduce(math.prod(shape), weights, counts))
        elif way is collectives.Way.EXCHANGE:
            reduced = [self.value(pnum, shape, dtype, addends) for pnum in using]
        else:
            total = self._added(addends, using[0])
            reduced = [total, *(self.value(pnum, shape, dtype, [total]) for pnum in using[1:])]
        results = dict(zip(using, reduced, strict=True))
        return [results.get(place, reduced[0]) for place in places]

    def _way(self, x: Value, present: Sequence[int]) -> collectives.Way:
        count = sum(self.counts[pnum] for pnum in present)
        return collectives.way_to_reduce(math.prod(x.shape), x.dtype.size, count)

    def _added(self, addends: Values, processor: int) -> Value:
        """Return the sum that a processor makes of addends; of a single one, itself."""
        first = addends[0]
        if len(addends) == 1:
            return first
        return self.value(processor, first.shape, first.dtype, map(self._of_all, addends))

    def _divide(self, xs: Values, group: Sequence[int], sizes: Sequence[int]) -> Values:
        shape, dtype = xs[0].shape, xs[0].dtype
        counts = [self.counts[pnum] for pnum in group]
        parts = [
            [self.value(pnum, (size,), dtype, [x], count=count) for size in sizes]
            for x, pnum, count in zip(xs, group, counts, strict=True)
        ]
        totals = [
            self.value(pnum, (size,), dtype, [split[i] for split in parts], count=count)
            for i, (pnum, size, count) in enumerate(zip(group, sizes, counts, strict=True))
        ]
        return [self.value(pnum, shape, dtype, totals) for pnum in group]

    def join(self, xs: Values, axes: Sequence[int], absent: Collection[int], function: Function) -> Values:
        results = list(xs)
        for group in self._groups_along(axes):
            present = collectives.present_processors(group, absent)
            slices = [xs[pnum] for pnum in present]
            using = list(collectives.group_by_device(self.first_slots, present))
            is_exchanged = self._way(slices[0], using) is collectives.Way.EXCHANGE
            shared = None if is_exchanged else self._added(slices, using[0])
            joint: dict[int, Value] = {}
            for place in using:
                total = shared or self._added(slices, place)
                joint[place] = self.value(place, slices[0].shape, slices[0].dtype, [total])
            for pnum in group:
                results[pnum] = joint.get(self.first_slots[pnum], joint[using[0]])
        return results

    def reduce_scatter(self, total: Sum, moves: Sequence[Move | None]) -> list[Value | None]:
        xs = total.partial
        results: list[Value | None] = [None] * len(xs)
        for group in self._groups_along(total.axes):
            present = collectives.present_processors(group, total.absent)
            for pnum in group:
                plan, dtype = moves[pnum], xs[pnum].dtype
                if plan is None:
                    continue
                sources = present if plan.pieces else ()
                addends = [self._of_all(self._cut(xs[source], source, plan.pieces[0].size)) for source in sources]
                size = plan.size if plan.reshapes else plan.pieces[0].size
                changed = bool(addends) and _is_changed(plan.pieces[0].size, plan)
                results[pnum] = self._joined(addends, pnum, tuple(size), dtype, changed=changed)
        return results

    # --- pieces of slices

    def plan_moves(self, old: mtf.Shape, new: mtf.Shape) -> Sequence[Move]:
        layout = self.layout
        divisions = tuple(
            tuple((layout.axis_of(dim), layout.split(dim.name, dim.size)) for dim in shape) for shape in (old, new)
        )
        key = layout.mesh_shape, layout.crowds if isinstance(layout, Sample) else (), divisions
        if key not in _plans:
            if len(_plans) >= _MOST_PLANS:
                _plans.clear()
            _plans[key] = super().plan_moves(old, new)
        return _plans[key]

    def move(self, xs: Values, moves: Sequence[Move]) -> Values:
        cut_out, results = self._cutter(xs), []
        for pnum, plan in enumerate(moves):
            pieces = list(map(cut_out, plan.pieces))
            changed = bool(pieces) and _is_changed(plan.pieces[0].size, plan)
            results.append(self._joined(pieces, pnum, tuple(plan.size), xs[pnum].dtype, changed=changed))
        return results

    def fetch(self, tensor: mtf.Tensor, boxes: Sequence[Sequence[Interval] | None]) -> list[Value | None]:
        xs, windows = self.slices(tensor), blocks.plan_windows(self.layout, tensor.shape.dims, boxes)
        cut_out = self._cutter(xs)
        results: list[Value | None] = []
        for pnum, window in enumerate(windows):
            if window is None:
                results.append(None)
                continue
            pieces, changed = list(map(cut_out, window.pieces)), any(map(any, window.padding))
            results.append(self._joined(pieces, pnum, tuple(window.size), xs[pnum].dtype, changed=changed))
        return results

    def halos(self, tensor: mtf.Tensor, box_of: Callable[[int], Sequence[Interval]]) -> list[list[tuple[Box, Value]]]:
        xs, shape = self.slices(tensor), tensor.shape.dims
        cut_out, results = self._cutter(xs), []
        for pnum in self.processors:
            lacking: list[tuple[Box, Value]] = []
            for piece in blocks.plan_window(self.layout, shape, box_of(pnum), pnum).pieces:
                if piece.source != pnum:
                    key = (xs[piece.source], piece.begin, piece.size, piece.count)
                    if key not in self.sent:
                        self.sent[key] = cut_out(piece)
                    lacking.append((blocks.place(self.layout, shape, piece), self.sent[key]))
            results.append(lacking)
        return results

    def _cutter(self, xs: Values) -> Callable[[Piece], Value]:
        """Return the function that cuts a piece out of its slice, once for all readers."""

        @functools.cache
        def cut_out(piece: Piece) -> Value:
            return self._times(self._cut(xs[piece.source], piece.source, piece.size), piece.count)

        return cut_out

    def _cut(self, x: Value, processor: int, size: tuple[int, ...]) -> Value:
        return x if x.shape == size else self.value(processor, size, x.dtype, [x])

    def _joined(
        self, pieces: Values, processor: int, size: tuple[int, ...], dtype: tf.DType, *, changed: bool
    ) -> Value:
        """Return the value that pieces make together; a single one is itself, unless it is changed.

        One of another slot of the device becomes a value of this slot, which waits for it.
        """
        if len(pieces) == 1 and not changed:
            (piece,) = pieces
            if piece.slot == processor or piece.processor != self.first_slots[processor]:
                return piece
        return self.value(processor, size, dtype, pieces)


def _is_changed(size: tuple[int, ...], plan: Move) -> bool:
    """Return whether the last steps of a Move change the joined pieces."""
    return any(tuple(shape) != size or tuple(part) != size for shape, _, part in plan.reshapes)
