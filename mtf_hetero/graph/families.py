"""Families of names: the dimensions of a step, those that reshapes rename to one another, and those that conflict.

Names that a reshape gives to one and the same dimension make a family, whose sizes are chosen together: where both
sides are split alike, nothing has to be sent.
"""

import functools
from collections.abc import Callable, Iterable
from typing import TypeVar

from mtf_hetero._compat import mtf
from mtf_hetero.graph import names
from mtf_hetero.graph.units import Unit, group_units

T = TypeVar("T")


class Families:
    """The dimensions of a step that may be split, by their names.

    Args:
      operations: of the step, in the graph's order.

    Attributes:
      operations: these.
      dimension_names: {operation: the names of its dimensions}.
      extents: {name: extents} of the dimensions that may be split, in the graph's order.
      families: names that reshapes give to one dimension, together.
      conflicts: {name: those that cannot be split over its mesh axis}, because they share a tensor or a lookup with it.
      heights: names of the first dimension over which windows pass: of images the height, of volumes the depth.
      widths: names of the others over which windows pass.
    """

    def __init__(self, operations: Iterable[mtf.Operation]) -> None:
        self.operations = tuple(operations)
        self.dimension_names = {op: frozenset(names.dimension_names(op)) for op in self.operations}
        self.extents = names.extents(self.operations)
        self.families = names.families(self.operations, self.extents)
        self.conflicts = names.conflicts(self.operations)
        spaces = [of_image for op in self.operations for of_image in names.spaces(op)]
        self.heights = {of_image[0] for of_image in spaces}
        self.widths = {name for of_image in spaces for name in of_image[1:]}

    @functools.cached_property
    def units(self) -> list[Unit]:
        """The operations in units that a search prices together."""
        return group_units(self.operations, self.extents)

    def list_operations(self, family: Iterable[str]) -> list[mtf.Operation]:
        """Return the operations that have one of these names, in the graph's order."""
        numbers = {number for name in set(family) for number in self._numbers_by_name.get(name, ())}
        return [self.operations[number] for number in sorted(numbers)]

    @functools.cached_property
    def _numbers_by_name(self) -> dict[str, list[int]]:
        """The numbers of the operations that have each name: a large network has thousands of both."""
        found: dict[str, list[int]] = {}
        for number, op in enumerate(self.operations):
            for name in self.dimension_names[op]:
                found.setdefault(name, []).append(number)
        return found

    def together(self, family: Iterable[str], choice_of: Callable[[str], T | None]) -> dict[str, T]:
        """Return {name: choice} for as many names of a family as can be split together, the first ones first.

        Args:
          family: names.
          choice_of: from a name to a split over one mesh axis, the same for all; None: it cannot be split.
        """
        choices: dict[str, T] = {}
        for name in family:
            choice = choice_of(name)
            if choice is not None and not self.conflicts[name] & choices.keys():
                choices[name] = choice
        return choices
