"""Data parallelism: split the batch, each processor's part in proportion to its share."""

import dataclasses
from collections.abc import Mapping, Sequence

from mtf_hetero._compat import mtf
from mtf_hetero.graph.names import Renames, names_in_variables
from mtf_hetero.graph.walk import imported
from mtf_hetero.layout import Layout
from mtf_hetero.layout.convert import MeshShapeLike
from mtf_hetero.layouts.rules import Rules

_BATCH = "batch"


def batch(
    graph: mtf.Graph,
    *,
    mesh_shape: MeshShapeLike,
    shares: Mapping[str, Sequence[float]] | None = None,
    axis: str | None = None,
) -> Layout:
    """Split the batch dimension, under each of its names.

    The batch dimension is the one called "batch", if an imported tensor begins with it. Variables may have it too, as
    states of examples do. Otherwise it is the first dimension of the largest imported tensor whose first dimension is
    in no variable. Its later names are split with it.

    A step that reshapes its batch has it as a product of dimensions, batch_0 and batch_1. The recipe splits the first
    of them that has a unit for each processor. It replicates a batch that is too small.

    Args:
      graph: mtf.Graph.
      mesh_shape: mesh axes and their sizes, "all:3".
      shares: {mesh axis: one positive weight per coordinate}; an absent axis is split evenly.
      axis: the mesh axis to split over; None: the first.

    Raises:
      ValueError: the graph imports no batch.

    Example:
      >>> batch(graph, mesh_shape="all:3", shares={"all": [70, 25, 5]}).split("batch", 200)
      (140, 50, 10)
    """
    rules = Rules(graph, mesh_shape, shares, axis)
    in_variables = names_in_variables(graph) - {_BATCH}
    shapes = [shape for shape in imported(graph) if shape.dims[0].name not in in_variables]
    if not shapes:
        raise ValueError(
            "the graph has no batch, an input whose first dimension is in no variable; give rules, as in 'x/1:all'"
        )
    largest = max(shapes, key=lambda shape: (shape.dims[0].name == _BATCH, shape.size))
    factors = _leading_factors(largest)
    name = next(filter(rules.is_large_enough, factors), factors[0])
    rules.add([name])
    _add_later_names(rules, graph, name)
    return rules.layout()


def _leading_factors(shape: mtf.Shape) -> list[str]:
    """Return the names of the dimensions of which the first axis is a product: "batch_0", "batch_1"; or the first name.

    Example:
      >>> _leading_factors(mtf.Shape([mtf.Dimension("batch_0", 2), mtf.Dimension("batch_1", 7)]))
      ['batch_0', 'batch_1']
    """
    first, *others = (dim.name for dim in shape.dims)
    base = first.removesuffix("_0")
    numbered = (name for number, name in enumerate(others, 1) if base != first and name == f"{base}_{number}")
    return [first, *numbered]


def _add_later_names(rules: Rules, graph: mtf.Graph, name: str) -> None:
    """Split a batch dimension under its later names, if no operation forbids it."""
    in_variables = names_in_variables(graph)
    for path in Renames(graph.operations).later(name):
        if in_variables.isdisjoint(path) and rules.allow(path):
            rules.add(path)


def under_all_names(layout: Layout, graph: mtf.Graph) -> Layout:
    """Split the dimension "batch" of the rules under its later names too, if no operation forbids it.

    Args:
      layout: with rules.
      graph: mtf.Graph.

    Example:
      >>> under_all_names(Layout("all:2", "batch:all"), graph).rules
      (('batch', 'all'), ('dense/batch', 'all'))
    """
    axis = dict(layout.rules).get(_BATCH)
    if axis is None:
        return layout
    rules = Rules(graph, layout.mesh_shape, dict(layout.shares), axis)
    rules.add(dim for dim, other in layout.rules if other == axis)
    rules.keep_whole(dim for dim, other in layout.rules if other != axis)
    _add_later_names(rules, graph, _BATCH)
    others = [rule for rule in layout.rules if rule[1] != axis]
    return dataclasses.replace(layout, rules=[*others, *((dim, axis) for dim in rules.names)])
