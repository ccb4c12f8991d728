"""The report on planned layouts: step times beside recipes and the fastest worker alone, and beside predictions."""

import functools
import pathlib
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks import drawing
from benchmarks.cases.planner import EVERY, MEMORY
from benchmarks.renderers.document import Details, Part, Report
from benchmarks.renderers.tables import (
    MB,
    Row,
    Table,
    cell,
    group_by,
    limits,
    median,
    number,
    on_machines,
    span,
    table,
)
from benchmarks.rows import summarise

_BOUND = 0.15  # of a step's predicted time
_MEMORY_BOUND = 0.1  # of a worker's predicted memory
_KINDS = {"alone": drawing.GREY, "recipe": drawing.COLOURS[1], "plan": drawing.COLOURS[0]}


def _seconds(row: Row) -> float:
    return median(row, "seconds")


def _kind(row: Row) -> str:
    return "plan" if row["way"] == "plan" else "alone" if row["way"].startswith("alone") else "recipe"


class _Setting:
    """The ways of one network on one cluster."""

    def __init__(self, rows: Sequence[Row]) -> None:
        kinds = group_by(rows, _kind)
        self.name = f"{rows[0]['network']}, {rows[0]['batch_size']}"
        self.rows = rows
        self.alone = min(kinds["alone"], key=_seconds)
        self.recipe = min(kinds["recipe"], key=_seconds)
        self.plan = kinds["plan"][0]
        self.chosen = next(row for row in rows if row["is_taken"])
        self._ideal = 1 / sum(1 / _seconds(row) for row in kinds["alone"])

    def efficiency(self, row: Row) -> float:
        """Return the ideal step time, without traffic and with workers as fast as alone, divided by the way's."""
        return self._ideal / _seconds(row)


def _ratio(row: Row, other: Row) -> dict[str, float]:
    """Return the ratio of a way's step times to another's, each in the same round."""
    return summarise(a / b for a, b in zip(row["turns"], other["turns"], strict=True))


def _line(setting: _Setting) -> list[Any]:
    best = min(setting.rows, key=_seconds)
    return [
        setting.name,
        setting.alone["seconds"],
        setting.recipe["way"],
        setting.recipe["seconds"],
        setting.plan["seconds"],
        f"{setting.efficiency(setting.recipe):.2f}",
        f"{setting.efficiency(setting.plan):.2f}",
        _ratio(setting.plan, setting.recipe),
        "alone" if _kind(setting.chosen) == "alone" else setting.chosen["way"],
        f"{_seconds(setting.chosen) / _seconds(best):.2f}",
        f"{_seconds(setting.chosen) / _seconds(setting.alone):.2f}",
    ]


_HEADER = [
    *("network, batch", "fastest worker alone s", "best recipe", "its s", "plan s"),
    *(
        "efficiency of the recipe",
        "of the plan",
        "plan over recipe",
        "chosen",
        "over the best",
        "over the worker alone",
    ),
]


