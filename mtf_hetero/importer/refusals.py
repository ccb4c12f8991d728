"""Refusals: why devices cannot have a tensor, and all of a step's in one error.

A refused tensor is a value as any other, and an operation that reads one gives refused tensors for the same reason. So
the reading goes on. The step is refused for each reason that its results, its variables and its effects depend on.
"""

import dataclasses
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from mtf_hetero._compat import tf
from mtf_hetero.importer import structures
from mtf_hetero.importer.nodes import STRINGS, RefusedError
from mtf_hetero.importer.program import Meaning, Operation, Value

if TYPE_CHECKING:
    from mtf_hetero._compat import FuncGraph

_SHOWN = 10  # reasons of an error that has more


@dataclasses.dataclass(eq=False)
class Refused(Value):
    """A tensor that neither devices nor this process can have, or that is computed from such a tensor.

    Args:
      inputs: the values that its operation reads.
    """

    inputs: Sequence[Value] = ()


class RefusedStepError(NotImplementedError):
    """Several refusals.

    Args:
      reasons: each of them, once.
    """

    def __init__(self, reasons: Sequence[NotImplementedError]) -> None:
        self.reasons = reasons
        shown = f"; the first {_SHOWN} are" if len(reasons) > _SHOWN else ""
        lines = [f"the step is refused for {len(reasons)} reasons{shown}:", *map(str, reasons[:_SHOWN])]
        super().__init__("\n  ".join(lines))


def list_reasons(errors: Iterable[NotImplementedError]) -> list[NotImplementedError]:
    """Return each reason of some errors once, also if a function with the operation is called twice."""
    reasons = dict[str, NotImplementedError]()
    for error in errors:
        for reason in error.reasons if isinstance(error, RefusedStepError) else [error]:
            reasons.setdefault(str(reason), reason)
    return list(reasons.values())


def join(errors: Iterable[NotImplementedError]) -> NotImplementedError:
    """Return one error for some; a single reason is an error itself."""
    reasons = list_reasons(errors)
    return reasons[0] if len(reasons) == 1 else RefusedStepError(reasons)


def lost(values: Iterable[Meaning]) -> list[NotImplementedError]:
    """Return why neither devices nor this process can have some values."""
    return [x.refused for x in values if isinstance(x, Refused) and x.refused is not None]


def open_values(values: Iterable[Meaning]) -> list[NotImplementedError]:
    """Return why devices cannot have some values or their parts."""
    return [leaf.refused for x in values for leaf in structures.leaves(x) if leaf.refused is not None]


def check(errors: Iterable[NotImplementedError]) -> None:
    """Raise NotImplementedError if there is a refusal."""
    if errors := list(errors):
        raise join(errors)


def sort(errors: Iterable[NotImplementedError], places: Mapping[tf.Operation, int]) -> list[NotImplementedError]:
    """Return the reasons of errors in the order of the program; those of no operation come last."""
    return sorted(list_reasons(errors), key=lambda e: places[e.node] if isinstance(e, RefusedError) else math.inf)


# --- of a step


def find_refused_results(graph: "FuncGraph", results: Sequence[Meaning]) -> Iterator[NotImplementedError]:
    """Yield why the results of a step, which this process fetches from the devices, cannot be fetched."""
    for tensor, x in zip(graph.outputs, results, strict=True):
        if tensor.dtype == tf.string:
            yield NotImplementedError("the step returns strings, which no device has; return numbers")
        elif isinstance(x, Value):
            yield from open_values([x])
        else:
            yield NotImplementedError("the step returns a variable or a TensorArray; return tensors")


def list_sources(values: Sequence[Meaning]) -> list[Value]:
    """Return the numbers of values that are not refused; in place of one that is, those that it is computed from."""
    todo, found = [x for x in values if isinstance(x, Value) and x.dtype != tf.string], dict[Value, None]()
    while todo:
        if (x := todo.pop()) not in found:
            found[x] = None
            todo += x.inputs if isinstance(x, Refused) else ()
    return [x for x in found if not isinstance(x, Refused)]


def find_needed_strings(operations: Iterable[Operation]) -> Iterator[NotImplementedError]:
    """Yield the errors of operations that need strings, the first ones of each; what is printed is not needed."""
    made = set[Value]()
    for op in operations:
        if any(value.dtype == tf.string for value in (*op.inputs, *op.outputs)):
            if made.isdisjoint(op.inputs):
                assert op.source is not None
                yield RefusedError(op.source, STRINGS)
            made.update(value for value in op.outputs if value.dtype == tf.string)
        else:
            for block in op.blocks:
                yield from find_needed_strings(block.operations)
