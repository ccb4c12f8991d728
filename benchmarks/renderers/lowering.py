"""The report on lowering: a table, and seconds and graph size against the number of processors."""

import pathlib
from collections.abc import Sequence
from typing import Any

from benchmarks import drawing
from benchmarks.cases.lowering import FIRST_STEPS, LOWERINGS
from benchmarks.renderers.tables import GIB, Row, could_not, group_by, median, table_of

_PANELS = {
    "seconds to lower": lambda row: median(row, "lower_seconds"),
    "TensorFlow operations": lambda row: row["tf_operations"],
}


def _table(rows: Sequence[Row]) -> str:
    def growth(row: Row) -> str | None:
        """How many times as long as with half or less of the processors it takes, and how many times the processors."""
        alike = [other for other in rows if other["lowering"] == row["lowering"] and "failed" not in other]
        smaller = [other for other in alike if other["processors"] < row["processors"]]
        if not smaller:
            return None
        before = max(smaller, key=lambda other: other["processors"])
        seconds = median(row, "lower_seconds") / median(before, "lower_seconds")
        return f"{seconds:.2f} for {row['processors'] / before['processors']:.0f} x"

    columns = {
        "processors, lowering": lambda row: f"{row['processors']}, {row['lowering']}",
        "build s": lambda row: row["build_seconds"],
        "lower s": lambda row: row["lower_seconds"],
        "tf operations": lambda row: f"{row['tf_operations']:,}",
        "GraphDef MB": lambda row: f"{row['graph_bytes'] / 1e6:.2f}",
        "memory GiB": lambda row: median(row, "max_memory_bytes") / GIB,
        "growth": growth,
    }
    return table_of(rows, columns)


def _table_of_first_steps(rows: Sequence[Row]) -> str:
    def beyond(row: Row) -> float:
        return median(row, "initial_seconds") + median(row, "first_step_seconds") - median(row, "step_seconds")

    columns = {
        "processors": lambda row: row["processors"],
        "lower s": lambda row: row["lower_seconds"],
        "initial values s": lambda row: row["initial_seconds"],
        "first step s": lambda row: row["first_step_seconds"],
        "later step s": lambda row: row["step_seconds"],
        "before it trains, beside lowering s": beyond,
    }
    return table_of(rows, columns)


def _notes(rows: Sequence[Row]) -> list[str]:
    left_out = group_by(rows, lambda row: tuple(row.get("rules_left_out", ())))
    notes = [
        f"Left whole on {', '.join(map(str, sorted({row['processors'] for row in alike})))} processors, as they have "
        f"fewer units: {', '.join(dims)}"
        for dims, alike in left_out.items()
        if dims
    ]
    return [f"* {note}" for note in [*notes, *could_not("lowered", rows, "variant")]]


def _draw_panel(ax: Any, rows: Sequence[Row], value: Any) -> None:
    firsts = []
    for name, colour, marker in zip(LOWERINGS, drawing.COLOURS, "os^", strict=False):
        points = [(row["processors"], value(row)) for row in rows if row["lowering"] == name and "failed" not in row]
        if points:
            ax.plot(*zip(*points, strict=True), color=colour, marker=marker, markersize=4, label=name)
            firsts.append(points[0])
    processors = sorted({row["processors"] for row in rows})
    if firsts:
        begin, least = min(firsts, key=lambda point: point[1])
        ends = [begin, processors[-1]], [least, least * processors[-1] / begin]
        ax.plot(*ends, color=drawing.GREY, linestyle="--", linewidth=1, label="linear growth")
    drawing.plain_log(ax, x=processors)


def render(rows: Sequence[Row], directory: pathlib.Path) -> str:
    """Draws lowering.png; returns the body of the report."""
    order = [*LOWERINGS, FIRST_STEPS]
    rows = sorted(rows, key=lambda row: (row["recipe"], row["processors"], order.index(row["lowering"])))
    first_steps = [row for row in rows if row["lowering"] == FIRST_STEPS]
    rows = [row for row in rows if row["lowering"] != FIRST_STEPS]
    recipes = group_by(rows, lambda row: row["recipe"])
    figure, axes = drawing.make(len(recipes), len(_PANELS), sharex=True)
    for line, (recipe, group) in zip(axes, recipes.items(), strict=True):
        for ax, (label, value) in zip(line, _PANELS.items(), strict=True):
            _draw_panel(ax, group, value)
            ax.set_title(f"{recipe} split: {label}")
            ax.set_ylabel(label)
            ax.set_xlabel("processors")
            ax.tick_params(labelbottom=True)
    drawing.legend(figure, ncols=4)
    drawing.save(figure, directory / "lowering.png")
    first = rows[0]
    parts = [
        "![Seconds to lower and graph size](lowering.png)",
        f"The training step of {first['network']}, {first['batch_size']} images, plain gradient descent. Median "
        f"(minimum to maximum) of {first['repeats']} fresh processes. Growth compares the seconds to "
        "lower with the row of the next smaller mesh: growth as that of the processors is linear. Shares are 70, "
        "25, 5 over and over, or even.",
    ]
    for recipe, group in recipes.items():
        parts += [f"## {recipe} split", _table(group), *_notes(group)]
    if first_steps:
        parts += [
            "## First steps",
            f"{first_steps[0]['batch_size']} images a step, the filters split unevenly, a session like an Estimator's: "
            "initialising, the first step, and the median of five later ones, all processors on this machine.",
            _table_of_first_steps(first_steps),
            *could_not("lowered", first_steps, "variant"),
        ]
    return "\n\n".join(parts)
