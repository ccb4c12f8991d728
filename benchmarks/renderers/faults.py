"""The report on faults: sums of kills, damages and other faults, every failure, and each fault on demand."""

import collections
import functools
import pathlib
from collections.abc import Mapping, Sequence

from benchmarks import drawing
from benchmarks.cases.faults import DAMAGE, FAULTS, KILLS
from benchmarks.faults.kills import BEFORE_FIRST_STEP
from benchmarks.renderers.document import Details, Part, Report
from benchmarks.renderers.tables import Row, group_by, number, table

_LINE_LENGTH = 240
_TITLES = {
    "flags": "Wrong flags and values",
    "signals": "Signals",
    "workers": "Workers",
    "data": "Data",
    "disk": "Model directory, disk and standard streams",
}
_CALLS = {  # a call of a save -> its effect
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
    """Return a text in a table, as code; a long one is cut."""
    text = " ".join(text.split()).replace("|", "/").replace("`", "'")
    shown = text if len(text) <= _LINE_LENGTH else f"{text[: _LINE_LENGTH - 4]} ..."
    return f"`{shown}`" if shown else ""


def _describe_failures(rows: Sequence[Row]) -> str:
    failed = [row for row in rows if row["failures"]]
    lines = [f"**{len(failed)} of {len(rows)} failed:**", ""]
    lines += [f"- {row['variant']}: {'; '.join(map(_cell, row['failures']))}" for row in failed]
    return "\n".join(lines) if failed else ""


def _hits(rows: Sequence[Row]) -> Mapping[str, int]:
    return collections.Counter(hit for row in rows for hit in row["hits"])


def _draw(rows: Sequence[Row], path: pathlib.Path) -> None:
    """Draw how many kills hit each kind of call, before it and after it, and how many hit no call."""
    counts: dict[str, collections.Counter[str]] = collections.defaultdict(collections.Counter)
    random, *_ = _COLOURS
    for hit, count in _hits(rows).items():
        when, _, call = hit.partition(" ")
        if when in ("before", "after") and hit != BEFORE_FIRST_STEP:
            name = call.split()[0]
            counts[_CALLS.get(name, name)][f"{when} the call"] += count
        else:
            counts[hit][random] += count
    names = sorted(counts, key=lambda name: -counts[name].total())
    lengths = {name: dict(sorted(counts[name].items(), reverse=True)) for name in names}
    with drawing.panels(path, width=6.4, height=1.2 + 0.26 * max(len(counts), 2), colours=_COLOURS) as (ax,):
        drawing.stacked_bars(ax, lengths, _COLOURS, height=0.65)
        ax.xaxis.get_major_locator().set_params(integer=True)
        ax.set_xlabel("number of kills")


def _conclude_kills(rows: Sequence[Row]) -> str:
    total = {key: sum(row[key] for row in rows) for key in ("kills", "resumed", "from_newest", "from_zero")}
    errors = [row["error"] for row in rows]
    error = "an unknown amount" if None in errors else f"at most {max(errors):.1e}"
    return (
        f"{total['kills']} kills: {total['resumed']} resumed, {total['from_newest']} from the newest intact checkpoint "
        f"and {total['from_zero']} from step 0 in spite of one. Final values differ from an undisturbed run's by "
        f"{error}."
    )


def _conclude_damages(rows: Sequence[Row]) -> str:
    good = sum(not row["failures"] for row in rows)
    changed = sum(failure.startswith("changed") for row in rows for failure in row["failures"])
    return (
        f"{len(rows)} damages: {good} resumed from the newest intact checkpoint, or were refused where there was none; "
        f"{changed} changed an older checkpoint."
    )


def _conclude_faults(rows: Sequence[Row]) -> str:
    done = [row for row in rows if not row.get("skipped")]
    failed, skipped = sum(bool(row["failures"]) for row in done), len(rows) - len(done)
    slowest = max((row["seconds"] for row in done), default=0.0)
    return (
        f"{len(done)} other faults: {failed} failed"
        + (f", {skipped} could not be tried here" if skipped else "")
        + f". The slowest ended after {number(slowest)} s."
    )


def _kills(rows: Sequence[Row]) -> list[Part]:
    hits = sorted(_hits(rows).items(), key=lambda item: (-item[1], item[0]))
    return [
        "## Kills",
        f"{len(rows)} model directories, float64 with momentum; each kill is followed by a run on another layout. "
        "A call is a file operation below the model directory, of Python or of TensorFlow; N stands for steps and "
        "parts.",
        Details(
            f"Where the kills hit: {len(hits)} places",
            [table(["where the kill hit", "kills"], [[_cell(hit), count] for hit, count in hits])],
        ),
    ]


def _damages(rows: Sequence[Row]) -> list[Part]:
    """Return a line for all damages of a file with the same outcome and the same message."""

    def outcome(row: Row) -> tuple[str, str, str]:
        begun = "refused" if row["exit_code"] == 2 and row["begun"] is None else f"step {row['begun']}"
        begun = f"**{begun}: failed**" if row["failures"] else begun
        return row["file"], begun, _cell(row["line"] if row["passed_over"] else "")

    groups = group_by(rows, outcome)
    lines = [
        [_cell(file), ", ".join(row["damage"] for row in group), begun, line]
        for (file, begun, line), group in groups.items()
    ]
    return [
        "## Damaged checkpoints",
        "The message is the warning about the damaged file.",
        table(["file", "damage", "resumed from", "message"], lines),
    ]


def _faults(part: str, rows: Sequence[Row]) -> Part:
    lines = []
    for row in rows:
        if row.get("skipped"):
            lines.append([row["done"], None, row["skipped"], None, "not tried here"])
            continue
        code = "-" if row["exit_code"] is None else str(row["exit_code"])
        code = f"**{code}: failed**" if row["failures"] else code
        lines.append([row["done"], code, _cell(row["line"]), row["seconds"], row["kept"] or None])
    header = ["fault", "exit code", "last line", "seconds", "kept"]
    return Details(f"{_TITLES[part]}: {len(rows)} faults", [table(header, lines)])


def _sums(parts: Mapping[str, Sequence[Row]]) -> Part:
    """Return a line per kind of fault."""
    lines = []
    for part, rows in parts.items():
        done = [row for row in rows if not row.get("skipped")]
        codes = ["none" if row["exit_code"] is None else str(row["exit_code"]) for row in done]
        failed = sum(bool(row["failures"]) for row in done)
        slowest = max((row["seconds"] for row in done), default=None)
        lines.append([_TITLES[part], len(done), failed, ", ".join(sorted(set(codes))) or None, slowest])
    return table(["kind", "tried", "failed", "exit codes", "slowest s"], lines)


def render(rows: Sequence[Row]) -> Report:
    """Return the report: a summary of kills, damages and other faults; each single one is folded."""
    of = group_by(rows, lambda row: row["part"])
    conclusions, parts = [], ["Each fault happened to a run of its own.", _describe_failures(rows)]
    by_kind = group_by(of.get(FAULTS, ()), lambda row: row["variant"].split("/")[1])
    by_kind = {part: by_kind[part] for part in _TITLES if part in by_kind}
    if KILLS in of:
        conclusions.append(_conclude_kills(of[KILLS]))
        parts += _kills(of[KILLS])
    if DAMAGE in of:
        conclusions.append(_conclude_damages(of[DAMAGE]))
        parts += _damages(of[DAMAGE])
    if by_kind:
        conclusions.append(_conclude_faults(of[FAULTS]))
        parts += ["## Other faults", _sums(by_kind), *(_faults(part, group) for part, group in by_kind.items())]
    failed = sum(bool(row["failures"]) for row in rows)
    conclusions.append(f"{failed} of {len(rows)} rows have a failure." if failed else "Nothing failed.")
    draw = functools.partial(_draw, of[KILLS]) if KILLS in of else None
    return Report(conclusions, parts, "Where the kills hit", draw)
