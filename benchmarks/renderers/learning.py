"""The reports on learning from images, on one machine and on a cluster."""

import functools
import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from benchmarks import drawing
from benchmarks.cases.learning import ONE, UNEVEN, WAYS
from benchmarks.renderers.document import Part, Report
from benchmarks.renderers.tables import Row, Table, median, number, span, split, tabulate

SMOOTHED_STEPS = 20
_WIDTH, _WIDTH_BELOW = 1.4, 3.2
_DASH = 4
_ROUNDING = 1e-9  # float64 losses that are closer than that differ by rounding alone


def _smooth(losses: Sequence[float]) -> tuple[np.ndarray, np.ndarray]:
    """Return steps and the mean loss of the steps up to each."""
    window = min(SMOOTHED_STEPS, len(losses))
    means = np.convolve(losses, np.full(window, 1 / window), mode="valid")
    return np.arange(window, len(losses) + 1), means


def _last_loss(row: Row) -> str:
    """Return the smoothed loss at the end."""
    return number(float(_smooth(row["losses"])[1][-1]), 4)


def draw_losses(ax: Any, row: Row, label: str, **style: Any) -> None:
    """Draw the training losses of a run as a thin line, and their smoothed curve in a style."""
    losses = row["losses"]
    ax.plot(np.arange(1, len(losses) + 1), losses, color=style["color"], linewidth=0.5, alpha=0.3)
    ax.plot(*_smooth(losses), label=label, **style)


def _draw_curves(rows: Sequence[Row], path: pathlib.Path, name: Callable[[Row], str]) -> None:
    """Draw loss and test accuracy of runs, of which the first is the reference.

    The reference is a thick line below the others, whose dashes take turns, so that all can be seen where they agree.
    """
    others = len(rows) - 1
    lines: list[Any] = ["-"] if others == 1 else [(_DASH * i, (_DASH, _DASH * (others - 1))) for i in range(others)]
    widths = [{"linewidth": _WIDTH_BELOW}, *({"linewidth": _WIDTH, "linestyle": line} for line in lines)]
    styles: list[dict[str, Any]] = [{"color": c, **width} for c, width in zip(drawing.COLOURS, widths, strict=False)]
    colours = {name(row): style["color"] for row, style in zip(rows, styles, strict=True)}
    with drawing.panels(path, 2, 2, height=3.8, colours=colours) as axes:
        _draw_both(axes, rows, styles, name)


def _draw_both(
    axes: Sequence[Any], rows: Sequence[Row], styles: Sequence[dict[str, Any]], name: Callable[[Row], str]
) -> None:
    loss_ax, accuracy_ax = axes
    for row, style in zip(rows, styles, strict=True):
        draw_losses(loss_ax, row, name(row), **style)
        steps, accuracy = zip(*row["accuracy"], strict=True)
        percent = [100 * value for value in accuracy]
        accuracy_ax.plot(steps, percent, **style, marker="o", markersize=style["linewidth"] + 2)
    loss_ax.set_ylabel(f"loss (thick: mean of {SMOOTHED_STEPS} steps)")
    accuracy_ax.set_ylabel("accuracy in %")
    accuracy_ax.set_ylim(0, 1.05 * accuracy_ax.get_ylim()[1])
    for ax, title in ((loss_ax, "training"), (accuracy_ax, "test")):
        ax.set_title(title)
        ax.set_xlabel(f"step of {rows[0]['batch_size']} images")


def _introduce(row: Row) -> str:
    """Return the network, the data set, the training, and the numbers of test images."""
    images = _final_images(row)
    every = "all " if images == row["test_images"] else ""
    rate = f"{row['learning_rate_schedule']} rate"
    rate += "" if row.get("learning_rate") is None else f" of {row['learning_rate']:g}"
    return (
        f"{row['model']} ({row['parameters']:,} parameters) on {row['dataset']}, {row['steps']} steps of "
        f"{row['batch_size']} images, {row['optimizer']}, {rate}, seed {row['seed']}. All runs have the same initial "
        "values and the same images in the same order. The picture's accuracies are of "
        f"{row['tested_images']:,} test images, the table's of {every}{images:,}."
    )


def _final_images(row: Row) -> int:
    """Images of the last test: all where the row does not say so."""
    return row.get("final_images", row["test_images"])


def _standard_error(row: Row) -> float:
    """Return the standard error of the accuracy in the last test."""
    accuracy = row["final_accuracy"]
    return (accuracy * (1 - accuracy) / _final_images(row)) ** 0.5


def _differences(losses: Sequence[float], reference: Sequence[float]) -> dict[int, float]:
    """{step: the largest relative difference of two runs' losses up to that step}, for some steps and the last."""
    steps = min(len(losses), len(reference))
    first, second = np.asarray(losses[:steps]), np.asarray(reference[:steps])
    relative = np.abs(first - second) / np.abs(second)
    return {n: float(relative[:n].max()) for n in sorted({1, 10, 50, steps}) if n <= steps}


