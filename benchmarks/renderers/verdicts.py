"""The report on verdicts: seconds of `mtf-hetero plan`, beside those of the model's constructor alone."""

import functools
import pathlib
import statistics
from collections.abc import Sequence

from benchmarks import drawing
from benchmarks.cases.verdicts import BEFORE, CONSTRUCTOR, PLAN
from benchmarks.renderers.document import Part, Report
from benchmarks.renderers.tables import Row, number, table

_GOAL = 6.0  # seconds
_COLOURS = {CONSTRUCTOR: drawing.GREY, PLAN: drawing.COLOURS[0]}


def _seconds(row: Row, way: str, kind: str = "cpu") -> float | None:
    return row["seconds"][way][kind]["median"] if way in row["seconds"] else None


def _more(row: Row, kind: str = "cpu") -> float:
    """Return the seconds of a plan beyond those of the constructor."""
    return row["seconds"][PLAN][kind]["median"] - row["seconds"][CONSTRUCTOR][kind]["median"]


def _draw(rows: Sequence[Row], path: pathlib.Path) -> None:
    lengths = {
        row["model"]: {CONSTRUCTOR: _seconds(row, CONSTRUCTOR) or 0.0, PLAN: max(_more(row), 0.0)} for row in rows
    }
    colours = {"Keras's imports and constructor": _COLOURS[CONSTRUCTOR], "the rest of plan": _COLOURS[PLAN]}
    with drawing.panels(path, width=9.2, height=0.22 * len(rows) + 0.8, colours=colours) as (ax,):
        drawing.stacked_bars(ax, lengths, _COLOURS, height=0.7)
        ax.axvline(_GOAL, color=drawing.GREY, linestyle="--", linewidth=1)
        ax.set_xlabel("seconds of processors (dashed: the goal)")


def _conclude(rows: Sequence[Row]) -> list[str]:
    seconds = [row["seconds"] for row in rows]
    within = sum(each[PLAN]["cpu"]["median"] <= _GOAL for each in seconds)
    possible = sum(each[CONSTRUCTOR]["cpu"]["median"] <= _GOAL for each in seconds)
    more = [_more(row) for row in rows]
    texts = [
        f"The verdict takes at most {_GOAL:g} s of processors for {within} of {len(rows)} models. Keras's imports and "
        f"the constructor alone take that at most for {possible}.",
        f"Beyond these, a plan takes {number(statistics.median(more))} s (median; {number(min(more))} to "
        f"{number(max(more))} s).",
    ]
    ratios = [each[BEFORE]["cpu"]["median"] / each[PLAN]["cpu"]["median"] for each in seconds if BEFORE in each]
    if ratios:
        texts.append(
            f"Before, the same command took {statistics.median(ratios):.2f}x as long (median; {min(ratios):.2f}x to "
            f"{max(ratios):.2f}x)."
        )
    return texts


def render(rows: Sequence[Row]) -> Report:
    """Return the report: a line per model."""
    header = ["model", "constructor", "plan", "plan before", "plan beyond the constructor"]
    header += ["on the clock: constructor", "plan", "plan before", "verdict"]
    lines = [
        [
            row["model"],
            *(_seconds(row, way) for way in (CONSTRUCTOR, PLAN, BEFORE)),
            _more(row),
            *(_seconds(row, way, "wall") for way in (CONSTRUCTOR, PLAN, BEFORE)),
            row["verdict"],
        ]
        for row in rows
    ]
    repeats = rows[0]["repeats"]
    turns = "One run of each" if repeats == 1 else f"Median of {repeats} runs in turns"
    parts: list[Part] = [
        f'From the command `mtf-hetero plan --model=keras:NAME --devices="{", ".join(rows[0]["devices"])}"` to its '
        "answer. The constructor is a process of `import tensorflow, keras` and "
        f"`keras.applications.NAME(weights=None)`. {turns}, in seconds. The first columns are processor time, which is "
        "also longer on a busy machine. The clock counts all that the machine did meanwhile. A plan can take less than "
        "the constructor: it gives the weights no values, and leaves out modules of Keras that import Matplotlib and "
        "scikit-learn. Models without a line were not measured.",
        table(header, lines),
    ]
    return Report(_conclude(rows), parts, "Seconds of the constructor, and of the rest", functools.partial(_draw, rows))
