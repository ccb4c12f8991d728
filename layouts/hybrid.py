"""Hybrid data and model parallelism: convolutions split over the batch, dense layers over the workers of a group.

The scheme of SplitBrain (Lai, Kadav and Kruus 2021, arXiv 2112.15317), for any graph and any shares. On a mesh
"data:d;model:k", both axes split the images, and each processor convolves its own. A dense layer has its weights split
over the group axis, `model`, and computes the examples of a complete group:

* P splits its units. The inputs of the group are all-gathered.
* R splits its inputs: inputs that a P layer leaves split, because nothing has to be sent, and inputs of a first layer
  with many more inputs than units. Its partial sums are reduce-scattered: over the units if another dense layer
  follows, otherwise over the examples.

So activations stay in a group, the gradient of a dense weight goes to the processors with the same part of it, and the
gradient of a convolution goes to all.
"""

import math
from collections.abc import Iterator, Mapping, Sequence

from mtf_hetero._compat import mtf
from mtf_hetero.graph import Layer, list_layers
from mtf_hetero.graph.names import Renames, dimension_sizes, names_in_variables
from mtf_hetero.graph.walk import ancestors, imported
from mtf_hetero.layout import Layout
from mtf_hetero.layout.convert import MeshShapeLike
from mtf_hetero.layout.partition import split_by_share
from mtf_hetero.layouts.rules import Rules
from mtf_hetero.ops.traits import find_images, find_traits


def hybrid(
    graph: mtf.Graph,
    *,
    mesh_shape: MeshShapeLike,
    shares: Mapping[str, Sequence[float]] | None = None,
    axis: str | None = None,
    dense_shares: Sequence[float] | None = None,
) -> Layout:
    """Split the batch over all mesh axes, and dense layers over the group axis.

    The batch is the first dimensions of the largest imported tensor, one for each mesh axis in turn. A dense layer must
    rename the group axis's dimension by a reshape. Otherwise a tensor would be split twice over one axis.

    Args:
      graph: mtf.Graph, with or without its gradients.
      mesh_shape: mesh axes and their sizes, "data:2;model:4", or "model:4" for a single group.
      shares: {mesh axis: one positive weight per coordinate}; an absent axis is divided evenly.
      axis: the group axis; None: the last.
      dense_shares: one positive weight per member of a group, for the split of dense layers, such as its memory; None:
        the shares of the axis.

    Raises:
      ValueError: the graph has no dense layer that can be split so, or lacks a batch dimension for a mesh axis.

    Example:
      >>> layout = hybrid(graph, mesh_shape="data:2;model:4", shares={"data": [2, 1]})
      >>> layout.split("dense1/units", 4096), layout.split("outer_batch", 6)
      ((1024, 1024, 1024, 1024), (4, 2))
    """
    axes = [name for name, _ in Layout(mesh_shape, (), shares or ()).mesh_shape]
    group = Rules(graph, mesh_shape, shares, axes[-1] if axis is None and axes else axis)
    layers = [layer for layer in list_layers(graph) if not layer.is_convolution]
    if not layers:
        raise ValueError("the graph has no dense layer with a trainable kernel; use the layout 'batch'")
    batch = dict(zip(axes, _batch(graph, len(axes)), strict=True))
    renames = Renames(graph.operations)
    pairs = []
    for name, dim in batch.items():
        if name != group.axis:
            rules = Rules(graph, mesh_shape, shares, name)
            rules.require(dim)
            _add_all(rules, renames.later_names(dim))
            pairs += [(split, name) for split in rules.names]
    group.require(batch[group.axis])
    _split_batch(group, batch[group.axis], layers, renames)
    before = set(group.names)
    _split_dense(group, layers, Renames(ancestors(layer.operation for layer in layers)))
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
    """Return sizes of the batch's dimensions, one per mesh axis, that fit the shares best.

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
        """Return the most examples that a processor has, relative to its share."""
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
    """Return each group member's size of the batch's last dimension, for `mtf_hetero.layers.in_rounds`.

    Args:
      batch: sizes of the batch's dimensions.
      mesh_shape: mesh axes and their sizes, the group's last.
      shares: {mesh axis: one positive weight per coordinate}; an absent axis is divided evenly.
    """
    mesh = Layout(mesh_shape, (), shares or ())
    return Layout(mesh.mesh_shape, [("batch", mesh.mesh_shape[-1][0])], mesh.shares).split("batch", batch[-1])


def _batch(graph: mtf.Graph, count: int) -> list[str]:
    """Return the first dimensions of the largest imported tensor, one per mesh axis."""
    shapes = imported(graph)
    if not shapes:
        raise ValueError("the graph imports no tensor, so it has no batch")
    shape = max(shapes, key=lambda shape: shape.size)
    windowed = {
        dim.name
        for op in graph.operations
        if find_traits(op).is_layer and find_images(op)
        for dim in op.inputs[0].shape.dims[-op.inputs[1].shape.ndims + 1 :]
    }
    in_variables, renames = names_in_variables(graph), Renames(graph.operations)
    names: list[str] = []
    for name in shape.dimension_names:
        if not (windowed | in_variables).isdisjoint(renames.later_names(name)):
            break
        names.append(name)
    if len(names) < count:
        raise ValueError(
            f"the images are {shape.to_string}, with {len(names)} batch dimensions for {count} mesh axes; give the "
            "images one batch dimension per mesh axis, as in [outer_batch, batch, ...] for two"
        )
    return names[:count]


def _add_all(rules: Rules, names: Sequence[str]) -> None:
    for name in dict.fromkeys(names):
        if rules.allow([name]):
            rules.add([name])


def _split_batch(rules: Rules, origin: str, layers: Sequence[Layer], renames: Renames) -> None:
    """Split the group's examples everywhere except in the dense layers."""
    in_dense = {
        name
        for layer in layers
        for tensor in (layer.x, *layer.operation.outputs)
        for name in tensor.shape.dimension_names
    }
    if origin in in_dense:
        raise ValueError(
            f"a dense layer uses dimension {origin!r} of the images, which is split over mesh axis {rules.axis!r}; "
            "choose the layout batch, or rename this dimension by mtf.reshape before the layer"
        )
    _add_all(rules, [name for name in renames.later_names(origin) if name not in in_dense])


