"""The report on simulated universes: learning curve, predicted against true parameters, and what else predicts them."""

import pathlib
from collections.abc import Sequence

import numpy as np

from benchmarks import drawing
from benchmarks.renderers.tables import Row, table
from benchmarks.renderers.volume_learning import draw_loss, introduce

_SYMBOLS = {"omega_m": r"$\Omega_m$", "sigma_8": r"$\sigma_8$", "n_s": r"$n_s$"}


def _scores(predicted: np.ndarray, true: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Mean absolute error and R2 of each parameter."""
    left = np.square(predicted - true).sum(0) / np.square(true - true.mean(0)).sum(0)
    return np.abs(predicted - true).mean(0), 1.0 - left


def _draw(row: Row, path: pathlib.Path) -> None:
    true, predicted, ridge = (np.array(row[name]) for name in ("true", "told", "ridge"))
    figure, axes = drawing.make(1, 1 + len(row["targets"]), width=3.4, height=3.6)
    draw_loss(axes[0, 0], row, "mean squared error of normalised parameters")
    for i, (ax, name) in enumerate(zip(axes[0, 1:], row["targets"], strict=True)):
        bounds = [true[:, i].min(), true[:, i].max()]
        ax.plot(bounds, bounds, color=drawing.GREY, linewidth=1, label="predicted = true")
        ax.scatter(true[:, i], ridge[:, i], s=9, color=drawing.COLOURS[4], label="predicted by ridge regression")
        ax.scatter(true[:, i], predicted[:, i], s=9, color=drawing.COLOURS[0], label=f"predicted by {row['model']}")
        symbol = _SYMBOLS.get(name, name)
        ax.set_title(name)
        ax.set_xlabel(f"true {symbol}")
        ax.set_ylabel(f"predicted {symbol}")
    drawing.legend(figure, ncols=5)
    drawing.save(figure, path)


def _table(row: Row) -> str:
    true = np.array(row["true"])
    ways = {"mean": np.broadcast_to(row["train_mean"], true.shape), "ridge regression": np.array(row["ridge"])}
    ways[row["model"]] = np.array(row["told"])
    errors, r2 = zip(*(_scores(predicted, true) for predicted in ways.values()), strict=True)
    header = ["", *(f"error of {name}" for name in ways), *(f"R2 of {name}" for name in ways)]
    lines = [
        [target, *(of_way[i] for of_way in errors), *(f"{of_way[i]:.2f}" for of_way in r2)]
        for i, target in enumerate(row["targets"])
    ]
    return table(header, lines)


def render(rows: Sequence[Row], directory: pathlib.Path) -> str:
    """Draws cosmology.png; returns the body of the report."""
    (row,) = rows
    _draw(row, directory / "cosmology.png")
    made_by = row["set"]
    return "\n\n".join(
        [
            "![Loss, and predicted against true parameters](cosmology.png)",
            f"Simulated universes of {made_by['size']} cells along each edge, {made_by['cell']:g} Mpc/h each: dark "
            "matter by second-order Lagrangian perturbation theory. " + introduce(row),
            "Of the test universes, mean absolute error and R2, 1 less the share of the variance that is left. The "
            "mean is that of the training universes. Ridge regression is on the logarithms of power spectrum and "
            "histogram, with the penalty that does best for each parameter in five-fold cross-validation.",
            _table(row),
        ]
    )
