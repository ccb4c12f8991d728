"""The report on workers of unequal speed: a table per network and cluster, and a bar per way to split."""

import pathlib
from collections.abc import Mapping, Sequence

from benchmarks import drawing
from benchmarks.cases.heterogeneous import DDP, GRID, MEASURED, ROUNDED, SETTINGS
from benchmarks.renderers.tables import (
    MB,
    Row,
    bullets,
    could_not,
    division,
    group_by,
    in_turns,
    limits,
    losses_agree,
    median,
    number,
    table,
    table_of,
)
from mtf_hetero.models.train import console as command_line

_SHOWN_DIMS = 4  # of a division
_MESSAGE_SECONDS = 1e-5  # of a message on a fast network, before its first byte
_COLOURS = {
    "one device alone": "#BBBBBB",
    "divided evenly, or in proportion to FLOP/s": drawing.GREY,
    "as --list_speed=auto measures": drawing.COLOURS[0],
    "best of a grid of shares": drawing.COLOURS[5],
    DDP: drawing.COLOURS[1],
}


def _title(row: Row, network: str) -> str:
    cores = " and ".join(", ".join(f"{fraction:g}" for fraction in row["fractions"]).rsplit(", ", 1))
    return f"{network}, workers of {cores} core"


_COLUMNS = {
    "way": lambda row: row["way"],
    "s/step": lambda row: row["wall_seconds_per_step"],
    "images/s": lambda row: row["batch_size"] / median(row),
    "speedup over device 0": lambda row: row["speedup"],
    "efficiency": lambda row: row["efficiency"],
    "sizes": lambda row: division(row, _SHOWN_DIMS),
}


def _usage(rows: Sequence[Row]) -> str:
    lines = [
        [row["way"], device, 1e3 * (used["computing"] + used["receiving"]), 1e3 * used["waiting"]]
        for row in rows
        if not row["way"].startswith("device")
        for device, used in (row.get("usage") or {}).items()
    ]
    return table(["way", "device", "computing or receiving ms", "waiting ms"], lines)


def _note(row: Row) -> str:
    """What is to be said of one way."""
    way = row["way"]
    if "failed" in row:
        return could_not("measured", [row])[0]
    if way.endswith(ROUNDED):
        return f"{way}: the losses of two steps are off by up to {row['loss_error']:.1e} of their value."
    if not way.endswith(f", {MEASURED}"):
        return ""
    measured = row["measured"]
    shares = ", ".join(f"{share:.1f}" for share in measured["shares"])
    return (
        f"{way}: {measured['reason']}. Measured in {measured['seconds']:.0f} s; speeds {shares}. "
        f"Predicted {measured['predicted_seconds']:.3g} s a step, in fact {median(row):.3g} s."
    )


def _notes(rows: Sequence[Row]) -> str:
    losses = losses_agree((row for row in rows if not row["way"].endswith(ROUNDED)), than="those of device 0 alone")
    last = f"{losses} {in_turns(rows[0])}"
    return bullets([limits(rows[0]), *map(_note, rows), _pays(rows), _ratios_alone(rows), last])


def _ratios_alone(rows: Sequence[Row]) -> str:
    """How well measured speeds predict what the devices do alone."""
    alone = [median(row) for row in rows if row["way"].startswith("device")]
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
    ways = {row["way"]: row for row in rows if "failed" not in row}
    split, measured = ways.get(f"filters, {GRID}"), ways.get(f"filters, {MEASURED}")
    if split is None or measured is None or "device 0 alone" not in ways:
        return ""
    sent, shares = _sent(split), measured["measured"]["shares"]
    alone = median(ways["device 0 alone"])
    ideal = alone * shares[0] / sum(shares)
    messages = sent["busiest_link_messages"]
    left = alone - ideal - messages * _MESSAGE_SECONDS
    pays = f"from {number(sent['busiest_link_bytes'] / left / MB)} MB/s on" if left > 0 else "at no bandwidth"
    return (
        f"{split['way']}, {division(split, _SHOWN_DIMS) or '-'}: a step sends {number(sent['sent_bytes'] / MB)} MB, "
        f"{number(sent['busiest_link_bytes'] / MB)} MB of it in {messages} messages over the busiest link. "
        "If a byte cost no processor time, as with RDMA or NVLink, a message 10 us, and nothing were sent while "
        f"anything is computed, the filter split would pay {pays}: computing, as fast as all measured speeds together, "
        f"would take {number(ideal)} s, and device 0 alone takes {number(alone)} s."
    )


def _kind(row: Row) -> str:
    alone, divided, measured, grid, ddp = _COLOURS
    way = row["way"]
    if way.startswith(DDP):
        return ddp
    if way.startswith("device"):
        return alone
    return measured if MEASURED in way else grid if way.endswith(GRID) else divided


def render(rows: Sequence[Row], directory: pathlib.Path) -> str:
    """Draws heterogeneous.png; returns the body of the report."""
    order = [(setting.network, setting.fractions, setting.batch_size) for setting in SETTINGS]
    rows = sorted(rows, key=lambda row: order.index((row["network"], tuple(row["fractions"]), row["batch_size"])))
    drawing.bar_panels(
        directory / "heterogeneous.png",
        group_by((row for row in rows if "failed" not in row), lambda row: _title(row, drawing.title(row))),
        {
            "seconds per step (line: minimum to maximum)": lambda row: row["wall_seconds_per_step"],
            "efficiency (1: as fast as all devices together)": lambda row: row["efficiency"],
        },
        kind=_kind,
        colours=_COLOURS,
        width=4.6,
    )
    parts = [
        "![Seconds per step, and efficiency](heterogeneous.png)",
        "Median (minimum to maximum) over the repeats. Efficiency is images per second over the sum of what the "
        "devices do alone; the speedup is over device 0, the fastest, alone. All workers have the same memory: a split "
        "by memory is the even one.",
    ]
    groups = group_by(rows, lambda row: _title(row, f"{row['network']}, batch {row['batch_size']}"))
    for title, group in groups.items():
        parts += [
            f"## {title}",
            table_of(group, _COLUMNS),
            _notes(group),
            "How each device spends a step:",
            _usage(group),
        ]
    return "\n\n".join(parts)
