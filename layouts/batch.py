"""Data parallelism: split the batch, each processor's part in proportion to its share."""

import dataclasses
from collections.abc import Mapping, Sequence

from mtf_hetero._compat import mtf
from mtf_hetero.layout import Layout, MeshShapeLike
from mtf_hetero.layouts import anatomy
from mtf_hetero.layouts.rules import Rules

_BATCH = "batch"


def batch(
    graph: mtf.Graph,
    *,
    mesh_shape: MeshShapeLike,
    shares: Mapping[str, Sequence[float]] | None = None,
    axis: str | None = None,
) -> Layout:
    """Splits the batch dimension, under each of its names.

    The batch dimension is the one with that name, if an imported tensor begins with it; variables may have it, as the
    states of examples do. Else it is the first dimension of the largest imported tensor whose first dimension is in no
    variable. What it is renamed to later is split with it.

    Args:
      graph: mtf.Graph.
      mesh_shape: mesh axes and their sizes, "all:3".
      shares: {mesh axis: one positive weight per coordinate}; an absent axis is divided evenly.
      axis: the mesh axis to split over; None: the first.

    Raises:
      ValueError: the graph imports no batch, or one of fewer examples than the axis has processors.

    Example:
      >>> batch(graph, mesh_shape="all:3", shares={"all": [70, 25, 5]}).split("batch", 200)
      (140, 50, 10)
    """
    rules = Rules(graph, mesh_shape, shares, axis)
    in_variables = {name for variable in graph.all_variables for name in variable.shape.dimension_names} - {_BATCH}
    imported = [
        op.outputs[0].shape
        for op in graph.operations
        if isinstance(op, mtf.ImportOperation) and op.outputs[0].shape.ndims
    ]
    imported = [shape for shape in imported if shape.dims[0].name not in in_variables]
    if not imported:
        raise ValueError("the graph has no batch; import a tensor whose first dimension is in no variable")
    name = max(imported, key=lambda shape: (shape.dims[0].name == _BATCH, shape.size)).dims[0].name
    rules.require(name)
    rules.add([name])
    _add_later_names(rules, graph, name)
    return rules.layout()


def _add_later_names(rules: Rules, graph: mtf.Graph, name: str) -> None:
    """Splits a batch dimension under the names that it is given later, where nothing forbids it."""
    in_variables = {name for variable in graph.all_variables for name in variable.shape.dimension_names}
    sources = anatomy.renames(graph.operations)
    for new in sources:
        path = anatomy.path_from(new, {name}, sources)
        if path is not None and not in_variables & set(path) and rules.allow(path):
            rules.add(path)


def under_all_names(layout: Layout, graph: mtf.Graph, name: str = "batch") -> Layout:
    """Splits a batch dimension that rules split under its later names too, where nothing forbids it.

    Args:
      layout: with rules.
      graph: mtf.Graph.
      name: of the dimension.

    Example:
      >>> under_all_names(Layout("all:2", "batch:all"), graph).rules
      (('batch', 'all'), ('dense/batch', 'all'))
    """
    axis = dict(layout.rules).get(name)
    if axis is None:
        return layout
    rules = Rules(graph, layout.mesh_shape, dict(layout.shares), axis)
    rules.add(dim for dim, other in layout.rules if other == axis)
    rules.keep_whole(dim for dim, other in layout.rules if other != axis)
    _add_later_names(rules, graph, name)
    others = [rule for rule in layout.rules if rule[1] != axis]
    return dataclasses.replace(layout, rules=[*others, *((dim, axis) for dim in rules.names)])
