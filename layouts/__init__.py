"""Named layout recipes: each reads an mtf.Graph and returns a Layout, without the names of models or dimensions.

A recipe changes speed and memory, never results, so that it works on any program.
"""

import functools
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

from mtf_hetero._compat import mtf
from mtf_hetero.layout import Layout
from mtf_hetero.layouts.batch import batch
from mtf_hetero.layouts.filters import even, filters
from mtf_hetero.layouts.hybrid import hybrid
from mtf_hetero.layouts.spatial import spatial
from mtf_hetero.layouts.stages import stages

LAYOUTS: Mapping[str, Callable[..., Layout]] = MappingProxyType(
    {"batch": batch, "even": even, "filters": filters, "hybrid": hybrid, "spatial": spatial, "stages": stages}
)


def _by_speeds(name: str, graph: mtf.Graph, speeds: Sequence[float]) -> Layout:
    """Return the layout of a recipe on a mesh with one axis, "all", and processors of these speeds."""
    return LAYOUTS[name](graph, mesh_shape=f"all:{len(speeds)}", shares={"all": speeds})


# Baselines of a plan: each returns a layout from a graph and the devices' speeds
COMPARED: Mapping[str, Callable[[mtf.Graph, Sequence[float]], Layout]] = MappingProxyType(
    {name: functools.partial(_by_speeds, name) for name in ("batch", "filters", "spatial")}
)

__all__ = ["COMPARED", "LAYOUTS", "batch", "even", "filters", "hybrid", "spatial", "stages"]
