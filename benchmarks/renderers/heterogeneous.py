"""The report on workers of unequal speed: a table per network and cluster, and a bar per way to split."""

import functools
import pathlib
from collections.abc import Iterable, Mapping, Sequence

from benchmarks import drawing
from benchmarks.cases.heterogeneous import DDP, EVEN, GRID, MEASURED, ROUNDED, SETTINGS
from benchmarks.renderers.document import Details, Part, Report
from benchmarks.renderers.tables import (
    MB,
    Row,
    Table,
    bullets,
    could_not,
    group_by,
    in_turns,
    limits,
    losses_agree,
    median,
    number,
    span,
    split,
    succeeded,
    table,
    tabulate,
)
from mtf_hetero._support import command_line

_SHOWN_DIMS = 4  # of a split
_PLANNER_SINCE = "2026-11-23T17:54"  # UTC; older rows are of the first engine of --list_speed=auto
_MESSAGE_SECONDS = 1e-5  # of a message on a fast network, before its first byte
_COLOURS = {
    "one device alone": "#BBBBBB",
    "even split, or by FLOP/s": drawing.GREY,
    "split by speeds of --list_speed=auto": drawing.COLOURS[0],
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
    "sizes": lambda row: split(row, _SHOWN_DIMS),
}


def _usage(rows: Sequence[Row]) -> Table:
    lines = [
        [row["way"], device, 1e3 * (used["computing"] + used["receiving"]), 1e3 * used["waiting"]]
        for row in rows
        if not row["way"].startswith("device")
        for device, used in (row.get("usage") or {}).items()
    ]
    return table(["way", "device", "computing or receiving ms", "waiting ms"], lines, labels=2)


def _note(row: Row) -> str:
    """Return a note on one way; empty where its row says all."""
    way = row["way"]
    if "failed" in row:
        return could_not("measured", [row])[0]
    if way.endswith(ROUNDED):
        return f"{way}: the losses of two steps differ by up to {row['loss_error']:.1e} of their value."
    if not way.endswith(f", {MEASURED}"):
        return ""
    measured = row["measured"]
    shares = ", ".join(f"{share:.1f}" for share in measured["shares"])
    return (
        f"{way}: {measured['reason']}. Measured in {measured['seconds']:.0f} s; speeds {shares}. "
        f"Step time: predicted {measured['predicted_seconds']:.3g} s, measured {median(row):.3g} s."
    )


def _notes(rows: Sequence[Row]) -> str:
    losses = losses_agree((row for row in rows if not row["way"].endswith(ROUNDED)), than="those of device 0 alone")
    last = f"{losses} {in_turns(rows[0])}"
    return bullets([limits(rows[0]), *map(_note, rows), _describe_bandwidth(rows), _ratios_alone(rows), last])


def _ratios_alone(rows: Sequence[Row]) -> str:
    """Return a note on how well measured speeds predict the step times of the devices alone."""
    alone = [median(row) for row in rows if row["way"].startswith("device")]
    shares = next((row["measured"]["shares"] for row in rows if "measured" in row), None)
    if shares is None or len(alone) != len(shares):
        return ""
    ratios = [(shares[0] / share, seconds / alone[0]) for share, seconds in zip(shares[1:], alone[1:], strict=True)]
    parts = [f"{said:.3g} predicted, {real:.3g} measured ({said / real - 1:+.0%})" for said, real in ratios]
    return f"Speed of device 0 over that of each other device: {'; '.join(parts)}."


def _step_traffic(row: Row) -> Mapping[str, int]:
    """Return the traffic of a row's step; older rows lack it, and it is counted from the lowered graph."""
    if "sent_bytes" in row:
        return row
    with command_line.capture_stderr():
        from benchmarks.frameworks.cluster_nets import sent_by
    return sent_by(row["network"], row["batch_size"], row["layout"], row["sizes"])


def _describe_bandwidth(rows: Sequence[Row]) -> str:
    """Return a note on the bandwidth from which on a step of the filter split is shorter than one on device 0 alone."""
    ways = {row["way"]: row for row in succeeded(rows)}
    filters, measured = ways.get(f"filters, {GRID}"), ways.get(f"filters, {MEASURED}")
    if filters is None or measured is None or "device 0 alone" not in ways:
        return ""
    sent, shares = _step_traffic(filters), measured["measured"]["shares"]
    alone = median(ways["device 0 alone"])
    ideal = alone * shares[0] / sum(shares)
    messages = sent["busiest_link_messages"]
    left = alone - ideal - messages * _MESSAGE_SECONDS
    faster = f"from {number(sent['busiest_link_bytes'] / left / MB)} MB/s on" if left > 0 else "at no bandwidth"
    return (
        f"{filters['way']}, {split(filters, _SHOWN_DIMS) or '-'}: a step sends {number(sent['sent_bytes'] / MB)} MB, "
        f"{number(sent['busiest_link_bytes'] / MB)} MB of it over the busiest link ({messages} messages). "
        "Assume a network such as RDMA or NVLink: bytes cost no processor time, a message 10 us, and nothing overlaps. "
        f"Then the filter split is faster than device 0 alone {faster}: computing needs {number(ideal)} s at the sum "
        f"of the measured speeds, and device 0 alone needs {number(alone)} s."
    )


