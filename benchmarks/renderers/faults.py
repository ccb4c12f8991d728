"""The report on faults: sums of kills and damages, a table of faults for people, and every failure."""

import collections
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks import figures
from benchmarks.cases.faults import DAMAGE, FAULTS, KILLS
from benchmarks.faults.kills import BEFORE_FIRST_STEP
from benchmarks.renderers import markdown

Row = Mapping[str, Any]
_LINE_LENGTH = 240
_TITLES = {
    "flags": "Wrong flags and values",
    "signals": "Signals",
    "workers": "Workers",
    "data": "Data",
    "disk": "Model directory, disk and standard streams",
}


def _cell(text: str) -> str:
    """A text in a table, as code; not all of a long one."""
    text = " ".join(text.split()).replace("|", "/").replace("`", "'")
    shown = text if len(text) <= _LINE_LENGTH else f"{text[: _LINE_LENGTH - 4]} ..."
    return f"`{shown}`" if shown else ""


def _name(row: Row) -> str:
    return row["variant"].partition("/")[2]


def _describe_failures(rows: Sequence[Row]) -> str:
    failed = [row for row in rows if row["failures"]]
    if not failed:
        return "Nothing failed."
    lines = [f"**{len(failed)} of {len(rows)} failed:**", ""]
    lines += [f"- {row['variant']}: {'; '.join(map(_cell, row['failures']))}" for row in failed]
    return "\n".join(lines)


def _where(rows: Sequence[Row]) -> Mapping[str, int]:
    return collections.Counter(hit for row in rows for hit in row["hits"])


def _without_file(hit: str) -> str:
    """Where a kill hit, but for the file that the call is about."""
    return " ".join(hit.split()[:2]) if hit.startswith(("before ", "after ")) and hit != BEFORE_FIRST_STEP else hit


def _draw(rows: Sequence[Row], path: pathlib.Path) -> None:
    found: dict[str, int] = collections.Counter()
    for hit, count in _where(rows).items():
        found[_without_file(hit)] += count
    names = sorted(found, key=lambda name: -found[name])
    figure, ((ax,),) = figures.make(1, 1, width=6.0, height=0.8 + 0.24 * max(len(names), 2))
    ax.barh(names, [found[name] for name in names], color=figures.COLOURS[0], height=0.6)
    ax.invert_yaxis()
    ax.xaxis.get_major_locator().set_params(integer=True)
    ax.set_xlabel("kills")
    figures.save(figure, path)


def _kills(rows: Sequence[Row]) -> str:
    total = {key: sum(row[key] for row in rows) for key in ("kills", "resumed", "from_newest", "from_zero")}
    errors = [row["error"] for row in rows]
    error = "unknown" if None in errors else f"at most {max(errors):.1e}"
    table = markdown.table(
        ["where the kill hit", "kills"],
        [[_cell(hit), str(count)] for hit, count in sorted(_where(rows).items(), key=lambda item: (-item[1], item[0]))],
    )
    return "\n\n".join(
        [
            "## Kills",
            f"**{total['kills']} kills: {total['resumed']} resumed, {total['from_zero']} from step 0 though there was "
            f"a whole checkpoint, {total['from_newest']} from the newest whole checkpoint.** In {len(rows)} model "
            "directories, on another layout after each kill. The values at the end, of float64 with momentum, differ "
            f"from those of one device that nothing happened to by: {error}.",
            "![Where the kills hit](faults.png)",
            "A call is one below the model directory, of Python or of TensorFlow; N stands for steps and parts.",
            table,
        ]
    )


def _damages(rows: Sequence[Row]) -> str:
    good = sum(not row["failures"] for row in rows)
    changed = sum(failure.startswith("changed") for row in rows for failure in row["failures"])
    lines = []
    for row in rows:
        begun = "refused" if row["exit_code"] == 2 and row["begun"] is None else f"step {row['begun']}"
        begun = f"**{begun}: failed**" if row["failures"] else begun
        lines.append([_cell(row["file"]), row["damage"], begun, _cell(row["line"] if row["passed_over"] else "")])
    return "\n\n".join(
        [
            "## Damaged checkpoints",
            f"**{len(rows)} damages: {good} resumed from the newest whole checkpoint, or refused where there was none; "
            f"{changed} changed an older checkpoint.** The line is the one that says what was passed over.",
            markdown.table(["file", "damage", "resumed from", "its line"], lines),
        ]
    )


def _faults(part: str, rows: Sequence[Row]) -> str:
    lines = []
    for row in rows:
        if row.get("skipped"):
            lines.append([row["done"], "-", row["skipped"], "-", "not done here"])
            continue
        code = "-" if row["exit_code"] is None else str(row["exit_code"])
        code = f"**{code}: failed**" if row["failures"] else code
        lines.append([row["done"], code, _cell(row["line"]), markdown.number(row["seconds"]), row["kept"] or "-"])
    header = ["what was done", "exit code", "its line", "seconds", "kept"]
    return f"## {_TITLES[part]}\n\n{markdown.table(header, lines)}"


def render(rows: Sequence[Row], directory: pathlib.Path) -> str:
    """Draws faults.png where there are kills; returns the body of the report."""
    parts = ["Each thing was done to a run of its own.", _describe_failures(rows)]
    of = {name: [row for row in rows if row["part"] == name] for name in (KILLS, DAMAGE, FAULTS)}
    if of[KILLS]:
        _draw(of[KILLS], directory / "faults.png")
        parts.append(_kills(of[KILLS]))
    if of[DAMAGE]:
        parts.append(_damages(of[DAMAGE]))
    for part in _TITLES:
        found = [row for row in of[FAULTS] if _name(row).startswith(f"{part}/")]
        parts += [_faults(part, found)] if found else []
    return "\n\n".join(parts)
