"""The report on hybrid parallelism: a table per network and cluster, and pictures of speed, memory and traffic."""

import functools
import pathlib
from collections.abc import Mapping, Sequence
from statistics import fmean

from benchmarks import drawing
from benchmarks.cases.splitbrain import DATA, HYBRID, MODEL, MODELLED, ROUNDS
from benchmarks.renderers.document import Part, Report
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
    number,
    per_link,
    span,
    succeeded,
    tabulate,
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
    "MB sent per step": lambda row: row["received_bytes"] / MB,
    "calculated part of it": lambda row: (
        f"{row['sent_bytes'] / row['received_bytes']:.1%}" if row["received_bytes"] else None
    ),
    "weights MB per worker": lambda row: max(row["weight_bytes"]) / MB,
    "peak MB per worker": lambda row: fmean(row["peak_bytes"]) / MB,
    "estimated peak MB": lambda row: fmean(row["estimated_bytes"]) / MB,
}


def _saved(ways: Mapping[str, Row], column: str) -> tuple[float, str]:
    """Return the largest saving of a hybrid way over data parallelism, and the way."""
    parts = {way: 1 - sum(row[column]) / sum(ways[DATA][column]) for way, row in ways.items() if way.startswith(HYBRID)}
    best = max(parts, key=parts.__getitem__)
    return parts[best], best


def _has_savings(ways: Mapping[str, Row]) -> bool:
    return DATA in ways and any(way.startswith(HYBRID) for way in ways)


def _notes(rows: Sequence[Row]) -> str:
    ways = {row["way"]: row for row in succeeded(rows)}
    notes = [limits(rows[0])]
    if _has_savings(ways):
        (weights, of_weights), (peak, of_peak) = (_saved(ways, column) for column in ("weight_bytes", "peak_bytes"))
        notes.append(
            f"Memory saved against data parallelism: weights {weights:.1%} ({of_weights}), measured peak {peak:.1%} "
            f"({of_peak})."
        )
    pairs = [list(zip(row["estimated_bytes"], row["peak_bytes"], strict=True)) for row in ways.values()]
    if pairs:
        worst = max(abs(estimate / peak - 1) for of_way in pairs for estimate, peak in of_way)
        mean = max(abs(sum(e for e, _ in of_way) / sum(p for _, p in of_way) - 1) for of_way in pairs)
        notes.append(
            f"The estimated peak differs by at most {worst:.1%} from a worker's measured peak, and by at most "
            f"{mean:.1%} in the mean over the workers of a way."
        )
    if not all(row.get("return_memory") for row in ways.values()):
        notes.append("The peaks are those of workers that keep freed memory.")
    return bullets([*notes, f"{losses_agree(rows)} {in_turns(rows[0])}", *could_not("measured", rows)])


def _kind(row: Row) -> str:
    way = row["way"]
    return f"{HYBRID}, {ROUNDS}" if ROUNDS in way else next(kind for kind in _COLOURS if way.startswith(kind))


def _modelled_seconds(row: Row, link: Mapping[str, float]) -> float:
    """Return a modelled step: the seconds of a worker's examples alone, and those of the busiest worker's link."""
    sending = row["busiest_worker_bytes"] / link["bytes_per_second"]
    return row["alone_seconds"] + sending + row["busiest_link_messages"] * link["latency_seconds"]


def _modelled_efficiency(row: Row, link: Mapping[str, float]) -> float:
    return row["alone_seconds"] / _modelled_seconds(row, link)


def _modelled(rows: Sequence[Row], link: Mapping[str, float]) -> list[Part]:
    """Return the section on meshes for which this machine has too few cores."""
    columns = {
        "workers": lambda row: len(row["fractions"]),
        "way": lambda row: row["way"],
        "s/step, modelled": lambda row: _modelled_seconds(row, link),
        "images/s, modelled": lambda row: row["batch_size"] / _modelled_seconds(row, link),
        "efficiency, modelled": lambda row: f"{_modelled_efficiency(row, link):.2f}",
        "MB of the busiest worker": lambda row: row["busiest_worker_bytes"] / MB,
    }
    parts: list[Part] = [
        "## Modelled: more workers than this machine has cores for",
        "Not measured. A worker with a core of its own needs as long for its examples as it does alone; the smaller "
        "part of the dense layers in a group is neglected. Then the busiest worker sends and receives over a link of "
        f"{per_link(link)} message, as measured between two workers here, and nothing overlaps.",
    ]
    for network, group in group_by(rows, lambda row: row["network"]).items():
        per_worker = group[0]["batch_size"] // len(group[0]["fractions"])
        parts += [f"### {network}, batch {per_worker} per worker", tabulate(group, columns, labels=2)]
    return parts


