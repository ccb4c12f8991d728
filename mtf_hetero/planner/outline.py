"""Outline the picture of a plan before anything is drawn: columns of devices, rows of layers, lanes.

In a network of many layers, consecutive layers with the same split share a row. Many devices share a few columns, those
of one kind together.
"""

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from mtf_hetero.planner.plan import LayerPlan, Plan

if TYPE_CHECKING:
    from mtf_hetero.cost.timeline import Span

MOST_ROWS = 28  # of a row for each layer
MOST_COLUMNS = 8  # their names have room beside each other
WHOLE = ""  # the kind of a replicated layer
_NEAR = 0.01  # how far fractions of layers in one row may differ


@dataclasses.dataclass(frozen=True)
class Column:
    """Devices that share a column, and a lane."""

    name: str
    devices: tuple[int, ...]


@dataclasses.dataclass(frozen=True)
class Bar:
    """The part of a row that the devices of a column compute.

    Args:
      fractions: of the layer, one per device that takes part; 1 for each device that computes all of it.
      text: the sizes, or percentages if the layers of a row differ in size.
    """

    fractions: tuple[float, ...]
    text: str

    @property
    def length(self) -> float:
        """The sum of the fractions; 1 if each device computes all of the layer."""
        return min(1.0, sum(self.fractions))


@dataclasses.dataclass(frozen=True)
class Row:
    """Consecutive layers that are split alike; in a small network, one layer.

    Args:
      layers: their names.
      kind: of the split, as `LayerPlan.kind`.
      what: the dimension's name, and its extent if all have the same.
      bars: one per column; None if no device takes part.
      sent_bytes: by all devices in a step.
    """

    layers: tuple[str, ...]
    kind: str
    what: str
    bars: tuple[Bar | None, ...]
    sent_bytes: int

    @property
    def name(self) -> str:
        """The layer, or the first and the last."""
        return span_text(self.layers)


@dataclasses.dataclass(frozen=True)
class Block:
    """The part of a lane between two moments.

    Args:
      row: the number of the row whose layers are computed; None: other work.
      backward: as `timeline.Span.backward`.
      begin: seconds since the step began.
      end: likewise.
    """

    row: int | None
    backward: bool
    begin: float
    end: float


@dataclasses.dataclass(frozen=True)
class Outline:
    """A picture."""

    columns: tuple[Column, ...]
    rows: tuple[Row, ...]
    lanes: tuple[tuple[Block, ...], ...]

    @property
    def widest(self) -> float:
        """The largest length of a bar of a split layer; 1 without one."""
        lengths = [bar.length for row in self.rows if row.kind != WHOLE for bar in row.bars if bar is not None]
        return max(lengths, default=1.0)


def span_text(names: Sequence[str]) -> str:
    """Return the first and the last of some names, or the only one.

    Example:
      >>> span_text(["conv1", "conv2", "conv3"])
      'conv1 to conv3'
    """
    return names[0] if len(names) == 1 else f"{names[0]} to {names[-1]}"


def outline(plan: Plan) -> Outline:
    """Return the outline of the picture of a plan."""
    columns = _columns(plan.devices)
    layers = working_layers(plan)
    groups = grouped(layers) if len(layers) > MOST_ROWS else [[layer] for layer in layers]
    rows = tuple(_row(group, columns, plan.extents) for group in groups)
    row_of = {name: number for number, row in enumerate(rows) for name in row.layers}
    return Outline(columns, rows, tuple(_lane(plan, column, row_of) for column in columns))


def working_layers(plan: Plan) -> list[LayerPlan]:
    """Return the layers that take time or send something, with one size per device."""
    return [_by_device(layer, plan) for layer in plan.layers if any(layer.seconds) or any(layer.sent_bytes)]


def _by_device(layer: LayerPlan, plan: Plan) -> LayerPlan:
    """Return a layer with one size per device of the split dimension, on a mesh of two axes too."""
    axis = plan.layout.axis_of(layer.along)
    if axis is None or len(plan.layout.mesh_shape) == 1:
        return layer
    sizes = layer.split[layer.along]
    of_devices = tuple(sizes[plan.layout.coordinates(pnum)[axis]] for pnum in range(len(plan.devices)))
    return dataclasses.replace(layer, split={layer.along: of_devices})


