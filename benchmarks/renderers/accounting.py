"""The report on where the time of a step goes: a table per network, and a bar per lowering."""

import pathlib
from collections.abc import Mapping, Sequence

from benchmarks import drawing
from benchmarks.cases.accounting import LOWERINGS
from benchmarks.renderers.tables import Row, group_by, table

_LEAST = 0.005  # of the sum: kinds below it are added up
_CLASSES = {  # what the picture shows; a kind is of the first class one of whose words is in its name
    "convolution": ("Conv",),
    "matrix product": ("MatMul", "Einsum"),
    "relu, pooling and their gradients": ("Relu", "Pool", "Greater", "Cast", "Select", "Equal"),
    "updates of variables": ("Assign", "Sub", "ReadVariable"),
    "the rest": ("",),
}


def _medians(row: Row) -> dict[str, float]:
    return {kind: summary["median"] for kind, summary in row["kinds"].items()}


def _class_of(kind: str) -> str:
    return next(name for name, words in _CLASSES.items() if any(word in kind for word in words))


def _table(rows: Sequence[Row]) -> str:
    seconds = {row["lowering"]: _medians(row) for row in rows}
    sums = {name: sum(kinds.values()) for name, kinds in seconds.items()}
    shown = {kind for name, kinds in seconds.items() for kind, s in kinds.items() if s >= _LEAST * sums[name]}
    rest = {name: sum(s for kind, s in kinds.items() if kind not in shown) for name, kinds in seconds.items()}

    def line(kind: str, of: Mapping[str, float]) -> list[str]:
        return [kind, *(f"{of[name] * 1e3:.2f} ({of[name] / sums[name]:.1%})" for name in seconds)]

    lines = [
        line(kind, {name: kinds.get(kind, 0.0) for name, kinds in seconds.items()})
        for kind in sorted(shown, key=lambda kind: -max(kinds.get(kind, 0.0) for kinds in seconds.values()))
    ]
    lines += [line("all others", rest), line("sum", sums)]
    lines.append(["operations run", *(f"{row['operations']:,}" for row in rows)])
    return table(["kind of operation, ms a step", *seconds], lines)


def _draw(groups: Mapping[str, Sequence[Row]], path: pathlib.Path) -> None:
    figure, axes = drawing.make(len(groups), 1, width=7.0, height=1.5)
    colours = dict(zip(_CLASSES, drawing.COLOURS, strict=False))
    for (ax,), rows in zip(axes, groups.values(), strict=True):
        for row in rows:
            left = 0.0
            for name, colour in colours.items():
                width = 1e3 * sum(s for kind, s in _medians(row).items() if _class_of(kind) == name)
                ax.barh(row["lowering"], width, left=left, color=colour, height=0.6)
                left += width
        ax.invert_yaxis()
        ax.grid(axis="y", visible=False)
        ax.set_xlabel("milliseconds of all operations in a step")
        ax.set_title(drawing.title(rows[0]))
    drawing.legend(figure, colours)
    drawing.save(figure, path)


def render(rows: Sequence[Row], directory: pathlib.Path) -> str:
    """Draws accounting.png; returns the body of the report."""
    order = list(LOWERINGS)
    rows = sorted(rows, key=lambda row: order.index(row["lowering"]))
    groups = group_by(rows, lambda row: f"{row['network']}, batch {row['batch_size']}")
    _draw(groups, directory / "accounting.png")
    parts = [
        "![Where the time of a step goes](accounting.png)",
        f"Milliseconds of all operations of a kind in one step, and their part of the sum: the median of "
        f"{rows[0]['repeats']} traced steps. Operations that run side by side count both.",
    ]
    for title, group in groups.items():
        parts += [f"## {title}", _table(group)]
    return "\n\n".join(parts)
