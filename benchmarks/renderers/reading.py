"""The report on reading: images per second by who makes the batches, on links of several speeds."""

import functools
import pathlib
from collections.abc import Mapping, Sequence

from benchmarks import drawing
from benchmarks.cases.reading import ALONE, ARRAYS, DDP, FILES, LOADERS, MIRRORED, SENT
from benchmarks.renderers.document import Part, Report
from benchmarks.renderers.tables import (
    MB,
    Row,
    bullets,
    could_not,
    describe_link,
    group_by,
    median,
    span,
    succeeded,
    tabulate,
)

_WAYS = {
    ALONE: "one worker, reads the files",
    SENT: "sent by the training process",
    FILES: "each worker reads its files",
    ARRAYS: "arrays, sent once",
    MIRRORED: "MultiWorkerMirroredStrategy",
    DDP: "PyTorch DDP",
    LOADERS: "PyTorch DDP, a process loads",
}
_COLUMN = "images_per_second"


def _ratios(groups: Mapping[str, Sequence[Row]], way: str, *than: str) -> str:
    """Return how many times as fast a way is as the fastest of others, in the settings that have them; "" for none."""
    speeds = [{row["way"]: median(row, _COLUMN) for row in rows} for rows in groups.values()]
    found = [each[way] / max(each[other] for other in than) for each in speeds if {way, *than} <= each.keys()]
    return span(found) if found else ""


def _draw(groups: Mapping[str, Sequence[Row]], path: pathlib.Path) -> None:
    ways = [way for way in _WAYS if any(row["way"] == way for rows in groups.values() for row in rows)]
    colours = dict(zip(ways, drawing.COLOURS, strict=False))
    legend = {_WAYS[way]: colour for way, colour in colours.items()}
    with drawing.panels(
        path, len(groups), 3, width=3.06, height=1.2 + 0.22 * len(ways), colours=legend, ncols=2
    ) as axes:
        for ax, (setting, rows) in zip(axes, groups.items(), strict=True):
            lengths = {row["way"]: row[_COLUMN] for row in rows}
            drawing.bars(ax, lengths, [colours[way] for way in lengths], "images per second")
            ax.set_title(setting)


def render(rows: Sequence[Row]) -> Report:
    """Return the report: a table of all settings."""
    measured = succeeded(rows)
    groups = group_by(measured, lambda row: f"{row['network']}, {describe_link(row)}")
    columns = {
        "network": lambda row: row["network"],
        "link": describe_link,
        "who makes the batches": lambda row: _WAYS[row["way"]],
        "images/s": lambda row: row[_COLUMN],
        "MB sent per epoch": lambda row: f"{row['sent_bytes'] / MB:.1f}",
    }
    first = measured[0]
    conclusions = [
        f"Workers that read their own files are {_ratios(groups, FILES, SENT)} times as fast as those that are "
        f"sent their parts of a batch, and {_ratios(groups, FILES, ALONE)} times as fast as one of them alone.",
        f"With arrays, of which each step is sent row numbers, they are {_ratios(groups, ARRAYS, ALONE)} times "
        "as fast as one alone that reads files.",
    ]
    mirrored, torch = _ratios(groups, FILES, MIRRORED), _ratios(groups, FILES, DDP, LOADERS)
    peers = [f"{mirrored} times as fast as {_WAYS[MIRRORED]}"] if mirrored else []
    peers += [f"{torch} times as fast as {_WAYS[DDP]}"] if torch else []
    if peers:
        conclusions.append(f"Workers that read their own files are {', and '.join(peers)}, whose ranks do so too.")
    error = max(row["loss_error"] for row in measured if "loss_error" in row)
    conclusions.append(f"The losses of all ways are the same, within {error:.1e} of their value.")
    parts: list[Part] = [
        f"Two workers of {' and '.join(f'{share:g}' for share in first['devices'])} core train on images of "
        f"{first['pixels']} x {first['pixels']}, of which the network of one convolution computes less than the "
        "decoder of PNG does. Images per second: median (minimum to maximum) of the epochs of "
        f"{span((row['repeats'] for row in measured), 'd')} trainings in turns, without the first epoch; of arrays, "
        "without the first three, in which they are sent. "
        "Each process sends at most what its link lets pass. Sent is what goes over the links in the last epoch. The "
        "training process shares the two cores with the workers, whose images it draws or sends.",
        tabulate(rows, columns, labels=3),
        bullets([*_notes(measured), *could_not("measured", rows)]),
    ]
    return Report(conclusions, parts, "Images per second by who makes the batches", functools.partial(_draw, groups))


def _notes(rows: Sequence[Row]) -> list[str]:
    """Return notes on the ways that some rows have."""
    ways = {row["way"] for row in rows}
    notes = {
        MIRRORED: f"{_WAYS[MIRRORED]}: the loop of its guide, because Keras 3 refuses the strategy in `fit`.",
        DDP: f"{_WAYS[DDP]}: Pillow decodes the images, in the rank's process or in another on the same core.",
    }
    compared = "The losses of ResNet-50 are not compared: its batch norm amplifies the rounding of float32."
    deep = [compared] if any("loss_error" not in row for row in rows) else []
    return [*(note for way, note in notes.items() if way in ways), *deep]
