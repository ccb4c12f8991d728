"""The report on hybrid parallelism: a table per network and cluster, and pictures of speed, memory and traffic."""

import pathlib
from collections.abc import Mapping, Sequence
from statistics import fmean

from benchmarks import drawing
from benchmarks.cases.splitbrain import DATA, HYBRID, MODEL, MODELLED, ROUNDS
from benchmarks.renderers.tables import (
    MB,
    Row,
    bullets,
    could_not,
    group_by,
    in_turns,
    limits,
    losses_agree,
    median,
    per_link,
    table_of,
)

_COLOURS = {
    DATA: drawing.GREY,
    MODEL: drawing.COLOURS[1],
    HYBRID: drawing.COLOURS[0],
    f"{HYBRID}, {ROUNDS}": drawing.COLOURS[5],
}


def _title(row: Row, network: str) -> str:
    cores = ", ".join(f"{fraction:g}" for fraction in dict.fromkeys(row["fractions"]))
    count = len(row["fractions"])
    return f"{network}, {count} worker{'s' * (count > 1)} of {cores} core"


def _rate(row: Row) -> float:
    return row["batch_size"] / median(row)


_COLUMNS = {
    "way": lambda row: row["way"],
    "s/step": lambda row: row["wall_seconds_per_step"],
    "images/s": _rate,
    "MB sent a step": lambda row: row["received_bytes"] / MB,
    "of it calculated": lambda row: (
        f"{row['sent_bytes'] / row['received_bytes']:.1%}" if row["received_bytes"] else None
    ),
    "weights MB a worker": lambda row: max(row["weight_bytes"]) / MB,
    "peak MB a worker, measured": lambda row: fmean(row["peak_bytes"]) / MB,
    "estimated": lambda row: fmean(row["estimated_bytes"]) / MB,
}


def _saved(ways: Mapping[str, Row], column: str) -> str:
    """The most that a hybrid way saves of what data parallelism takes."""
    parts = {way: 1 - sum(row[column]) / sum(ways[DATA][column]) for way, row in ways.items() if way.startswith(HYBRID)}
    best = max(parts, key=parts.__getitem__)
    return f"{parts[best]:.1%} ({best})"


def _notes(rows: Sequence[Row]) -> str:
    ways = {row["way"]: row for row in rows if "failed" not in row}
    notes = [limits(rows[0])]
    if DATA in ways and any(way.startswith(HYBRID) for way in ways):
        notes.append(
            f"Against data parallelism, memory of weights saved: {_saved(ways, 'weight_bytes')}; of the whole measured "
            f"peak: {_saved(ways, 'peak_bytes')}."
        )
    pairs = [list(zip(row["estimated_bytes"], row["peak_bytes"], strict=True)) for row in ways.values()]
    if pairs:
        worst = max(abs(estimate / peak - 1) for of_way in pairs for estimate, peak in of_way)
        mean = max(abs(sum(e for e, _ in of_way) / sum(p for _, p in of_way) - 1) for of_way in pairs)
        notes.append(
            f"The estimated peaks are off by up to {worst:.1%} of a worker's measured one, and by up to "
            f"{mean:.1%} in the mean over the workers of a way."
        )
    if not all(row.get("return_memory") for row in ways.values()):
        notes.append("The peaks are those of workers that keep the memory that they have freed.")
    return bullets([*notes, f"{losses_agree(rows)} {in_turns(rows[0])}", *could_not("measured", rows)])


def _kind(row: Row) -> str:
    way = row["way"]
    return f"{HYBRID}, {ROUNDS}" if ROUNDS in way else next(kind for kind in _COLOURS if way.startswith(kind))


def _modelled_seconds(row: Row, link: Mapping[str, float]) -> float:
    """A step of workers that compute as fast as one alone does: its seconds, and those of the busiest worker's link."""
    sending = row["busiest_worker_bytes"] / link["bytes_per_second"]
    return row["alone_seconds"] + sending + row["busiest_link_messages"] * link["latency_seconds"]


def _modelled(rows: Sequence[Row], link: Mapping[str, float]) -> list[str]:
    """The section on meshes for which this machine has not enough cores."""
    columns = {
        "workers": lambda row: len(row["fractions"]),
        "way": lambda row: row["way"],
        "s/step, modelled": lambda row: _modelled_seconds(row, link),
        "images/s, modelled": lambda row: row["batch_size"] / _modelled_seconds(row, link),
        "efficiency, modelled": lambda row: f"{row['alone_seconds'] / _modelled_seconds(row, link):.2f}",
        "MB of the busiest worker": lambda row: row["busiest_worker_bytes"] / MB,
    }
    parts = [
        "## Modelled: more workers than this machine has cores for",
        "Not measured. A worker of a core of its own takes as long for its examples as it does alone (the dense "
        "layers' part, which is less in a group, is not taken off); then the busiest worker sends and receives "
        f"over a link of {per_link(link)} message, as measured between two workers here, with nothing computed "
        "meanwhile.",
    ]
    for network, group in group_by(rows, lambda row: row["network"]).items():
        per_worker = group[0]["batch_size"] // len(group[0]["fractions"])
        parts += [f"### {network}, batch {per_worker} per worker", table_of(group, columns)]
    return parts


def render(rows: Sequence[Row], directory: pathlib.Path) -> str:
    """Draws splitbrain.png; returns the body of the report."""
    modelled = [row for row in rows if row.get(MODELLED)]
    measured = [row for row in rows if not row.get(MODELLED)]
    measured.sort(key=lambda row: (row["network"], len(row["fractions"]), row["fractions"]))
    drawn = group_by(
        (row for row in measured if len(row["fractions"]) > 1 and "failed" not in row),
        lambda row: _title(row, drawing.title(row)),
    )
    parts = []
    if drawn:
        values = {
            "images per second": _rate,
            "peak memory of a worker, MB": lambda row: fmean(row["peak_bytes"]) / MB,
            "sent in a step, MB": lambda row: row["received_bytes"] / MB,
        }
        path = directory / "splitbrain.png"
        drawing.bar_panels(path, drawn, values, kind=_kind, colours=_COLOURS, width=3.4)
        parts.append("![Images per second, memory and traffic](splitbrain.png)")
    parts.append(
        "Median (minimum to maximum) over the repeats. d x k: d groups of k workers; the convolutions split the batch "
        "over all workers, the dense layers are sharded over the k of a group. The bytes sent are counted in a traced "
        "step, the calculated part in the lowered graph. The peak is what a worker's process holds at most beyond what "
        "it held before training, on workers started with --return_memory, which are not those that are timed; the "
        "estimate is that of `--dry_run`."
    )
    groups = group_by(measured, lambda row: _title(row, f"{row['network']}, batch {row['batch_size']}"))
    for title, group in groups.items():
        parts += [f"## {title}", table_of(group, _COLUMNS), _notes(group)]
    links = [row["link"] for row in measured if "link" in row]
    if links and modelled:
        parts += _modelled(modelled, {name: fmean(link[name] for link in links) for name in links[0]})
    return "\n\n".join(parts)
