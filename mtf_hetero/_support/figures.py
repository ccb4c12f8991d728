"""Figures of matplotlib as files that are the same each time: PNG, SVG or PDF, by the ending of the name."""

import io
import os
import pathlib
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from mtf_hetero._support import extras

METADATA: Mapping[str, Mapping[str, None]] = MappingProxyType(  # what would differ between two drawings of one figure
    {
        ".png": {"Software": None},
        ".svg": {"Date": None, "Creator": None},
        ".pdf": {"CreationDate": None, "Creator": None, "Producer": None},
    }
)


def ending_of(path: str | os.PathLike) -> str:
    """Return the ending of a file's name in lower case, a key of METADATA if a figure can be written there."""
    return pathlib.Path(path).suffix.lower()


def matplotlib(module: str, user: str) -> Any:
    """Return a module of matplotlib.

    Raises:
      ValueError: it is not installed; `user` names what needs it.
    """
    return extras.import_package(f"matplotlib.{module}", extra="plan", user=user)


def rendered(figure: Any, path: str | os.PathLike, dpi: int) -> bytes:
    """Return a figure as the content of a file.

    Args:
      figure: of matplotlib.
      path: of the file, whose ending is one of METADATA.
      dpi: pixels an inch, of PNG.
    """
    data, ending = io.BytesIO(), ending_of(path)
    package = extras.import_package("matplotlib", extra="plan", user="a figure")
    with package.rc_context({"svg.hashsalt": "plan", "pdf.fonttype": 42}):
        figure.savefig(data, format=ending[1:], dpi=dpi, metadata=METADATA[ending])
    return data.getvalue()
