"""A plan as tables of text, in at most 80 columns where names allow it; the verdict is in verdict.py."""

import io
import itertools
import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

from mtf_hetero._support import extras
from mtf_hetero._support.units import seconds_text
from mtf_hetero.cluster.devices import shorten
from mtf_hetero.graph import roles
from mtf_hetero.layout import Layout
from mtf_hetero.planner.explain import ALTERNATIVES, ONE, WHOLE, LayerAlternatives, LayerCost, total
from mtf_hetero.planner.outline import grouped, name_ranges, span_text, working_layers
from mtf_hetero.planner.plan import LayerPlan, LeftOut, Plan
from mtf_hetero.planner.verdict import WIDTH, threshold_text

_UNLIMITED = 10_000
_WHOLE = "whole on each"
_MOST_SIZES = 8  # that are written one by one
_MOST_SPLIT = 26  # characters of a line of what is split, where there is little room
_MOST_NAME = 30  # characters of a layer's name
_WAYS = {WHOLE: "whole", ONE: "on one\ndevice", **{way: f"by\n{way}" for way in roles.KINDS}}
_HOW_TO_READ = """\
The step would take so many ms more (+) or less (-) if this layer alone were
split in another way. *: the plan. -: not possible. whole: all of it on each
device. outputs: filters, units. inputs: channels. busy: what the slowest device
computes. sends: how long that takes by itself."""


def table(plan: Plan) -> str:
    """Return a table of layers and devices: what is split, how long each device computes, and what is sent.

    Consecutive layers with the same split share a row. Where not all devices have room for a column, those of one kind
    share one, with the most that one of them computes, or all share one.
    """
    layers = working_layers(plan)
    splits = {layer.name: _split(layer, plan) for layer in plan.layers}  # of all mesh axes

    def of_one_split(layers: Sequence[LayerPlan]) -> list[list[LayerPlan]]:
        return [list(group) for _, group in itertools.groupby(layers, key=lambda layer: splits[layer.name])]

    if len(plan.layout.mesh_shape) == 1:
        groups = [part for like in grouped(layers) for part in ([like] if like[0].along else of_one_split(like))]
    else:
        groups = of_one_split(layers)
    rows = []
    for group in groups:
        seconds = [math.fsum(of_device) for of_device in zip(*(layer.seconds for layer in group), strict=True)]
        name = _shortened(span_text([layer.name for layer in group])) + (f" ({len(group)})" if len(group) > 1 else "")
        rows.append((name, _split_text(group, splits), seconds, sum(sum(layer.sent_bytes) for layer in group)))
    if len(rows) > 1:
        seconds = [math.fsum(of_device) for of_device in zip(*(row[2] for row in rows), strict=True)]
        rows.append((f"all ({len(layers)})", "", seconds, sum(row[3] for row in rows)))

    def drawn(columns: Sequence[tuple[str, tuple[int, ...]]], gap: int, most: int | None) -> str:
        drawing = _rows(["layers", "split", *(f"{name}\nms" for name, _ in columns), "sent\nMB"], left=(0, 1), gap=gap)
        if most is not None:
            drawing.columns[1].max_width, drawing.columns[1].no_wrap = most, False
        for name, split, seconds, sent in rows:
            times = [_range_text([seconds[number] for number in numbers]) for _, numbers in columns]
            drawing.add_row(name, split, *times, f"{sent / 1e6:.3g}" if sent else "")
        return _printed(drawing)

    ways = itertools.product(_columns(plan.devices), ((2, None), (2, _MOST_SPLIT), (1, _MOST_SPLIT)))
    return _first_that_fits((drawn(columns, *way) for columns, way in ways))


def _columns(devices: Sequence[str]) -> Iterator[list[tuple[str, tuple[int, ...]]]]:
    """Generate ways to give devices columns, the most detailed first: (name, numbers of the devices)."""
    names = list(map(shorten, devices))
    yield [(name, (number,)) for number, name in enumerate(names)]
    yield [(name if len(numbers) == 1 else f"{name}\neach", numbers) for name, numbers in name_ranges(names)]
    yield [("each device", tuple(range(len(names))))]


