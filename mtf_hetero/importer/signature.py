"""The axes of an operation, in letters as of an einsum: from them follow names, slices and sums.

A letter that an operand and a result share goes through the operation slice by slice. `whole` letters the operation
needs whole; over `summed` ones it adds up, so that slices give partial sums. An axis of size 1 has no letter; an axis
that an operation makes of several has a tuple of letters, whose product it is.
"""

import dataclasses
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any

Letters = Sequence[Hashable]  # one per axis; None for an axis of size 1
Rule = Callable[[Any], "Signature | None"]


@dataclasses.dataclass
class Signature:
    """The way in which an operation treats axes.

    Args:
      operands: letters of each operand; None for an argument that is no data, such as axes.
      results: letters of each result.
      whole: letters that the operation needs whole.
      summed: letters that it adds up over.
      kin: pairs of letters of an image and of its windows or its kernel: the operation renames the first to the second.
      sizes: {letter: size} of those in tuples.
      shape: number of the operand that is the shape of the result, and of a slice the slice's.
    """

    operands: Sequence[Letters | None]
    results: Sequence[Letters]
    whole: frozenset[Hashable] = frozenset()
    summed: frozenset[Hashable] = frozenset()
    kin: tuple[tuple[Hashable, Hashable], ...] = ()
    sizes: Mapping[Hashable, int] = dataclasses.field(default_factory=dict)
    shape: int | None = None

    def sides(self, op: Any) -> list[tuple[Any, Letters]]:
        """Return the values with letters: operands, then results."""
        pairs = zip([*op.inputs, *op.outputs], [*self.operands, *self.results], strict=True)
        return [(value, letters) for value, letters in pairs if letters is not None]

    def without_ones(self, op: Any) -> "Signature":
        """Return the signature without the letters of axes of size 1."""

        def cleaned(values: Sequence[Any], lists: Sequence[Letters | None]) -> list[Any]:
            return [
                None if letters is None else [None if n == 1 else a for a, n in zip(letters, v.shape, strict=True)]
                for v, letters in zip(values, lists, strict=True)
            ]

        operands, results = cleaned(op.inputs, self.operands), cleaned(op.outputs, self.results)
        return dataclasses.replace(self, operands=operands, results=results)


class Table(dict[str, Rule]):
    """{type of an operation: function from an Operation to its Signature, or None where nothing is known}."""

    def rule(self, *kinds: str) -> Callable[[Rule], Rule]:
        """Decorator: the function is the rule of these types."""

        def add(function: Rule) -> Rule:
            self.update(dict.fromkeys(kinds, function))
            return function

        return add


def aligned(value: Any, rank: int) -> list[Hashable]:
    """Return the letters of an operand that is broadcast to a result with letters 0, 1, ..."""
    return list(range(rank - len(value.shape), rank))


def elementwise(op: Any) -> Signature:
    """Return the signature of an operation on elements, with broadcasting."""
    rank = len(op.outputs[0].shape)
    return Signature([aligned(x, rank) for x in op.inputs], [list(range(rank))] * len(op.outputs))


def through(op: Any, number: int, touched: set[int]) -> Signature:
    """Return the signature of an operation that leaves all but some axes of an operand as they are.

    Args:
      op: the operation; its results have as many axes as the operand.
      number: of the operand; the others are arguments.
      touched: the axes that it needs whole, and may change in size.
    """
    axes = range(len(op.inputs[number].shape))
    inside = [f"in{a}" if a in touched else a for a in axes]
    operands: list[Letters | None] = [None] * len(op.inputs)
    operands[number] = inside
    results = [[f"out{a}/{i}" if a in touched else a for a in axes] for i in range(len(op.outputs))]
    return Signature(operands, results, whole=_strings([inside, *results]))


def leading(op: Any, inner: Sequence[int | None], results: Sequence[int]) -> Signature | None:
    """Return the signature of an operation on the last axes, which it does for each index of the others.

    Args:
      op: the operation.
      inner: number of last axes of each operand that it needs whole; None: the operand is an argument.
      results: number of last axes of each result that it makes.
    """
    outer = len(op.outputs[0].shape) - results[0]

    def letters(value: Any, count: int, side: str) -> list[Hashable] | None:
        first = len(value.shape) - count
        if first != outer:
            return None
        return [*range(outer), *(f"{side}{axis}" for axis in range(count))]

    operands = [
        None if n is None else letters(x, n, f"in{i}/") for i, (x, n) in enumerate(zip(op.inputs, inner, strict=True))
    ]
    made = [letters(y, n, f"out{i}/") for i, (y, n) in enumerate(zip(op.outputs, results, strict=True))]
    if any(o is None and n is not None for o, n in zip(operands, inner, strict=True)) or None in made:
        return None
    sides = [side for side in [*operands, *made] if side is not None]
    return Signature(list(operands), [m for m in made if m is not None], whole=_strings(sides))


def _strings(sides: Sequence[Letters]) -> frozenset[Hashable]:
    return frozenset(letter for side in sides for letter in side if isinstance(letter, str))


def undivided(op: Any) -> Signature:
    """Return the signature of an operation of which nothing is known: every device does all of it."""
    operands: list[Letters | None] = [
        None if x.array is not None else [f"in{i}/{axis}" for axis in range(len(x.shape))]
        for i, x in enumerate(op.inputs)
    ]
    results = [[f"out{i}/{axis}" for axis in range(len(y.shape))] for i, y in enumerate(op.outputs)]
    return Signature(operands, results, whole=_strings([s for s in [*operands, *results] if s is not None]))
