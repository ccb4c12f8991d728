"""A plan as tables of text, in at most 80 columns where names allow it; the verdict is in verdict.py."""

import itertools
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence

from mtf_hetero._support import tables
from mtf_hetero._support.units import bytes_text, seconds_text
from mtf_hetero.cluster.devices import shorten
from mtf_hetero.graph import roles
from mtf_hetero.layout import Layout
from mtf_hetero.planner.explain import ALTERNATIVES, ONE, WHOLE, LayerAlternatives, LayerCost, total
from mtf_hetero.planner.outline import grouped, name_ranges, span_text, working_layers
from mtf_hetero.planner.plan import LayerPlan, LeftOut, Plan
from mtf_hetero.planner.verdict import WIDTH, threshold_text

_WHOLE = "whole on each"
_MOST_SIZES = 8  # that are written one by one
_MOST_SPLIT = 26  # characters of a line of what is split, where there is little room
_MOST_NAME, _LEAST_NAME = 30, 20  # characters of a layer's name, and where there is little room
_WAYS = {WHOLE: "whole", ONE: "on one\ndevice", **{way: f"by\n{way}" for way in roles.KINDS}}
_HOW_TO_READ = """\
The step would take so many ms more (+) or less (-) if this layer alone were
split in another way. *: the plan. -: not possible, also because other layers
share the dimension, such as a batch. whole: all of it on each device. outputs:
filters, units. inputs: channels. busy: what the slowest device computes. sends:
how long that takes by itself."""
_TURNS = """\
A device computes its layers for one part of the batch after another. It waits
until the first part arrives, and at the end for the last ones; more parts make
that shorter, and each product smaller. What reads the whole batch, such as
batch normalization, waits for all parts."""
_ACCUMULATED = """\
A device computes one part of its examples after another, and frees the memory
of each for the next. It adds up the gradients of all parts. Fewer parts would
not fit, or take longer."""
_NO_OTHER_WAY = """\
No layer can be split in another way by itself: layers share the dimensions that
are split, such as the batch. busy: what the slowest device computes. sends: how
long that takes by itself."""


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
    for _, alike in itertools.groupby(groups, key=lambda group: _split_text(group, splits, plan)):
        group = [layer for like in alike for layer in like]
        seconds = [math.fsum(of_device) for of_device in zip(*(layer.seconds for layer in group), strict=True)]
        rows.append(
            (_span(group), _split_text(group, splits, plan), seconds, sum(sum(layer.sent_bytes) for layer in group))
        )
    if len(rows) > 1:
        seconds = [math.fsum(of_device) for of_device in zip(*(row[2] for row in rows), strict=True)]
        rows.append((f"all ({len(layers)})", "", seconds, sum(row[3] for row in rows)))

    def drawn(columns: Sequence[tuple[str, tuple[int, ...]]], gap: int, most: int | None) -> str:
        drawing: list[Sequence[str]] = [("layers", "split", *(f"{name}\nms" for name, _ in columns), "sent\nMB")]
        for name, split, seconds, sent in rows:
            times = [_range_text([seconds[number] for number in numbers]) for _, numbers in columns]
            drawing.append((name, _broken(split, most), *times, number_text(sent / 1e6) if sent else ""))
        return _table(drawing, "<<", gap)

    ways = itertools.product(_columns(plan.devices), ((2, None), (2, _MOST_SPLIT), (1, _MOST_SPLIT)))
    return _first_that_fits((drawn(columns, *way) for columns, way in ways))


def _columns(devices: Sequence[str]) -> Iterator[list[tuple[str, tuple[int, ...]]]]:
    """Generate ways to give devices columns, the most detailed first: (name, numbers of the devices)."""
    names = list(map(shorten, devices))
    yield [(name, (number,)) for number, name in enumerate(names)]
    yield [(name if len(numbers) == 1 else f"{name}\neach", numbers) for name, numbers in name_ranges(names)]
    yield [("each device", tuple(range(len(names))))]


def _range_text(seconds: Sequence[float]) -> str:
    least, most = (number_text(each * 1e3) for each in (min(seconds), max(seconds)))
    return most if least == most else f"{least} to {most}"


def _first_that_fits(texts: Iterable[str]) -> str:
    """Return the first text whose lines have room, or the last one."""
    text = ""
    for text in texts:
        if max(map(len, text.splitlines())) <= WIDTH:
            break
    return text


