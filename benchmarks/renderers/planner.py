"""The report on planned layouts: seconds beside recipes and the fastest worker alone, and beside what was predicted."""

import pathlib
import statistics
from collections.abc import Sequence
from typing import Any

from benchmarks import drawing
from benchmarks.cases.planner import EVERY, MEMORY
from benchmarks.renderers.tables import MB, Row, bullets, cell, group_by, limits, median, number, table
from benchmarks.rows import summarise

_BOUND = 0.15  # within which a step should take as long as predicted
_MEMORY_BOUND = 0.1  # within which a worker should take as much memory
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
        self.taken = next(row for row in rows if row["is_taken"])
        self._ideal = 1 / sum(1 / _seconds(row) for row in kinds["alone"])

    def efficiency(self, row: Row) -> float:
        """The seconds of a step if each worker did its part as fast as alone and nothing were sent, over a way's."""
        return self._ideal / _seconds(row)


def _ratio(row: Row, other: Row) -> dict[str, float]:
    """How many times as long as another way's a way's turns took, each beside the other's of the same round."""
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
        "alone" if _kind(setting.taken) == "alone" else setting.taken["way"],
        f"{_seconds(setting.taken) / _seconds(best):.2f}",
        f"{_seconds(setting.taken) / _seconds(setting.alone):.2f}",
    ]


_HEADER = [
    *("network, batch", "fastest worker alone s", "best recipe", "its s", "plan s"),
    *("efficiency of the recipe", "of the plan", "plan over recipe", "taken", "over the best", "over the worker alone"),
]


def _draw(clusters: dict[str, list[_Setting]], path: pathlib.Path) -> None:
    most = max(map(len, clusters.values()))
    figure, axes = drawing.make(2, len(clusters), width=4.4, height=1.0 + 0.5 * most)
    for column, (title, settings) in zip(axes.T, clusters.items(), strict=True):
        lengths, colours = {}, []
        for setting in settings:
            for kind, row in (("alone", setting.alone), ("recipe", setting.recipe), ("plan", setting.plan)):
                lengths[f"{setting.name}: {row['way'] if kind == 'recipe' else kind}"] = setting.efficiency(row)
                colours.append(_KINDS[kind])
        drawing.bars(column[0], lengths, colours, "efficiency")
        column[0].axvline(1, color=drawing.GREY, linestyle="--", linewidth=1)
        column[0].set_title(title)
        for setting in settings:
            for row in setting.rows:
                column[1].plot(_seconds(row), row["predicted_seconds"], "o", color=_KINDS[_kind(row)], markersize=4)
        ends = [edge(_seconds(row) for setting in settings for row in setting.rows) for edge in (min, max)]
        for factor in (1 - _BOUND, 1, 1 + _BOUND):
            style = {"color": drawing.GREY, "linestyle": "-" if factor == 1 else "--", "linewidth": 1}
            column[1].plot(ends, [factor * end for end in ends], **style)
        column[1].set_xscale("log")
        column[1].set_yscale("log")
        column[1].set_xlabel("measured seconds of a step")
        column[1].set_ylabel("predicted seconds")
    drawing.legend(
        figure, {"fastest worker alone": _KINDS["alone"], "best recipe": _KINDS["recipe"], "plan": _KINDS["plan"]}
    )
    drawing.save(figure, path)


def _predictions(settings: Sequence[_Setting]) -> str:
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
    return table(["network, batch", "way", "predicted s", "measured s", "predicted over measured"], lines)


def _typical(rows: Sequence[Row], column: str) -> str:
    values = [row[column] for row in rows]
    return f"{number(statistics.median(values))} ({number(max(values))})"


def _cluster(row: Row) -> str:
    megabits = row.get("megabits_per_second")
    return f"workers of {', '.join(map(str, row['fractions']))} cores" + (f", {megabits:g} Mbit/s" if megabits else "")


def _every_way(row: Row) -> list[str]:
    """The section on a network of which all ways were tried."""
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
        f"## All ways to divide {row['network']}, batch {row['batch_size']}, on {_cluster(row)}",
        "Each layer by its batch, outputs or inputs, in proportion to what the devices do, or on the fastest device: "
        f"{len(measured)} layouts, of which a step takes {least} to {most} s; {within} are predicted within 15 %. The "
        f"fastest then took turns with the plan, which takes {cell(ratios)} times as long as the best of them.",
        table(["way", "predicted s", "measured s"], lines),
    ]


