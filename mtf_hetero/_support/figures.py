"""Reproducible files of matplotlib's figures: PNG, SVG or PDF, by the ending of the name."""

import io
import os
import pathlib
from collections.abc import Mapping
from types import MappingProxyType, ModuleType
from typing import TYPE_CHECKING

from mtf_hetero._support import command_line, extras

if TYPE_CHECKING:
    from matplotlib.figure import Figure

METADATA: Mapping[str, Mapping[str, None]] = MappingProxyType(  # dates and versions would differ between two drawings
    {
        ".png": {"Software": None},
        ".svg": {"Date": None, "Creator": None},
        ".pdf": {"CreationDate": None, "Creator": None, "Producer": None},
    }
)
ENDINGS = ", ".join(METADATA)
INK = "#1F2933"  # of text


def lower_ending(path: str | os.PathLike) -> str:
    """Return the ending of a file's name in lower case, a key of METADATA if a figure can be written there."""
    return pathlib.Path(path).suffix.lower()


def check_output(flag: str, path: str) -> None:
    """Raise ValueError if no figure can be drawn and written at a path that a flag names, before it is drawn."""
    check_ending(f"--{flag}", path)
    command_line.check_output(flag, path)
    matplotlib("figure", f"--{flag}")


def check_ending(name: str, path: str | os.PathLike) -> None:
    """Raise ValueError if the ending of a file's name is of no format; `name` is what the user calls the path."""
    if lower_ending(path) not in METADATA:
        raise ValueError(f"{name} is {os.fspath(path)!r}; name a file that ends in {ENDINGS}")


def matplotlib(module: str, user: str) -> ModuleType:
    """Return a module of matplotlib.

    Raises:
      ValueError: it is not installed; `user` names what needs it.
    """
    return extras.import_package(f"matplotlib.{module}", extra="plan", user=user)


def render(figure: "Figure", path: str | os.PathLike, dpi: int) -> bytes:
    """Return a figure as the content of a file, whose ending decides the format."""
    data, ending = io.BytesIO(), lower_ending(path)
    package = extras.import_package("matplotlib", extra="plan", user="a figure")
    with package.rc_context({"svg.hashsalt": "plan", "pdf.fonttype": 42}):
        figure.savefig(data, format=ending[1:], dpi=dpi, metadata=METADATA[ending])
    return data.getvalue()
