"""The report on reading: images per second by who makes the batches, on links of several speeds."""

import functools
import pathlib
from collections.abc import Mapping, Sequence

from benchmarks import drawing
from benchmarks.cases.reading import ALONE, ARRAYS, FILES, SENT
from benchmarks.renderers.document import Part, Report
from benchmarks.renderers.tables import MB, Row, bullets, could_not, describe_link, group_by, median, span, tabulate

_WAYS = {
    ALONE: "one worker, reads the files",
    SENT: "sent by the training process",
    FILES: "each worker reads its files",
    ARRAYS: "arrays, sent once",
}
_COLUMN = "images_per_second"


def _ratios(groups: Mapping[str, Sequence[Row]], way: str, than: str) -> list[float]:
    """Return how many times as fast a way is as another one, in each setting that has both."""
    speeds = [{row["way"]: median(row, _COLUMN) for row in rows} for rows in groups.values()]
    return [each[way] / each[than] for each in speeds if {way, than} <= each.keys()]


def _draw(groups: Mapping[str, Sequence[Row]], path: pathlib.Path) -> None:
    colours = dict(zip(_WAYS, drawing.COLOURS, strict=False))
    legend = {_WAYS[way]: colour for way, colour in colours.items()}
    with drawing.panels(path, len(groups), 3, width=3.06, height=2.2, colours=legend, ncols=2, sharex=True) as axes:
        for ax, (setting, rows) in zip(axes, groups.items(), strict=True):
            lengths = {row["way"]: row[_COLUMN] for row in rows}
            drawing.bars(ax, lengths, [colours[way] for way in lengths], "images per second")
            ax.set_title(setting)


def render(rows: Sequence[Row]) -> Report:
    """Return the report: a table of all settings."""
    groups = group_by(rows, describe_link)
    columns = {
        "link": describe_link,
        "who makes the batches": lambda row: _WAYS[row["way"]],
        "images/s": lambda row: row[_COLUMN],
        "MB sent per epoch": lambda row: f"{row['sent_bytes'] / MB:.1f}",
    }
    first = rows[0]
    conclusions = [
        f"Workers that read their own files are {span(_ratios(groups, FILES, SENT))} times as fast as those that are "
        f"sent their parts of a batch, and {span(_ratios(groups, FILES, ALONE))} times as fast as one of them alone.",
        f"With arrays, of which each step is sent row numbers, they are {span(_ratios(groups, ARRAYS, ALONE))} times "
        "as fast as one alone that reads files.",
        f"The losses of all ways are the same, within {max(row['loss_error'] for row in rows):.1e} of their value.",
    ]
    parts: list[Part] = [
        f"Two workers of {' and '.join(f'{share:g}' for share in first['devices'])} core train on images of "
        f"{first['pixels']} x {first['pixels']}, of which the network of one convolution computes less than the "
        f"decoder of PNG does. Images per second: median (minimum to maximum) of the epochs of {first['repeats']} "
        "trainings in turns, without the first epoch; of arrays, without the first three, in which they are sent. "
        "Each process sends at most what its link lets pass. Sent is what goes over the links in the last epoch. The "
        "training process shares the two cores with the workers, whose images it draws or sends.",
        tabulate(rows, columns, labels=2),
        bullets(could_not("measured", rows)),
    ]
    return Report(conclusions, parts, "Images per second by who makes the batches", functools.partial(_draw, groups))