def _draw(clusters: Mapping[str, Sequence[_Setting]], of_memory: Sequence[Row], path: pathlib.Path) -> None:
    most, lines = max(map(len, clusters.values())), -(-len(clusters) // 2)
    colours = {"fastest worker alone": _KINDS["alone"], "best recipe": _KINDS["recipe"], "plan": _KINDS["plan"]}
    with drawing.panels(path, 2 * lines + 2, 2, height=1.0 + 0.5 * most, colours=colours) as axes:
        for ax, (title, settings) in zip(axes, clusters.items(), strict=False):
            _draw_cluster(ax, title, settings)
        for ax in axes[len(clusters) : 2 * lines]:
            ax.set_axis_off()
        steps = [row for settings in clusters.values() for setting in settings for row in setting.rows]
        pairs = [(_seconds(row), row["predicted_seconds"]) for row in steps]
        _draw_predictions(axes[-2], pairs, [_KINDS[_kind(row)] for row in steps], "seconds of a step", _BOUND)
        held = [
            (taken / MB, predicted / MB)
            for row in of_memory
            for taken, predicted in zip(row["peak_bytes"], row["predicted_bytes"], strict=True)
        ]
        of_plans = [_KINDS["plan"]] * len(held)
        _draw_predictions(axes[-1], held, of_plans, "MB of a worker under a plan", _MEMORY_BOUND)


def _draw_cluster(ax: Any, title: str, settings: Sequence[_Setting]) -> None:
    lengths, colours = {}, []
    for setting in settings:
        for kind, row in (("alone", setting.alone), ("recipe", setting.recipe), ("plan", setting.plan)):
            lengths[f"{setting.name}: {row['way'] if kind == 'recipe' else kind}"] = setting.efficiency(row)
            colours.append(_KINDS[kind])
    drawing.bars(ax, lengths, colours, "efficiency")
    ax.axvline(1, color=drawing.GREY, linestyle="--", linewidth=1)
    ax.set_title(title)


def _draw_predictions(
    ax: Any, pairs: Sequence[tuple[float, float]], colours: Sequence[str], unit: str, bound: float
) -> None:
    """Draw predictions over measurements, with the line where they agree and those of a bound."""
    if not pairs:
        ax.set_axis_off()
        return
    measured, predicted = zip(*pairs, strict=True)
    ax.scatter(measured, predicted, s=14, color=colours)
    ends = [min(measured), max(measured)]
    for factor in (1 - bound, 1, 1 + bound):
        style = {"color": drawing.GREY, "linestyle": "-" if factor == 1 else "--", "linewidth": 1}
        ax.plot(ends, [factor * end for end in ends], **style)
    ax.set_xscale("log")
    ax.set_yscale("log")
    drawing.plain_ticks(ax.xaxis)
    drawing.plain_ticks(ax.yaxis)
    ax.set_title(f"predictions (dashed: {bound:.0%} off)")
    ax.set_xlabel(f"measured {unit}")
    ax.set_ylabel("predicted")


def _predictions(settings: Sequence[_Setting]) -> Table:
    lines = []
    for setting in settings:
        lines += [
            [
                setting.name,
                row["way"],
                row["predicted_seconds"],
                row["seconds"],
                row["predicted_seconds"] / _seconds(row),
            ]
            for row in setting.rows
        ]
    return table(["network, batch", "way", "predicted s", "measured s", "predicted over measured"], lines, labels=2)


def _typical(rows: Sequence[Row], column: str) -> str:
    values = [row[column] for row in rows]
    return f"{number(statistics.median(values))} ({number(max(values))})"


def _cluster(row: Row) -> str:
    megabits = row.get("megabits_per_second")
    return f"workers of {', '.join(map(str, row['fractions']))} cores" + (f", {megabits:g} Mbit/s" if megabits else "")


def _every_way(row: Row, everything: Sequence[Row]) -> list[Part]:
    """Return the section on a network that was measured in all ways to split it."""
    seconds = {name: statistics.median(turns) for name, turns in row["turns"].items()}
    best = min((name for name in seconds if name != "plan"), key=seconds.__getitem__)
    ratios = summarise(a / b for a, b in zip(row["turns"]["plan"], row["turns"][best], strict=True))
    measured = [taken for _, taken in row["ways"].values()]
    least, most = number(min(measured)), number(max(measured))
    within = sum(abs(predicted / taken - 1) <= _BOUND for predicted, taken in row["ways"].values())
    lines = [
        [name, row["predicted"][name], summarise(row["turns"][name])]
        for name in sorted(seconds, key=lambda way: seconds[way])
    ]
    return [
        f"## All ways to split {row['network']}, batch {row['batch_size']}, on {_cluster(row)}"
        f"{on_machines([row], everything)}",
        "Each layer is split by its batch, outputs or inputs, in proportion to the measured speeds, or runs on the "
        f"fastest device. These are {len(measured)} layouts with step times of {least} to {most} s; {within} are "
        f"predicted within {_BOUND:.0%}. The fastest then took turns with the plan. The plan's step time is "
        f"{cell(ratios)} times that of the best of them.",
        table(["way", "predicted s", "measured s"], lines),
    ]


def _memory_errors(rows: Sequence[Row]) -> list[float]:
    pairs = [pair for row in rows for pair in zip(row["predicted_bytes"], row["peak_bytes"], strict=True)]
    return [abs(predicted / taken - 1) for predicted, taken in pairs]


def _conclude_memory(rows: Sequence[Row]) -> str:
    errors = _memory_errors(rows)
    within = sum(error <= _MEMORY_BOUND for error in errors)
    return (
        f"Memory: {within} of {len(errors)} estimates are within {_MEMORY_BOUND:.0%} of the peak; the median error is "
        f"{statistics.median(errors):.0%}."
    )


def _memory(rows: Sequence[Row], everything: Sequence[Row]) -> list[Part]:
    """Return the section on each worker's memory."""
    lines = []
    for row in rows:
        for place, worker in enumerate(row["workers"]):
            taken, predicted = (row[name][place] for name in ("peak_bytes", "predicted_bytes"))
            cells = (taken / MB, predicted / MB, row["runtime_bytes"][place] / MB, predicted / taken)
            lines.append([f"{row['network']}, {row['batch_size']}", f"{row['fractions'][worker]:g}", *cells])
    header = [
        "network, batch",
        "cores",
        "measured MB",
        "predicted MB",
        "TensorFlow's own part of it",
        "predicted / measured",
    ]
    return [
        f"## Memory of plans{on_machines(rows, everything)}",
        "Measured: the peak of each worker beyond what it held before, on workers that return freed memory. Predicted: "
        "the estimate of the lowered graph, by which plans keep to a device's memory. The plans assume speeds in "
        f"proportion to the workers' cores. {rows[0]['steps']} steps.",
        table(header, lines, labels=2),
    ]


def _conclude(settings: Sequence[_Setting]) -> list[str]:
    rows = [row for setting in settings for row in setting.rows]
    errors = [abs(row["predicted_seconds"] / _seconds(row) - 1) for row in rows]
    losses = [_seconds(setting.chosen) / min(map(_seconds, setting.rows)) for setting in settings]
    over_alone = [_seconds(setting.chosen) / _seconds(setting.alone) for setting in settings]
    of_chosen = [abs(setting.chosen["predicted_seconds"] / _seconds(setting.chosen) - 1) for setting in settings]
    fastest = sum(_seconds(setting.plan) == min(map(_seconds, setting.rows)) for setting in settings)
    wins = sum(_ratio(setting.plan, setting.recipe)["upper_quartile"] < 1 for setting in settings)
    return [
        f"The plan is the fastest of all ways in {fastest} of {len(settings)} settings. It beats the best recipe by "
        f"more than the spread in {wins}.",
        f"The way that `--layout=auto` would choose needs {statistics.median(losses):.2f} times as long as the best "
        f"way (median; at most {max(losses):.2f}), and {span(over_alone)} times as long as the fastest worker alone.",
        f"{sum(error <= _BOUND for error in errors)} of {len(errors)} predicted step times are within {_BOUND:.0%}; "
        f"the median error is {statistics.median(errors):.0%}. Of the chosen ways, "
        f"{sum(error <= _BOUND for error in of_chosen)} of {len(of_chosen)} are.",
    ]


def _timed(clusters: Mapping[str, Sequence[_Setting]], everything: Sequence[Row]) -> list[Part]:
    """Return the sections on the clusters whose steps were timed."""
    if not clusters:
        return []
    rows = [row for settings in clusters.values() for setting in settings for row in setting.rows]
    counts = [row["repeats"] for row in rows]
    turns = " to ".join(map(str, dict.fromkeys((min(counts), max(counts)))))
    parts: list[Part] = [
        "Efficiency: the ideal step time, over the measured one. Ideal: each worker computes its part as fast as it "
        "does alone, and nothing is sent. Chosen: the way that `--layout=auto` would choose. It starts from the "
        "fastest worker alone. The recipe with the best prediction, and the plan, must win more than three quarters of "
        f"the rounds. Median (minimum to maximum) of {turns} turns. {limits(rows[0])}",
        f"Measuring the workers takes {_typical(rows, 'calibrate_seconds')} s, planning "
        f"{_typical(rows, 'plan_seconds')} s (median; maximum in brackets).",
    ]
    for title, of_cluster in clusters.items():
        lines = [_line(setting) for setting in of_cluster]
        predictions = Details("Each way, predicted and measured", [_predictions(of_cluster)])
        place = on_machines((row for setting in of_cluster for row in setting.rows), everything)
        parts += [f"## {title[0].upper()}{title[1:]}{place}", table(_HEADER, lines), predictions]
    return parts


def render(rows: Sequence[Row]) -> Report:
    """Return the report: a table per cluster, one of all ways, and one of memory."""
    of_memory, exhausted = ([row for row in rows if row.get("part") == part] for part in (MEMORY, EVERY))
    by_cluster = group_by((row for row in rows if "part" not in row), _cluster)
    clusters = {
        title: [_Setting(group) for group in group_by(of_cluster, lambda row: row["network"]).values()]
        for title, of_cluster in by_cluster.items()
    }
    settings = [setting for of_cluster in clusters.values() for setting in of_cluster]
    conclusions = _conclude(settings) if settings else []
    conclusions += [_conclude_memory(of_memory)] if of_memory else []
    parts = _timed(clusters, rows)
    for row in exhausted:
        parts += _every_way(row, rows)
    parts += _memory(of_memory, rows) if of_memory else []
    draw = functools.partial(_draw, clusters, of_memory) if clusters else None
    return Report(conclusions, parts, "Efficiency, and predicted against measured seconds and memory", draw)
