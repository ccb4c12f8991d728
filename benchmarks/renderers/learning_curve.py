"""The report on learning: loss and test accuracy of both runs in one picture."""

import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from benchmarks import figures
from benchmarks.cases.learning_curve import ONE, UNEVEN
from benchmarks.renderers import markdown

Row = Mapping[str, Any]
_SMOOTHED_STEPS = 20
_COLOURS = {UNEVEN: figures.COLOURS[1], ONE: figures.COLOURS[0]}
_WIDTHS = {UNEVEN: 1.4, ONE: 3.2}  # the one device's curve is drawn below, and is seen where they agree


def _smooth(losses: Sequence[float]) -> tuple[np.ndarray, np.ndarray]:
    """Steps and the mean loss of the steps up to each."""
    window = min(_SMOOTHED_STEPS, len(losses))
    means = np.convolve(losses, np.full(window, 1 / window), mode="valid")
    return np.arange(window, len(losses) + 1), means


def _draw(rows: Sequence[Row], path: pathlib.Path) -> None:
    figure, axes = figures.make(1, 2, width=5.2, height=3.6)
    loss_ax, accuracy_ax = axes[0]
    for row in rows:
        colour, width = _COLOURS[row["variant"]], _WIDTHS[row["variant"]]
        loss_ax.plot(np.arange(1, len(row["losses"]) + 1), row["losses"], color=colour, linewidth=0.5, alpha=0.3)
        loss_ax.plot(*_smooth(row["losses"]), color=colour, linewidth=width, label=_name(row))
        steps, accuracy = zip(*row["accuracy"], strict=True)
        percent = [100 * value for value in accuracy]
        accuracy_ax.plot(steps, percent, color=colour, linewidth=width, marker="o", markersize=width + 2)
    loss_ax.set_ylabel(f"loss (thick: mean of {_SMOOTHED_STEPS} steps)")
    accuracy_ax.set_ylabel("accuracy in %")
    accuracy_ax.set_ylim(bottom=0)
    loss_ax.set_title("training")
    accuracy_ax.set_title("test")
    loss_ax.legend(loc="upper right")
    for ax in axes[0]:
        ax.set_xlabel(f"step of {rows[0]['batch_size']} images")
    figures.save(figure, path)


def _name(row: Row) -> str:
    return ONE if row["shares"] is None else f"{row['shares']} on {len(row['devices'])} devices"


def _table(rows: Sequence[Row]) -> str:
    header = [
        "",
        "loss of the first step",
        f"mean loss of the last {_SMOOTHED_STEPS}",
        "test accuracy",
        "standard error",
    ]
    lines = []
    for row in rows:
        accuracy = row["final_accuracy"]
        error = (accuracy * (1 - accuracy) / row["test_images"]) ** 0.5
        last = float(_smooth(row["losses"])[1][-1])
        first = f"{row['losses'][0]:.6f}"
        lines.append([_name(row), first, markdown.number(last, 4), f"{accuracy:.2%}", f"{error:.2%}"])
    return markdown.table(header, lines)


def _differences(rows: Sequence[Row]) -> list[str]:
    """How far apart the losses of the two runs are."""
    if len(rows) < 2:
        return []
    first, second = (np.asarray(row["losses"]) for row in rows)
    steps = min(len(first), len(second))
    differences = np.abs(first[:steps] - second[:steps]) / np.abs(second[:steps])
    parts = [f"{differences[:n].max():.1e} up to step {n}" for n in (1, 10, 50, steps) if n <= steps]
    return [f"Largest relative difference between the two losses of a step: {', '.join(dict.fromkeys(parts))}."]


def render(rows: Sequence[Row], directory: pathlib.Path) -> str:
    """Draws learning_curve.png; returns the body of the report."""
    rows = sorted(rows, key=lambda row: row["variant"] == UNEVEN)
    _draw(rows, directory / "learning_curve.png")
    first = rows[0]
    sizes = next((row["sizes"] for row in rows if row["shares"] is not None), {})
    return "\n\n".join(
        [
            "![Training loss and test accuracy](learning_curve.png)",
            f"{first['model']} ({first['parameters']:,} parameters) on {first['dataset']}, {first['steps']} steps of "
            f"{first['batch_size']} images, {first['optimizer']}, {first['learning_rate_schedule']} rate, seed "
            f"{first['seed']}: the same initial values, the same images in the same order. The picture's accuracies "
            f"are of {first['tested_images']:,} test images, the table's of all {first['test_images']:,}.",
            _table(rows),
            *_differences(rows),
            "How the dimensions are divided: " + "; ".join(f"{n}: {', '.join(map(str, s))}" for n, s in sizes.items()),
        ]
    )
