"""The reports on learning from volumes: simulated universes, and a scan."""

import functools
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib import colors, patches

from benchmarks import drawing
from benchmarks.pictures import unpack
from benchmarks.renderers.document import Report
from benchmarks.renderers.learning import SMOOTHED_STEPS, draw_losses
from benchmarks.renderers.tables import Row, Table, cell, table

_SYMBOLS = {"omega_m": r"$\Omega_m$", "sigma_8": r"$\sigma_8$", "n_s": r"$n_s$"}
_RIDGE = "ridge regression"
_SLICES = {
    "image": "a slice of the scan",
    "true": "true classes",
    "network": "predicted by the network",
    "thresholds": "predicted by thresholds",
}


def _draw_volume_loss(ax: Any, row: Row, label: str) -> None:
    """Draw the training loss and the loss of the test set, which the label names."""
    draw_losses(ax, row, f"training loss, mean of {SMOOTHED_STEPS} steps", color=drawing.COLOURS[1])
    steps, metrics = zip(*row["tests"], strict=True)
    losses = [values["loss"] for values in metrics]
    ax.plot(steps, losses, color=drawing.COLOURS[2], marker="o", label="loss of the test set")
    ax.set_ylim(bottom=0)
    ax.set_title("learning")
    ax.set_xlabel(f"step of {row['batch_size']} volumes")
    ax.set_ylabel(label)


def _introduce_volumes(row: Row) -> str:
    """Return the network, the training, the volumes and their split."""
    depth = next((sizes for name, sizes in row["sizes"].items() if name.startswith("depth of ")), [])
    return (
        f"{row['model']} ({row['parameters']:,} parameters), {row['steps']} steps of {row['batch_size']} volumes, Adam "
        f"with a rate of {row['learning_rate']:g} that falls to zero as a cosine, seed {row['seed']}; "
        f"{row['train_volumes']:,} volumes for training, mirrored and turned at random, and {row['test_volumes']:,} "
        f"for the test. Two logical devices of one CPU hold {' and '.join(map(str, depth))} planes of each volume. "
        f"Step time: {cell(row['wall_seconds_per_step'])} s."
    )


def _draw_universes(row: Row, path: pathlib.Path) -> None:
    with drawing.panels(path, 1 + len(row["targets"]), 2, height=3.4) as (first, *axes):
        _draw_volume_loss(first, row, "mean squared error (normalised)")
        _draw_targets(axes, row)


def _draw_targets(axes: Sequence[Any], row: Row) -> None:
    true, predicted, ridge = (np.array(row[name]) for name in ("true", "told", "ridge"))
    for i, (ax, name) in enumerate(zip(axes, row["targets"], strict=True)):
        bounds = [true[:, i].min(), true[:, i].max()]
        ax.plot(bounds, bounds, color=drawing.GREY, linewidth=1, label="predicted = true")
        ax.scatter(true[:, i], ridge[:, i], s=9, color=drawing.COLOURS[4], label="predicted by ridge regression")
        ax.scatter(true[:, i], predicted[:, i], s=9, color=drawing.COLOURS[0], label=f"predicted by {row['model']}")
        symbol = _SYMBOLS.get(name, name)
        ax.set_title(name)
        ax.set_xlabel(f"true {symbol}")
        ax.set_ylabel(f"predicted {symbol}")


def _ways(row: Row) -> Mapping[str, np.ndarray]:
    """{way to predict the parameters: what it predicts}."""
    mean = np.broadcast_to(row["train_mean"], np.array(row["true"]).shape)
    return {"mean": mean, _RIDGE: np.array(row["ridge"]), row["model"]: np.array(row["told"])}


def _r2(row: Row, predicted: np.ndarray) -> np.ndarray:
    """R2 of each parameter."""
    true = np.array(row["true"])
    return 1.0 - np.square(predicted - true).sum(0) / np.square(true - true.mean(0)).sum(0)


