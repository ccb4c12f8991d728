"""The report on a scan: learning curve, a slice with what is predicted of it, and Dice beside that of thresholds."""

import pathlib
from collections.abc import Sequence

from matplotlib import colors, patches

from benchmarks import drawing
from benchmarks.pictures import unpack
from benchmarks.renderers.tables import Row, table
from benchmarks.renderers.volume_learning import draw_loss, introduce

_PICTURES = {
    "image": "a slice of the scan",
    "true": "true classes",
    "network": "predicted by the network",
    "thresholds": "predicted by thresholds",
}


def _draw(row: Row, path: pathlib.Path) -> None:
    figure, axes = drawing.make(1, 1 + len(_PICTURES), width=3.0, height=3.2)
    draw_loss(axes[0, 0], row, "cross entropy of a voxel")
    classes = colors.ListedColormap(["#000000", drawing.COLOURS[4]])
    for ax, (key, title) in zip(axes[0, 1:], _PICTURES.items(), strict=True):
        style = {"cmap": "gray"} if key == "image" else {"cmap": classes, "vmin": 0, "vmax": len(row["classes"]) - 1}
        ax.imshow(unpack(row["slice"][key]), origin="lower", interpolation="nearest", **style)
        ax.set_title(title)
        ax.set_axis_off()
    axes[0, 2].add_patch(patches.Rectangle((0, 0), 0, 0, color=drawing.COLOURS[4], label=row["classes"][-1]))
    drawing.legend(figure)
    drawing.save(figure, path)


def render(rows: Sequence[Row], directory: pathlib.Path) -> str:
    """Draws segmentation.png; returns the body of the report."""
    (row,) = rows
    _draw(row, directory / "segmentation.png")
    made_by, (low, high), dice = row["set"], row["thresholds"], row["dice"]
    lines = [[name, *(of_way[i] for of_way in dice.values())] for i, name in enumerate(row["classes"]) if i]
    return "\n\n".join(
        [
            "![Loss, and a slice of the back half](segmentation.png)",
            f"Scan: {made_by['scan']}. Patches of {made_by['edge']} voxels along each edge, those to learn from of its "
            "front half, those to test on side by side in its back half: a demonstration on one head, which says "
            "nothing of others. " + introduce(row),
            f"Of all test patches together. The thresholds, from {low} to below {high} of 255, are those with the best "
            "Dice in the front half.",
            table(["Dice", *dice], lines),
        ]
    )
