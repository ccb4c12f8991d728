"""The report on stages: plans with slots and without, beside PyTorch's pipelines and data parallelism."""

import functools
import math
import pathlib
from collections.abc import Mapping, Sequence

from benchmarks import drawing
from benchmarks.cases.stages import TORCH
from benchmarks.networks import STAGED
from benchmarks.renderers.document import Report
from benchmarks.renderers.tables import (
    Row,
    bullets,
    could_not,
    describe_link,
    group_by,
    in_turns,
    median,
    number,
    span,
    succeeded,
    tabulate,
)

_PLAN, _PLAIN = "plan", "plan without slots"
_COLUMN = "wall_seconds_per_step"
_CLOSE = 0.15  # of a measured step


def _is_torch(row: Row) -> bool:
    return row["way"].startswith(TORCH)


def _best(rows: Sequence[Row]) -> float:
    return min(median(row, _COLUMN) for row in rows)


def _seconds(rows: Sequence[Row], way: str) -> float:
    return _best([row for row in rows if row["way"] == way])


def _setting(row: Row) -> tuple[int, float]:
    """Return what sorts the settings: the networks as they are listed, the fastest link first."""
    return list(STAGED).index(row["network"]), -(row["link"] or math.inf)


def _describe(row: Row) -> str:
    """Return how a way places the network."""
    if _is_torch(row):
        batches = " + ".join(map(str, row.get("batches", ())))
        divided = {
            "batch": f"batch {batches}",
            "stages": f"cut before layer {row.get('cut')}, {row.get('slots')} parts",
        }
        return divided.get(row["kind"], "one worker")
    if len(row["used"]) == 1:
        return "one worker"
    parts = max((max(counts) for counts in row["slots"].values()), default=1)
    stages = any(0 in sizes for sizes in row["sizes"].values())
    return ("stages" if stages else "split") + (f", {parts} parts" if parts > 1 else "")


def _draw(groups: Mapping[str, Sequence[Row]], path: pathlib.Path) -> None:
    ours, peers, plan = drawing.COLOURS[:3]
    with drawing.panels(path, len(groups), min(2, len(groups)), height=2.4) as axes:
        for ax, (setting, rows) in zip(axes, groups.items(), strict=True):
            lengths = {row["way"]: row[_COLUMN] for row in rows}
            colours = [peers if _is_torch(row) else plan if row["way"] == _PLAN else ours for row in rows]
            drawing.bars(ax, lengths, colours, "seconds per step")
            ax.set_title(setting)


def render(rows: Sequence[Row]) -> Report:
    """Return the report: a table of all ways."""
    timed = sorted(succeeded(rows), key=_setting)
    groups = group_by(timed, lambda row: f"{row['network']}, {describe_link(row)}")
    compared = {name: of for name, of in groups.items() if any(row["way"] == _PLAN for row in of)}
    alone = [_best([r for r in of if r["way"].startswith("alone")]) / _seconds(of, _PLAN) for of in compared.values()]
    plain = [_seconds(of, _PLAIN) / _seconds(of, _PLAN) for of in compared.values()]
    peers = {
        name: _best([row for row in of if _is_torch(row)]) / _seconds(of, _PLAN)
        for name, of in compared.items()
        if any(map(_is_torch, of))
    }
    predicted = [row for row in timed if "predicted_seconds" in row]
    near = [row for row in predicted if abs(row["predicted_seconds"] / median(row, _COLUMN) - 1.0) <= _CLOSE]
    conclusions = [
        f"The plan is {span(alone)} times as fast as the fastest worker alone, and {span(plain)} times as fast as the "
        "plan without slots.",
        f"{len(near)} of {len(predicted)} predicted steps are within {_CLOSE:.0%}.",
    ]
    if peers:
        faster = sum(ratio >= 1.0 for ratio in peers.values())
        conclusions.insert(
            1,
            f"It is {span(peers.values())} times as fast as the fastest of PyTorch's ways, and faster in {faster} of "
            f"{len(peers)} settings.",
        )
    columns = {
        "network, batch": lambda row: f"{row['network']}, {row['batch_size']}",
        "link": describe_link,
        "way": lambda row: row["way"],
        "layout": _describe,
        "seconds per step": lambda row: row[_COLUMN],
        "predicted s": lambda row: number(row["predicted_seconds"]) if "predicted_seconds" in row else "-",
        "speedup": lambda row: row["speedup"],
    }
    first = timed[0]
    text = (
        f"Workers of {' and '.join(f'{share:g}' for share in first['devices'])} cores. Speedup: over the first worker "
        f"alone. Compare ways of one setting: settings may be of different machines. Median (minimum to maximum) of "
        f"{in_turns(first)}"
    )
    notes = any(row["network"] == "ResNet50" for row in timed) * [
        "PyTorch normalizes each microbatch of ResNet-50 by itself, so its losses differ between ways; a layout of "
        "mtf_hetero changes none."
    ]
    return Report(
        conclusions,
        [text, tabulate(timed, columns, labels=3), bullets([*notes, *could_not("measured", rows)])],
        "Seconds per step of each way",
        functools.partial(_draw, groups),
    )