def _memory(rows: Sequence[Row]) -> list[str]:
    """The section on what each worker takes."""
    lines, errors = [], []
    for row in rows:
        for place, worker in enumerate(row["workers"]):
            taken, predicted = (row[name][place] for name in ("peak_bytes", "predicted_bytes"))
            errors.append(abs(predicted / taken - 1))
            cells = (taken / MB, predicted / MB, row["runtime_bytes"][place] / MB, predicted / taken)
            lines.append([f"{row['network']}, {row['batch_size']}", f"{row['fractions'][worker]:g}", *cells])
    header = [
        "network, batch",
        "cores",
        "measured MB",
        "predicted MB",
        "TensorFlow's own of it",
        "predicted / measured",
    ]
    within = sum(error <= _MEMORY_BOUND for error in errors)
    return [
        "## Memory of plans",
        "The most that each worker takes beyond what it held before, on workers that give back what they free, and "
        "the estimate of the lowered graph, by which plans keep to a device's memory. The devices' speeds, and so the "
        f"plans, are taken to be in proportion to their cores; {rows[0]['steps']} steps. {within} of {len(errors)} are "
        f"within 10 %, and the median is off by {100 * statistics.median(errors):.0f} %.",
        table(header, lines),
    ]


def render(rows: Sequence[Row], directory: pathlib.Path) -> str:
    """Draws planner.png; returns the body of the report."""
    of_memory, exhausted = ([row for row in rows if row.get("part") == part] for part in (MEMORY, EVERY))
    rows = [row for row in rows if "part" not in row]
    by_cluster = group_by(rows, _cluster)
    clusters = {
        title: [_Setting(group) for group in group_by(of_cluster, lambda row: row["network"]).values()]
        for title, of_cluster in by_cluster.items()
    }
    _draw(clusters, directory / "planner.png")
    settings = [setting for of_cluster in clusters.values() for setting in of_cluster]
    errors = [abs(row["predicted_seconds"] / _seconds(row) - 1) for row in rows]
    losses = [_seconds(setting.taken) / min(map(_seconds, setting.rows)) for setting in settings]
    of_taken = [abs(setting.taken["predicted_seconds"] / _seconds(setting.taken) - 1) for setting in settings]
    fastest = sum(_seconds(setting.plan) == min(map(_seconds, setting.rows)) for setting in settings)
    wins = sum(_ratio(setting.plan, setting.recipe)["upper_quartile"] < 1 for setting in settings)
    counts = [row["repeats"] for row in rows]
    turns = " to ".join(map(str, dict.fromkeys((min(counts), max(counts)))))
    parts = [
        "![Efficiency, and predicted and measured seconds](planner.png)",
        "Efficiency is the time that a step would take if each worker did its part as fast as it is alone and nothing "
        "were sent, over the time that it took. What is taken is what `--layout=auto` takes: of the fastest worker "
        "alone, the recipe predicted to be the best and the plan, the last that beats those before it in more than "
        f"three quarters of the rounds. Median (minimum to maximum) of {turns} turns. {limits(rows[0])}",
        bullets(
            [
                f"The plan is the fastest of all ways on {fastest} of {len(settings)} settings, and beats the best "
                f"recipe by more than the spread on {wins}.",
                f"What is taken takes {statistics.median(losses):.2f} times as long as the best of all ways "
                f"(median; at most {max(losses):.2f}).",
                f"{sum(error <= _BOUND for error in errors)} of {len(errors)} predictions are within 15 %; the median "
                f"is off by {100 * statistics.median(errors):.0f} %. Of what is taken, "
                f"{sum(error <= _BOUND for error in of_taken)} of {len(of_taken)} are.",
                f"Measuring the workers takes {_typical(rows, 'calibrate_seconds')} s, planning "
                f"{_typical(rows, 'plan_seconds')} s (median; at most).",
            ]
        ),
    ]
    for title, of_cluster in clusters.items():
        lines = [_line(setting) for setting in of_cluster]
        parts += [f"## {title[0].upper()}{title[1:]}", table(_HEADER, lines), "Predictions:", _predictions(of_cluster)]
    for row in exhausted:
        parts += _every_way(row)
    parts += _memory(of_memory) if of_memory else []
    return "\n\n".join(parts)
