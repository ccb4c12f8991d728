"""The report on dropout: each worker's share of time and memory, over its share of the numbers."""

import functools
import pathlib
from collections.abc import Mapping, Sequence

from benchmarks import drawing
from benchmarks.renderers.document import Part, Report
from benchmarks.renderers.tables import MB, Row, limits, number, span, tabulate

_BOUND = 0.1  # by which a worker's share of time or memory may differ from its share of the numbers


def _over_share(row: Row, amounts: Sequence[float]) -> list[float]:
    """Each worker's share of an amount, over its share of the numbers."""
    pairs, total = zip(amounts, row["numbers"], strict=True), sum(amounts) or 1.0
    return [(amount / total) / (numbers / sum(row["numbers"])) for amount, numbers in pairs]


def _workers(row: Row) -> list[Row]:
    """Return a row for each worker."""
    columns = {
        "device": row["devices"],
        "numbers": row["numbers"],
        "cpu_seconds": row["cpu_seconds"],
        "peak_bytes": row["peak_bytes"],
        "time": _over_share(row, [seconds["median"] for seconds in row["cpu_seconds"]]),
        "memory": _over_share(row, row["peak_bytes"]),
    }
    return [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]


def _draw(groups: Mapping[str, Sequence[Row]], path: pathlib.Path) -> None:
    colours = {"time": drawing.COLOURS[0], "memory": drawing.COLOURS[1]}
    with drawing.panels(path, len(groups), len(groups), height=2.2, colours=colours, sharex=True) as axes:
        for ax, (dim, group) in zip(axes, groups.items(), strict=True):
            lengths = {f"{worker['device']}, {kind}": worker[kind] for worker in group for kind in colours}
            drawing.bars(ax, lengths, list(colours.values()) * len(group), "share of the amount / share of the numbers")
            for edge in (1 - _BOUND, 1 + _BOUND):
                ax.axvline(edge, color=drawing.GREY, linestyle="--", linewidth=1)
            ax.set_title(f"{dim} split")


def _conclude(workers: Sequence[Row]) -> list[str]:
    texts = []
    for kind, what in (("time", "processor time"), ("memory", "memory")):
        ratios = [worker[kind] for worker in workers]
        within = sum(abs(ratio - 1) <= _BOUND for ratio in ratios)
        texts.append(
            f"A worker's share of {what} is {span(ratios)} times its share of the numbers; {within} of {len(ratios)} "
            f"are within {_BOUND:.0%}."
        )
    return texts


def render(rows: Sequence[Row]) -> Report:
    """Return the report: a table per dimension that is split."""
    groups = {row["variant"]: _workers(row) for row in rows}
    first = rows[0]
    columns = {
        "worker": lambda worker: worker["device"],
        "numbers": lambda worker: f"{worker['numbers']:,}",
        "processor s per step": lambda worker: worker["cpu_seconds"],
        "time over share": lambda worker: f"{worker['time']:.2f}",
        "peak MB": lambda worker: number(worker["peak_bytes"] / MB),
        "memory over share": lambda worker: f"{worker['memory']:.2f}",
    }
    parts: list[Part] = [
        f"A step applies dropout to {sum(first['numbers']):,} ones and computes their mean. Processor time is that of "
        f"all threads of a worker: median (minimum to maximum) of {first['steps']} steps. Peak is the most resident "
        "memory beyond what the worker held before. Over share: a worker's share of the sum over all workers, divided "
        f"by its share of the numbers; the dashed lines of the picture are 10 % off. {limits(first)}",
    ]
    for dim, group in groups.items():
        parts += [f"## {dim.capitalize()} split", tabulate(group, columns)]
    everyone = [worker for group in groups.values() for worker in group]
    return Report(_conclude(everyone), parts, "Time and memory over the share", functools.partial(_draw, groups))
