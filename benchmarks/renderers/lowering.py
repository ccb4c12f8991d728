"""The report on lowering: a table, and seconds and graph size against the number of processors."""

import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks import figures
from benchmarks.cases.lowering import LOWERINGS
from benchmarks.renderers import markdown

Row = Mapping[str, Any]
_PANELS = (
    ("lower_seconds", "seconds to lower", lambda row: row["lower_seconds"]["median"]),
    ("tf_operations", "TensorFlow operations", lambda row: row["tf_operations"]),
)


def _sorted(rows: Sequence[Row]) -> list[Row]:
    order = list(LOWERINGS)
    return sorted(rows, key=lambda row: (row["recipe"], row["processors"], order.index(row["lowering"])))


def _table(rows: Sequence[Row]) -> str:
    header = ["processors, lowering", "build s", "lower s", "tf operations", "GraphDef MB", "memory GiB", "growth"]
    lines = []
    for row in rows:
        name = f"{row['processors']}, {row['lowering']}"
        if "failed" in row:
            lines.append([name, *["-"] * 6])
            continue
        lines.append(
            [
                name,
                markdown.spread(row["build_seconds"]),
                markdown.spread(row["lower_seconds"]),
                f"{row['tf_operations']:,}",
                f"{row['graph_bytes'] / 1e6:.2f}",
                markdown.number(row["max_memory_bytes"]["median"] / 2**30),
                _growth(row, rows),
            ]
        )
    return markdown.table(header, lines)


def _growth(row: Row, rows: Sequence[Row]) -> str:
    """How many times as long as with half or less of the processors it takes, and how many times the processors."""
    smaller = [
        other
        for other in rows
        if other["lowering"] == row["lowering"] and other["processors"] < row["processors"] and "failed" not in other
    ]
    if not smaller:
        return "-"
    before = max(smaller, key=lambda other: other["processors"])
    seconds = row["lower_seconds"]["median"] / before["lower_seconds"]["median"]
    return f"{seconds:.2f} for {row['processors'] / before['processors']:.0f} x"


def _notes(rows: Sequence[Row]) -> list[str]:
    left_out: dict[tuple[str, ...], list[int]] = {}
    for row in rows:
        if row.get("rules_left_out"):
            left_out.setdefault(tuple(row["rules_left_out"]), []).append(row["processors"])
    notes = [
        f"Left whole on {', '.join(map(str, sorted(set(processors))))} processors, as they have fewer units: "
        + ", ".join(dims)
        for dims, processors in left_out.items()
    ]
    notes += [f"{row['variant']} could not be lowered: {row['failed']}" for row in rows if "failed" in row]
    return [f"* {note}" for note in notes]


def _draw_panel(ax: Any, rows: Sequence[Row], value: Any) -> None:
    ends = []
    references = []
    for name, colour, marker in zip(LOWERINGS, figures.COLOURS, "os^", strict=False):
        points = [(row["processors"], value(row)) for row in rows if row["lowering"] == name and "failed" not in row]
        if points:
            ax.plot(*zip(*points, strict=True), color=colour, marker=marker, markersize=4)
            ends.append((*points[-1], name, colour))
            references.append(points[0])
    ax.set_xscale("log", base=2)
    ax.set_yscale("log")
    processors = sorted({row["processors"] for row in rows})
    ax.set_xticks(processors, [str(p) for p in processors])
    if references:
        first = min(references, key=lambda point: point[1])
        last = (processors[-1], first[1] * processors[-1] / first[0])
        ax.plot(*zip(first, last, strict=True), color=figures.GREY, linestyle="--", linewidth=1)
        ends.append((*last, "linear growth", figures.GREY))
    ax.margins(x=0.03)
    ax.figure.canvas.draw()
    figures.label_line_ends(ax, ends)


def render(rows: Sequence[Row], directory: pathlib.Path) -> str:
    """Draws lowering.png; returns the body of the report."""
    rows = _sorted(rows)
    recipes = list(dict.fromkeys(row["recipe"] for row in rows))
    figure, axes = figures.make(len(recipes), len(_PANELS), width=5.2, sharex=True)
    for row_axes, recipe in zip(axes, recipes, strict=True):
        for ax, (_, label, value) in zip(row_axes, _PANELS, strict=True):
            _draw_panel(ax, [row for row in rows if row["recipe"] == recipe], value)
            ax.set_title(f"{recipe} split: {label}")
            ax.set_ylabel(label)
            ax.set_xlabel("processors")
            ax.tick_params(labelbottom=True)
    figures.save(figure, directory / "lowering.png")
    first = rows[0]
    parts = [
        "![Seconds to lower and graph size](lowering.png)",
        f"The training step of {first['network']}, {first['batch_size']} images, plain gradient descent. Median "
        f"(minimum to maximum) of {first['repeats']} fresh processes. Growth compares the seconds to "
        "lower with the row of the next smaller mesh: growth as that of the processors is linear. Shares are 70, "
        "25, 5 over and over, or even.",
    ]
    for recipe in recipes:
        of_recipe = [row for row in rows if row["recipe"] == recipe]
        parts += [f"## {recipe} split", _table(of_recipe), *_notes(of_recipe)]
    return "\n\n".join(parts)
