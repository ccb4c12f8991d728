"""The report on learning: loss and test accuracy of both runs in one picture."""

import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from benchmarks import figures
from benchmarks.cases.learning_curve import ONE, UNEVEN
from benchmarks.renderers import markdown

Row = Mapping[str, Any]
SMOOTHED_STEPS = 20
_WIDTH, _WIDTH_BELOW = 1.4, 3.2
_DASH = 4


def smooth(losses: Sequence[float]) -> tuple[np.ndarray, np.ndarray]:
    """Steps and the mean loss of the steps up to each."""
    window = min(SMOOTHED_STEPS, len(losses))
    means = np.convolve(losses, np.full(window, 1 / window), mode="valid")
    return np.arange(window, len(losses) + 1), means


def _styles(count: int) -> list[dict[str, Any]]:
    """The first line is thick and below the others, whose dashes take turns: all are seen where they agree."""
    others = count - 1
    lines: list[Any] = ["-"] if others == 1 else [(_DASH * i, (_DASH, _DASH * (others - 1))) for i in range(others)]
    styles = [{"linewidth": _WIDTH_BELOW}, *({"linewidth": _WIDTH, "linestyle": line} for line in lines)]
    return [{"color": colour, **style} for colour, style in zip(figures.COLOURS, styles, strict=False)]


def draw(rows: Sequence[Row], path: pathlib.Path, name: Callable[[Row], str]) -> None:
    """Draws loss and test accuracy.

    Args:
      rows: one per run, that to which the others are compared first.
      path: the picture.
      name: what a run is called.
    """
    figure, axes = figures.make(1, 2, width=5.2, height=3.6)
    loss_ax, accuracy_ax = axes[0]
    for row, style in zip(rows, _styles(len(rows)), strict=True):
        steps = np.arange(1, len(row["losses"]) + 1)
        loss_ax.plot(steps, row["losses"], color=style["color"], linewidth=0.5, alpha=0.3)
        loss_ax.plot(*smooth(row["losses"]), **style, label=name(row))
        steps, accuracy = zip(*row["accuracy"], strict=True)
        percent = [100 * value for value in accuracy]
        accuracy_ax.plot(steps, percent, **style, marker="o", markersize=style["linewidth"] + 2)
    loss_ax.set_ylabel(f"loss (thick: mean of {SMOOTHED_STEPS} steps)")
    accuracy_ax.set_ylabel("accuracy in %")
    accuracy_ax.set_ylim(bottom=0)
    loss_ax.set_title("training")
    accuracy_ax.set_title("test")
    for line in loss_ax.legend(loc="upper right").get_lines():
        line.set_linestyle("-")
    for ax in axes[0]:
        ax.set_xlabel(f"step of {rows[0]['batch_size']} images")
    figures.save(figure, path)


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


def _table(rows: Sequence[Row]) -> str:
    header = [
        "",
        "loss of the first step",
        f"mean loss of the last {SMOOTHED_STEPS}",
        "test accuracy",
        "standard error",
    ]
    lines = []
    for row in rows:
        last = float(smooth(row["losses"])[1][-1])
        first = f"{row['losses'][0]:.6f}"
        accuracy, error = f"{row['final_accuracy']:.2%}", f"{standard_error(row):.2%}"
        lines.append([_name(row), first, markdown.number(last, 4), accuracy, error])
    return markdown.table(header, lines)


def _compare(rows: Sequence[Row]) -> list[str]:
    """How far apart the losses of the two runs are."""
    if len(rows) < 2:
        return []
    found = differences(rows[0]["losses"], rows[1]["losses"])
    parts = [f"{difference:.1e} up to step {step}" for step, difference in found.items()]
    return [f"Largest relative difference between the two losses of a step: {', '.join(parts)}."]


def render(rows: Sequence[Row], directory: pathlib.Path) -> str:
    """Draws learning_curve.png; returns the body of the report."""
    rows = sorted(rows, key=lambda row: row["variant"] == UNEVEN)
    draw(rows, directory / "learning_curve.png", _name)
    sizes = next((row["sizes"] for row in rows if row["shares"] is not None), {})
    return "\n\n".join(
        [
            "![Training loss and test accuracy](learning_curve.png)",
            introduce(rows[0]),
            _table(rows),
            *_compare(rows),
            "How the dimensions are divided: " + "; ".join(f"{n}: {', '.join(map(str, s))}" for n, s in sizes.items()),
        ]
    )
