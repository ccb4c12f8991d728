"""Stages: each processor computes a run of layers, on all examples, with work in proportion to its share.

The batch has several names in a graph: one per layer in this library's networks, one per stage in an imported step.
A layer is on a processor if that processor alone has the batch of the layer. So sizes place layers, and the
renames between two processors send what crosses: an activation forwards, and its gradient backwards.
"""

import itertools
import math
from collections.abc import Mapping, Sequence

from mtf_hetero._compat import mtf
from mtf_hetero.cost.work import of_operation
from mtf_hetero.graph.names import dimension_sizes, renamed
from mtf_hetero.graph.walk import live_operations, size_bytes, within
from mtf_hetero.layout import Layout
from mtf_hetero.layout.convert import MeshShapeLike
from mtf_hetero.layouts.batch import batch
from mtf_hetero.layouts.rules import Rules

_SLACK = 1.1  # on the time of the slowest processor, so that fewer bytes cross


def stages(
    graph: mtf.Graph,
    *,
    mesh_shape: MeshShapeLike,
    shares: Mapping[str, Sequence[float]] | None = None,
    axis: str | None = None,
) -> Layout:
    """Place a run of layers on each processor of a mesh axis, in their order.

    The names are those that the recipe `batch` splits. Each processor has consecutive names, and their work is in
    proportion to its share, as far as whole names allow. Of the ways that are nearly as balanced as the best one, the
    recipe uses one where the fewest bytes cross. A processor without a name computes nothing.

    Args:
      graph: mtf.Graph, with or without its gradients.
      mesh_shape: mesh axes and their sizes, "all:3".
      shares: {mesh axis: one positive weight per coordinate}; an absent axis is even.
      axis: the mesh axis whose processors get the layers; None: the first.

    Raises:
      ValueError: the graph has no batch, or the batch has one name that can be split.

    Example:
      >>> layout = stages(graph, mesh_shape="all:2", shares={"all": [3, 1]})
      >>> layout.split("conv1/batch", 64), layout.split("dense1/batch", 64)
      ((64, 0), (0, 64))
    """
    rules = Rules(graph, mesh_shape, shares, axis)
    rules.add(dim for dim, _ in batch(graph, mesh_shape=[(rules.axis, 1)]).rules)  # no example is divided
    sizes = dimension_sizes(op for op in graph.operations if op.inputs)  # not in the order of what is fed
    names = [name for name in sizes if name in rules.names]
    if len(names) < 2:
        raise ValueError(
            f"the batch, {min(rules.names)!r}, has no other name that can be split, so no layer can be placed alone; "
            "use the layout batch, or rename the batch between layers by mtf.rename_dimension"
        )
    split = rules.layout()
    weights = split.weights(rules.axis)
    ends = divide_into_runs(_count_work(graph, names), _count_crossing(graph, names), weights)
    owners = [sum(end <= i for end in ends) for i in range(len(names))]
    vectors = {
        name: [sizes[name][-1] if number == owner else 0 for number in range(len(weights))]
        for name, owner in zip(names, owners, strict=True)
    }
    return Layout(split.mesh_shape, split.rules, split.shares, vectors)


def _count_work(graph: mtf.Graph, names: Sequence[str]) -> list[int]:
    """Return the floating-point operations of a step, with one turn of a loop, by the first name of an operation."""
    counts, whole = dict.fromkeys(names, 0), Layout((), ())
    for op in within(live_operations(graph)):
        dims = [name for x in (*op.outputs, *op.inputs) for name in x.shape.dimension_names]
        name = next((name for name in dims if name in counts), None)
        if name is not None:
            counts[name] += of_operation(op, whole, 0)[0]
    return list(counts.values())


def _count_crossing(graph: mtf.Graph, names: Sequence[str]) -> list[int]:
    """Return the bytes of the tensors that are renamed from a name to a later one, or back, before each name."""
    numbers = {name: number for number, name in enumerate(names)}
    changes = [0] * (len(names) + 1)
    for op in live_operations(graph):
        for pair in renamed([op]):
            first, last = sorted(numbers.get(name, -1) for name in pair)
            if first >= 0:
                changes[first + 1] += size_bytes(op.outputs[0])
                changes[last + 1] -= size_bytes(op.outputs[0])
    return list(itertools.accumulate(changes))


def divide_into_runs(work: Sequence[int], crossing: Sequence[int], weights: Sequence[float]) -> list[int]:
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