def _kind(row: Row) -> str:
    alone, even, measured, grid, ddp = _COLOURS
    way = row["way"]
    if way.startswith(DDP):
        return ddp
    if way.startswith("device"):
        return alone
    return measured if MEASURED in way else grid if way.endswith(GRID) else even


def _ratios(groups: Iterable[Sequence[Row]], slow: str | None, fast: str) -> list[float]:
    """Return the ratio of two ways' step times, per setting that has both; None is the fastest device alone."""
    ratios = []
    for group in groups:
        seconds: dict[str | None, float] = {row["way"]: median(row) for row in succeeded(group)}
        alone = [s for way, s in seconds.items() if way and way.startswith("device")]
        seconds |= {None: min(alone)} if alone else {}
        if slow in seconds and fast in seconds:
            ratios.append(seconds[slow] / seconds[fast])
    return ratios


def _conclude(groups: Sequence[Sequence[Row]]) -> list[str]:
    texts = []
    for recipe, name in (("batch", "the batch split"), ("filters", "the filter split")):
        others = {
            "over an even split": f"{recipe}, {EVEN}",
            "over the fastest device alone": None,
            "over the best of a grid": f"{recipe}, {GRID}",
        }
        ratios = {text: _ratios(groups, other, f"{recipe}, {MEASURED}") for text, other in others.items()}
        faster = [f"{span(of)} {text}" for text, of in ratios.items() if of]
        texts += [f"Speedup of {name} by measured speeds: {', '.join(faster)}."] if faster else []
    ddp = [_ratios(groups, f"{DDP}, {way}", f"batch, {MEASURED}") for way in (EVEN, GRID)]
    if all(ddp):
        texts.append(
            f"PyTorch DDP needs {span(ddp[0])} times as long as the batch split by measured speeds; with the best of "
            f"the same grid {span(ddp[1])} times."
        )
    best = max((row for group in groups for row in succeeded(group)), key=lambda row: median(row, "efficiency"))
    texts.append(
        f"Best efficiency: {median(best, 'efficiency'):.2f}, {best['network']}, batch {best['batch_size']}, by "
        f"{best['way']} ({median(best, 'speedup'):.2f} times as fast as device 0 alone)."
    )
    return texts


def _draw(groups: Mapping[str, Sequence[Row]], path: pathlib.Path) -> None:
    longest = max(map(len, groups.values()))
    with drawing.panels(path, len(groups), 2, height=1.15 + 0.22 * longest, colours=_COLOURS) as axes:
        for ax, (text, rows) in zip(axes, groups.items(), strict=True):
            colours = [_COLOURS[_kind(row)] for row in rows]
            drawing.bars(ax, {row["way"]: row["efficiency"] for row in rows}, colours, "efficiency")
            ax.set_title(text.replace(", batches", "\nbatches").replace(", workers", "\nworkers"))


def render(rows: Sequence[Row]) -> Report:
    """Return the report: a table per network and cluster."""
    order = [(setting.network, setting.fractions, setting.batch_size) for setting in SETTINGS]

    def place(row: Row) -> int:
        setting = (row["network"], tuple(row["fractions"]), row["batch_size"])
        return order.index(setting) if setting in order else len(order)

    rows = sorted(rows, key=place)
    parts: list[Part] = [
        "Median (minimum to maximum) over the repeats. Efficiency is images per second over the sum of the devices' "
        "images per second alone. The speedup is over device 0, the fastest, alone. All workers have the same memory, "
        "so a split by memory is the even one.",
    ]
    if any(row["date"] < _PLANNER_SINCE for row in rows if "measured" in row):
        parts.append(
            "The rows with measured speeds before 2026-11-23 are of the first engine of `--list_speed=auto`, which the "
            "planner has replaced."
        )
    groups = group_by(rows, lambda row: _title(row, f"{row['network']}, batch {row['batch_size']}"))
    for title, group in groups.items():
        details = Details("Each device's use of a step", [_usage(group)])
        parts += [f"## {title}", tabulate(group, _COLUMNS), _notes(group), details]
    drawn = group_by(succeeded(rows), lambda row: _title(row, drawing.title(row)))
    return Report(
        _conclude(list(groups.values())), parts, "Efficiency of each way to split", functools.partial(_draw, drawn)
    )
