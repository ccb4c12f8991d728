"""Several values as one: a TensorList while a loop is unrolled, and a value that each branch keeps for its gradient."""

import itertools
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from mtf_hetero._compat import tf
from mtf_hetero.importer.nodes import RefusedError
from mtf_hetero.importer.program import Meaning, Value, literal

if TYPE_CHECKING:
    from numpy.typing import ArrayLike


class TensorList(list):
    """The elements of a TensorList; None for an element that is not set and counts as zeros.

    Args:
      items: the elements.
      shape: of an element, as far as is known.
      dtype: of an element.
    """

    def __init__(self, items: Sequence[Meaning | None], shape: "ArrayLike", dtype: tf.DType) -> None:
        super().__init__(items)
        self.shape, self.dtype = shape, dtype
        self.stack: Value | None = None  # the tensor that the list was made of

    def with_items(self, items: Sequence[Meaning | None]) -> "TensorList":
        """Return a list of the same kind with other elements."""
        made = TensorList(items, self.shape, self.dtype)
        made.stack = self.stack if len(items) == len(self) and all(map(operator.is_, items, self)) else None
        return made

    def map(self, function: Callable[[Meaning], Meaning]) -> "TensorList":
        """Return the list if a function is applied to each element that is set."""
        return self.with_items([item if item is None else function(item) for item in self])

    @property
    def element_shape(self) -> tuple[int, ...]:
        """The shape of an element, by those that are set, else by the list's own."""
        for item in self:
            if item is not None:
                return item.shape
        return tuple(int(n) for n in np.reshape(self.shape, -1))

    def item(self, at: int) -> Meaning:
        """Return an element; zeros if it is not set."""
        found = self[at]
        if found is None and self.dtype == tf.variant:
            return Optional([])  # whose use is refused
        return literal(np.zeros(self.element_shape), self.dtype) if found is None else found


class Optional:
    """The value that a branch keeps for its gradient. Another branch may keep one of another shape, or none.

    Args:
      values: the value; after the condition, those of all branches.
      chosen: what decided the condition; None: the branch is not joined with others yet.
      branches: after the condition, what the gradient of each branch reads.
    """

    def __init__(
        self, values: Sequence[Meaning], chosen: Value | None = None, branches: Sequence["Optional"] = ()
    ) -> None:
        self.values = values
        self.chosen, self._branches = chosen, branches

    def of_branch(self, chosen: Value, number: int) -> "Optional":
        """Return what a branch of a condition finds: its own, if the gradient's condition is decided as the first."""
        return self._branches[number] if chosen is self.chosen else self

    def value(self, node: tf.Operation) -> Meaning:
        """Return the value that a tf.Operation takes out.

        Raises:
          NotImplementedError: it may be one of several.
        """
        (y,) = node.outputs
        found = [v for v in self.values if _fits(v, y)]
        if len(found) > 1 and all(isinstance(v, Optional) for v in found):
            return Optional([inner for v in found for inner in v.values])
        if len(found) != 1:
            raise RefusedError(
                node, "reads one of several tensors that a condition keeps; write the condition with tf.where"
            )
        return found[0]

    def map(self, function: Callable[[Meaning], Meaning]) -> "Optional":
        """Return what is kept if a function is applied to each value."""
        return Optional([*map(function, self.values)], self.chosen, [x.map(function) for x in self._branches])


def _fits(kept: Meaning, y: tf.Tensor) -> bool:
    """Return whether what is kept may be a tensor."""
    if not isinstance(kept, Value) or kept.elements is not None:
        return y.dtype == tf.variant
    return kept.dtype == y.dtype and y.shape.is_compatible_with(kept.shape)


def leaves(x: Meaning) -> Iterator[Value]:
    """Yield the values that something stands for."""
    if isinstance(x, Value):
        yield x
    elif isinstance(x, (Optional, TensorList)):
        for inner in x.values if isinstance(x, Optional) else x:
            yield from leaves(inner)


def _replaced(x: Meaning, values: Mapping[Value, Value]) -> Meaning:
    """Return the same with other values."""
    if isinstance(x, Value):
        return values.get(x, x)
    made = x.map(lambda inner: _replaced(inner, values))
    if isinstance(x, Optional) and x.chosen is not None:
        made.chosen = values.get(x.chosen, x.chosen)
    return made


def join(
    chosen: Value,
    rows: Sequence[Sequence[Optional]],
    join_values: Callable[[Sequence[Value]], Value],
    *,
    are_inside: bool,
) -> list[Optional]:
    """Return what all branches of a condition keep.

    Args:
      chosen: what decides the condition.
      rows: what each branch keeps, of each result that is kept.
      join_values: returns what a condition gives, of what each branch gives; a list without elements is to be made.
      are_inside: whether nothing but the condition itself can read the branches' own values.
    """
    joined: list[list[dict[Value, Value]]] = []
    for optionals in rows:
        joined.append([{} for _ in optionals])
        for kept in _alike(optionals):
            first = next(x for x in kept if x is not None)
            missing = Value((), tf.variant) if first.elements else literal(np.zeros(first.shape), first.dtype)
            alike = [missing if x is None else x for x in kept]
            value = first if all(x is first for x in alike) else join_values(alike)
            for of_branch, x in zip(joined[-1], kept, strict=True):
                if x is not None:
                    of_branch[x] = value
    made = []
    outside = [{x: y for each in of_branch for x, y in each.items() if x.array is None} for of_branch in zip(*joined)]
    for optionals, of_row in zip(rows, joined, strict=True):
        values = {id(v): v for x, y in zip(optionals, of_row, strict=True) for v in _replaced(x, y).values}
        own = [_replaced(x, y) if are_inside else x for x, y in zip(optionals, outside, strict=True)]
        is_same = all(x is optionals[0] for x in optionals)
        made.append(optionals[0] if is_same else Optional([*values.values()], chosen, own))
    return made


def _alike(optionals: Sequence[Optional]) -> Iterator[list[Value | None]]:
    """Yield one value of each branch, all of one shape and type; None where a branch keeps none."""
    fits: dict[object, list[dict[Value, None]]] = {}
    for number, optional in enumerate(optionals):
        for x in leaves(optional):
            kind = x.shape, x.dtype, x.elements and x.elements.root
            fits.setdefault(kind, [{} for _ in optionals])[number][x] = None
    for of_kind in fits.values():
        yield from map(list, itertools.zip_longest(*of_kind))
