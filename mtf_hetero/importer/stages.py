"""Cuts a step into stages where few bytes cross, so that a layout may place each stage on devices of its own.

A chain of layers, with its gradient, is a ladder:

    x -> layer 1 -> layer 2 -> layer 3 -> loss
            |          |          |         |
         grad 1  <- grad 2  <- grad 3  <- its gradient

A cut passes between two rungs. One activation crosses it forwards, and its gradient backwards. From a cut on, the batch
has another name. So sizes alone make a pipeline of the ladder. The cuts are read from the forward operations, in linear
time. An operation of the gradient belongs to the stage that has what it reads.
"""

import dataclasses
import itertools
from collections.abc import Callable, Mapping, Sequence

from mtf_hetero.importer import work
from mtf_hetero.importer.program import Operation, Program, Value, within

_MOST_PLACES = 16  # at which a step is cut
_LEAST_WORK = 1 / 20  # of a stage, as a fraction of all stages
_NO_WORK = 1 / 1000  # of a bias or an activation, as a fraction of all stages
_SMALL = 1 / 32  # a tensor that is as small beside the largest one, such as a mask, does not count
_GRADIENTS = ("gradient_tape", "gradients")  # scopes of tf.GradientTape and tf.gradients


@dataclasses.dataclass(frozen=True)
class _Place:
    """A place between two forward operations.

    Args:
      number: of the operation after it.
      done: the work before it, as a fraction of all.
      bytes: of the activations that cross it.
      count: of those that are not small.
    """

    number: int
    done: float
    bytes: int
    count: int


def assign_stages(program: Program, has_batch: Callable[[Value], bool]) -> dict[Operation, int]:
    """Map each operation of a step to its stage, counted from 0.

    Args:
      program: the step.
      has_batch: whether a value has the batch among its dimensions.

    Example:
      >>> stages = assign_stages(program, has_batch)
      >>> [stages[op] for op in program.operations if op.type == "MatMul"]  # of two layers, and of their gradients
      [0, 1, 1, 1, 0, 0]
    """
    forward = _list_forward(program)
    places = _choose(_find_places(forward, has_batch))
    numbers = [place.number for place in places]
    stages = {op: sum(number <= i for number in numbers) for i, op in enumerate(forward)}
    others = [op for op in program.operations if op not in stages]
    return stages | _Gradients(stages, others, len(numbers), has_batch).stages()


def _list_forward(program: Program) -> list[Operation]:
    """List the operations before all gradients, and beside them, but for those that only gradients read."""
    found, after = [], set[Value]()
    for op in program.operations:
        if _is_gradient(op) or not after.isdisjoint(op.inputs):
            after.update(op.outputs)
        else:
            found.append(op)
    read = {*program.fetches, *(variable.after for variable in program.variables)}
    forward = []
    for op in reversed(found):
        if not read.isdisjoint(op.outputs):
            read.update(op.inputs)
            forward.append(op)
    return forward[::-1]


def _is_gradient(op: Operation) -> bool:
    name = "" if op.source is None else op.source.name
    return any(part.startswith(_GRADIENTS) for part in name.split("/"))


# --- cuts


def _find_places(forward: Sequence[Operation], has_batch: Callable[[Value], bool]) -> list[_Place]:
    """List the places between forward operations; what is fed, such as classes, crosses those after its first use."""
    last = {value: i for i, op in enumerate(forward) for value in op.inputs}
    made = {value for op in forward for value in op.outputs}
    amounts = [sum(work.estimate_flops(each) * each.times for each in within([op])) for op in forward]
    total, crossing, places = sum(amounts) or 1, dict[Value, int](), []
    for i, (op, done) in enumerate(zip(forward, itertools.accumulate(amounts))):
        for value in (*op.outputs, *(x for x in op.inputs if x not in made and x.array is None)):
            if last.get(value, i) > i and has_batch(value):
                crossing[value] = work.size_bytes(value)
        for value in [x for x in crossing if last[x] <= i]:
            del crossing[value]
        if crossing:
            least = _SMALL * max(crossing.values())
            count = sum(size >= least for size in crossing.values())
            places.append(_Place(i + 1, done / total, sum(crossing.values()), count))
    return places


def _choose(places: Sequence[_Place]) -> list[_Place]:
    """Choose the places to cut at, where the fewest bytes cross, so that each stage has some work.

    Blocks with residual connections are not cut, because more tensors cross within them than between them. A part of
    the step with over half of the work is cut nevertheless, as a U-Net is, whose first activation crosses everything.
    """
    allowed = list[_Place]()
    for count in sorted({place.count for place in places}):
        done = [0.0, *(place.done for place in allowed), 1.0]
        large = [(a, b) for a, b in itertools.pairwise(done) if b - a > 1 / 2]
        allowed += [p for p in places if p.count == count and any(a < p.done < b for a, b in large)]
        allowed.sort(key=lambda place: place.number)
    chosen = list[_Place]()
    for place in sorted(_without_preceding(allowed), key=lambda place: (place.bytes, place.number)):
        others = [0.0, 1.0, *(other.done for other in chosen)]
        if len(chosen) < _MOST_PLACES and min(abs(place.done - done) for done in others) >= _LEAST_WORK:
            chosen.append(place)
    return sorted(chosen, key=lambda place: place.number)


