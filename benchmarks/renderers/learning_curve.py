"""The report on learning: loss and test accuracy of both runs in one picture."""

import pathlib
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from benchmarks import drawing
from benchmarks.cases.learning_curve import ONE, UNEVEN
from benchmarks.renderers.tables import Row, number, table_of

SMOOTHED_STEPS = 20
_WIDTH, _WIDTH_BELOW = 1.4, 3.2
_DASH = 4


def smooth(losses: Sequence[float]) -> tuple[np.ndarray, np.ndarray]:
    """Steps and the mean loss of the steps up to each."""
    window = min(SMOOTHED_STEPS, len(losses))
    means = np.convolve(losses, np.full(window, 1 / window), mode="valid")
    return np.arange(window, len(losses) + 1), means


def last_loss(row: Row) -> str:
    """The smoothed loss at the end."""
    return number(float(smooth(row["losses"])[1][-1]), 4)


def draw_losses(ax: Any, row: Row, label: str, **style: Any) -> None:
    """Draws the training losses of a run, thin, and their smoothed curve in a style."""
    losses = row["losses"]
    ax.plot(np.arange(1, len(losses) + 1), losses, color=style["color"], linewidth=0.5, alpha=0.3)
    ax.plot(*smooth(losses), label=label, **style)


def _styles(count: int) -> list[dict[str, Any]]:
    """The first line is thick and below the others, whose dashes take turns: all are seen where they agree."""
    others = count - 1
    lines: list[Any] = ["-"] if others == 1 else [(_DASH * i, (_DASH, _DASH * (others - 1))) for i in range(others)]
    styles = [{"linewidth": _WIDTH_BELOW}, *({"linewidth": _WIDTH, "linestyle": line} for line in lines)]
    return [{"color": colour, **style} for colour, style in zip(drawing.COLOURS, styles, strict=False)]


def draw(rows: Sequence[Row], path: pathlib.Path, name: Callable[[Row], str]) -> None:
    """Draws loss and test accuracy.

    Args:
      rows: one per run, that to which the others are compared first.
      path: the picture.
      name: what a run is called.
    """
    figure, ((loss_ax, accuracy_ax),) = drawing.make(1, 2, width=5.2, height=3.8)
    styles = _styles(len(rows))
    for row, style in zip(rows, styles, strict=True):
        draw_losses(loss_ax, row, name(row), **style)
        steps, accuracy = zip(*row["accuracy"], strict=True)
        percent = [100 * value for value in accuracy]
        accuracy_ax.plot(steps, percent, **style, marker="o", markersize=style["linewidth"] + 2)
    loss_ax.set_ylabel(f"loss (thin: each step, thick: mean of {SMOOTHED_STEPS} steps)")
    accuracy_ax.set_ylabel("accuracy in %")
    accuracy_ax.set_ylim(bottom=0)
    for ax, title in ((loss_ax, "training"), (accuracy_ax, "test")):
        ax.set_title(title)
        ax.set_xlabel(f"step of {rows[0]['batch_size']} images")
    drawing.legend(figure, {name(row): style["color"] for row, style in zip(rows, styles, strict=True)}, ncols=4)
    drawing.save(figure, path)


def introduce(row: Row) -> str:
    """What is trained, and on how many images it is tested."""
    images = final_images(row)
    whole = "all " if images == row["test_images"] else ""
    rate = f"{row['learning_rate_schedule']} rate"
    rate += "" if row.get("learning_rate") is None else f" of {row['learning_rate']:g}"
    return (
        f"{row['model']} ({row['parameters']:,} parameters) on {row['dataset']}, {row['steps']} steps of "
        f"{row['batch_size']} images, {row['optimizer']}, {rate}, seed {row['seed']}: "
        "the same initial values, the same images in the same order. The picture's accuracies are of "
        f"{row['tested_images']:,} test images, the table's of {whole}{images:,}."
    )


def final_images(row: Row) -> int:
    """Images of the last test; rows that do not say so were tested on all."""
    return row.get("final_images", row["test_images"])


def standard_error(row: Row) -> float:
    """Of the accuracy in the last test."""
    accuracy = row["final_accuracy"]
    return (accuracy * (1 - accuracy) / final_images(row)) ** 0.5


def differences(losses: Sequence[float], reference: Sequence[float]) -> dict[int, float]:
    """{step: the largest relative difference of two runs' losses up to that step}, for some steps and the last."""
    steps = min(len(losses), len(reference))
    first, second = np.asarray(losses[:steps]), np.asarray(reference[:steps])
    relative = np.abs(first - second) / np.abs(second)
    return {n: float(relative[:n].max()) for n in sorted({1, 10, 50, steps}) if n <= steps}


def _name(row: Row) -> str:
    return ONE if row["shares"] is None else f"{row['shares']} on {len(row['devices'])} devices"


_COLUMNS = {
    "": _name,
    "loss of the first step": lambda row: f"{row['losses'][0]:.6f}",
    f"mean loss of the last {SMOOTHED_STEPS}": last_loss,
    "test accuracy": lambda row: f"{row['final_accuracy']:.2%}",
    "standard error": lambda row: f"{standard_error(row):.2%}",
}


def render(rows: Sequence[Row], directory: pathlib.Path) -> str:
    """Draws learning_curve.png; returns the body of the report."""
    rows = sorted(rows, key=lambda row: row["variant"] == UNEVEN)
    draw(rows, directory / "learning_curve.png", lambda row: _name(row).replace(",", " : "))
    sizes = next((row["sizes"] for row in rows if row["shares"] is not None), {})
    parts = ["![Training loss and test accuracy](learning_curve.png)", introduce(rows[0]), table_of(rows, _COLUMNS)]
    if len(rows) > 1:
        off = differences(rows[0]["losses"], rows[1]["losses"])
        steps = ", ".join(f"{difference:.1e} up to step {step}" for step, difference in off.items())
        parts.append(f"Largest relative difference between the two losses of a step: {steps}.")
    divided = "; ".join(f"{name}: {', '.join(map(str, parts))}" for name, parts in sizes.items())
    return "\n\n".join([*parts, f"How the dimensions are divided: {divided}"])