def _scores(row: Row) -> Table:
    """Mean absolute error and R2 of each parameter, of each way to predict it."""
    ways = _ways(row)
    errors = [np.abs(predicted - np.array(row["true"])).mean(0) for predicted in ways.values()]
    r2 = [_r2(row, predicted) for predicted in ways.values()]
    header = ["parameter", *(f"error of {name}" for name in ways), *(f"R2 of {name}" for name in ways)]
    lines = [
        [target, *(of_way[i] for of_way in errors), *(f"{of_way[i]:.2f}" for of_way in r2)]
        for i, target in enumerate(row["targets"])
    ]
    return table(header, lines)


def _conclude_universes(row: Row) -> list[str]:
    ways = _ways(row)
    ours, ridge = _r2(row, ways[row["model"]]), _r2(row, ways[_RIDGE])
    better = sum(ours > ridge)
    scores = (
        f"{name} {of_ours:.2f} ({of_ridge:.2f})"
        for name, of_ours, of_ridge in zip(row["targets"], ours, ridge, strict=True)
    )
    return [
        f"R2 of {row['model']}, and of ridge regression in brackets: {', '.join(scores)}.",
        f"The network predicts {better} of {len(ours)} parameters better than ridge regression does.",
    ]


def render_cosmology(rows: Sequence[Row]) -> Report:
    """Return the report on universes: predicted against true parameters."""
    (row,) = rows
    made_by = row["set"]
    parts = [
        f"Simulated universes of {made_by['size']} cells along each edge, {made_by['cell']:g} Mpc/h each: dark "
        "matter by second-order Lagrangian perturbation theory. " + _introduce_volumes(row),
        "Mean absolute error and R2 on the test universes. R2 is 1 less the remaining share of the variance. The "
        "mean is that of the training universes. Ridge regression is on the logarithms of power spectrum and "
        "histogram, with the best penalty for each parameter in five-fold cross-validation.",
        _scores(row),
    ]
    draw = functools.partial(_draw_universes, row)
    return Report(_conclude_universes(row), parts, "Loss, and predicted against true parameters", draw)


def _draw_scan(row: Row, path: pathlib.Path) -> None:
    with drawing.panels(path, 6, 3, width=3.0, height=2.2) as (first, *tops, below, left, right):
        figure, grid = first.figure, first.get_gridspec()
        for ax in (first, below):
            ax.remove()
        _draw_volume_loss(figure.add_subplot(grid[:, 0]), row, "cross entropy of a voxel")
        _draw_slices([*tops, left, right], row)


def _draw_slices(axes: Sequence[Any], row: Row) -> None:
    classes = colors.ListedColormap(["#000000", drawing.COLOURS[4]])
    for ax, (key, title) in zip(axes, _SLICES.items(), strict=True):
        style = {"cmap": "gray"} if key == "image" else {"cmap": classes, "vmin": 0, "vmax": len(row["classes"]) - 1}
        ax.imshow(unpack(row["slice"][key]), origin="lower", interpolation="nearest", **style)
        ax.set_title(title)
        ax.set_axis_off()
    axes[1].add_patch(patches.Rectangle((0, 0), 0, 0, color=drawing.COLOURS[4], label=row["classes"][-1]))


def render_segmentation(rows: Sequence[Row]) -> Report:
    """Return the report on a scan: Dice, and a slice with its predictions."""
    (row,) = rows
    made_by, (low, high), dice = row["set"], row["thresholds"], row["dice"]
    lines = [[name, *(of_way[i] for of_way in dice.values())] for i, name in enumerate(row["classes"]) if i]
    conclusions = [
        f"Dice of {name}: {', '.join(f'{cell(value)} by the {way}' for way, value in zip(dice, values, strict=True))}."
        for name, *values in lines
    ]
    parts = [
        f"Scan: {made_by['scan']}. Patches of {made_by['edge']} voxels along each edge: the training patches are from "
        "its front half, the test patches lie side by side in its back half. One head is a demonstration; it says "
        "nothing about others. " + _introduce_volumes(row),
        f"Dice is of all test patches together. The thresholds, from {low} to below {high} of 255, have the best "
        "Dice in the front half.",
        table(["Dice", *dice], lines),
    ]
    return Report(conclusions, parts, "Loss, and a slice of the back half", functools.partial(_draw_scan, row))
