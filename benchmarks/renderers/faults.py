"""The report on faults: sums of kills and damages, a table of faults for people, and every failure."""

import collections
import pathlib
from collections.abc import Mapping, Sequence

from benchmarks import drawing
from benchmarks.cases.faults import DAMAGE, FAULTS, KILLS
from benchmarks.faults.kills import BEFORE_FIRST_STEP
from benchmarks.renderers.tables import Row, group_by, table

_LINE_LENGTH = 240
_TITLES = {
    "flags": "Wrong flags and values",
    "signals": "Signals",
    "workers": "Workers",
    "data": "Data",
    "disk": "Model directory, disk and standard streams",
}
_CALLS = {  # a call of a save -> what it does
    "fopen": "opening a file",
    "fsync": "syncing a file to disk",
    "rename": "renaming a file",
    "mkdir": "making a directory",
    "rmdir": "removing a directory",
    "unlink": "deleting a file",
    "unlinkat": "deleting a file",
}
_COLOURS: Mapping[str, str] = dict(
    zip(("at a random moment", "before the call", "after the call"), drawing.COLOURS, strict=False)
)


def _cell(text: str) -> str:
    """A text in a table, as code; not all of a long one."""
    text = " ".join(text.split()).replace("|", "/").replace("`", "'")
    shown = text if len(text) <= _LINE_LENGTH else f"{text[: _LINE_LENGTH - 4]} ..."
    return f"`{shown}`" if shown else ""


def _describe_failures(rows: Sequence[Row]) -> str:
    failed = [row for row in rows if row["failures"]]
    if not failed:
        return "Nothing failed."
    lines = [f"**{len(failed)} of {len(rows)} failed:**", ""]
    lines += [f"- {row['variant']}: {'; '.join(map(_cell, row['failures']))}" for row in failed]
    return "\n".join(lines)


def _hits(rows: Sequence[Row]) -> Mapping[str, int]:
    return collections.Counter(hit for row in rows for hit in row["hits"])


def _draw(rows: Sequence[Row], path: pathlib.Path) -> None:
    """Draws how many kills hit each kind of call, before it and after it, and how many hit no call."""
    counts: dict[str, collections.Counter[str]] = collections.defaultdict(collections.Counter)
    random, *_ = _COLOURS
    for hit, count in _hits(rows).items():
        when, _, call = hit.partition(" ")
        if when in ("before", "after") and hit != BEFORE_FIRST_STEP:
            name = call.split()[0]
            counts[_CALLS.get(name, name)][f"{when} the call"] += count
        else:
            counts[hit][random] += count
    figure, ((ax,),) = drawing.make(1, 1, width=6.4, height=1.2 + 0.26 * max(len(counts), 2))
    names = sorted(counts, key=lambda name: -counts[name].total())
    lengths = {name: dict(sorted(counts[name].items(), reverse=True)) for name in names}
    drawing.stacked_bars(ax, lengths, _COLOURS, height=0.65)
    ax.xaxis.get_major_locator().set_params(integer=True)
    ax.set_xlabel("number of kills")
    drawing.legend(figure, _COLOURS)
    drawing.save(figure, path)


def _kills(rows: Sequence[Row]) -> list[str]:
    total = {key: sum(row[key] for row in rows) for key in ("kills", "resumed", "from_newest", "from_zero")}
    errors = [row["error"] for row in rows]
    error = "unknown" if None in errors else f"at most {max(errors):.1e}"
    hits = sorted(_hits(rows).items(), key=lambda item: (-item[1], item[0]))
    return [
        "## Kills",
        f"**{total['kills']} kills: {total['resumed']} resumed, {total['from_zero']} from step 0 though there was "
        f"a whole checkpoint, {total['from_newest']} from the newest whole checkpoint.** In {len(rows)} model "
        "directories, on another layout after each kill. The values at the end, of float64 with momentum, differ "
        f"from those of one device that nothing happened to by: {error}.",
        "![Where the kills hit](faults.png)",
        "A call is one below the model directory, of Python or of TensorFlow; N stands for steps and parts.",
        table(["where the kill hit", "kills"], [[_cell(hit), count] for hit, count in hits]),
    ]


def _damages(rows: Sequence[Row]) -> list[str]:
    good = sum(not row["failures"] for row in rows)
    changed = sum(failure.startswith("changed") for row in rows for failure in row["failures"])
    lines = []
    for row in rows:
        begun = "refused" if row["exit_code"] == 2 and row["begun"] is None else f"step {row['begun']}"
        begun = f"**{begun}: failed**" if row["failures"] else begun
        lines.append([_cell(row["file"]), row["damage"], begun, _cell(row["line"] if row["passed_over"] else "")])
    return [
        "## Damaged checkpoints",
        f"**{len(rows)} damages: {good} resumed from the newest whole checkpoint, or refused where there was none; "
        f"{changed} changed an older checkpoint.** The line is the one that says what was passed over.",
        table(["file", "damage", "resumed from", "its line"], lines),
    ]


def _faults(part: str, rows: Sequence[Row]) -> list[str]:
    lines = []
    for row in rows:
        if row.get("skipped"):
            lines.append([row["done"], None, row["skipped"], None, "not done here"])
            continue
        code = "-" if row["exit_code"] is None else str(row["exit_code"])
        code = f"**{code}: failed**" if row["failures"] else code
        lines.append([row["done"], code, _cell(row["line"]), row["seconds"], row["kept"] or None])
    return [f"## {_TITLES[part]}", table(["what was done", "exit code", "its line", "seconds", "kept"], lines)]


def render(rows: Sequence[Row], directory: pathlib.Path) -> str:
    """Draws faults.png where there are kills; returns the body of the report."""
    parts = ["Each thing was done to a run of its own.", _describe_failures(rows)]
    of = group_by(rows, lambda row: row["part"])
    if KILLS in of:
        _draw(of[KILLS], directory / "faults.png")
        parts += _kills(of[KILLS])
    if DAMAGE in of:
        parts += _damages(of[DAMAGE])
    faults = group_by(of.get(FAULTS, ()), lambda row: row["variant"].split("/")[1])
    for part in _TITLES:
        parts += _faults(part, faults[part]) if part in faults else []
    return "\n\n".join(parts)
