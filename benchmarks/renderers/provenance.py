"""The provenance of a report's rows: dates, machines, versions, commits and commands."""

from collections.abc import Sequence

from benchmarks.renderers.document import Details, Part
from benchmarks.renderers.tables import Row, group_by
from benchmarks.rows import run_seconds

_SHOWN_RUNS = 6  # longer lists are folded


def describe_measurement(rows: Sequence[Row]) -> str:
    """A sentence of Markdown on where and when rows were measured."""
    dates = sorted(row["date"][:10] for row in rows)
    when = " to ".join(dict.fromkeys((dates[0], dates[-1])))
    hosts = dict.fromkeys(f"{row['host']['cores']} cores of {row['host']['cpu']}" for row in rows)
    return f"Measured {when} on {' and on '.join(hosts)}: [provenance](#provenance)."


def describe_provenance(rows: Sequence[Row]) -> Part | str:
    """A list of machines and versions, and of the runs on each; a long one is folded."""
    lines, runs = [], 0
    for place, there in group_by(rows, _describe_place).items():
        of_place = group_by(there, lambda row: row["run"])
        runs += len(of_place)
        lines += [f"* {place}", *(f"    * {_describe_run(run)}" for run in of_place.values())]
    text = "\n".join(lines)
    return text if runs <= _SHOWN_RUNS else Details(f"{runs} runs", [text])


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
