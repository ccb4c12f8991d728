"""Split filters and channels in turn (Pconv, Rconv), so that only every other layer communicates.

The scheme of Moreno-Alvarez et al. (Neurocomputing 441, 2021, Figure 5), for any graph. A layer is a convolution or a
dense layer, and each is split over the mesh axis in one of two ways:

* P splits its outputs (filters, units). The input is replicated, and no communication is needed.
* R splits its inputs (channels), which arrive split from a P layer. The partial sums are all-reduced, and the output
  is replicated.

So a layer is R if its input arrives split, otherwise P. On a chain of layers they alternate. A branch or a sum of
branches keeps the splits of its tensors.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from mtf_hetero._compat import mtf, tf
from mtf_hetero.graph import Layer, list_layers
from mtf_hetero.graph.names import Renames
from mtf_hetero.graph.walk import ancestors
from mtf_hetero.layout import Layout
from mtf_hetero.layout.convert import MeshShapeLike
from mtf_hetero.layouts.rules import Rules

NEGLIGIBLE_WORK = 0.01  # of all multiply-adds: a last layer with less is replicated


def filters(
    graph: mtf.Graph,
    *,
    mesh_shape: MeshShapeLike,
    shares: Mapping[str, Sequence[float]] | None = None,
    axis: str | None = None,
) -> Layout:
    """Split filters, units and the channels that they become, in proportion to shares.

    A last layer that would be P, with negligible work, is replicated, and so are the logits. A layer that neither way
    can split is replicated too. So is a convolution with fewer filters than the axis has processors, with a warning.

    Args:
      graph: mtf.Graph, with or without its gradients.
      mesh_shape: mesh axes and their sizes, "all:3".
      shares: {mesh axis: one positive weight per coordinate}; an absent axis is split evenly.
      axis: the mesh axis to split over; None: the first.

    Raises:
      ValueError: the graph has no layer that can be split over the axis.

    Example:
      >>> filters(graph, mesh_shape="all:3", shares={"all": [70, 25, 5]}).split("conv1/filters", 60)
      (42, 15, 3)
    """
    rules = Rules(graph, mesh_shape, shares, axis)
    layers = list_layers(graph)
    if not layers:
        raise ValueError(
            "the graph has no convolution and no dense layer of several units with a trainable kernel; choose "
            "batch, or give rules, as in 'conv/kernel/3:all'"
        )
    alternate(rules, layers)
    if not rules.names and rules.count > 1:
        raise ValueError(
            f"no layer can be split over the {rules.count} processors of mesh axis {rules.axis!r}; use fewer "
            "processors or another layout"
        )
    return rules.layout()


def alternate(rules: Rules, layers: Sequence[Layer]) -> None:
    """Split layers of a graph, P and R in turn.

    Args:
      rules: rules of the mesh axis, to which this function adds.
      layers: the layers, in the graph's order.
    """
    renames = Renames(ancestors(layer.operation for layer in layers))
    feeding = ancestors(layer.x.operation for layer in layers)
    negligible = NEGLIGIBLE_WORK * sum(layer.work for layer in layers)
    for layer in layers:
        arriving = list(_split_inputs(layer, rules, renames))
        if not arriving:
            if layer.operation not in feeding and layer.work < negligible:
                continue
            if layer.is_convolution and not rules.is_large_enough(layer.outputs[0]):
                _warn_about_small(layer, rules)
                continue
        for names in [*arriving, *[[name] for name in (*layer.outputs, *layer.inputs)]]:
            if rules.allow(names):
                rules.add(names)
                break


def _warn_about_small(layer: Layer, rules: Rules) -> None:
    (dim,) = (dim for dim in layer.operation.outputs[0].shape.dims if dim.name == layer.outputs[0])
    tf.logging.warning(
        "dimension %r of size %d is not split over the %d processors of mesh axis %r: each processor needs one unit",
        dim.name,
        dim.size,
        rules.count,
        rules.axis,
    )


def _split_inputs(layer: Layer, rules: Rules, renames: Renames) -> Iterator[list[str]]:
    """Return for each input that arrives split its name, and its names since the split."""
    for name in layer.inputs:
        path = renames.path(name, rules.names)
        if path is not None:
            yield path


def even(graph: mtf.Graph, **options: Any) -> Layout:
    """Split like `filters`, with the same arguments, in equal parts for any shares: the paper's baseline."""
    layout = filters(graph, **options)
    return Layout(layout.mesh_shape, layout.rules)
