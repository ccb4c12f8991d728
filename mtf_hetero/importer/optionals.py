"""Values that the branches of a condition keep for their gradients."""

from collections.abc import Callable, Iterator, Sequence

import numpy as np

from mtf_hetero._compat import tf
from mtf_hetero.importer.nodes import refusal
from mtf_hetero.importer.program import Meaning, Value, literal


class Optional:
    """The value that a branch keeps for its gradient. Another branch may keep one of another shape, or none.

    Args:
      values: the value; after the condition, those of all branches.
      chosen: what decided the condition; None: the branch is not joined with others yet.
      branches: after the condition, what the gradient of each branch reads.
    """

    def __init__(
        self, values: Sequence[Meaning], chosen: Value | None = None, branches: Sequence[Sequence[Meaning]] = ()
    ) -> None:
        self.values = [v for x in values for v in (x.values if isinstance(x, Optional) else [x])]
        self._chosen, self._branches = chosen, branches

    def of_branch(self, chosen: Value, number: int) -> "Optional":
        """Return what a branch of a condition finds: its own, if the gradient's condition is decided as the first."""
        return Optional(self._branches[number]) if chosen is self._chosen else self

    def value(self, node: tf.Operation) -> Meaning:
        """Return the value that a tf.Operation takes out.

        Raises:
          NotImplementedError: it may be one of several.
        """
        (y,) = node.outputs
        if y.dtype == tf.variant and all(v.dtype != tf.variant for v in self.values):  # one within another
            return self
        found = [v for v in self.values if v.dtype == y.dtype and y.shape.is_compatible_with(v.shape)]
        if len(found) != 1:
            raise refusal(
                node, "reads one of several tensors that a condition keeps; write the condition with tf.where"
            )
        return found[0]

    def zeros(self, node: tf.Operation) -> "Optional":
        """Return zeros like the value, which is all that a tf.Operation may make of it.

        Raises:
          NotImplementedError: it makes something else.
        """
        if node.type != "ZerosLike" or not all(isinstance(v, Value) and v.elements is None for v in self.values):
            raise refusal(node, "of what a condition keeps is not followed; write the condition with tf.where")
        values, *branches = ([literal(np.zeros(v.shape), v.dtype) for v in x] for x in (self.values, *self._branches))
        return Optional(values, self._chosen, branches)


def join(chosen: Value, optionals: Sequence[Optional], join_values: Callable[[Sequence[Meaning]], Meaning]) -> Optional:
    """Return what all branches of a condition keep.

    Args:
      chosen: what decides the condition.
      optionals: what each branch keeps.
      join_values: returns what a condition gives, of what each branch gives.
    """
    values, branches = [], [[] for _ in optionals]
    for kept in _alike(optionals):
        shape, dtype = next((x.shape, x.dtype) for x in kept if x is not None)
        joined = join_values([literal(np.zeros(shape), dtype) if x is None else x for x in kept])
        values.append(joined)
        for branch, x in zip(branches, kept, strict=True):
            if x is not None:
                branch.append(x if isinstance(x, Value) and x.array is not None else joined)
    return Optional(values, chosen, branches)


def _alike(optionals: Sequence[Optional]) -> Iterator[list[Value | None]]:
    """Yield one value of each branch, all of one shape and type; None where a branch keeps none."""
    kinds = {(value.shape, value.dtype): None for optional in optionals for value in optional.values}
    for shape, dtype in kinds:
        fits = [[v for v in optional.values if (v.shape, v.dtype) == (shape, dtype)] for optional in optionals]
        for number in range(max(map(len, fits))):
            yield [mine[number] if number < len(mine) else None for mine in fits]
