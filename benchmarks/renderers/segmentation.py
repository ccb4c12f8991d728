"""The report on a scan: learning curve, a slice with what is told of it, and Dice beside that of thresholds."""

import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib import colors

from benchmarks import figures
from benchmarks.pictures import unpack
from benchmarks.renderers import markdown
from benchmarks.renderers.volume_learning import draw_loss, introduce

Row = Mapping[str, Any]
_PICTURES = {"image": "scan", "true": "true", "network": "network", "thresholds": "thresholds"}


def _draw(row: Row, path: pathlib.Path) -> None:
    figure, axes = figures.make(1, 1 + len(_PICTURES), width=3.0, height=3.2)
    draw_loss(axes[0, 0], row, what="voxel cross entropy")
    classes = colors.ListedColormap(["#000000", figures.COLOURS[4]])
    for ax, (key, title) in zip(axes[0, 1:], _PICTURES.items(), strict=True):
        picture = unpack(row["slice"][key])
        how = {"cmap": "gray"} if key == "image" else {"cmap": classes, "vmin": 0, "vmax": len(row["classes"]) - 1}
        ax.imshow(picture, origin="lower", interpolation="nearest", **how)
        ax.set_title(title)
        ax.set_axis_off()
    figures.save(figure, path)


def _table(row: Row) -> str:
    ways = list(row["dice"])
    lines = [
        [name, *(markdown.number(row["dice"][way][i]) for way in ways)] for i, name in enumerate(row["classes"]) if i
    ]
    return markdown.table(["Dice", *ways], lines)


def render(rows: Sequence[Row], directory: pathlib.Path) -> str:
    """Draws segmentation.png; returns the body of the report."""
    (row,) = rows
    _draw(row, directory / "segmentation.png")
    made_by, (low, high) = row["set"], row["thresholds"]
    return "\n\n".join(
        [
            "![Loss, and a slice of the back half](segmentation.png)",
            f"Scan: {made_by['scan']}. Patches of {made_by['edge']} voxels along each edge, those to learn from of its "
            "front half, those to test on side by side in its back half: a demonstration on one head, which tells "
            "nothing of others. " + introduce(row),
            f"Of all test patches together. The thresholds, from {low} to below {high} of 255, are those with the best "
            "Dice in the front half.",
            _table(row),
        ]
    )
