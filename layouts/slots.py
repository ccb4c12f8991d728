"""Slots: the part of each device is divided once more, over places in time."""

import itertools
from collections.abc import Sequence

from mtf_hetero._compat import mtf
from mtf_hetero.graph.names import dimension_sizes
from mtf_hetero.layout import Layout
from mtf_hetero.layout.partition import split_among_positive


def in_slots(layout: Layout, graph: mtf.Graph, slots: Sequence[int]) -> Layout:
    """Divide what each device has of every split dimension evenly over its slots, which compute one after another.

    Slots of the batch accumulate gradients over parts of it: its activations need less memory. Slots of stages are the
    microbatches of a pipeline.

    Args:
      layout: on a mesh of one axis, with a processor for each device.
      graph: mtf.Graph, of which the dimensions are.
      slots: number of slots of each device.

    Example:
      >>> layout = Layout("all:2", "batch:all", {"all": [3, 1]})
      >>> in_slots(layout, graph, [2, 1]).split("batch", 64)  # on two devices
      (24, 24, 16)
    """
    ((axis, _),), sizes = layout.mesh_shape, {}
    for name, extents in dimension_sizes(graph.operations).items():
        dim = mtf.Dimension(name, max(extents))
        if layout.axis_of(dim) is not None:
            parts = zip(layout.split(*dim), slots, strict=True)
            shares = (
                split_among_positive(part, [1] * count, minimum=0) if part else [0] * count for part, count in parts
            )
            sizes[name] = list(itertools.chain.from_iterable(shares))
    return Layout([(axis, sum(slots))], layout.rules, (), sizes, {axis: slots})
