"""The report on lowering: a table, and seconds and graph size against the number of processors."""

import functools
import itertools
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks import drawing
from benchmarks.cases.lowering import FIRST_STEPS, LOWERINGS
from benchmarks.renderers.document import Part, Report
from benchmarks.renderers.tables import (
    GIB,
    Row,
    Table,
    bullets,
    could_not,
    group_by,
    median,
    number,
    succeeded,
    tabulate,
)

_PANELS = {
    "seconds to lower": lambda row: median(row, "lower_seconds"),
    "TensorFlow operations": lambda row: row["tf_operations"],
}


def _table(rows: Sequence[Row]) -> Table:
    def growth(row: Row) -> str | None:
        """Return the growth of the seconds to lower, and of the processors, from the next smaller mesh."""
        alike = [other for other in succeeded(rows) if other["lowering"] == row["lowering"]]
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
        "TensorFlow operations": lambda row: f"{row['tf_operations']:,}",
        "GraphDef MB": lambda row: f"{row['graph_bytes'] / 1e6:.2f}",
        "memory GiB": lambda row: median(row, "max_memory_bytes") / GIB,
        "growth": growth,
    }
    return tabulate(rows, columns)


def _table_of_first_steps(rows: Sequence[Row]) -> Table:
    def beyond(row: Row) -> float:
        return median(row, "initial_seconds") + median(row, "first_step_seconds") - median(row, "step_seconds")

    columns = {
        "processors": lambda row: row["processors"],
        "lower s": lambda row: row["lower_seconds"],
        "initial values s": lambda row: row["initial_seconds"],
        "first step s": lambda row: row["first_step_seconds"],
        "later step s": lambda row: row["step_seconds"],
        "initial values and first step, beyond a later step s": beyond,
    }
    return tabulate(rows, columns)


def _notes(rows: Sequence[Row]) -> str:
    left_out = group_by(rows, lambda row: tuple(row.get("rules_left_out", ())))
    notes = [
        f"Replicated on {', '.join(map(str, sorted({row['processors'] for row in alike})))} processors, because they "
        f"have fewer units: {', '.join(dims)}"
        for dims, alike in left_out.items()
        if dims
    ]
    return bullets([*notes, *could_not("lowered", rows, "variant")])


def _draw_panel(ax: Any, rows: Sequence[Row], value: Any) -> None:
    firsts = []
    for name, colour, marker in zip(LOWERINGS, drawing.COLOURS, "os^", strict=False):
        points = [(row["processors"], value(row)) for row in succeeded(rows) if row["lowering"] == name]
        if points:
            ax.plot(*zip(*points, strict=True), color=colour, marker=marker, markersize=4, label=name)
            firsts.append(points[0])
    processors = sorted({row["processors"] for row in rows})
    if firsts:
        begin, least = min(firsts, key=lambda point: point[1])
        ends = [begin, processors[-1]], [least, least * processors[-1] / begin]
        ax.plot(*ends, color=drawing.GREY, linestyle="--", linewidth=1, label="linear growth")
    drawing.plain_log(ax, x=processors)


def _draw(recipes: Mapping[str, Sequence[Row]], path: pathlib.Path) -> None:
    shown = list(itertools.product(recipes.items(), _PANELS.items()))
    with drawing.panels(path, len(shown), len(_PANELS), ncols=4, sharex=True) as axes:
        for ax, ((recipe, group), (label, value)) in zip(axes, shown, strict=True):
            _draw_panel(ax, group, value)
            ax.set_title(f"{recipe} split: {label}")
            ax.set_ylabel(label)
            ax.set_xlabel("processors")
            ax.tick_params(labelbottom=True)


def _conclude(recipe: str, rows: Sequence[Row]) -> str:
    """Return a sentence on the largest mesh that one of us and stock mtf lowered."""
    most = max((row["processors"] for row in succeeded(rows)), default=0)
    there = {row["lowering"]: row for row in succeeded(rows) if row["processors"] == most}
    said = [
        f"{name} in {number(median(row, 'lower_seconds'))} s to {row['tf_operations']:,} operations"
        for name, row in there.items()
    ]
    return f"{recipe.capitalize()} split over {most} processors: {'; '.join(said)}." if said else ""


def _conclude_first_steps(rows: Sequence[Row]) -> str:
    last = max(succeeded(rows), key=lambda row: row["processors"], default=None)
    if last is None:
        return ""
    return (
        f"On {last['processors']} processors of one machine, a session sets initial values in "
        f"{number(median(last, 'initial_seconds'))} s, and the first step ends after "
        f"{number(median(last, 'first_step_seconds'))} s more."
    )


def render(rows: Sequence[Row]) -> Report:
    """Return the report: a table per recipe, and one of first steps."""
    order = [*LOWERINGS, FIRST_STEPS]
    rows = sorted(rows, key=lambda row: (row["recipe"], row["processors"], order.index(row["lowering"])))
    first_steps = [row for row in rows if row["lowering"] == FIRST_STEPS]
    recipes = group_by((row for row in rows if row["lowering"] != FIRST_STEPS), lambda row: row["recipe"])
    parts: list[Part] = [
        f"The training step of {rows[0]['network']}, plain gradient descent. Median (minimum to maximum) of "
        f"{rows[0]['repeats']} fresh processes. Shares are 70, 25, 5 over and over, or even.",
    ]
    if recipes:
        batch = next(iter(recipes.values()))[0]["batch_size"]
        parts.append(
            f"Graphs of {batch} images. Growth compares the seconds to lower with those of the next smaller mesh; it "
            "is linear where it equals the growth of the processors."
        )
    for recipe, group in recipes.items():
        parts += [f"## {recipe.capitalize()} split", _table(group), _notes(group)]
    if first_steps:
        parts += [
            "## First steps",
            f"{first_steps[0]['batch_size']} images per step, the filters split unevenly, a session as in an "
            "Estimator. Later step: the median of five. All processors are on this machine.",
            _table_of_first_steps(first_steps),
            bullets(could_not("lowered", first_steps, "variant")),
        ]
    conclusions = [_conclude(recipe, group) for recipe, group in recipes.items()]
    conclusions += [_conclude_first_steps(first_steps)] if first_steps else []
    draw = functools.partial(_draw, recipes) if recipes else None
    return Report([text for text in conclusions if text], parts, "Seconds to lower, and graph size", draw)
