"""The names of the batch in a row, and the runs of them that stages have."""

import itertools
import math
from collections.abc import Collection, Iterable, Sequence

from mtf_hetero._compat import mtf
from mtf_hetero.graph.names import renamed
from mtf_hetero.graph.walk import size_bytes

_SLACK = 1.1  # on the time of the slowest run, so that fewer bytes cross


def order_by_layers(operations: Iterable[mtf.Operation], names: Collection[str]) -> list[str]:
    """Return the names in the order in which operations that depend on a variable have them.

    The order of the graph alone is another one: labels have the name of the last layers, and are read first.

    Args:
      operations: of a step, in the graph's order.
      names: of one dimension.
    """
    left, found, trained = set(names), list[str](), set[mtf.Tensor]()
    for op in operations:
        if isinstance(op, mtf.Variable) or not trained.isdisjoint(op.inputs):
            trained.update(op.outputs)
            own = (name for x in (*op.inputs, *op.outputs) for name in x.shape.dimension_names)
            new = [name for name in dict.fromkeys(own) if name in left]
            found += new
            left.difference_update(new)
    return [*found, *(name for name in names if name in left)]


def group_by_name(operations: Iterable[mtf.Operation], names: Sequence[str]) -> dict[str, list[mtf.Operation]]:
    """Return {name: the operations whose first dimension of these names it is}; results come before inputs."""
    found: dict[str, list[mtf.Operation]] = {name: [] for name in names}
    for op in operations:
        dims = (name for x in (*op.outputs, *op.inputs) for name in x.shape.dimension_names)
        name = next((name for name in dims if name in found), None)
        if name is not None:
            found[name].append(op)
    return found


def count_crossing(operations: Iterable[mtf.Operation], names: Sequence[str]) -> list[int]:
    """Return the bytes of the tensors that are renamed from a name to a later one, or back, before each name.

    Args:
      operations: of a step.
      names: of one dimension, in the order in which reshapes give them.
    """
    numbers = {name: number for number, name in enumerate(names)}
    changes = [0] * (len(names) + 1)
    for op in operations:
        for pair in renamed([op]):
            first, last = sorted(numbers.get(name, -1) for name in pair)
            if first >= 0:
                changes[first + 1] += size_bytes(op.outputs[0])
                changes[last + 1] -= size_bytes(op.outputs[0])
    return list(itertools.accumulate(changes))


def divide_into_runs(work: Sequence[float], crossing: Sequence[int], weights: Sequence[float]) -> list[int]:
    """Return the end of each run but the last: the number of the first item of the next one.

    Args:
      work: of each item.
      crossing: the bytes that cross before each item.
      weights: of each run.

    Example:
      >>> divide_into_runs([4, 4, 4, 4], [0, 9, 9, 9], [1, 1]), divide_into_runs([4, 4, 4, 4], [0, 9, 9, 9], [3, 1])
      ([2], [3])
    """
    count, done = len(work), [0, *itertools.accumulate(work)]

    def longest(end: int, begin: int, weight: float) -> float:
        return (done[end] - done[begin]) / weight

    least = [0.0, *[math.inf] * count]
    for weight in weights:
        least = [
            min(max(least[begin], longest(end, begin, weight)) for begin in range(end + 1)) for end in range(count + 1)
        ]
    limit, best = least[count] * _SLACK, [(0.0, [0]), *[(math.inf, [0])] * count]
    for weight in weights:
        best = [
            min(  # of ways that are alike, the first runs have more items: the ends are negative
                (best[begin][0] + (crossing[begin] if begin < end else 0), [*best[begin][1], -end])
                for begin in range(end + 1)
                if longest(end, begin, weight) <= limit
            )
            for end in range(count + 1)
        ]
    return [-end for end in best[count][1][1:-1]]
