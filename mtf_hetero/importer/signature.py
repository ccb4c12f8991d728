"""The axes of an operation, in letters as of an einsum: from them follow names, slices and sums.

    nHWc,K->nPQc

A letter in lower case, or a number, goes through the operation slice by slice. If no result has it, the operation sums
over it, and slices give partial sums. The operation needs a letter in upper case whole. An axis of size 1 has no
letter. An axis that an operation makes of several has a tuple of letters, whose product it is.
"""

import dataclasses
import functools
from collections.abc import Callable, Collection, Hashable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from mtf_hetero._support.slicing import MASKS, Range, list_ranges
from mtf_hetero.importer.program import Operation, Value

Letters = Sequence[Hashable]  # one per axis; None for an axis of size 1
Rule = Callable[[Operation], "Signature | None"]


class UnknownArgumentError(Exception):
    """The step computes an argument on which the signature of an operation depends."""


@dataclasses.dataclass(frozen=True)
class Signature:
    """The way in which an operation treats axes.

    Args:
      operands: letters of each operand; None for an argument that is no data, such as axes.
      results: letters of each result.
      kin: pairs of letters of an image and of its windows or its kernel: the operation renames the first to the second.
      sizes: {letter: size} of those in tuples.
      shape: number of the operand that is the shape of the result, and of a slice the slice's.
    """

    operands: Sequence[Letters | None]
    results: Sequence[Letters]
    kin: tuple[tuple[Hashable, Hashable], ...] = ()
    sizes: Mapping[Hashable, int] = dataclasses.field(default_factory=dict)
    shape: int | None = None

    @functools.cached_property
    def unsplit_letters(self) -> frozenset[Hashable]:
        """The letters that the operation needs whole."""
        letters = {*_flat(self.operands), *_flat(self.results)}
        return frozenset(letter for letter in letters if isinstance(letter, str) and letter.isupper())

    @functools.cached_property
    def summed(self) -> frozenset[Hashable]:
        """The letters that the operation sums over."""
        renamed = dict(self.kin)
        before, after = ({renamed.get(a, a) for a in _flat(side)} for side in (self.operands, self.results))
        return frozenset(before - after - self.unsplit_letters)

    def sides(self, op: Operation) -> list[tuple[Value, Letters]]:
        """Return the values with letters: operands, then results."""
        pairs = zip([*op.inputs, *op.outputs], [*self.operands, *self.results], strict=True)
        return [(value, letters) for value, letters in pairs if letters is not None]

    def without_ones(self, op: Operation) -> "Signature":
        """Return the signature without the letters of axes of size 1."""

        def cleaned(values: Sequence[Value], lists: Sequence[Letters | None]) -> list[Any]:
            return [
                None if letters is None else [None if n == 1 else a for a, n in zip(letters, v.shape, strict=True)]
                for v, letters in zip(values, lists, strict=True)
            ]

        operands, results = cleaned(op.inputs, self.operands), cleaned(op.outputs, self.results)
        return dataclasses.replace(self, operands=operands, results=results)


def _flat(lists: Sequence[Letters | None]) -> Iterator[Hashable]:
    for letters in lists:
        for letter in letters or ():
            yield from letter if isinstance(letter, tuple) else (letter,) if letter is not None else ()


class Table(dict[str, Rule]):
    """{type of an operation: function from an Operation to its Signature, or None where nothing is known}."""

    def rule(self, *kinds: str) -> Callable[[Rule], Rule]:
        """Decorate a function that is the rule of these types."""

        def add(function: Rule) -> Rule:
            self.update(dict.fromkeys(kinds, function))
            return function

        return add


def parse_signature(text: str) -> Rule:
    """Return the rule of a signature that is written down.

    Args:
      text: letters of operands and results, "...IJ,n->...K". "-" is an argument, as are all operands that are left out.
        "..." are the same axes in all operands and results that have them, aligned at the last one.
    """
    before, after = (side.split(",") for side in text.split("->"))

    def rule(op: Operation) -> Signature | None:
        parts = [*before, *["-"] * (len(op.inputs) - len(before)), *after]
        sides = list(zip([*op.inputs, *op.outputs], parts, strict=True))
        outer = [len(value.shape) - len(part) + 3 if part.startswith("...") else None for value, part in sides]
        read, made = ([n for n in side if n is not None] for side in (outer[: len(op.inputs)], outer[len(op.inputs) :]))
        most = max(read or made, default=0)
        if any(n != most for n in made):
            return None  # a result has more or fewer axes than is written
        letters = [
            None if part == "-" else [*range(most - (count or 0), most), *part.removeprefix("...")]
            for part, count in zip(parts, outer, strict=True)
        ]
        return Signature(letters[: len(op.inputs)], [x for x in letters[len(op.inputs) :] if x is not None])

    return rule


def elements(value: Value) -> np.ndarray:
    """Return the elements of an argument.

    Raises:
      UnknownArgumentError: the step computes them.
    """
    if value.array is None:
        raise UnknownArgumentError
    return value.array


def strided_ranges(op: Operation, large: Sequence[int]) -> list[Range]:
    """Return the range of each axis of a StridedSlice, or of a gradient of one.

    Args:
      op: the operation.
      large: shape of the tensor that is sliced: of the first operand, or of a gradient's result.

    Raises:
      UnknownArgumentError: the step computes where the slice is.
    """
    corners = (elements(value).tolist() for value in op.inputs[1:4])  # a gradient's first operand is the shape
    return list_ranges(large, corners, {name: op.attr(name, 0) for name in MASKS})


def axis_numbers(axes: Value, rank: int) -> list[int]:
    """Return the axes that an argument numbers, counted from the first one.

    Raises:
      UnknownArgumentError: the step computes them.
    """
    return [int(axis) % rank for axis in elements(axes).reshape(-1)]


def aligned(value: Value, rank: int) -> list[Hashable]:
    """Return the letters of an operand that is broadcast to a result with letters 0, 1, ..."""
    return list(range(rank - len(value.shape), rank))


def elementwise(op: Operation) -> Signature:
    """Return the signature of an operation on elements, with broadcasting."""
    rank = len(op.outputs[0].shape)
    return Signature([aligned(x, rank) for x in op.inputs], [list(range(rank))] * len(op.outputs))


def through(op: Operation, touched: Collection[int], number: int = 0, shape: int | None = None) -> Signature:
    """Return the signature of an operation that leaves all but some axes of an operand as they are.

    Args:
      op: the operation; its results have as many axes as the operand.
      touched: the axes that it needs whole, and may change in size.
      number: of the operand; the others are arguments.
      shape: as of a Signature.
    """
    axes = range(len(op.inputs[number].shape))
    operands: list[Letters | None] = [None] * len(op.inputs)
    operands[number] = [f"IN{a}" if a in touched else a for a in axes]
    results = [[f"OUT{a}/{i}" if a in touched else a for a in axes] for i in range(len(op.outputs))]
    return Signature(operands, results, shape=shape)


def undivided(op: Operation) -> Signature:
    """Return the signature of an operation of which nothing is known: every device does all of it."""
    operands = [
        None if x.array is not None else [f"IN{i}/{axis}" for axis in range(len(x.shape))]
        for i, x in enumerate(op.inputs)
    ]
    return Signature(operands, [[f"OUT{i}/{axis}" for axis in range(len(y.shape))] for i, y in enumerate(op.outputs)])
