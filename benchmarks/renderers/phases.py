"""The report on workers that are lost in each phase of a training: whether it ended, its seconds and its results."""

import functools
import itertools
from collections.abc import Iterable, Sequence

from benchmarks import drawing
from benchmarks.faults.phases import FILE, LAYOUTS, PHASES, PROGRAMS, TOLERANCE, UNDISTURBED, Cell
from benchmarks.renderers.document import Report
from benchmarks.renderers.tables import Row, bullets, group_by, table

_MISSING, _NOT_RUN = "none", "-"


def _cell(cell: Cell, rows: dict[Cell, Row]) -> str:
    """Return the seconds of a run, and whether it failed."""
    if cell.program in PHASES[cell.phase].missing:
        return _MISSING
    row = rows.get(cell)
    if row is None:
        return _NOT_RUN
    how = "**failed**" if row["failures"] else ""
    return f"{row['seconds']:.0f} {how}".strip()


def _largest(rows: Iterable[Row]) -> str:
    found = [row["difference"] for row in rows if row["difference"] is not None]
    return f"{max(found):.0e}" if found else _NOT_RUN


def render(rows: Sequence[Row]) -> Report:
    """Return the report: a line per phase, a column per program and layout."""
    of_cell = {Cell(row["program"], row["layout"], row["phase"]): row for row in rows}
    places = list(itertools.product(PROGRAMS, LAYOUTS))
    header = ["what happens", *(f"{PROGRAMS[program]}, {layout}" for program, layout in places)]
    lines = [[phase.text, *(_cell(Cell(*place, name), of_cell) for place in places)] for name, phase in PHASES.items()]
    groups = group_by(rows, lambda row: (row["program"], row["layout"]))
    lines.append(["largest difference of results", *(_largest(groups.get(place, ())) for place in places)])
    disturbed = [row for cell, row in of_cell.items() if cell.phase != UNDISTURBED]
    failed = [row for row in disturbed if row["failures"]]
    conclusions = [
        f"{len(disturbed) - len(failed)} of {len(disturbed)} runs ended by themselves, as expected.",
        f"Results differ by at most {_largest(row for row in disturbed if row['program'] != FILE)} from an undisturbed "
        f"run's; the limit is {TOLERANCE:g}. With a Keras file, whose outputs become float32, it is "
        f"{_largest(row for row in disturbed if row['program'] == FILE)}.",
    ]
    parts = [
        "Seconds of 16 steps in float64 with two tests, on workers of this machine with one thread each; two runs at a "
        f"time. `{_MISSING}`: the program has no such phase. Results are losses, tests, weights and what the optimizer "
        "keeps, relative to the largest number of each array.",
        "## Phases",
        table(header, lines),
        "A step is a first or sixth one that began 0.03 s before. A worker is killed by SIGKILL, and started again at "
        "once; a lost one is awaited for 3 s.",
        bullets(f"{row['variant']}: {'; '.join(row['failures'])}" for row in failed),
    ]
    seconds = {
        name.replace("`", ""): [row["seconds"] for row in rows if row["program"] == program]
        for program, name in PROGRAMS.items()
    }
    draw = functools.partial(drawing.dots, values=seconds, label="s of a run")
    return Report(conclusions, [part for part in parts if part], "Seconds of runs", draw)
