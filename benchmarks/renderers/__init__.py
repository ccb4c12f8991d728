"""The table of renderers: from a case's rows to Markdown and pictures."""

import pathlib
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

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

Renderer = Callable[[Sequence[Mapping[str, Any]], pathlib.Path], str]

RENDERERS: Mapping[str, Renderer] = MappingProxyType(
    {
        "accounting": accounting.render,
        "cluster_curve": cluster_curve.render,
        "cosmology": cosmology.render,
        "faults": faults.render,
        "heterogeneous": heterogeneous.render,
        "learning_curve": learning_curve.render,
        "lowering": lowering.render,
        "one_device": one_device.render,
        "segmentation": segmentation.render,
        "spatial": spatial.render,
        "splitbrain": splitbrain.render,
    }
)

__all__ = ["RENDERERS", "Renderer"]
