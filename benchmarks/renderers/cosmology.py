"""The report on simulated universes: learning curve, told against true parameters, and what tells them otherwise."""

import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from benchmarks import figures
from benchmarks.renderers import markdown
from benchmarks.renderers.volume_learning import draw_loss, introduce

Row = Mapping[str, Any]


def _scores(told: np.ndarray, true: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Mean absolute error and R2 of each parameter."""
    left = np.square(told - true).sum(0) / np.square(true - true.mean(0)).sum(0)
    return np.abs(told - true).mean(0), 1.0 - left


def _draw(row: Row, path: pathlib.Path) -> None:
    true, told, ridge = (np.array(row[name]) for name in ("true", "told", "ridge"))
    figure, axes = figures.make(1, 1 + len(row["targets"]), width=3.6, height=3.4)
    draw_loss(axes[0, 0], row, what="mean squared error, normalised")
    for i, (ax, name) in enumerate(zip(axes[0, 1:], row["targets"], strict=True)):
        bounds = [true[:, i].min(), true[:, i].max()]
        ax.plot(bounds, bounds, color=figures.GREY, linewidth=1)
        ax.scatter(true[:, i], ridge[:, i], s=9, color=figures.COLOURS[4], label="ridge regression")
        ax.scatter(true[:, i], told[:, i], s=9, color=figures.COLOURS[0], label=row["model"])
        ax.set_title(name)
        ax.set_xlabel("true")
        ax.set_ylabel("told")
    axes[0, 1].legend(loc="upper left")
    figures.save(figure, path)


def _table(row: Row) -> str:
    true = np.array(row["true"])
    ways = {"mean": np.broadcast_to(row["train_mean"], true.shape), "ridge regression": np.array(row["ridge"])}
    found = {name: _scores(told, true) for name, told in {**ways, row["model"]: np.array(row["told"])}.items()}
    header = ["", *(f"error of {name}" for name in found), *(f"R2 of {name}" for name in found)]
    lines = []
    for i, target in enumerate(row["targets"]):
        errors = [markdown.number(error[i]) for error, _ in found.values()]
        lines.append([target, *errors, *(f"{r2[i]:.2f}" for _, r2 in found.values())])
    return markdown.table(header, lines)


def render(rows: Sequence[Row], directory: pathlib.Path) -> str:
    """Draws cosmology.png; returns the body of the report."""
    (row,) = rows
    _draw(row, directory / "cosmology.png")
    made_by = row["set"]
    return "\n\n".join(
        [
            "![Loss, and told against true parameters](cosmology.png)",
            f"Simulated universes of {made_by['size']} cells along each edge, {made_by['cell']:g} Mpc/h each: dark "
            "matter by second-order Lagrangian perturbation theory. " + introduce(row),
            "Of the test universes, mean absolute error and R2, 1 less the share of the variance that is left. The "
            "mean is that of the training universes. Ridge regression is on the logarithms of power spectrum and "
            "histogram, with the penalty that does best for each parameter in five-fold cross-validation.",
            _table(row),
        ]
    )
