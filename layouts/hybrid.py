"""Hybrid data and model parallelism: convolutions split over the batch, dense layers over the workers of a group.

The scheme of SplitBrain (Lai, Kadav and Kruus 2021, arXiv 2112.15317), for any graph and any shares. On a mesh
"data:d;model:k", the images lie over both axes and each processor convolves its own. A dense layer has its weights
split over the group axis, `model`, and the examples of a whole group:

* P splits its units. The inputs of the group are brought together.
* R splits its inputs: those that a P layer before it leaves split, for nothing has to be sent, and those of a first
  layer with many more inputs than units. Its partial sums are added up, each processor getting its part of the units
  where another dense layer follows, and of the examples otherwise.

So activations stay in a group, the gradient of a dense weight goes to those that hold the same part of it, and the
gradient of a convolution to all.
"""

import math
from collections.abc import Iterator, Mapping, Sequence

from mtf_hetero._compat import mtf
from mtf_hetero.layout import Layout, MeshShapeLike
from mtf_hetero.layouts import anatomy
from mtf_hetero.layouts.rules import Rules
from mtf_hetero.partition import split_by_share


def hybrid(
    graph: mtf.Graph,
    *,
    mesh_shape: MeshShapeLike,
    shares: Mapping[str, Sequence[float]] | None = None,
    axis: str | None = None,
    dense_shares: Sequence[float] | None = None,
) -> Layout:
    """Splits the batch over all mesh axes, and dense layers over the group axis.

    The batch is the first dimensions of the largest imported tensor, one for each mesh axis in turn. A dense layer has
    to give the group axis's dimension a name of its own, by a reshape, lest it be split twice over one axis.

    Args:
      graph: mtf.Graph, with or without its gradients.
      mesh_shape: mesh axes and their sizes, "data:2;model:4", or "model:4" for a single group.
      shares: {mesh axis: one positive weight per coordinate}; an absent axis is divided evenly.
      axis: the group axis; None: the last.
      dense_shares: one positive weight per member of a group, by which the dense layers are divided, to its memory for
        instance; None: those of the axis.

    Raises:
      ValueError: the graph has no dense layer that can be split so, or not one batch dimension per mesh axis.

    Example:
      >>> layout = hybrid(graph, mesh_shape="data:2;model:4", shares={"data": [2, 1]})
      >>> layout.split("dense1/units", 4096), layout.split("outer_batch", 6)
      ((1024, 1024, 1024, 1024), (4, 2))
    """
    axes = [name for name, _ in Layout(mesh_shape, (), shares or ()).mesh_shape]
    group = Rules(graph, mesh_shape, shares, axes[-1] if axis is None and axes else axis)
    layers = [layer for layer in anatomy.layers(graph) if not layer.is_convolution]
    if not layers:
        raise ValueError("the graph has no dense layer with a trainable kernel; use the layout 'batch'")
    batch = dict(zip(axes, _batch(graph, len(axes)), strict=True))
    sources = anatomy.renames(graph.operations)
    pairs = []
    for name, dim in batch.items():
        if name != group.axis:
            rules = Rules(graph, mesh_shape, shares, name)
            rules.require(dim)
            _add_all(rules, _names_of(dim, sources))
            pairs += [(split, name) for split in rules.names]
    group.require(batch[group.axis])
    _split_batch(group, batch[group.axis], layers, sources)
    before = set(group.names)
    _split_dense(group, layers, anatomy.renames(anatomy.ancestors(layer.operation.outputs[0] for layer in layers)))
    dense = sorted(group.names - before)
    if not dense:
        raise ValueError(
            f"no dense layer can be split over the {group.count} processors of mesh axis {group.axis!r}; "
            "use fewer processors"
        )
    pairs += [(split, group.axis) for split in group.names]
    return Layout(mesh_shape, pairs, shares or (), _sizes(graph, dense, dense_shares))