def _without_preceding(places: Sequence[_Place]) -> list[_Place]:
    """Drop each place that the next one is as good as, after a bias or an activation."""
    pairs = itertools.zip_longest(places, places[1:])
    return [a for a, b in pairs if b is None or b.bytes > a.bytes or b.done - a.done > _NO_WORK]


# --- the gradient


class _Gradients:
    """The operations of a gradient, which belong to the stages of the forward values that they read.

    A forward value is at home in the stage that makes it, and in those that read it. An operation may be in a stage
    where all that it reads is at home. A gradient never travels to a later stage. If an operation may be on both sides
    of a cut, it is before it or after it in the order of the step, so that the fewest bytes cross.

    Args:
      stages: of the forward operations.
      operations: the other ones, each after those that it reads.
      last: the number of the last stage.
      has_batch: whether a value has the batch among its dimensions.
    """

    def __init__(
        self,
        stages: Mapping[Operation, int],
        operations: Sequence[Operation],
        last: int,
        has_batch: Callable[[Value], bool],
    ) -> None:
        self._operations, self._last, self._has_batch = operations, last, has_batch
        self._made = {value for op in operations for value in op.outputs if has_batch(value)}
        self._homes = dict[Value, set[int]]()
        for op, stage in stages.items():
            for value in (*op.inputs, *op.outputs):
                if value.array is None:
                    self._homes.setdefault(value, set()).add(stage)
        self._choices = {op: self._find_choices(op) for op in operations}
        self._first = self._find_first()
        self._most = self._find_most()

    def stages(self) -> dict[Operation, int]:
        """Map each operation to its stage."""
        turns = [self._find_turn(stage) for stage in range(1, self._last + 1)]
        found, where = dict[Operation, int](), dict[Value, int]()
        for i, op in enumerate(self._operations):
            first, most = self._first[op], self._most[op]
            if not self._made.isdisjoint(op.outputs):
                stage = first + sum(i < turn for turn in turns[first:most])
            else:
                stage = min((where[x] for x in op.inputs if x in self._made), default=most)
            found[op] = max((choice for choice in self._choices[op] if choice <= stage), default=stage)
            where.update(dict.fromkeys(op.outputs, found[op]))
        return found

    def _find_choices(self, op: Operation) -> set[int]:
        """Return the stages where all forward values that an operation reads are at home; none if it reads none."""
        read = [x for x in op.inputs if x in self._homes]
        common = set[int].intersection(*(self._homes[x] for x in read)) if read else set[int]()
        return common or set[int]().union(*(self._homes[x] for x in read if self._has_batch(x)))

    def _find_first(self) -> dict[Operation, int]:
        """Map each operation to the first stage from which its result need not travel to a later one."""
        first, needed = dict[Operation, int](), dict[Value, int]()
        for op in reversed(self._operations):
            least = max((needed.get(value, 0) for value in op.outputs if value in self._made), default=0)
            first[op] = min((choice for choice in self._choices[op] if choice >= least), default=least)
            for value in op.inputs:
                needed[value] = max(needed.get(value, 0), first[op])
        return first

    def _find_most(self) -> dict[Operation, int]:
        """Map each operation to the last stage to which no gradient that it reads would travel from an earlier one."""
        most, where = dict[Operation, int](), dict[Value, int]()
        for op in self._operations:
            least = min((where[x] for x in op.inputs if x in self._made), default=self._last)
            most[op] = max((choice for choice in self._choices[op] if choice <= least), default=least)
            most[op] = max(most[op], self._first[op])
            where.update(dict.fromkeys(op.outputs, most[op]))
        return most

    def _find_turn(self, stage: int) -> int:
        """Return the number of the first operation before a cut, of those that may be on both sides of it.

        Args:
          stage: the number of the stage after the cut.
        """
        begin, end = dict[Value, int](), dict[Value, int]()  # a gradient crosses if the turn is between them
        turns = [0]
        for i, op in enumerate(self._operations):
            is_on_both = self._first[op] < stage <= self._most[op]
            may_move = is_on_both and not self._made.isdisjoint(op.outputs)
            if self._most[op] < stage or may_move:
                last = i if is_on_both else len(self._operations)
                end.update({x: max(end.get(x, 0), last) for x in op.inputs if x in begin})
            if self._most[op] >= stage:
                begin.update(dict.fromkeys(self._made.intersection(op.outputs), i + 1 if is_on_both else 0))
            if may_move:
                turns.append(i + 1)
        changes = [0] * (len(self._operations) + 2)
        for value in begin.keys() & end.keys():
            changes[begin[value]] += work.size_bytes(value)
            changes[end[value] + 1] -= work.size_bytes(value)
        crossing = list(itertools.accumulate(changes))
        return min(turns, key=crossing.__getitem__)
