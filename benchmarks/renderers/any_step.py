"""The report on steps of many programs: the difference of each from TensorFlow, on every layout."""

import functools
import pathlib
from collections.abc import Sequence
from typing import Any

from benchmarks import drawing
from benchmarks.renderers.document import Details, Part, Report
from benchmarks.renderers.tables import Row, Table, bullets, group_by, power, table

LAYOUTS = {"one device": "one device", "batch": "batch", "weights": "weights", "planned": "plan"}
_MOST_REPLICATED, _LIMIT = 0.02, 1e-9
_LEAST = 1e-17  # of a difference in the picture
_TITLES = {"hub": "KerasHub"}  # kind of program -> what else than its name heads its table
_ABBREVIATED, _SHOWN = 3, 400  # letters of a kind such as nlp, and of a text in the notes
EXACT, WRONG, REFUSED, FAILED = "exact", "wrong", "refused", "failed"


def verdict(row: Row) -> str:
    """Return the outcome of a program."""
    if "failed" in row:
        return FAILED
    if "refused" in row:
        return REFUSED
    return EXACT if worst(row) <= row["tolerance"] else WRONG


def worst(row: Row) -> float:
    """Return the largest difference on any layout."""
    return max(_difference(layout) or 0.0 for layout in row["layouts"].values())


def replicated(row: Row, column: str = "replicated_examples") -> float | None:
    """Return the share of FLOPs that the batch's layout does not split."""
    return row.get("layouts", {}).get("batch", {}).get(column)


def _difference(layout: Any) -> float | None:
    return None if layout is None or "results" not in layout else max(layout["results"], layout["variables"])


def _percent(value: float | None) -> str | None:
    return None if value is None else f"{value:.1%}"


def _draw(rows: Sequence[Row], path: pathlib.Path) -> None:
    kinds = list(dict.fromkeys(row["kind"] for row in rows))
    colours = {"divided": drawing.COLOURS[0], "TensorFlow's own": drawing.COLOURS[1]}
    with drawing.panels(path, height=1.2 + 0.3 * len(kinds), colours=colours, ncols=2) as (ax,):
        _draw_differences(ax, rows, kinds)


def _draw_differences(ax: Any, rows: Sequence[Row], kinds: Sequence[str]) -> None:
    for number, value in enumerate((worst, _own)):
        for is_usual, face in ((True, drawing.COLOURS[number]), (False, "none")):
            chosen = [row for row in rows if (row["tolerance"] <= _LIMIT) == is_usual]
            x = [max(value(row), _LEAST) for row in chosen]
            y = [kinds.index(row["kind"]) + 0.2 * number for row in chosen]
            ax.scatter(x, y, s=14, edgecolors=drawing.COLOURS[number], facecolors=face)
    ax.axvline(_LIMIT, color=drawing.GREY, linestyle="--", linewidth=1)
    ax.set_xscale("log")
    ax.set_yticks(range(len(kinds)), [_title(kind) for kind in kinds])
    ax.invert_yaxis()
    ax.set_xlabel("difference from TensorFlow, the largest of all layouts")


def _own(row: Row) -> float:
    return row["own"]


def _title(kind: str) -> str:
    name = kind.upper() if len(kind) <= _ABBREVIATED else kind.replace("_", " ").capitalize()
    return _TITLES.get(kind, name)


def _table(rows: Sequence[Row]) -> Table:
    header = [
        *("program", "outcome", *LAYOUTS.values(), "TensorFlow's own", "replicated", "with updates"),
        *("operations", "s"),
    ]
    lines = []
    for row in rows:
        layouts = row.get("layouts", {})
        outcome = verdict(row)
        name = row["program"] if row["dtype"] == "float64" else f"{row['program']}, {row['dtype']}"
        differences = [power(_difference(layouts.get(layout))) for layout in LAYOUTS]
        shares = [_percent(replicated(row)), _percent(replicated(row, "replicated"))]
        figures = [row.get("operations"), row.get("seconds")]
        outcome = outcome if outcome == EXACT else f"**{outcome}**"
        lines.append([name, outcome, *differences, power(row.get("own")), *shares, *figures])
    return table(header, lines)


def _conclude(rows: Sequence[Row]) -> list[str]:
    of = group_by(rows, verdict)
    counts = {outcome: len(of.get(outcome, ())) for outcome in (EXACT, REFUSED, WRONG, FAILED)}
    split = [share for row in rows if (share := replicated(row)) is not None]
    little = sum(share < _MOST_REPLICATED for share in split)
    return [
        f"{len(rows)} programs: {counts[EXACT]} exact on every layout, {counts[REFUSED]} refused, {counts[WRONG]} "
        f"wrong, {counts[FAILED]} failed.",
        f"In {little} of {len(split)} programs, the batch's layout replicates less than 2 % of the FLOPs, apart from "
        "updates of weights.",
    ]


def _notes(rows: Sequence[Row]) -> list[str]:
    notes = []
    for row in rows:
        name, outcome = row["variant"], verdict(row)
        if outcome in (REFUSED, FAILED):
            text = row[outcome] if len(row[outcome]) <= _SHOWN else f"{row[outcome][:_SHOWN]} ..."
            notes.append(f"{name} was {outcome}: {text}" if outcome == REFUSED else f"{name}: {text}")
        elif outcome == WRONG:
            own = power(row["own"])
            notes.append(f"{name} differs by {power(worst(row))}; TensorFlow differs from itself by {own}.")
        if row["reason"]:
            notes.append(f"{name}: {row['dtype']}, exact within {row['tolerance']:g}, because {row['reason']}.")
        if (replicated(row) or 0.0) >= _MOST_REPLICATED:
            largest = "; ".join(row["layouts"]["batch"]["largest_replicated"])
            notes.append(f"{name} replicates {_percent(replicated(row))} under the batch's layout: {largest}.")
    return notes


def render(rows: Sequence[Row]) -> Report:
    """Return the report: a table per kind of program."""
    rows = sorted(rows, key=lambda row: row["variant"])
    first = rows[0]
    shares = ":".join(f"{share:g}" for share in first["shares"])
    parts: list[Part] = [
        f"{first['steps']} steps of each program, in float64 where nothing else is said. A difference is the largest "
        "of all results and variables, relative to the largest number of a tensor, or to 1 if that is less. Exact: at "
        "most 1e-9, where no reason is given for another limit.",
        f"Layouts: one device; the batch split {shares} over three processors; a dimension of a weight split so; a "
        "plan for three processors of such speeds. A dash: no weight can be split.",
        "TensorFlow's own: its difference from itself after each number of the inputs and variables is replaced by the "
        "next larger one, except whole numbers such as labels. In the picture, the dashed line is 1e-9, and programs "
        "with another limit are hollow. Replicated: the share of FLOPs that the batch's layout does not split, apart "
        "from updates of weights, and with them.",
    ]
    for kind, of_kind in group_by(rows, lambda row: row["kind"]).items():
        parts += [f"## {_title(kind)}: {len(of_kind)}", _table(of_kind)]
    notes = _notes(rows)
    parts += ["## Notes", bullets(notes)] if notes else []
    parts.append(Details("Sources of the programs", [bullets(f"{row['variant']}: {row['source']}" for row in rows)]))
    compared = [row for row in rows if verdict(row) in (EXACT, WRONG)]
    draw = functools.partial(_draw, compared) if compared else None
    return Report(_conclude(rows), parts, "Differences from TensorFlow", draw)
