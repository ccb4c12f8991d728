"""Named layout recipes: each reads an mtf.Graph and returns a Layout. They know no model and no dimension's name.

A recipe changes speed and memory and nothing else, so it may be used on any program.
"""

from collections.abc import Callable, Mapping
from types import MappingProxyType

from mtf_hetero import Layout
from mtf_hetero.layouts.batch import batch
from mtf_hetero.layouts.filters import even, filters
from mtf_hetero.layouts.hybrid import hybrid
from mtf_hetero.layouts.spatial import spatial

LAYOUTS: Mapping[str, Callable[..., Layout]] = MappingProxyType(
    {"batch": batch, "even": even, "filters": filters, "hybrid": hybrid, "spatial": spatial}
)

__all__ = ["LAYOUTS", "batch", "even", "filters", "hybrid", "spatial"]
