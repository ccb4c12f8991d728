"""Stages: each processor computes a run of layers, on all examples, with work in proportion to its share.

The batch has several names in a graph: one per layer in this library's networks, one per stage in an imported step.
A layer is on a processor if that processor alone has the batch of the layer. So sizes place layers, and the
renames between two processors send what crosses: an activation forwards, and its gradient backwards.
"""

from collections.abc import Mapping, Sequence

from mtf_hetero._compat import mtf
from mtf_hetero.cost.work import of_operation
from mtf_hetero.graph.names import dimension_sizes
from mtf_hetero.graph.runs import count_crossing, divide_into_runs, group_by_name, order_by_layers
from mtf_hetero.graph.walk import live_operations, within
from mtf_hetero.layout import Layout
from mtf_hetero.layout.convert import MeshShapeLike
from mtf_hetero.layouts.batch import batch
from mtf_hetero.layouts.rules import Rules


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
    sizes = dimension_sizes(graph.operations)
    names = order_by_layers(graph.operations, [name for name in sizes if name in rules.names])
    if len(names) < 2:
        raise ValueError(
            f"the batch, {min(rules.names)!r}, has no other name that can be split, so no layer can be placed alone; "
            "use the layout batch, or rename the batch between layers by mtf.rename_dimension"
        )
    split = rules.layout()
    weights = split.weights(rules.axis)
    ends = divide_into_runs(_count_work(graph, names), count_crossing(live_operations(graph), names), weights)
    owners = [sum(end <= i for end in ends) for i in range(len(names))]
    vectors = {
        name: [sizes[name][-1] if number == owner else 0 for number in range(len(weights))]
        for name, owner in zip(names, owners, strict=True)
    }
    return Layout(split.mesh_shape, split.rules, split.shares, vectors)


def _count_work(graph: mtf.Graph, names: Sequence[str]) -> list[int]:
    """Return the floating-point operations of a step, with one turn of a loop, by the first name of an operation."""
    groups, whole = group_by_name(within(live_operations(graph)), names), Layout((), ())
    return [sum(of_operation(op, whole, 0)[0] for op in of_name) for of_name in groups.values()]
