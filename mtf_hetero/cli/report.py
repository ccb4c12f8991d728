"""Draws what changed in a training: the shares of the devices, how busy they were, the step time, and each event.

    mtf-hetero report runs/vgg
    mtf-hetero report runs/vgg --picture=vgg.svg

It reads MODEL_DIR/metrics.jsonl, prints a line for each event, and writes MODEL_DIR/report.png. The training may still
run. A warning counts invalid rows, which are skipped.

Exit codes: 0, 2 for a directory without rows or a picture that cannot be written (one line says which).
"""

import argparse
import itertools
import os
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from mtf_hetero._support import command_line, figures, tables
from mtf_hetero._support.schema import Many, Number, Record, Table, Text
from mtf_hetero.estimator import metrics_log
from mtf_hetero.estimator.metrics_log import Values

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

PROGRAM = "mtf-hetero report"
_FLAG, _PICTURE = "picture", "report.png"
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#E69F00", "#CC79A7", "#56B4E9", "#8A94A6", "#B34F00")
_GRID = "#E3E7EC"
_DPI = 100  # 8 inches are 800 pixels
_STEP = Number(integer=True, least=0, most=2**53)  # larger ones are no exact floats, which a picture has
_SIZES = Table(Many(Number(integer=True, least=0)))
SCHEMAS = {  # of the rows that are drawn; a row may have other fields too
    "busy": Record({"step": _STEP, "step_seconds": Number(above=0), "busy_seconds": Table(Number(least=0))}),
    "event": Record(
        {
            "step": _STEP,
            "why": Text(),
            "seconds_paused": Number(least=0),
            "devices": Text(least=1),
            "devices_before": Text(least=1),
            "sizes": _SIZES,
            "sizes_before": _SIZES,
        }
    ),
}


def _parse(argv: Sequence[str] | None, program: str) -> argparse.Namespace:
    parser = command_line.Parser(
        prog=program, description="Draws what changed in a training: shares, busy devices, step time and events."
    )
    parser.add_argument("model_dir", metavar="MODEL_DIR", help="directory of the run")
    parser.add_argument(f"--{_FLAG}", metavar="FILE", help=f"picture to write (default: MODEL_DIR/{_PICTURE})")
    return parser.parse_args(argv)


def _do(arguments: argparse.Namespace) -> str:
    path = os.path.join(arguments.model_dir, metrics_log.NAME)
    picture = arguments.picture or os.path.join(arguments.model_dir, _PICTURE)
    if not os.path.isfile(path):
        raise ValueError(
            f"MODEL_DIR is {arguments.model_dir!r}, which has no {metrics_log.NAME}; name a run's directory"
        )
    rows, faults = _valid(metrics_log.read(path))
    if faults:
        are = "1 row is" if len(faults) == 1 else f"{len(faults):,} rows are"
        sys.stderr.write(f"warning: {are} invalid and skipped in {path}: {faults[0]}\n")
    if not rows:
        raise ValueError(f"{path} has no rows of kind busy or event; train longer, and without --busy_steps=0")
    figures.check_output(_FLAG, picture)
    command_line.write_output(_FLAG, picture, figures.render(draw(rows, arguments.model_dir), picture, _DPI))
    events = [row for row in rows if row["kind"] == "event"]
    cells = [
        (str(number), str(row["step"]), f"{row['seconds_paused']:.1f}", " ".join(row["why"].split()))
        for number, row in enumerate(events, 1)
    ]
    lines = tables.lines([("event", "step", "paused s", "why"), *cells], ">>><") if events else ["no event"]
    return "\n".join([*lines, f"picture: {picture}\n"])


def _valid(rows: Sequence[Values]) -> tuple[list[Values], list[str]]:
    """Return the valid rows of those kinds that are drawn, and a text about each invalid one."""
    valid: list[Values] = []
    faults = []
    for row in rows:
        if row["kind"] not in SCHEMAS:
            continue
        schema = SCHEMAS[row["kind"]]
        try:
            values = schema.read({name: value for name, value in row.items() if name in schema.fields})
        except ValueError as error:
            faults.append(f"{row['kind']} of step {row['step']}: {error}")
        else:
            valid.append({"kind": row["kind"], **values})
    return valid, faults