def render_curve(rows: Sequence[Row]) -> Report:
    """Return the report on one machine: loss and test accuracy of both runs."""

    def name(row: Row) -> str:
        return ONE if row["shares"] is None else f"{len(row['devices'])} devices at {row['shares']}"

    columns = {
        "run": name,
        "loss of the first step": lambda row: f"{row['losses'][0]:.6f}",
        f"mean loss of the last {SMOOTHED_STEPS}": _last_loss,
        "test accuracy": lambda row: f"{row['final_accuracy']:.2%}",
        "standard error": lambda row: f"{_standard_error(row):.2%}",
    }
    rows = sorted(rows, key=lambda row: row["variant"] == UNEVEN)
    sizes = next((row["sizes"] for row in rows if row["shares"] is not None), {})
    conclusions = [
        f"Test accuracy after {row['steps']} steps: {row['final_accuracy']:.2%} on {name(row)} (standard error "
        f"{_standard_error(row):.2%})."
        for row in rows
    ]
    if len(rows) > 1:
        off = _differences(rows[0]["losses"], rows[1]["losses"])
        steps = ", ".join(f"{difference:.1e} up to step {step}" for step, difference in off.items())
        conclusions.append(f"Largest relative difference between the two losses of a step: {steps}.")
    parts: list[Part] = [_introduce(rows[0]), tabulate(rows, columns)]
    texts = "; ".join(f"{name}: {', '.join(map(str, parts))}" for name, parts in sizes.items())
    parts += [f"Sizes of the split dimensions: {texts}."] if texts else []
    draw = functools.partial(_draw_curves, rows, name=lambda row: name(row).replace(",", " : "))
    return Report(conclusions, parts, "Training loss and test accuracy", draw)


def _cores(row: Row) -> str:
    return row["local_cluster"].replace(",", ", ")


def _name_on_cluster(row: Row) -> str:
    """Return a way in a picture: "filters, 2 : 1 (1.0, 0.5 core)"."""
    layout, _, shares = row["variant"].partition(" ")
    way = ONE if row["variant"] == ONE else f"{layout}, {shares.replace(',', ' : ')}" if shares else layout
    return f"{way} ({_cores(row)} core)"


def _off(rows: Sequence[Row], column: str) -> dict[str, dict[int, float]]:
    """{way: the differences of the losses in that column of its row from those on one device}."""
    reference = next((row[column] for row in rows if row["variant"] == ONE), None)
    if reference is None:
        return {}
    return {row["variant"]: _differences(row[column], reference) for row in rows if row["variant"] != ONE}


def _cluster_table(rows: Sequence[Row], off: Mapping[str, Mapping[int, float]]) -> Table:
    def difference(row: Row, step: int) -> str | None:
        of_way = off.get(row["variant"], {})
        return f"{of_way[step]:.1e}" if step in of_way else None

    columns = {
        "way": lambda row: row["variant"],
        "cores": _cores,
        "sizes": split,
        "s/step": lambda row: row["wall_seconds_per_step"],
        "first loss": lambda row: f"{row['losses'][0]:.6f}",
        f"mean of the last {SMOOTHED_STEPS}": _last_loss,
        "test accuracy": lambda row: f"{row['final_accuracy']:.1%} +- {_standard_error(row):.1%}",
    }
    for step in sorted({step for of_way in off.values() for step in of_way}):
        columns[f"difference up to step {step}"] = lambda row, step=step: difference(row, step)
    return tabulate(rows, columns)


def _in_float64(rows: Sequence[Row]) -> list[str]:
    off = {way: max(of_way.values()) for way, of_way in _off(rows, "float64_losses").items()}
    if not off:
        return []
    row = rows[0]
    text = (
        f"In float64, the losses of {len(row['float64_losses'])} steps of {row['float64_model']} on "
        f"{row['float64_dataset']} differ from those of one device by at most {max(off.values()):.1e} of their value."
    )
    if max(off.values()) < _ROUNDING:
        text += " So the layouts differ by rounding alone: they sum in another order."
    return [text]


def _conclude(rows: Sequence[Row], off: Mapping[str, Mapping[int, float]]) -> list[str]:
    one = next((row for row in rows if row["variant"] == ONE), None)
    others = [row for row in rows if row["variant"] != ONE]
    texts = []
    if others:
        accuracies = span([100 * row["final_accuracy"] for row in others], ".1f")
        reached = f"Test accuracy after {rows[0]['steps']} steps: {accuracies} % by {len(others)} ways on workers"
        last = "" if one is None else f", {one['final_accuracy']:.1%} +- {_standard_error(one):.1%} on one device"
        texts.append(f"{reached}{last}.")
    fastest = min(rows, key=median)
    texts.append(
        f"Fastest: {fastest['variant']} on workers of {_cores(fastest)} core, {number(median(fastest))} s per step"
        + ("." if one is None else f"; one device needs {number(median(one))} s.")
    )
    if off:
        worst = max(max(of_way.values()) for of_way in off.values())
        texts.append(f"In float32, the losses differ from those of one device by at most {worst:.1e} of their value.")
    return [*texts, *_in_float64(rows)]


def render_cluster_curve(rows: Sequence[Row]) -> Report:
    """Return the report on unequal workers: the curves of all layouts."""
    order = list(WAYS)
    rows = sorted(rows, key=lambda row: order.index(row["variant"]))
    notes = [note for row in rows for note in row["notes"] if "limited by " in note]
    limits = dict.fromkeys(note.rpartition("limited by ")[2] for note in notes)
    off = _off(rows, "losses")
    parts: list[Part] = [
        _introduce(rows[0]),
        f"Each worker is a process of its own, limited by {' or '.join(limits)}. s/step: median (minimum to "
        "maximum) of all steps but the first of each session. Difference: the largest relative difference from the "
        "loss of the same step on one device.",
        _cluster_table(rows, off),
    ]
    draw = functools.partial(_draw_curves, rows, name=_name_on_cluster)
    return Report(_conclude(rows, off), parts, "Training loss and test accuracy", draw)
