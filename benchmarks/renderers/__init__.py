"""The table of renderers: from a case's rows to Markdown and pictures."""

import pathlib
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

from benchmarks.renderers import (
    accounting,
    cluster_curve,
    cosmology,
    faults,
    heterogeneous,
    learning_curve,
    lowering,
    one_device,
    segmentation,
    spatial,
    splitbrain,
)
from benchmarks.renderers.tables import Row

Renderer = Callable[[Sequence[Row], pathlib.Path], str]

_MODULES = (
    *(accounting, cluster_curve, cosmology, faults, heterogeneous, learning_curve, lowering, one_device),
    *(segmentation, spatial, splitbrain),
)
RENDERERS: Mapping[str, Renderer] = MappingProxyType(
    {module.__name__.rpartition(".")[2]: module.render for module in _MODULES}
)

__all__ = ["RENDERERS", "Renderer"]