def _draw(groups: Mapping[str, Sequence[Row]], path: pathlib.Path) -> None:
    values = {
        "images per second": _rate,
        "peak memory of a worker, MB": lambda row: fmean(row["peak_bytes"]) / MB,
        "sent per step, MB": lambda row: row["received_bytes"] / MB,
    }
    size = {"width": 3.05, "height": 0.7 + 0.24 * max(map(len, groups.values()))}
    columns = len(values)
    with drawing.panels(path, columns * len(groups), columns, **size, colours=_COLOURS, ncols=4, sharey="row") as axes:
        for line, (text, rows) in enumerate(groups.items()):
            for ax, (label, value) in zip(axes[columns * line :], values.items(), strict=False):
                drawing.bars(
                    ax, {row["way"]: value(row) for row in rows}, [_COLOURS[_kind(row)] for row in rows], label
                )
            axes[columns * line].set_title(text)


def _conclude(measured: Sequence[Row]) -> list[str]:
    """Sentences on the setting of each network with the most workers."""
    savings, rates = [], []
    for network, group in group_by(succeeded(measured), lambda row: row["network"]).items():
        most = max(len(row["fractions"]) for row in group)
        ways = {row["way"]: row for row in group if len(row["fractions"]) == most}
        if not _has_savings(ways):
            continue
        weights, peak = (_saved(ways, column)[0] for column in ("weight_bytes", "peak_bytes"))
        savings.append(f"{network} {weights:.1%} and {peak:.1%} ({most} workers)")
        hybrid = max((row for way, row in ways.items() if way.startswith(HYBRID)), key=_rate)
        rates.append(f"{network} {number(_rate(hybrid))} and {number(_rate(ways[DATA]))} ({hybrid['way']})")
    return [
        *(
            [f"Weights and peak memory that a hybrid saves over data parallelism: {'; '.join(savings)}."]
            if savings
            else []
        ),
        *([f"Images per second, best hybrid and data parallel: {'; '.join(rates)}."] if rates else []),
    ]


def _conclude_modelled(rows: Sequence[Row], link: Mapping[str, float]) -> str:
    counts = sorted({len(row["fractions"]) for row in rows})
    efficiencies = [
        span([_modelled_efficiency(row, link) for row in rows if (row["way"] == DATA) == is_data])
        for is_data in (True, False)
        if any((row["way"] == DATA) == is_data for row in rows)
    ]
    workers = span(counts, ",")
    return (
        f"Modelled, not measured: efficiency on {workers} workers, data parallel and hybrid: {'; '.join(efficiencies)}."
    )


def render(rows: Sequence[Row]) -> Report:
    """Return the report: a table per network and cluster, and one of modelled steps per network."""
    modelled = [row for row in rows if row.get(MODELLED)]
    measured = [row for row in rows if not row.get(MODELLED)]
    measured.sort(key=lambda row: (row["network"], len(row["fractions"]), row["fractions"]))
    drawn = group_by(
        (row for row in succeeded(measured) if len(row["fractions"]) > 1), lambda row: _title(row, drawing.title(row))
    )
    parts: list[Part] = [
        "Median (minimum to maximum) over the repeats. d x k: d groups of k workers; the convolutions split the batch "
        "over all workers, the dense layers are sharded over the k of a group. The bytes sent are counted in a traced "
        "step, the calculated part in the lowered graph. The peak is the most that a worker's process holds beyond "
        "what it held before training. It is measured on other workers than the step time is, with --return_memory. "
        "The estimate is that of `--dry_run`."
    ]
    groups = group_by(measured, lambda row: _title(row, f"{row['network']}, batch {row['batch_size']}"))
    for title, group in groups.items():
        parts += [f"## {title}", tabulate(group, _COLUMNS), _notes(group)]
    conclusions = _conclude(measured)
    links = [row["link"] for row in measured if "link" in row]
    if links and modelled:
        link = {name: fmean(link[name] for link in links) for name in links[0]}
        parts += _modelled(modelled, link)
        conclusions.append(_conclude_modelled(modelled, link))
    draw = functools.partial(_draw, drawn) if drawn else None
    return Report(conclusions, parts, "Images per second, memory and traffic", draw)