def name_ranges(devices: Sequence[str]) -> list[tuple[str, tuple[int, ...]]]:
    """Return (name, numbers) of devices; those of a kind with consecutive numbers come together.

    Example:
      >>> name_ranges(["V100:0", "V100:1", "cpu"])
      [('V100:0-1', (0, 1)), ('cpu', (2,))]
    """
    ranges: list[tuple[str, list[int], int]] = []  # (kind, numbers, the last one's own number)
    for number, name in enumerate(devices):
        kind, _, digits = name.rpartition(":")
        own = int(digits) if digits.isdecimal() else None
        if own is not None and ranges and (ranges[-1][0], ranges[-1][2] + 1) == (kind, own):
            ranges[-1] = kind, [*ranges[-1][1], number], own
        else:
            ranges.append((kind, [number], -2 if own is None else own))
    first = (devices[numbers[0]] for _, numbers, _ in ranges)
    return [
        (name if len(numbers) == 1 else f"{name}-{own}", tuple(numbers))
        for name, (_, numbers, own) in zip(first, ranges, strict=True)
    ]


def _columns(devices: Sequence[str]) -> tuple[Column, ...]:
    if len(devices) <= MOST_COLUMNS:
        return tuple(Column(name, (number,)) for number, name in enumerate(devices))
    ranges = name_ranges(devices)
    if len(ranges) <= MOST_COLUMNS:
        return tuple(Column(name, numbers) for name, numbers in ranges)
    size = -(-len(devices) // MOST_COLUMNS)
    groups = [tuple(range(first, min(first + size, len(devices)))) for first in range(0, len(devices), size)]
    return tuple(Column(f"{devices[group[0]]} to {devices[group[-1]]}", group) for group in groups)


def _fractions(layer: LayerPlan) -> tuple[float, ...]:
    """Return the fraction of a layer that each device computes."""
    if layer.kind == WHOLE:
        return tuple(1.0 if seconds else 0.0 for seconds in layer.seconds)
    sizes = layer.split[layer.along]
    total = sum(sizes)
    return tuple(size / total for size in sizes)


def grouped(layers: Iterable[LayerPlan]) -> list[list[LayerPlan]]:
    """Group consecutive layers of one kind whose fractions are near those of the first of them."""
    groups: list[list[LayerPlan]] = []
    for layer in layers:
        if groups and _alike(groups[-1][0], layer):
            groups[-1].append(layer)
        else:
            groups.append([layer])
    return groups


def _alike(one: LayerPlan, other: LayerPlan) -> bool:
    pairs = zip(_fractions(one), _fractions(other), strict=True)
    return one.kind == other.kind and all(abs(a - b) <= _NEAR and bool(a) == bool(b) for a, b in pairs)


def _row(layers: Sequence[LayerPlan], columns: Sequence[Column], extents: Mapping[str, int]) -> Row:
    first = layers[0]
    sizes = {layer.split[layer.along] for layer in layers if layer.kind != WHOLE}
    names = {layer.along.rpartition("/")[2] for layer in layers}
    same = len(sizes) == 1
    bars = [_bar(column, _fractions(first), next(iter(sizes)) if same else None, first.kind) for column in columns]
    extent = f" {extents.get(first.along, sum(next(iter(sizes))))}" if same else ""
    return Row(
        layers=tuple(layer.name for layer in layers),
        kind=first.kind,
        what="whole" if first.kind == WHOLE else f"{', '.join(sorted(names))}{extent}",
        bars=tuple(bars),
        sent_bytes=sum(sum(layer.sent_bytes) for layer in layers),
    )


def _bar(column: Column, fractions: Sequence[float], sizes: Sequence[int] | None, kind: str) -> Bar | None:
    parts = [number for number in column.devices if fractions[number]]
    if not parts:
        return None
    mine = tuple(fractions[number] for number in parts)
    if kind == WHOLE:
        return Bar(mine, "all")
    numbers = [round(100 * fraction) for fraction in mine] if sizes is None else [sizes[number] for number in parts]
    low, high = min(numbers), max(numbers)
    unit = " %" if sizes is None else ""
    text = f"{low}{unit}" if low == high else f"{low} to {high}{unit}"
    return Bar(mine, text if len(column.devices) == 1 else f"{len(parts)} x {text}")


def _lane(plan: Plan, column: Column, row_of: dict[str, int]) -> tuple[Block, ...]:
    """Return the blocks of the device of a column that computes for longest."""
    spans: dict[int, list[Span]] = {number: [] for number in column.devices}
    for span in plan.timeline:
        if span.device in spans:
            spans[span.device].append(span)
    busiest = max(spans, key=lambda number: sum(span.end - span.begin for span in spans[number]))
    near = plan.seconds / 1000
    blocks: list[Block] = []
    for span in spans[busiest]:
        block = Block(row_of.get(span.layer), span.backward, span.begin, span.end)
        last = blocks[-1] if blocks else None
        if (
            last is not None
            and (last.row, last.backward) == (block.row, block.backward)
            and block.begin - last.end <= near
        ):
            blocks[-1] = dataclasses.replace(last, end=block.end)
        else:
            blocks.append(block)
    return tuple(blocks)