def _range_text(seconds: Sequence[float]) -> str:
    least, most = (f"{each * 1e3:.3g}" for each in (min(seconds), max(seconds)))
    return most if least == most else f"{least} to {most}"


def _first_that_fits(texts: Iterable[str]) -> str:
    """Return the first text whose lines have room, or the last one."""
    text = ""
    for text in texts:
        if max(map(len, text.splitlines())) <= WIDTH:
            break
    return text


def _shortened(name: str, most: int = _MOST_NAME) -> str:
    half = (most - 3) // 2
    return name if len(name) <= most else f"{name[:half]}...{name[-half:]}"


def _split_text(group: Sequence[LayerPlan], splits: Mapping[str, str]) -> str:
    """Return what is split of layers that are split alike: with the sizes, or percentages where these differ."""
    texts = {splits[layer.name] for layer in group}
    if len(texts) == 1:
        return texts.pop()
    names = ", ".join(dict.fromkeys(layer.along.rpartition("/")[2] for layer in group))
    first, *more = (layer.split[layer.along] for layer in group)
    if all(sizes == first for sizes in more):
        return f"{names} {sizes_text(first)}"
    return f"{names} {sizes_text([round(100 * size / sum(first)) for size in first])} %"


def comparison_table(plan: Plan, measured: Mapping[str, Sequence[float]], step_seconds: float) -> str:
    """Return a table of layers and devices: how long each was predicted to compute, and how long it did.

    Where not all devices have room for columns, only the longest of each layer is shown.

    Args:
      plan: what was predicted.
      measured: {layer, or another name: seconds that each device computed for it}.
      step_seconds: that the step took.
    """
    predicted = {layer.name: layer.seconds for layer in plan.layers}
    nothing = (0.0,) * len(plan.devices)
    lines = {name: (predicted.get(name, nothing), measured.get(name, nothing)) for name in {**predicted, **measured}}
    predicted_all, measured_all = (
        [math.fsum(of_device) for of_device in zip(nothing, *of_all.values(), strict=True)]
        for of_all in (predicted, measured)
    )
    lines["all"] = tuple(predicted_all), tuple(measured_all)

    def drawn(columns: Sequence[tuple[str, tuple[int, ...]]]) -> str:
        heads = [head for name, _ in columns for head in (f"{name}\npredicted ms", "\nmeasured")]
        drawing = _rows(["layer", *heads])
        for name, pair in lines.items():
            if any(map(any, pair)):
                both = [max(of_name[number] for number in numbers) for _, numbers in columns for of_name in pair]
                drawing.add_row(_shortened(name), *(f"{seconds * 1e3:.3g}" for seconds in both))
        return _printed(drawing)

    text = _first_that_fits(map(drawn, _columns(plan.devices)))
    both = f"{seconds_text(plan.seconds)} predicted, {seconds_text(step_seconds)} in this one"
    return f"{text}\n\nStep: {both}, which tracing made longer."