def draw(rows: Sequence[Values], title: str) -> "Figure":
    """Return the picture of a run: a panel for shares, one for busy devices and one for the step time."""
    events, busy = ([row for row in rows if row["kind"] == kind] for kind in ("event", "busy"))
    last = max(row["step"] for row in rows)
    named = [row[place].split(", ") for row in events for place in ("devices_before", "devices")]
    devices = list(dict.fromkeys(itertools.chain(*(row["busy_seconds"] for row in busy), *named)))
    colours = dict(zip(devices, itertools.cycle(_COLOURS)))
    panels = [_draw_busy, _draw_seconds] if busy else []
    panels = [_draw_shares, *panels] if events else panels
    figure = figures.matplotlib("figure", PROGRAM).Figure(figsize=(8, 0.6 + 2.1 * len(panels)), layout="constrained")
    all_axes = figure.subplots(len(panels), 1, sharex=True, squeeze=False)
    for (axes,), panel in zip(all_axes, panels, strict=True):
        panel(axes, busy if panel is not _draw_shares else events, colours, last)
        axes.set_xlim(0, max(last, 1))
        axes.grid(color=_GRID, linewidth=0.6)
        axes.spines[["top", "right"]].set_visible(False)
        for number, event in enumerate(events, 1):
            axes.axvline(event["step"], color=figures.INK, linewidth=0.9, linestyle=":")
            if axes is all_axes[0][0]:
                place = {"xytext": (0, 2), "textcoords": "offset points", "ha": "center", "color": figures.INK}
                axes.annotate(str(number), (event["step"], axes.get_ylim()[1]), **place)
    all_axes[-1][0].set_xlabel("step")
    handles, labels = all_axes[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper right", ncols=min(len(labels), 5), frameon=False)
    figure.suptitle(title, x=0.01, ha="left", color=figures.INK)
    return figure


def _shares(sizes: Mapping[str, Sequence[int]], devices: str) -> dict[str, float]:
    """Return {device: its share} of the first dimension that is split over all devices; nothing if none is."""
    names = devices.split(", ")
    for of_name in sizes.values():
        if len(of_name) == len(names) and sum(of_name):
            return {name: size / sum(of_name) for name, size in zip(names, of_name, strict=True)}
    return {names[0]: 1.0} if len(names) == 1 else {}


def _draw_shares(axes: "Axes", events: Sequence[Values], colours: Mapping[str, str], last: int) -> None:
    steps = [0, *(event["step"] for event in events), last]
    parts = [_shares(events[0]["sizes_before"], events[0]["devices_before"])]
    parts += [_shares(event["sizes"], event["devices"]) for event in events]
    below = [0.0] * len(steps)
    for device, colour in colours.items():
        above = [low + part.get(device, 0.0) for low, part in zip(below, [*parts, parts[-1]], strict=True)]
        axes.fill_between(steps, below, above, step="post", color=colour, alpha=0.85, linewidth=0, label=device)
        below = above
    axes.set_ylim(0, 1)
    axes.set_ylabel("share of the split")


def _draw_busy(axes: "Axes", busy: Sequence[Values], colours: Mapping[str, str], last: int) -> None:
    for device, colour in colours.items():
        points = [
            (row["step"], row["busy_seconds"][device] / row["step_seconds"])
            for row in busy
            if device in row["busy_seconds"]
        ]
        if points:
            axes.plot(*zip(*points, strict=True), color=colour, linewidth=1.3, label=device)
    axes.set_ylim(0, 1.05)
    axes.set_ylabel("busy part of a step")


def _draw_seconds(axes: "Axes", busy: Sequence[Values], colours: Mapping[str, str], last: int) -> None:
    axes.plot([row["step"] for row in busy], [row["step_seconds"] for row in busy], color=figures.INK, linewidth=1.3)
    axes.set_ylim(bottom=0)
    axes.set_ylabel("step time, s")


def main(argv: Sequence[str] | None = None, program: str = PROGRAM) -> int:
    """Draw as the command line says; return the exit code."""
    arguments = _parse(argv, program)
    return command_line.print_result(lambda: _do(arguments))
