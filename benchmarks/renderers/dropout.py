"""The report on dropout: what each worker takes of time and memory, over its part of the numbers."""

import pathlib
from collections.abc import Sequence

from benchmarks import drawing
from benchmarks.renderers.tables import MB, Row, limits, number, table_of

_BOUND = 0.1  # within which a worker's part of time or memory should be that of the numbers


def _over_share(row: Row, amounts: Sequence[float]) -> list[float]:
    """Each worker's part of an amount, over its part of the numbers."""
    pairs = zip(amounts, row["numbers"], strict=True)
    return [(amount / sum(amounts)) / (numbers / sum(row["numbers"])) for amount, numbers in pairs]


def _workers(row: Row) -> list[Row]:
    """A row for each worker."""
    columns = {
        "device": row["devices"],
        "numbers": row["numbers"],
        "cpu_seconds": row["cpu_seconds"],
        "peak_bytes": row["peak_bytes"],
        "time": _over_share(row, [seconds["median"] for seconds in row["cpu_seconds"]]),
        "memory": _over_share(row, row["peak_bytes"]),
    }
    return [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]


def render(rows: Sequence[Row], directory: pathlib.Path) -> str:
    """Draws dropout.png; returns the body of the report."""
    workers = {row["variant"]: _workers(row) for row in rows}
    figure, axes = drawing.make(1, len(rows), height=2.2, sharex=True)
    colours = {"time": drawing.COLOURS[0], "memory": drawing.COLOURS[1]}
    for ax, (dim, group) in zip(axes[0], workers.items(), strict=True):
        lengths = {f"{worker['device']}, {kind}": worker[kind] for worker in group for kind in colours}
        drawing.bars(ax, lengths, list(colours.values()) * len(group), "part taken over part of the numbers")
        for edge in (1 - _BOUND, 1 + _BOUND):
            ax.axvline(edge, color=drawing.GREY, linestyle="--", linewidth=1)
        ax.set_title(f"{dim} divided")
    drawing.legend(figure, colours)
    drawing.save(figure, directory / "dropout.png")
    first = rows[0]
    columns = {
        "worker": lambda worker: worker["device"],
        "numbers": lambda worker: f"{worker['numbers']:,}",
        "processor s a step": lambda worker: worker["cpu_seconds"],
        "over its share": lambda worker: f"{worker['time']:.2f}",
        "peak MB": lambda worker: number(worker["peak_bytes"] / MB),
        "over its share ": lambda worker: f"{worker['memory']:.2f}",
    }
    parts = [
        "![Time and memory over the share](dropout.png)",
        f"Dropout of {sum(first['numbers']):,} ones and their mean: the median (minimum to maximum) of "
        f"{first['steps']} steps' processor time of all threads of a worker, and the most resident memory beyond what "
        f"it held before. Over its share: a worker's part of what all take, over its part of the numbers; the dashed "
        f"lines are 10 % off. {limits(first)}",
    ]
    for dim, group in workers.items():
        parts += [f"## {dim.capitalize()} divided", table_of(group, columns)]
    return "\n\n".join(parts)
