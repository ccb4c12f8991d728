"""Split the filters: Pconv and Rconv in turn, so that only every other layer communicates.

The scheme of Moreno-Alvarez et al. (Neurocomputing 441, 2021, Figure 5), for any graph. A layer is a convolution or a
dense layer, and each is split over the mesh axis in one of two ways:

* P splits its outputs (filters, units). The input is whole, and the output is split without any communication.
* R splits its inputs (channels), which arrive split from a P layer. The partial sums are added up, and the output is
  whole.

So a layer is R if its input arrives split, otherwise P. On a chain of layers they alternate; a branch or a sum of
branches keeps to whichever way its tensors lie.
"""

from collections.abc import Iterator, Mapping, Sequence

from mtf_hetero._compat import mtf, tf
from mtf_hetero.layout import Layout, MeshShapeLike
from mtf_hetero.layouts import anatomy
from mtf_hetero.layouts.rules import Rules

NEGLIGIBLE_WORK = 0.01  # of all multiply-adds: a last layer below this is done whole by every processor


def filters(
    graph: mtf.Graph,
    *,
    mesh_shape: MeshShapeLike,
    shares: Mapping[str, Sequence[float]] | None = None,
    axis: str | None = None,
) -> Layout:
    """Splits filters, units and the channels that they become, in proportion to shares.

    The last layer of a graph, where it would be P and hardly adds to the work, is left whole, and so are the logits.
    A layer that neither way can split is left whole too, and so is a convolution of fewer filters than the axis has
    processors, which a warning names.

    Args:
      graph: mtf.Graph, with or without its gradients.
      mesh_shape: mesh axes and their sizes, "all:3".
      shares: {mesh axis: one positive weight per coordinate}; an absent axis is divided evenly.
      axis: the mesh axis to split over; None: the first.

    Raises:
      ValueError: the graph has no layer, or none that can be split over the axis.

    Example:
      >>> filters(graph, mesh_shape="all:3", shares={"all": [70, 25, 5]}).split("conv1/filters", 60)
      (42, 15, 3)
    """
    rules = Rules(graph, mesh_shape, shares, axis)
    layers = anatomy.layers(graph)
    if not layers:
        raise ValueError("the graph has no convolution and no dense layer with a trainable kernel; choose other rules")
    alternate(rules, layers)
    if not rules.names and rules.count > 1:
        raise ValueError(
            f"no layer can be split over the {rules.count} processors of mesh axis {rules.axis!r}; use fewer "
            "processors or another layout"
        )
    return rules.layout()


def alternate(rules: Rules, layers: Sequence[anatomy.Layer]) -> None:
    """Splits the layers of a graph, or some of them, P and R in turn.

    Args:
      rules: those of the mesh axis, to which this adds.
      layers: the layers, in the graph's order.
    """
    operations = anatomy.ancestors(layer.operation.outputs[0] for layer in layers)
    sources = anatomy.renames(operations)
    feeding = anatomy.ancestors(layer.x for layer in layers)
    negligible = NEGLIGIBLE_WORK * sum(layer.work for layer in layers)
    for layer in layers:
        arriving = list(_arriving(layer, rules, sources))
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


def _warn_about_small(layer: anatomy.Layer, rules: Rules) -> None:
    (dim,) = (dim for dim in layer.operation.outputs[0].shape.dims if dim.name == layer.outputs[0])
    tf.logging.warning(
        "dimension %r of size %d is not split over the %d processors of mesh axis %r: each processor needs one unit",
        dim.name,
        dim.size,
        rules.count,
        rules.axis,
    )


def _arriving(layer: anatomy.Layer, rules: Rules, sources: Mapping[str, set[str]]) -> Iterator[list[str]]:
    """Per input that arrives split: its name, and those that it had since it was split."""
    for name in layer.inputs:
        path = anatomy.path_from(name, rules.names, sources)
        if path is not None:
            yield path


def even(
    graph: mtf.Graph,
    *,
    mesh_shape: MeshShapeLike,
    shares: Mapping[str, Sequence[float]] | None = None,
    axis: str | None = None,
) -> Layout:
    """As `filters`, in equal parts whatever the shares: the paper's baseline.

    Args:
      graph: mtf.Graph.
      mesh_shape: mesh axes and their sizes, "all:3".
      shares: checked, and otherwise unused.
      axis: the mesh axis to split over; None: the first.

    Raises:
      ValueError: as `filters`.
    """
    layout = filters(graph, mesh_shape=mesh_shape, shares=shares, axis=axis)
    return Layout(layout.mesh_shape, layout.rules)
