"""Draw a confusion matrix: a row per true class, a column per predicted class, coloured by the share of the row."""

import os
from collections.abc import Sequence
from types import ModuleType
from typing import TYPE_CHECKING

import numpy as np

from mtf_hetero._support import figures, files

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FLAG = "confusion_matrix"
_NUMBERED = 20  # up to so many classes, each cell has its number
_NAMED = 40  # up to so many classes, each row has its name
_DPI = 100  # 8 inches are 800 pixels
_LINE = "#D9DFE7"


def draw(confusion: np.ndarray, names: Sequence[str], path: str | os.PathLike, *, title: str) -> None:
    """Write the picture, which replaces an old one when it is complete.

    Args:
      confusion: [classes, predicted], counts.
      names: of the classes; none: unknown.
      path: ends in one of figures.METADATA.
      title: of the picture.

    Raises:
      OSError: it cannot be written.
    """
    figure = _figure(confusion, names or tuple(map(str, range(len(confusion)))), title)
    files.write_bytes(path, figures.render(figure, path, _DPI))


def _import(module: str) -> ModuleType:
    return figures.matplotlib(module, f"--{FLAG}")


def _figure(confusion: np.ndarray, names: Sequence[str], title: str) -> "Figure":
    """Return the matplotlib figure."""
    count = len(confusion)
    shares = confusion / np.maximum(confusion.sum(1, keepdims=True), 1)
    figure = _import("figure").Figure(figsize=(8, 7.2), layout="compressed")
    axes = figure.add_subplot()
    norm = _import("colors").PowerNorm(0.5, 0, 1)  # makes 1 % visible
    image = axes.imshow(shares, cmap="Blues", norm=norm)
    bar = figure.colorbar(image, ax=axes, fraction=0.046, pad=0.02)
    bar.set_ticks([0, 0.01, 0.05, 0.1, 0.25, 0.5, 0.75, 1])
    bar.ax.set_yticklabels(["0", "1 %", "5 %", "10 %", "25 %", "50 %", "75 %", "100 %"])
    bar.set_label("share of the class")
    axes.set_title(title, color=figures.INK, fontsize=12)
    axes.set_xlabel("predicted class")
    axes.set_ylabel("true class")
    if count <= _NAMED:
        _name_cells(axes, names)
    if count <= _NUMBERED:
        _number_cells(axes, confusion, shares)
    return figure


def _name_cells(axes: "Axes", names: Sequence[str]) -> None:
    """Name rows and columns. Long column names are turned."""
    size = 10 if len(names) <= _NUMBERED else 7
    short = [name if len(name) <= 20 else f"{name[:17]}..." for name in names]
    axes.set_yticks(range(len(names)), short, fontsize=size)
    turned = len(names) * max(map(len, short)) > 60
    axes.set_xticks(range(len(names)), short, fontsize=size, rotation=90 if turned else 0)
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_ticks(np.arange(0.5, len(names) - 1), minor=True)
    axes.grid(which="minor", color=_LINE, linewidth=0.6)
    axes.tick_params(which="minor", length=0)


def _number_cells(axes: "Axes", confusion: np.ndarray, shares: np.ndarray) -> None:
    """Write the count into each cell that has one."""
    longest = len(str(int(confusion.max())))
    size = min(11.0, 420 / len(confusion) / max(longest, 3))
    for row, column in zip(*np.nonzero(confusion), strict=True):
        colour = "white" if shares[row, column] > 0.35 else figures.INK
        text = str(int(confusion[row, column]))
        axes.text(column, row, text, ha="center", va="center", fontsize=size, color=colour)
