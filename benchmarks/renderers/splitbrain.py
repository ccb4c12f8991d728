"""The report on hybrid parallelism: a table per network and cluster, and pictures of speed, memory and traffic."""

import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks import figures
from benchmarks.cases.splitbrain import DATA, HYBRID, MODEL, MODELLED, ROUNDS
from benchmarks.renderers import markdown

Row = Mapping[str, Any]
_MB = 1e6


def _title(row: Row) -> str:
    cores = ", ".join(f"{fraction:g}" for fraction in dict.fromkeys(row["fractions"]))
    count = len(row["fractions"])
    return f"{row['network']}, batch {row['batch_size']}, {count} worker{'s' * (count > 1)} of {cores} core"


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def _table(rows: Sequence[Row]) -> str:
    header = [
        "way",
        "s/step",
        "images/s",
        "MB sent a step",
        "of it calculated",
        "weights MB a worker",
        "peak MB a worker, measured",
        "estimated",
    ]
    lines = []
    for row in rows:
        if "failed" in row:
            lines.append([row["way"], *["-"] * 7])
            continue
        seconds = row["wall_seconds_per_step"]
        received = row["received_bytes"]
        lines.append(
            [
                row["way"],
                markdown.spread(seconds),
                markdown.number(row["batch_size"] / seconds["median"]),
                markdown.number(received / _MB),
                f"{row['sent_bytes'] / received:.1%}" if received else "-",
                markdown.number(max(row["weight_bytes"]) / _MB),
                markdown.number(_mean(row["peak_bytes"]) / _MB),
                markdown.number(_mean(row["estimated_bytes"]) / _MB),
            ]
        )
    return markdown.table(header, lines)


def _saved(row: Row, reference: Row, name: str) -> float:
    return 1 - sum(row[name]) / sum(reference[name])


def _notes(rows: Sequence[Row]) -> str:
    ways = {row["way"]: row for row in rows if "failed" not in row}
    notes = [f"Limited by {' and '.join(dict.fromkeys(rows[0]['limits']))}."]
    data = ways.get(DATA)
    hybrid = {way: row for way, row in ways.items() if way.startswith(HYBRID)}
    if data is not None and hybrid:
        best = max(hybrid.values(), key=lambda row: _saved(row, data, "peak_bytes"))
        lightest = max(hybrid.values(), key=lambda row: _saved(row, data, "weight_bytes"))
        notes.append(
            f"Against data parallelism, memory of weights saved: {_saved(lightest, data, 'weight_bytes'):.1%} "
            f"({lightest['way']}); of the whole measured peak: {_saved(best, data, 'peak_bytes'):.1%} ({best['way']})."
        )
    errors = [
        abs(estimate / peak - 1)
        for row in ways.values()
        for estimate, peak in zip(row["estimated_bytes"], row["peak_bytes"], strict=True)
    ]
    if errors:
        mean = max(abs(_mean(row["estimated_bytes"]) / _mean(row["peak_bytes"]) - 1) for row in ways.values())
        notes.append(
            f"The estimated peaks are off by up to {max(errors):.1%} of a worker's measured one, and by up to "
            f"{mean:.1%} in the mean over the workers of a way."
        )
    if not all(row.get("return_memory") for row in ways.values()):
        notes.append("The peaks are those of workers that keep the memory that they have freed.")
    notes.append(
        f"The losses before the first and the second step are the same within "
        f"{max(row['loss_error'] for row in rows):.1e} of their value. {rows[0]['repeats']} repeats of "
        f"{rows[0]['steps']} step, in turns; seed {rows[0]['seed']}."
    )
    notes += [f"{row['way']} could not be measured: {row['failed']}" for row in rows if "failed" in row]
    return "\n".join(f"* {note}" for note in notes)


def _colour(way: str) -> str:
    if way.startswith(DATA):
        return figures.GREY
    if way.startswith(MODEL):
        return figures.COLOURS[1]
    return figures.COLOURS[5] if ROUNDS in way else figures.COLOURS[0]


