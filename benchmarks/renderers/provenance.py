"""The provenance of a report's rows, folded: dates, machines, versions, commits and commands."""

from collections.abc import Sequence

from benchmarks.renderers.document import Details
from benchmarks.renderers.tables import Row, group_by, machines
from benchmarks.rows import run_seconds


def describe_measurement(rows: Sequence[Row]) -> str:
    """Return a sentence of Markdown on where and when rows were measured."""
    dates = sorted(row["date"][:10] for row in rows)
    when = " to ".join(dict.fromkeys((dates[0], dates[-1])))
    return f"Measured {when} on {machines(rows)}: [provenance](#provenance)."


def describe_provenance(rows: Sequence[Row]) -> Details:
    """Return a folded list of machines and versions, and of the runs on each."""
    lines, runs = [], 0
    for place, there in group_by(rows, _describe_place).items():
        of_place = group_by(there, lambda row: row["run"])
        runs += len(of_place)
        lines += [f"* {place}", *(f"    * {_describe_run(run)}" for run in of_place.values())]
    return Details(f"{runs} run{'s' * (runs != 1)}: machines, versions, commits, commands", ["\n".join(lines)])


def _describe_place(row: Row) -> str:
    host = row["host"]
    versions = ", ".join(f"{name} {version}" for name, version in row["versions"].items() if version)
    return f"{host['cpu']}, {host['cores']} cores, {host['memory_bytes'] / 2**30:.0f} GiB, {host['os']}; {versions}"


def _describe_run(rows: Sequence[Row]) -> str:
    first, seconds = rows[0], run_seconds(rows)
    begin, end = (row["date"][:16].replace("T", " ") for row in (first, rows[-1]))
    when = begin if begin == end else f"{begin} to {end[11:] if begin[:10] == end[:10] else end}"
    commit = "no commit" if first["commit"] is None else f"commit {first['commit'][:12]}"
    facts = [
        f"{when} UTC" + ("" if seconds is None else f" ({seconds / 60:.1f} min)"),
        f"run {first['run']}",
        commit + (" with uncommitted changes" if first["dirty"] else ""),
        f"load average before {', '.join(f'{load:.2f}' for load in first['load_before'])}",
    ]
    return f"`{first['command']}`: {', '.join(facts)}"
