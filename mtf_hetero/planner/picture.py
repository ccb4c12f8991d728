"""Draw a plan: who computes what of each layer, after Figure 5 of Moreno-Alvarez et al. (2021), and when.

The upper part has a row for each layer, with a bar per device. The length of a bar is the device's part, and its colour
says what is split. A last column shows the traffic. The lower part has a lane for each device, with the predicted step.

All letters have at least 7 points on a page of 8 inches, so that they are legible at 800 pixels.
"""

import dataclasses
import os
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from mtf_hetero._support import figures, files
from mtf_hetero.planner import outline as outlines
from mtf_hetero.planner import verdict
from mtf_hetero.planner.plan import Plan

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_KINDS: Mapping[str, tuple[str, str]] = {  # of Okabe and Ito's colours: (colour, text of the legend)
    "batch": ("#0072B2", "batch"),
    "outputs": ("#D55E00", "filters, units"),
    "inputs": ("#E69F00", "channels, inputs"),
    "space": ("#009E73", "height, depth"),
    "other": ("#CC79A7", "another dimension"),
    outlines.WHOLE: ("#C9CED6", "whole on each"),
}
_DARKER = {"#E69F00": "#946200", "#C9CED6": "#5F6C7B", "#D55E00": "#B34F00"}  # of letters on white
_SOFT, _TRACK, _LINK = "#5F6C7B", "#EEF0F3", "#8A94A6"
_WIDTH, _EDGE = 8.0, 0.2  # inches, as all lengths
_LEAST_POINTS = 7.0  # of letters, which are 8.5 where there is room
_LEAST_SENT = 1000  # bytes: parts of a loss, which only take room
_ROW, _LEAST_ROW, _LANE, _MOST_ROWS_HEIGHT = 0.28, 0.2, 0.62, 10.0
_HEAD, _AXIS = 1.72, 0.5  # above the rows, and below the lanes
_SENT = 1.0  # the column of traffic
_CHARACTER = 0.57  # a letter's width, of its height
_PALER = 0.55  # of the way to white: the backward pass beside the forward pass of its layer
_DPI = 200  # of PNG: 1,600 pixels wide
_MOST_PARTS = 64  # of a bar: of more, no line between two could be seen


def draw(plan: Plan, path: str | os.PathLike, *, title: str = "", offered: Iterable[str] = ()) -> None:
    """Write the picture of a plan, as PNG, SVG or PDF by the ending of its name.

    Args:
      plan: as `find` gives it; one from a file has no timeline, and its picture none.
      path: of the picture.
      title: of the network, "vgg16, batches of 128".
      offered: all devices that there were; those that the plan leaves out are named.

    Raises:
      ValueError: it cannot be written, or matplotlib is not installed.
    """
    figures.check_ending("path", path)
    shown = outlines.outline(plan)
    content = figures.render(_Drawing(plan, shown).figure(title, offered), path, _DPI)
    try:
        files.write_bytes(path, content)
    except OSError as error:
        raise ValueError(
            f"picture {os.fspath(path)!r} cannot be written: {error.strerror}; name another file"
        ) from error


def _import(module: str) -> Any:
    return figures.matplotlib(module, "a picture of a plan")


def _text_width(text: str, points: float) -> float:
    return len(text) * points * _CHARACTER / 72


def _shortened(text: str, width: float, points: float) -> str:
    """Return as much of a text as has room, with dots for the rest."""
    most = max(4, int(width * 72 / points / _CHARACTER))
    return text if len(text) <= most else f"{text[: most // 2 - 1]}...{text[len(text) - most + most // 2 + 2 :]}"


def _pale(colour: str) -> str:
    """Return a colour mixed with white."""
    parts = (int(colour[i : i + 2], 16) for i in (1, 3, 5))
    return "#" + "".join(f"{round(255 - (255 - part) * (1 - _PALER)):02X}" for part in parts)