def _draw(axes: Sequence[Any], rows: Sequence[Row]) -> None:
    shown = [row for row in rows if "failed" not in row]
    columns = (
        ("images/s", lambda row: row["batch_size"] / row["wall_seconds_per_step"]["median"]),
        ("peak MB per worker", lambda row: _mean(row["peak_bytes"]) / _MB),
        ("MB sent per step", lambda row: row["received_bytes"] / _MB),
    )
    for ax, (label, value) in zip(axes, columns, strict=True):
        for row in shown:
            ax.barh(row["way"], value(row), color=_colour(row["way"]), height=0.65)
        ax.invert_yaxis()
        ax.grid(axis="y", visible=False)
        ax.set_xlabel(label)
    for ax in axes[1:]:
        ax.set_yticklabels([])


def modelled_seconds(row: Row, link: Mapping[str, float]) -> float:
    """A step of workers that compute as fast as one alone does: its seconds, and those of the busiest worker's link.

    Args:
      row: a modelled row.
      link: latency_seconds and bytes_per_second.
    """
    sending = row["busiest_worker_bytes"] / link["bytes_per_second"]
    return row["alone_seconds"] + sending + row["busiest_link_messages"] * link["latency_seconds"]


def _modelled(rows: Sequence[Row], link: Mapping[str, float]) -> str:
    header = [
        "workers",
        "way",
        "s/step, modelled",
        "images/s, modelled",
        "efficiency, modelled",
        "MB of the busiest worker",
    ]
    lines = []
    for row in rows:
        seconds = modelled_seconds(row, link)
        lines.append(
            [
                str(len(row["fractions"])),
                row["way"],
                markdown.number(seconds),
                markdown.number(row["batch_size"] / seconds),
                f"{row['alone_seconds'] / seconds:.2f}",
                markdown.number(row["busiest_worker_bytes"] / _MB),
            ]
        )
    return markdown.table(header, lines)


def render(rows: Sequence[Row], directory: pathlib.Path) -> str:
    """Draws splitbrain.png; returns the body of the report."""
    measured = [row for row in rows if not row.get(MODELLED)]
    groups: dict[str, list[Row]] = {}
    for row in sorted(measured, key=lambda row: (row["network"], len(row["fractions"]), row["fractions"])):
        groups.setdefault(_title(row), []).append(row)
    drawn = {title: of_group for title, of_group in groups.items() if len(of_group) > 1}
    if drawn:
        longest = max(map(len, drawn.values()))
        figure, axes = figures.make(len(drawn), 3, width=3.4, height=0.7 + 0.24 * longest)
        for row_axes, (title, of_group) in zip(axes, drawn.items(), strict=True):
            _draw(row_axes, of_group)
            row_axes[0].set_title(title)
        figures.save(figure, directory / "splitbrain.png")
    parts = [
        *(["![Images per second, memory and traffic](splitbrain.png)"] if drawn else []),
        "Median (minimum to maximum) over the repeats. d x k: d groups of k workers; the convolutions split the batch "
        "over all workers, the dense layers are sharded over the k of a group. The bytes sent are counted in a traced "
        "step, the calculated part in the lowered graph. The peak is what a worker's process holds at most beyond what "
        "it held before training, on workers started with --return_memory, which are not those that are timed; the "
        "estimate is that of `--dry_run`.",
    ]
    for title, of_group in groups.items():
        parts += [f"## {title}", _table(of_group), _notes(of_group)]
    links = [row["link"] for row in measured if "link" in row]
    modelled = [row for row in rows if row.get(MODELLED)]
    if links and modelled:
        link = {name: _mean([found[name] for found in links]) for name in links[0]}
        parts += [
            "## Modelled: more workers than this machine has cores for",
            "Not measured. A worker of a core of its own takes as long for its examples as it does alone (the dense "
            "layers' part, which is less in a group, is not taken off); then the busiest worker sends and receives "
            f"over a link of {link['bytes_per_second'] / 1e9:.2f} GB/s and {1e3 * link['latency_seconds']:.2g} ms a "
            "message, as measured between two workers here, with nothing computed meanwhile.",
        ]
        for network in dict.fromkeys(row["network"] for row in modelled):
            of_network = [row for row in modelled if row["network"] == network]
            per_worker = of_network[0]["batch_size"] // len(of_network[0]["fractions"])
            parts += [f"### {network}, batch {per_worker} per worker", _modelled(of_network, link)]
    return "\n\n".join(parts)
