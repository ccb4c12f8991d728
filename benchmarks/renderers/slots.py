"""The report on slots: memory of accumulation, and steps of a pipeline beside a split batch and one worker."""

import functools
import pathlib
from collections.abc import Mapping, Sequence

from benchmarks import drawing
from benchmarks.frameworks.slots import ALONE, BATCH, STAGES
from benchmarks.renderers.document import Part, Report
from benchmarks.renderers.tables import (
    MB,
    Row,
    bullets,
    could_not,
    describe_link,
    group_by,
    losses_agree,
    median,
    span,
    tabulate,
)

_WAYS = {ALONE: "the first worker alone", BATCH: "the batch split", STAGES: "two stages"}
_COLUMN = "wall_seconds_per_step"


def _is_pipeline(row: Row) -> bool:
    return len(row["devices"]) > 1


def _setting(row: Row) -> str:
    return f"{' and '.join(f'{share:g}' for share in row['devices'])} core, {describe_link(row)}"


def _way(row: Row) -> str:
    slots = f", {row['slots']} slots" if row["slots"] > 1 else ""
    return f"{_WAYS[row['way']]}{slots}"


def _best(rows: Sequence[Row], way: str) -> float:
    return min(median(row, _COLUMN) for row in rows if row["way"] == way)


def _draw(groups: Mapping[str, Sequence[Row]], path: pathlib.Path) -> None:
    colours = dict(zip(_WAYS, drawing.COLOURS, strict=False))
    legend = {_WAYS[way]: colour for way, colour in colours.items()}
    with drawing.panels(path, len(groups), 3, width=3.06, height=2.4, colours=legend, ncols=2) as axes:
        for ax, (setting, rows) in zip(axes, groups.items(), strict=True):
            lengths = {_label(row): row[_COLUMN] for row in rows}
            drawing.bars(ax, lengths, [colours[row["way"]] for row in rows], "seconds per step")
            ax.set_title(setting)


def _label(row: Row) -> str:
    return row["way"] if row["way"] != STAGES else f"{row['slots']} slot{'s' * (row['slots'] > 1)}"


def _in_mb(sizes: Sequence[float]) -> str:
    return ", ".join(f"{size / MB:.0f}" for size in sizes)


def _describe_limits(rows: Sequence[Row]) -> tuple[str, list[Part]]:
    """Return the conclusion on the model that fits on no single worker, the text of its part, and the table."""
    trained = [row for row in rows if row["trained"]]
    errors = [
        abs(measured / predicted - 1.0)
        for row in trained
        for measured, predicted in zip(row["peak_bytes"], row["predicted_bytes"], strict=True)
    ]
    in_stages = [row for row in trained if row["layout"] == STAGES]
    needed, allowed = max(rows[0]["predicted_bytes"]), max(size for row in rows for size in row["limit_bytes"])
    conclusion = (
        f"A model that needs {needed / MB:.0f} MB on one worker, with {rows[0]['slots']} slots, "
        f"{'trains' if in_stages else 'does not train'} in stages on workers that may use {allowed / MB:.0f} MB at "
        f"most. Measured peaks differ from the predicted ones by up to {max(errors, default=0.0):.0%}."
    )
    columns = {
        "way": lambda row: row["way"],
        "limits, MB": lambda row: _in_mb(row["limit_bytes"]) or "none",
        "predicted peaks, MB": lambda row: _in_mb(row["predicted_bytes"]),
        "measured peaks, MB": lambda row: _in_mb(row["peak_bytes"]) if row["trained"] else "the worker is lost",
    }
    text = (
        f"## A model that fits on no single worker\n\nA Keras model of {rows[0]['blocks']} residual blocks, "
        f"{rows[0]['width']} by {rows[0]['hidden']}, is trained by Adam on {rows[0]['batch_size']} examples a step, "
        f"with {rows[0]['slots']} slots. Workers return freed memory. The prediction is that of the lowered graph."
    )
    return conclusion, [text, tabulate(rows, columns)]


def render(rows: Sequence[Row]) -> Report:
    """Return the report: a table of accumulation, and one of pipelines."""
    limited, rows = [row for row in rows if "limit_bytes" in row], [row for row in rows if "limit_bytes" not in row]
    memory, pipelines = [row for row in rows if not _is_pipeline(row)], [row for row in rows if _is_pipeline(row)]
    groups = group_by(pipelines, _setting)
    conclusions, parts = [], []
    if memory:
        whole, first = median(memory[0], "peak_bytes"), median(memory[0], _COLUMN)
        least = min(memory, key=lambda row: median(row, "peak_bytes"))
        conclusions.append(
            f"With {least['slots']} slots, a worker needs {median(least, 'peak_bytes') / MB:.0f} MB where it needs "
            f"{whole / MB:.0f} MB with one, {least['weight_bytes'] / MB:.0f} MB of them for weights; a step takes "
            f"{median(least, _COLUMN) / first:.2f} times as long."
        )
        columns = {
            "slots": lambda row: row["slots"],
            "peak of memory, MB": lambda row: f"{median(row, 'peak_bytes') / MB:.0f}",
            "seconds per step": lambda row: row[_COLUMN],
        }
        parts += [
            f"## Accumulation\n\nOne worker of one core trains {memory[0]['blocks']} residual blocks of two dense "
            f"layers, {memory[0]['width']} by {memory[0]['hidden']}, on {memory[0]['batch_size']} examples a step. The "
            "peak is that of the process, less what it has before the session. Median (minimum to maximum).",
            tabulate(memory, columns),
        ]
    if pipelines:
        ratios = {
            way: [_best(group, way) / _best(group, STAGES) for group in groups.values()] for way in (ALONE, BATCH)
        }
        conclusions.append(
            f"Two stages, with the best number of slots, are {span(ratios[ALONE])} times as fast as the first worker "
            f"alone, and {span(ratios[BATCH])} times as fast as a split batch."
        )
        columns = {
            "workers, link": _setting,
            "way": _way,
            "seconds per step": lambda row: row[_COLUMN],
            "MB sent per step": lambda row: f"{row['sent_bytes'] / MB:.1f}",
        }
        first = pipelines[0]
        parts += [
            f"## Pipelines\n\nTwo workers train the same blocks on {first['batch_size']} examples a step. The cut "
            "between the stages, and the split of the batch, are in proportion to the cores. Each process sends at "
            "most what its link lets pass.",
            tabulate(pipelines, columns, labels=2),
        ]
    if limited:
        conclusion, described = _describe_limits(limited)
        conclusions.append(conclusion)
        parts += described
    conclusions.append(losses_agree([*rows, *limited]))
    notes: list[Part] = [*parts, bullets(could_not("measured", [*rows, *limited]))]
    picture = functools.partial(_draw, groups) if pipelines else None
    return Report(conclusions, notes, "Seconds per step of a pipeline, a split batch and one worker", picture)