def alternatives(layers: Sequence[LayerAlternatives]) -> str:
    """Return a table of layers and ways to split them: by how many ms a step would be longer; and how to read it."""
    shown = [way for way in ALTERNATIVES if any(layer.seconds[way] is not None for layer in layers)]

    def drawn(gap: int, most: int) -> str:
        drawing = _rows(["layer", "busy\nms", "sends\nms", *map(_WAYS.__getitem__, shown)], gap=gap)
        for layer in layers:
            planned = (layer.compute_seconds, layer.sending_seconds)
            cells = [*(f"{_ms(s):.3g}" for s in planned), *(_difference(layer, way) for way in shown)]
            drawing.add_row(_shortened(layer.name, most), *cells)
        return _printed(drawing)

    text = _first_that_fits(itertools.starmap(drawn, [(2, _MOST_NAME), (1, _MOST_NAME), (1, _MOST_NAME // 2)]))
    return f"{text}\n\n{_HOW_TO_READ}"


def costs(layers: Sequence[LayerCost]) -> str:
    """Return a table of where the time of a step on one device goes."""
    drawing = _rows(["layer", "ms", "% of step", "limited by"], left=(0, 3))
    whole = total(layers)
    for layer in (*layers, whole):
        part = layer.seconds / whole.seconds
        cells = f"{layer.seconds * 1e3:.3g}", f"{part:.1%}".removesuffix("%"), layer.limit
        drawing.add_row(_shortened(layer.name), *cells)
    return _printed(drawing)


def left_out_table(devices: Sequence[LeftOut]) -> str:
    """Return a table of the devices that a plan leaves out: what each would do, and when it would pay off."""
    drawing = _rows(["not used", "alone", "with it", "of that\nwaiting", "would pay off"], left=(0, 4))
    for each in devices:
        alone = "too large" if each.alone_seconds is None else seconds_text(each.alone_seconds)
        together = each.together
        times = ("-", "-") if together is None else map(seconds_text, (together.seconds, together.waiting_seconds))
        when = "unknown" if each.threshold is None else threshold_text(each.threshold)
        drawing.add_row(_shortened(each.name), alone, *times, when)
    return _printed(drawing)


def _difference(layer: LayerAlternatives, way: str) -> str:
    seconds = layer.seconds[way]
    if way == layer.chosen:
        return "0 *"
    return "-" if seconds is None else f"{_ms(seconds):+.3g}"


def _ms(seconds: float) -> float:
    """Return milliseconds, to the microsecond."""
    return round(seconds * 1e3, 3)


def _rows(heads: Sequence[str], left: Collection[int] = (0,), *, gap: int = 2) -> Any:
    """Return a table without rows yet.

    Args:
      heads: of the columns.
      left: numbers of the columns that are aligned to the left.
      gap: spaces between columns.
    """
    rich_table = extras.import_package("rich.table", extra="plan", user="the table of a plan")
    rows = rich_table.Table(box=None, pad_edge=False, padding=(0, gap, 0, 0), header_style="")
    for number, head in enumerate(heads):
        rows.add_column(head, justify="left" if number in left else "right", no_wrap=True)
    return rows


def _printed(rows: object) -> str:
    console = extras.import_package("rich.console", extra="plan", user="the table of a plan")
    text = io.StringIO()
    console.Console(file=text, width=_UNLIMITED, color_system=None).print(rows)
    return "\n".join(line.rstrip() for line in text.getvalue().splitlines())


def _split(layer: LayerPlan, plan: Plan) -> str:
    """Return what is split of a layer, without its own prefix; names with the same sizes and axis together."""
    names: dict[tuple[str, str], dict[str, None]] = {}
    for name, sizes in layer.split.items():
        short = name.removeprefix(f"{layer.name}/")
        names.setdefault((sizes_text(sizes), _axis_text(name, plan.layout)), {})[short] = None
    whole = _WHOLE if len(plan.devices) > 1 else ""
    return "; ".join(f"{', '.join(own)} {sizes}{axis}" for (sizes, axis), own in names.items()) or whole


def _axis_text(name: str, layout: Layout) -> str:
    return f" over {layout.axis_name_of(name)}" if len(layout.mesh_shape) > 1 else ""


def sizes_text(sizes: Sequence[int]) -> str:
    """Return sizes as text; of many devices, those that differ by one at most come together.

    Example:
      >>> sizes_text((40, 20)), sizes_text((5,) * 6 + (4,) * 26 + (0,) * 32)
      ('40+20', '32 x 4 to 5+32 x 0')
    """
    if (len(sizes) <= _MOST_SIZES and len(set(sizes)) > 1) or len(sizes) < 3:
        return "+".join(map(str, sizes))
    runs: list[list[int]] = []
    for size in sizes:
        if runs and abs(size - runs[-1][0]) <= 1 and bool(size) == bool(runs[-1][0]):
            runs[-1].append(size)
        else:
            runs.append([size])
    return "+".join(_run_text(run) for run in runs)


def _run_text(run: Sequence[int]) -> str:
    low, high = min(run), max(run)
    each = str(low) if low == high else f"{low} to {high}"
    return each if len(run) == 1 else f"{len(run)} x {each}"