@dataclasses.dataclass
class _Drawing:
    """The picture of a plan; `figure` draws it."""

    plan: Plan
    shown: outlines.Outline

    def __post_init__(self) -> None:
        rows = max(1, len(self.shown.rows))
        self.row = max(_LEAST_ROW, min(_ROW, _MOST_ROWS_HEIGHT / rows))
        self.points = max(_LEAST_POINTS, min(8.5, self.row * 72 * 0.5))
        names = max((_text_width(row.name, self.points) for row in self.shown.rows), default=0.0)
        self.names = min(2.0, names + 0.1)
        self.whats = max((_text_width(row.what, self.points) for row in self.shown.rows), default=0.0) + 0.2
        self.first = _EDGE + self.names + self.whats  # where the bars begin
        self.column = (_WIDTH - _EDGE - _SENT - self.first) / len(self.shown.columns)
        self.below = _AXIS + 0.6 + _LANE * len(self.shown.lanes) if self.plan.timeline else 0.2
        self.height = _HEAD + rows * self.row + self.below

    def figure(self, title: str, offered: Iterable[str]) -> "Figure":
        """Return the matplotlib figure."""
        self.patches = _import("patches")
        figure = _import("figure").Figure(figsize=(_WIDTH, self.height))
        self.ax = figure.add_axes((0, 0, 1, 1), xlim=(0, _WIDTH), ylim=(self.height, 0))  # inches from the upper left
        self.ax.axis("off")
        self._head(title, offered)
        for number, row in enumerate(self.shown.rows):
            self._row(row, _HEAD + number * self.row)
        if self.plan.timeline:
            self._lanes(figure)
        return figure

    def _write(self, x: float, y: float, text: str, points: float, **options: Any) -> None:
        options = {"color": figures.INK, "va": "center", **options}
        self.ax.text(x, y, text, fontsize=points, parse_math=False, **options)

    def _box(self, ax: "Axes", x: float, y: float, width: float, height: float, kind: str, **options: Any) -> None:
        """Draw a rectangle in the colour of a kind; a layer that is whole on each device is hatched."""
        options = {"facecolor": _KINDS[kind][0], "edgecolor": "white", "linewidth": 0.6, **options}
        if kind == outlines.WHOLE:
            options["hatch"] = "////"
        ax.add_patch(self.patches.Rectangle((x, y), width, height, **options))

    def _head(self, title: str, offered: Iterable[str]) -> None:
        devices = verdict.names_text(self.plan.devices)
        first = f"{title}: {devices}" if title else devices
        self._write(_EDGE, 0.26, _shortened(first, _WIDTH - 2 * _EDGE, 12), 12, weight="bold")
        second = " ".join(verdict.sentences(self.plan, offered))
        self._write(_EDGE, 0.52, _shortened(second, _WIDTH - 2 * _EDGE, 9), 9, color=_SOFT)
        x = _EDGE
        for kind, (_, words) in _KINDS.items():
            if any(row.kind == kind for row in self.shown.rows):
                self._box(self.ax, x, 0.74, 0.2, 0.14, kind)
                self._write(x + 0.26, 0.815, words, 8)
                x += 0.45 + 0.9 * _text_width(words, 8)
        self._heading(_HEAD - 0.5, "Who computes what", "a bar is a device's part of the layer, with its size")
        y = _HEAD - 0.15
        self._write(_EDGE, y, "layer", 8, color=_SOFT)
        self._write(_EDGE + self.names, y, "split", 8, color=_SOFT)
        for number, column in enumerate(self.shown.columns):
            self._device(self.first + number * self.column, y, column.name, self.column - 0.08)
        self._write(_WIDTH - _SENT, y, "MB sent", 8, color=_SOFT)

    def _device(self, x: float, y: float, name: str, room: float) -> None:
        """Write a device's name, in letters as small as necessary."""
        points = max(_LEAST_POINTS, min(8.5, 8.5 * room / _text_width(f"{name}x", 8.5)))
        self._write(x, y, _shortened(name, room, points), points, weight="bold")

    def _heading(self, y: float, words: str, more: str) -> None:
        self._write(_EDGE, y, words, 9.5, weight="bold")
        self._write(_EDGE + 1.15 * _text_width(words, 9.5) + 0.15, y, more, 8, color=_SOFT)

    def _row(self, row: outlines.Row, top: float) -> None:
        middle, thick = top + self.row / 2, self.row * 0.74
        self._write(_EDGE, middle, _shortened(row.name, self.names, self.points), self.points)
        colour = _KINDS[row.kind][0]
        self._write(_EDGE + self.names, middle, row.what, self.points, color=_DARKER.get(colour, colour))
        room = self.column - 0.1
        for number, bar in enumerate(row.bars):
            x = self.first + number * self.column
            self._box(self.ax, x, middle - thick / 2, room, thick, "batch", facecolor=_TRACK)
            if bar is not None:
                length = room * (1.0 if row.kind == outlines.WHOLE else bar.length / self.shown.widest)
                self._bar(row.kind, bar, x, middle, length, thick)
        self._draw_traffic(row, middle, thick)

    def _bar(self, kind: str, bar: outlines.Bar, x: float, middle: float, length: float, thick: float) -> None:
        parts = bar.fractions if kind != outlines.WHOLE and len(bar.fractions) <= _MOST_PARTS else (1.0,)
        edges = 0.6 if length / len(parts) > 0.04 else 0.0
        left = x
        for fraction in parts:
            width = length * fraction / sum(parts)
            self._box(self.ax, left, middle - thick / 2, width, thick, kind, linewidth=edges)
            left += width
        if len(parts) > 1 or _text_width(bar.text, self.points) + 0.06 > self.column - 0.1:
            return
        inside = _text_width(bar.text, self.points) + 0.06 < length
        if kind == outlines.WHOLE:
            options: dict[str, Any] = {"bbox": {"facecolor": "white", "edgecolor": "none", "pad": 1.0}}
        else:
            options = {
                "color": "white" if inside and kind != "inputs" else figures.INK,
                "weight": "bold" if inside else "normal",
            }
        place = (x + length / 2, "center") if inside else (x + length + 0.05, "left")
        self._write(place[0], middle, bar.text, self.points, ha=place[1], **options)

    def _draw_traffic(self, row: outlines.Row, middle: float, thick: float) -> None:
        if row.sent_bytes < _LEAST_SENT:
            return
        most = max(other.sent_bytes for other in self.shown.rows)
        x, length = _WIDTH - _SENT, 0.4 * row.sent_bytes / most
        self._box(self.ax, x, middle - thick / 4, max(length, 0.01), thick / 2, "batch", facecolor=_LINK, linewidth=0)
        megabytes = row.sent_bytes / 1e6
        text = f"{megabytes:,.0f}" if megabytes >= 100 else f"{megabytes:.2g}"
        self._write(x + length + 0.05, middle, text, self.points)

    def _lanes(self, figure: "Figure") -> None:
        """Draw the predicted step: a lane for each column."""
        unit, per_second = ("milliseconds", 1e3) if self.plan.seconds < 1 else ("seconds", 1.0)
        count = len(self.shown.lanes)
        top = self.height - self.below + 0.3
        self._heading(top, "The predicted step", "pale: backward pass and updates; light grey: the device waits")
        left = _EDGE + max(self.names, 0.9)
        width, height = _WIDTH - _EDGE - left, _LANE * count
        ax = figure.add_axes((left / _WIDTH, _AXIS / self.height, width / _WIDTH, height / self.height))
        end = self.plan.seconds * per_second
        ax.set(xlim=(0, end), ylim=(count, 0), xlabel=unit, yticks=())
        ax.tick_params(labelsize=8, color=_SOFT, labelcolor=_SOFT)
        ax.xaxis.label.set(size=8, color=_SOFT)
        for side in ("top", "left", "right"):
            ax.spines[side].set_visible(False)
        ax.spines["bottom"].set_color(_SOFT)
        for number, (column, blocks) in enumerate(zip(self.shown.columns, self.shown.lanes, strict=True)):
            y = self.height - _AXIS - height + (number + 0.5) * _LANE
            self._device(_EDGE, y, column.name, left - _EDGE - 0.08)
            if len(column.devices) > 1:
                self._write(_EDGE, y + 0.15, "(the busiest)", 7, color=_SOFT)
            self._box(ax, 0, number + 0.1, end, 0.8, "batch", facecolor=_TRACK, linewidth=0)
            for block in blocks:
                self._block(ax, block, number, per_second, width / end)

    def _block(self, ax: "Axes", block: outlines.Block, lane: int, per_second: float, inches: float) -> None:
        kind = outlines.WHOLE if block.row is None else self.shown.rows[block.row].kind
        begin, length = block.begin * per_second, (block.end - block.begin) * per_second
        room = length * inches
        options: dict[str, Any] = {"facecolor": _pale(_KINDS[kind][0])} if block.backward else {}
        between = 0.01 / inches if room > 0.04 else 0.0
        self._box(ax, begin, lane + 0.1, length - between, 0.8, kind, linewidth=0, **options)
        if block.row is None:
            return
        row = self.shown.rows[block.row]
        for text, points in self._labels(row):
            wide = _text_width(text, points)
            level = wide < room - 0.1
            if level or (wide < 0.8 * _LANE - 0.06 and points / 72 < room - 0.02):
                colour = figures.INK if block.backward or kind in ("inputs", outlines.WHOLE) else "white"
                options = {"ha": "center", "va": "center", "color": colour, "rotation": 0 if level else 90}
                ax.text(begin + length / 2, lane + 0.5, text, fontsize=points, parse_math=False, **options)
                return

    def _labels(self, row: outlines.Row) -> list[tuple[str, float]]:
        """Return labels of a block and their sizes: its last name only if no other row has the same."""
        tails = [other.name.rpartition("/")[2] for other in self.shown.rows]
        tail = row.name.rpartition("/")[2]
        labels = [(row.name, _LEAST_POINTS)]
        return [*labels, (tail, _LEAST_POINTS)] if len(row.layers) == 1 and tails.count(tail) == 1 else labels
