"""The report on where the time of a step goes: a table per network, and a bar per lowering."""

import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks import figures
from benchmarks.cases.accounting import LOWERINGS
from benchmarks.renderers import markdown

Row = Mapping[str, Any]
_LEAST = 0.005  # of the sum: kinds below it are added up
_REST = "all others"
_CLASSES = {  # what the picture shows; a kind is of the first class whose words are in its name
    "convolution": ("Conv",),
    "matrix product": ("MatMul", "Einsum"),
    "relu, pooling and their gradients": ("Relu", "Pool", "Greater", "Cast", "Select", "Equal"),
    "updates of variables": ("Assign", "Sub", "ReadVariable"),
}


def _medians(row: Row) -> dict[str, float]:
    return {kind: summary["median"] for kind, summary in row["kinds"].items()}


def _class_of(kind: str) -> str:
    return next((name for name, words in _CLASSES.items() if any(word in kind for word in words)), "the rest")


def _table(rows: Sequence[Row]) -> str:
    found = {row["lowering"]: _medians(row) for row in rows}
    sums = {name: sum(kinds.values()) for name, kinds in found.items()}
    shown = {kind for name, kinds in found.items() for kind, seconds in kinds.items() if seconds >= _LEAST * sums[name]}
    order = sorted(shown, key=lambda kind: -max(kinds.get(kind, 0.0) for kinds in found.values()))

    def cells(of: Mapping[str, float]) -> list[str]:
        return [f"{of[name] * 1e3:.2f} ({of[name] / sums[name]:.1%})" for name in found]

    lines = [[kind, *cells({name: kinds.get(kind, 0.0) for name, kinds in found.items()})] for kind in order]
    rest = {name: sum(s for kind, s in kinds.items() if kind not in shown) for name, kinds in found.items()}
    lines += [[_REST, *cells(rest)], ["sum", *cells(sums)]]
    lines.append(["operations run", *(f"{row['operations']:,}" for row in rows)])
    return markdown.table(["kind of operation, ms a step", *found], lines)


def _draw(ax: Any, rows: Sequence[Row]) -> None:
    names = [*_CLASSES, "the rest"]
    left = [0.0] * len(rows)
    for name, colour in zip(names, figures.COLOURS, strict=False):
        widths = [1e3 * sum(s for kind, s in _medians(row).items() if _class_of(kind) == name) for row in rows]
        ax.barh([row["lowering"] for row in rows], widths, left=left, color=colour, label=name, height=0.6)
        left = [a + b for a, b in zip(left, widths, strict=True)]
    ax.invert_yaxis()
    ax.set_xlabel("ms of operations in a step")


def render(rows: Sequence[Row], directory: pathlib.Path) -> str:
    """Draws accounting.png; returns the body of the report."""
    order = list(LOWERINGS)
    groups: dict[str, list[Row]] = {}
    for row in sorted(rows, key=lambda row: order.index(row["lowering"])):
        groups.setdefault(f"{row['network']}, batch {row['batch_size']}", []).append(row)
    figure, axes = figures.make(len(groups), 1, width=7.0, height=1.5)
    for (ax,), (title, of_group) in zip(axes, groups.items(), strict=True):
        _draw(ax, of_group)
        ax.set_title(title)
    figure.legend(*axes[0][0].get_legend_handles_labels(), loc="outside upper left", ncols=3)
    figures.save(figure, directory / "accounting.png")
    parts = [
        "![Where the time of a step goes](accounting.png)",
        f"Milliseconds of all operations of a kind in one step, and their part of the sum: the median of "
        f"{rows[0]['repeats']} traced steps. Operations that run side by side count both.",
    ]
    for title, of_group in groups.items():
        parts += [f"## {title}", _table(of_group)]
    return "\n\n".join(parts)
