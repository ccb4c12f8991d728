"""The report on workers of unequal speed: a table per network and cluster, and a bar per way to split."""

import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks import figures
from benchmarks.cases.heterogeneous import DDP, GRID, MEASURED, ROUNDED, SETTINGS, Setting
from benchmarks.renderers import markdown
from mtf_hetero.models.train import console as command_line

Row = Mapping[str, Any]
_SHOWN_DIMS = 4  # of a division
_MESSAGE_SECONDS = 1e-5  # of a message on a fast network, before its first byte


def _setting(row: Row) -> Setting:
    return Setting(row["network"], tuple(row["fractions"]), row["batch_size"])


def _title(row: Row) -> str:
    cores = " and ".join(", ".join(f"{fraction:g}" for fraction in row["fractions"]).rsplit(", ", 1))
    return f"{row['network']}, batch {row['batch_size']}, workers of {cores} core"


def _division(row: Row) -> str:
    sizes = row.get("sizes") or {}
    distinct = list(dict.fromkeys(":".join(map(str, parts)) for parts in sizes.values() if len(parts) > 1))
    return "; ".join(distinct[:_SHOWN_DIMS]) + ("; ..." if len(distinct) > _SHOWN_DIMS else "") or "-"


def _table(rows: Sequence[Row]) -> str:
    header = ["way", "s/step", "images/s", "speedup over device 0", "efficiency", "sizes"]
    lines = []
    for row in rows:
        if "wall_seconds_per_step" not in row or "failed" in row:
            lines.append([row["way"], *["-"] * 5])
            continue
        seconds = row["wall_seconds_per_step"]
        lines.append(
            [
                row["way"],
                markdown.spread(seconds),
                markdown.number(row["batch_size"] / seconds["median"]),
                markdown.spread(row["speedup"]),
                markdown.spread(row["efficiency"]),
                _division(row),
            ]
        )
    return markdown.table(header, lines)


def _usage(rows: Sequence[Row]) -> str:
    header = ["way", "device", "computing or receiving ms", "waiting ms"]
    lines = [
        [
            row["way"],
            device,
            markdown.number(1e3 * (used["computing"] + used["receiving"])),
            markdown.number(1e3 * used["waiting"]),
        ]
        for row in rows
        if not row["way"].startswith("device")
        for device, used in (row.get("usage") or {}).items()
    ]
    return markdown.table(header, lines)


def _notes(rows: Sequence[Row]) -> str:
    first = rows[0]
    notes = [f"Limited by {' and '.join(dict.fromkeys(first['limits']))}."]
    for row in rows:
        if row["way"].endswith(f", {MEASURED}"):
            measured = row["measured"]
            real = row["wall_seconds_per_step"]["median"]
            shares = ", ".join(f"{share:.1f}" for share in measured["shares"])
            notes.append(
                f"{row['way']}: {measured['reason']}. Measured in {measured['seconds']:.0f} s; speeds {shares}. "
                f"Predicted {measured['predicted_seconds']:.3g} s a step, in fact {real:.3g} s."
            )
        if row["way"].endswith(ROUNDED):
            notes.append(
                f"{row['way']}: the losses of two steps are off by up to {row['loss_error']:.1e} of their value."
            )
        if "failed" in row:
            notes.append(f"{row['way']} could not be measured: {row['failed']}")
    notes += [note for note in (_pays(rows), _ratios_alone(rows)) if note]
    errors = [row["loss_error"] for row in rows if "loss_error" in row and not row["way"].endswith(ROUNDED)]
    notes.append(
        f"The losses before the first and the second step are those of device 0 alone within {max(errors):.1e} of "
        f"their value. {first['repeats']} repeats of {first['steps']} step, in turns; seed {first['seed']}."
    )
    return "\n".join(f"* {note}" for note in notes)


def _ratios_alone(rows: Sequence[Row]) -> str:
    """How well measured speeds predict what the devices do alone."""
    alone = [row["wall_seconds_per_step"]["median"] for row in rows if row["way"].startswith("device")]
    shares = next((row["measured"]["shares"] for row in rows if "measured" in row), None)
    if shares is None or len(alone) != len(shares):
        return ""
    ratios = [(shares[0] / share, seconds / alone[0]) for share, seconds in zip(shares[1:], alone[1:], strict=True)]
    parts = [f"{said:.3g} predicted, {real:.3g} in fact ({said / real - 1:+.0%})" for said, real in ratios]
    return f"How many times as fast device 0 is as the others: {'; '.join(parts)}."


