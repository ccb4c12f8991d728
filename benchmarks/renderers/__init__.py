"""The table of renderers: from a case's rows to Markdown and pictures."""

import pathlib
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from benchmarks.renderers import accounting, heterogeneous, learning_curve, lowering, one_device

Renderer = Callable[[Sequence[Mapping[str, Any]], pathlib.Path], str]

RENDERERS: Mapping[str, Renderer] = MappingProxyType(
    {
        "accounting": accounting.render,
        "heterogeneous": heterogeneous.render,
        "learning_curve": learning_curve.render,
        "lowering": lowering.render,
        "one_device": one_device.render,
    }
)

__all__ = ["RENDERERS", "Renderer"]