def number_text(value: float, sign: str = "") -> str:
    """Return a number with three digits, and without an exponent.

    Example:
      >>> number_text(1234.5), number_text(0.06789), number_text(1e-6), number_text(1234.5, "+")
      ('1230', '0.0679', '<0.001', '+1230')
    """
    if 0 < abs(value) < 5e-4:
        return "<0.001"
    text = f"{value:{sign}.3g}"
    return f"{float(text):{sign}.0f}" if "e" in text else text


def _shortened(name: str, most: int = _MOST_NAME) -> str:
    """Return a name without the parts in its middle, if it is long: most of the end is kept, which tells layers apart.

    Example:
      >>> _shortened("convnext_base_stage_2_block_14_pointwise_conv_1")
      'convnext...14_pointwise_conv_1'
    """
    if len(name) <= most:
        return name
    first, *parts = re.findall(r"[^/_]*[/_]?", name)[:-1]
    head = first.rstrip("/_")[: most // 3]
    tail = ""
    for part in reversed(parts):
        if len(head) + 3 + len(part) + len(tail) > most:
            break
        tail = part + tail
    tail = tail or name[-(most - 3 - len(head)) :]
    return f"{head}...{tail}"


def _span(group: Sequence[LayerPlan]) -> str:
    """Return the names of consecutive layers: the first and the last, on two lines if they are long."""
    ends = span_text([_shortened(layer.name) for layer in (group if len(group) == 1 else (group[0], group[-1]))])
    text = f"{ends} ({len(group)})" if len(group) > 1 else ends
    return text if len(text) <= _MOST_NAME + len(" (100)") else text.replace(" to ", " to\n", 1)


def _broken(text: str, most: int | None) -> str:
    """Return a text in lines of at most so many characters where that is possible: it is cut at spaces, and after +."""
    if most is None:
        return text
    lines = [""]
    for piece in re.findall(r"[^ +]*[ +]?", text):
        if lines[-1] and len(lines[-1] + piece.rstrip()) > most:
            lines.append("")
        lines[-1] += piece
    return "\n".join(line.rstrip() for line in lines)


def _split_text(group: Sequence[LayerPlan], splits: Mapping[str, str], plan: Plan) -> str:
    """Return what is split of layers that are split alike: with the sizes, or percentages where these differ."""
    texts = {splits[layer.name] for layer in group}
    if len(texts) == 1:
        return texts.pop()
    names = ", ".join(dict.fromkeys(_dimension_text(layer.along, layer) for layer in group))
    first, *more = (layer.split[layer.along] for layer in group)
    if all(sizes == first for sizes in more):
        return f"{names} {_sizes_on(first, plan)}"
    percentages = [round(100 * size / sum(first)) for size in first]
    return f"{names} {_sizes_on(percentages, plan)}{'' if 100 in percentages else ' %'}"


def _sizes_on(sizes: Sequence[int], plan: Plan) -> str:
    """Return sizes as text, or the only device that has any."""
    holders = [number for number, size in enumerate(sizes) if size]
    is_one = len(holders) == 1 and len(sizes) == len(plan.devices)
    return f"on {shorten(plan.devices[holders[0]])}" if is_one else sizes_text(sizes)


def _dimension_text(name: str, layer: LayerPlan) -> str:
    """Return a dimension without the name of a layer; the number of an axis says nothing, so its role stands for it."""
    short = name.rpartition("/")[2]
    return layer.kind if short.isdecimal() and name == layer.along else short


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
        drawing: list[Sequence[str]] = [("layer", *heads)]
        for name, pair in lines.items():
            if any(map(any, pair)):
                both = [max(of_name[number] for number in numbers) for _, numbers in columns for of_name in pair]
                drawing.append((_shortened(name), *(number_text(seconds * 1e3) for seconds in both)))
        return _table(drawing)

    text = _first_that_fits(map(drawn, _columns(plan.devices)))
    both = f"{seconds_text(plan.seconds)} predicted, {seconds_text(step_seconds)} in this one"
    return f"{text}\n\nStep: {both}, which tracing made longer."


def alternatives(layers: Sequence[LayerAlternatives]) -> str:
    """Return a table of layers and ways to split them: by how many ms a step would be longer; and how to read it.

    If no layer has another way, the table has only the way of the plan.
    """
    shown = [way for way in ALTERNATIVES if any(layer.seconds[way] is not None for layer in layers)]
    has_other_ways = any(layer.seconds[way] is not None for layer in layers for way in shown if way != layer.chosen)
    heads = list(map(_WAYS.__getitem__, shown)) if has_other_ways else ["split"]

    def drawn(gap: int, most: int) -> str:
        drawing: list[Sequence[str]] = [("layer", "busy\nms", "sends\nms", *heads)]
        for layer in layers:
            planned = (layer.compute_seconds, layer.sending_seconds)
            ways = [_difference(layer, way) for way in shown] if has_other_ways else [f"by {layer.chosen}"]
            drawing.append((_shortened(layer.name, most), *(number_text(_ms(s)) for s in planned), *ways))
        return _table(drawing, gap=gap)

    text = _first_that_fits(itertools.starmap(drawn, [(2, _MOST_NAME), (1, _MOST_NAME), (1, _LEAST_NAME)]))
    return f"{text}\n\n{_HOW_TO_READ if has_other_ways else _NO_OTHER_WAY}"


def costs(layers: Sequence[LayerCost]) -> str:
    """Return a table of where the time of a step on one device goes."""
    drawing: list[Sequence[str]] = [("layer", "ms", "% of step", "limited by")]
    whole = total(layers)
    for layer in (*layers, whole):
        part = layer.seconds / whole.seconds
        cells = number_text(layer.seconds * 1e3), f"{part:.1%}".removesuffix("%"), layer.limit
        drawing.append((_shortened(layer.name), *cells))
    return _table(drawing, "<>><")


def left_out_table(devices: Sequence[LeftOut]) -> str:
    """Return a table of the devices that a plan leaves out: what each would do, and when it would pay off."""
    drawing: list[Sequence[str]] = [("not used", "alone", "with it", "of that\nwaiting", "would pay off")]
    for each in devices:
        alone = "too large" if each.alone_seconds is None else seconds_text(each.alone_seconds)
        together = each.together
        times = ("-", "-") if together is None else map(seconds_text, (together.seconds, together.waiting_seconds))
        when = "unknown" if each.threshold is None else threshold_text(each.threshold)
        drawing.append((_shortened(each.name), alone, *times, when))
    return _table(drawing, "<>>><")


def _difference(layer: LayerAlternatives, way: str) -> str:
    seconds = layer.seconds[way]
    if way == layer.chosen:
        return "0 *"
    return "-" if seconds is None else number_text(_ms(seconds), "+")


def turns(plan: Plan) -> str:
    """Return a table of a plan with slots: the layers of each device, and how long it computes, waits and sends."""
    rows = [("device", "layers", "computes", "waits", "sends")]
    for number, device in enumerate(plan.devices):
        layers = [layer for layer in working_layers(plan) if layer.seconds[number] or layer.sent_bytes[number]]
        own = [layer.name for layer in layers if not layer.along or layer.split[layer.along][number]]
        busy = math.fsum(layer.seconds[number] for layer in plan.layers)
        sent = sum(layer.sent_bytes[number] for layer in plan.layers)
        waits = seconds_text(max(0.0, plan.seconds - busy))
        rows.append((device, span_text(own) if own else "", seconds_text(busy), waits, bytes_text(sent)))
    return f"{_table(rows, '<<')}\n\n{_TURNS if plan.is_pipeline else _ACCUMULATED}"


def _ms(seconds: float) -> float:
    """Return milliseconds, to the microsecond."""
    return round(seconds * 1e3, 3)


def _table(rows: Sequence[Sequence[str]], align: str = "<", gap: int = 2) -> str:
    """Return a table whose first columns are aligned as given, and the others to the right."""
    return "\n".join(tables.lines(rows, align.ljust(len(rows[0]), ">"), gap=" " * gap))


def _split(layer: LayerPlan, plan: Plan) -> str:
    """Return what is split of a layer; names with the same sizes and axis together.

    On one axis, that is the dimension along which the layer's product is divided. Other tensors may lie otherwise.
    """
    is_told = len(plan.layout.mesh_shape) == 1 and layer.along in layer.split
    names: dict[tuple[str, str], dict[str, None]] = {}
    for name, sizes in layer.split.items():
        if name == layer.along or not is_told:
            text = _sizes_on(sizes, plan), _axis_text(name, plan.layout)
            names.setdefault(text, {})[_dimension_text(name, layer)] = None
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