def _split_dense(rules: Rules, layers: Sequence[Layer], renames: Renames) -> None:
    """Split the inputs or the units of each dense layer."""
    produced: set[str] = set()  # units of the layers so far
    for layer in layers:
        for names in (*_split_or_summed_inputs(layer, produced, rules, renames), *_units_and_inputs(layer, rules)):
            if names and rules.allow(names):
                rules.add(names)
                break
        produced |= set(layer.outputs)


def _split_or_summed_inputs(layer: Layer, produced: set[str], rules: Rules, renames: Renames) -> Iterator[list[str]]:
    """Return for each input from an earlier dense layer its name, and its names since it was split or summed."""
    for name in layer.inputs:
        path = renames.path(name, produced)
        if path is not None:
            yield path if path[-1] in rules.names else path[:-1]


def _units_and_inputs(layer: Layer, rules: Rules) -> list[list[str]]:
    """Return the units and the inputs of a layer, first the ones that send less per example."""
    extents = {dim.name: dim.size for tensor in layer.operation.inputs for dim in tensor.shape.dims}
    inputs, units = (math.prod(extents[name] for name in names) for names in (layer.inputs, layer.outputs))
    inputs_first = inputs / rules.count + units < inputs
    return [[name] for name in (layer.inputs + layer.outputs if inputs_first else layer.outputs + layer.inputs)]


def _sizes(graph: mtf.Graph, names: Sequence[str], weights: Sequence[float] | None) -> dict[str, tuple[int, ...]]:
    """Return exact sizes of dimensions, in proportion to weights."""
    if weights is None:
        return {}
    sizes = dimension_sizes(graph.operations)
    return {name: split_by_share(sizes[name][-1], weights) for name in names}