def _sent(row: Row) -> Mapping[str, int]:
    """What a step of a row sends; it is counted anew for rows that were written before it was."""
    if "sent_bytes" in row:
        return row
    with command_line.stderr_held_back():
        from benchmarks.frameworks.cluster_nets import sent_by
    return sent_by(row["network"], row["batch_size"], row["layout"], row["sizes"])


def _pays(rows: Sequence[Row]) -> str:
    """From what bandwidth on a step of the filter split is shorter than one on the fastest device alone."""
    ways = {row["way"]: row for row in rows if "failed" not in row and "wall_seconds_per_step" in row}
    split, measured = ways.get(f"filters, {GRID}"), ways.get(f"filters, {MEASURED}")
    if split is None or measured is None or "device 0 alone" not in ways:
        return ""
    sent, shares = _sent(split), measured["measured"]["shares"]
    alone = ways["device 0 alone"]["wall_seconds_per_step"]["median"]
    ideal = alone * shares[0] / sum(shares)
    messages = sent["busiest_link_messages"]
    left = alone - ideal - messages * _MESSAGE_SECONDS
    pays = "at no bandwidth"
    if left > 0:
        pays = f"from {markdown.number(sent['busiest_link_bytes'] / left / 1e6)} MB/s on"
    return (
        f"{split['way']}, {_division(split)}: a step sends {markdown.number(sent['sent_bytes'] / 1e6)} MB, "
        f"{markdown.number(sent['busiest_link_bytes'] / 1e6)} MB of it in {messages} messages over the busiest link. "
        "If a byte cost no processor time, as with RDMA or NVLink, a message 10 us, and nothing were sent while "
        f"anything is computed, the filter split would pay {pays}: computing, as fast as all measured speeds together, "
        f"would take {markdown.number(ideal)} s, and device 0 alone takes {markdown.number(alone)} s."
    )


def _draw(ax: Any, rows: Sequence[Row]) -> None:
    shown = [row for row in rows if "wall_seconds_per_step" in row and "failed" not in row]
    for row in shown:
        seconds = row["wall_seconds_per_step"]
        way = row["way"]
        colour = figures.COLOURS[0] if MEASURED in way else figures.COLOURS[1] if way.startswith(DDP) else figures.GREY
        low, high = seconds["median"] - seconds["min"], seconds["max"] - seconds["median"]
        ax.barh(way, seconds["median"], color=colour, height=0.65, xerr=[[low], [high]], error_kw={"linewidth": 0.8})
    ax.invert_yaxis()
    ax.grid(axis="y", visible=False)
    ax.set_xlabel("seconds per step")


def render(rows: Sequence[Row], directory: pathlib.Path) -> str:
    """Draws heterogeneous.png; returns the body of the report."""
    groups: dict[str, list[Row]] = {}
    order = list(SETTINGS)
    for row in sorted(rows, key=lambda row: order.index(_setting(row).name)):
        groups.setdefault(_title(row), []).append(row)
    longest = max(len(group) for group in groups.values())
    figure, axes = figures.make(len(groups), 1, width=7.0, height=0.6 + 0.24 * longest)
    for (ax,), (title, of_group) in zip(axes, groups.items(), strict=True):
        _draw(ax, of_group)
        ax.set_title(title)
    figures.save(figure, directory / "heterogeneous.png")
    parts = [
        "![Seconds per step](heterogeneous.png)",
        "Median (minimum to maximum) over the repeats. Efficiency is images per second over the sum of what the "
        "devices do alone; the speedup is over device 0, the fastest, alone. Blue: as --list_speed=auto divides. All "
        "workers have the same memory: a split by memory is the even one.",
    ]
    for title, of_group in groups.items():
        parts += [f"## {title}", _table(of_group), _notes(of_group), "How each device spends a step:", _usage(of_group)]
    return "\n\n".join(parts)