def batch_sizes(
    batch_size: int, mesh_shape: MeshShapeLike, shares: Mapping[str, Sequence[float]] | None = None
) -> tuple[int, ...]:
    """Sizes of the batch's dimensions, one per mesh axis, that make up a batch and divide best in proportion to shares.

    Args:
      batch_size: examples per step.
      mesh_shape: one or two mesh axes and their sizes.
      shares: {mesh axis: one positive weight per coordinate}; an absent axis is divided evenly.

    Raises:
      ValueError: the mesh has more axes, or no two factors of the batch size give each processor an example.

    Example:
      >>> batch_sizes(96, "data:2;model:2", {"data": [2, 1], "model": [1, 1]})
      (3, 32)
    """
    mesh = Layout(mesh_shape, (), shares or ())
    if len(mesh.mesh_shape) == 1:
        return (batch_size,)
    if len(mesh.mesh_shape) != 2:
        raise ValueError(
            f"the mesh is {mesh.mesh_text}; hybrid parallelism needs one axis or two, as in data:2;model:4"
        )
    weights = [mesh.weights(name) for name, _ in mesh.mesh_shape]

    def longest(factors: tuple[int, int]) -> float:
        """The most examples that a processor has, for its share."""
        return math.prod(
            max(part / weight for part, weight in zip(split_by_share(factor, axis_weights), axis_weights, strict=True))
            for factor, axis_weights in zip(factors, weights, strict=True)
        )

    pairs = [(outer, batch_size // outer) for outer in range(1, batch_size + 1) if batch_size % outer == 0]
    pairs = [p for p in pairs if all(n >= count for n, (_, count) in zip(p, mesh.mesh_shape, strict=True))]
    if not pairs:
        raise ValueError(
            f"a batch of {batch_size} has no two factors that can be split over the mesh {mesh.mesh_text}; give a "
            f"multiple of {mesh.size}"
        )
    return min(pairs, key=longest)


def member_sizes(
    batch: Sequence[int], mesh_shape: MeshShapeLike, shares: Mapping[str, Sequence[float]] | None = None
) -> tuple[int, ...]:
    """What each member of a group holds of the batch's last dimension: sizes for `mtf_hetero.layers.in_rounds`.

    Args:
      batch: sizes of the batch's dimensions.
      mesh_shape: mesh axes and their sizes, the group's last.
      shares: {mesh axis: one positive weight per coordinate}; an absent axis is divided evenly.
    """
    mesh = Layout(mesh_shape, (), shares or ())
    return Layout(mesh.mesh_shape, [("batch", mesh.mesh_shape[-1][0])], mesh.shares).split("batch", batch[-1])


def _batch(graph: mtf.Graph, count: int) -> list[str]:
    """The first dimensions of the largest imported tensor, as many as there are mesh axes."""
    imported = [
        op.outputs[0].shape
        for op in graph.operations
        if isinstance(op, (mtf.ImportOperation, mtf.ImportLaidOutTensorOperation)) and op.outputs[0].shape.ndims
    ]
    if not imported:
        raise ValueError("the graph imports no tensor, so it has no batch")
    shape = max(imported, key=lambda shape: shape.size)
    windowed = {
        dim.name
        for op in graph.operations
        if isinstance(op, anatomy.CONVOLUTIONS)
        for dim in op.inputs[0].shape.dims[-op.inputs[1].shape.ndims + 1 :]
    }
    in_variables = {name for variable in graph.all_variables for name in variable.shape.dimension_names}
    sources = anatomy.renames(graph.operations)
    names: list[str] = []
    for name in shape.dimension_names:
        if not (windowed | in_variables).isdisjoint(_names_of(name, sources)):
            break
        names.append(name)
    if len(names) < count:
        raise ValueError(
            f"the images are {shape.to_string}, with {len(names)} batch dimensions for {count} mesh axes; give the "
            "images one batch dimension per mesh axis, as in [outer_batch, batch, ...] for two"
        )
    return names[:count]


def _names_of(origin: str, sources: Mapping[str, set[str]]) -> list[str]:
    """A dimension's name, and those that it is given later."""
    return [origin, *(new for new in sorted(sources) if anatomy.path_from(new, {origin}, sources) is not None)]


def _add_all(rules: Rules, names: Sequence[str]) -> None:
    for name in dict.fromkeys(names):
        if rules.allow([name]):
            rules.add([name])


def _split_batch(rules: Rules, origin: str, layers: Sequence[anatomy.Layer], sources: Mapping[str, set[str]]) -> None:
    """Splits the group's examples everywhere but in the dense layers."""
    in_dense = {
        name
        for layer in layers
        for tensor in (layer.x, *layer.operation.outputs)
        for name in tensor.shape.dimension_names
    }
    if origin in in_dense:
        raise ValueError(
            f"a dense layer uses dimension {origin!r} of the images, which is split over mesh axis {rules.axis!r}; "
            "rename this dimension by mtf.reshape before the layer"
        )
    _add_all(rules, [name for name in _names_of(origin, sources) if name not in in_dense])


def _split_dense(rules: Rules, layers: Sequence[anatomy.Layer], sources: Mapping[str, set[str]]) -> None:
    """Splits the inputs or the units of each dense layer."""
    produced: set[str] = set()  # units of the layers so far
    for layer in layers:
        for names in (*_arriving(layer, produced, rules, sources), *_units_and_inputs(layer, rules)):
            if names and rules.allow(names):
                rules.add(names)
                break
        produced |= set(layer.outputs)


def _arriving(
    layer: anatomy.Layer, produced: set[str], rules: Rules, sources: Mapping[str, set[str]]
) -> Iterator[list[str]]:
    """Per input that a dense layer before has made: its name, and those that it had since it was split or summed."""
    for name in layer.inputs:
        path = anatomy.path_from(name, produced, sources)
        if path is not None:
            yield path if path[-1] in rules.names else path[:-1]


def _units_and_inputs(layer: anatomy.Layer, rules: Rules) -> list[list[str]]:
    """The units and the inputs of a layer, first those by which less has to be sent for an example."""
    extents = {dim.name: dim.size for tensor in layer.operation.inputs for dim in tensor.shape.dims}
    inputs, units = (math.prod(extents[name] for name in names) for names in (layer.inputs, layer.outputs))
    inputs_first = inputs / rules.count + units < inputs
    return [[name] for name in (layer.inputs + layer.outputs if inputs_first else layer.outputs + layer.inputs)]


def _sizes(graph: mtf.Graph, names: Sequence[str], weights: Sequence[float] | None) -> dict[str, tuple[int, ...]]:
    """Exact sizes of dimensions, in proportion to weights."""
    if weights is None:
        return {}
    extents = {dim.name: dim.size for op in graph.operations for t in op.outputs for dim in t.shape.dims}
    return {name: split_by_share(extents[name], weights) for name in names}
