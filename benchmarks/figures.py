"""How the pictures look: colours that the colour-blind can tell apart, few lines, words beside what they name."""

import pathlib
from typing import Any

import matplotlib as mpl

mpl.use("Agg")  # no display is needed

from matplotlib import pyplot as plt

# Okabe and Ito's palette, in the order in which we use it
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
GREY = "#7F7F7F"
_STYLE: dict[Any, Any] = {
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlesize": 10,
    "axes.titlelocation": "left",
    "axes.grid": True,
    "grid.color": "#E5E5E5",
    "grid.linewidth": 0.6,
    "axes.axisbelow": True,
    "lines.linewidth": 1.6,
    "legend.frameon": False,
}


def make(rows: int, columns: int, *, width: float = 4.6, height: float = 3.2, **kwargs: Any) -> tuple[Any, Any]:
    """A figure and its axes, a two-dimensional array.

    Args:
      rows: rows of axes.
      columns: columns of axes.
      width: inches of each.
      height: inches of each.
      **kwargs: as in matplotlib's subplots.
    """
    mpl.rcParams.update(_STYLE)  # for what is added to the axes later too
    return plt.subplots(
        rows, columns, figsize=(width * columns, height * rows), squeeze=False, layout="constrained", **kwargs
    )


def save(figure: Any, path: pathlib.Path) -> None:
    """Writes a PNG and forgets the figure."""
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=160, metadata={"Software": None})
    plt.close(figure)


def label_line_ends(ax: Any, ends: list[tuple[float, float, str, str]]) -> None:
    """Writes names beside the right ends of lines, apart from each other, and above those that end earlier.

    Args:
      ax: the axes, whose limits are final.
      ends: (x, y, name, colour) of each line's last point.
    """
    low, high = ax.transData.transform([(1, ax.get_ylim()[0]), (1, ax.get_ylim()[1])])[:, 1]
    gap = 13 * ax.figure.dpi / 100  # pixels between two names
    placed = -1e9
    last = max(end[0] for end in ends)
    for x, y, name, colour in sorted(ends, key=lambda end: end[1]):
        if x < last:
            ax.annotate(name, (x, y), (0, 8), textcoords="offset points", color=colour, ha="right", fontsize=8)
            continue
        pixel = min(max(ax.transData.transform((x, y))[1], low, placed + gap), high + 2 * gap)
        placed = pixel
        offset = (pixel - ax.transData.transform((x, y))[1]) * 72 / ax.figure.dpi
        ax.annotate(name, (x, y), (6, offset), textcoords="offset points", color=colour, va="center", fontsize=8)
