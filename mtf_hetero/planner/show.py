"""A plan for people: a table of layers and devices, and lines that say what it is compared with."""

import io
import math
from collections.abc import Mapping, Sequence
from typing import Any

from mtf_hetero._support import extras
from mtf_hetero._support.units import bytes_text, seconds_text
from mtf_hetero.cluster.devices import shorten
from mtf_hetero.layout import Layout
from mtf_hetero.planner.explain import ALTERNATIVES, LayerAlternatives
from mtf_hetero.planner.outline import ranges_of
from mtf_hetero.planner.plan import LayerPlan, Plan

_WIDTH = 160
_WHOLE = "whole on each"
_MOST_DEVICES = 4  # or groups of them, that have columns of their own
_MOST_SIZES = 8  # that are written one by one
_WAYS = {"batch": "by batch", "outputs": "by filters, units", "inputs": "by channels, inputs", "space": "by space"}
_HOW_TO_READ = (
    "alternatives: by how many ms the predicted step would be longer (+) or shorter (-) if this layer alone were "
    "divided so;\n* is what the plan does, - is not possible; computes: the slowest device; sends: if nothing else did"
)


def table(plan: Plan, *, width: int = _WIDTH) -> str:
    """Layers by devices: what is split, into which sizes, how long each computes, and what it sends.

    Of more than a few devices, the most that one of a kind computes, and sends; of more than a few kinds, the least and
    the most that one computes, and what all send.
    """
    rows = _rows(["layer"])
    rows.add_column("split", overflow="fold")
    groups = [((device,), (number,)) for number, device in enumerate(plan.devices)]
    if len(groups) > _MOST_DEVICES:
        groups = [
            ((name,) if len(numbers) == 1 else (name, "each"), numbers) for name, numbers in ranges_of(plan.devices)
        ]
    few = len(groups) <= _MOST_DEVICES
    for names, _ in groups if few else [(("each",), ())]:
        rows.add_column(f"{', '.join(map(shorten, names))}: ms", justify="right")
        rows.add_column("MB sent" if few else "all: MB sent", justify="right")

    def cells(seconds: Sequence[float], sent_bytes: Sequence[int]) -> list[str]:
        if not few:
            return _cells_of_all(seconds, sent_bytes)
        longest = [max(seconds[number] for number in numbers) for _, numbers in groups]
        return _cells(longest, [max(sent_bytes[number] for number in numbers) for _, numbers in groups])

    for layer in plan.layers:
        if any(layer.seconds) or any(layer.sent_bytes):
            rows.add_row(layer.name, _split(layer, plan.layout), *cells(layer.seconds, layer.sent_bytes))
    seconds = [sum(of_device) for of_device in zip(*(layer.seconds for layer in plan.layers), strict=True)]
    sent = [sum(of_device) for of_device in zip(*(layer.sent_bytes for layer in plan.layers), strict=True)]
    rows.add_row("all", "", *cells(seconds, sent))
    return _printed(rows, width)


def compared(plan: Plan, measured: Mapping[str, Sequence[float]], step_seconds: float, *, width: int = _WIDTH) -> str:
    """Layers by devices: how long each was to compute, and how long it did.

    Of more than a few devices, those that compute longest.

    Args:
      plan: what was predicted.
      measured: {layer, or another name: seconds that each device computed for it}.
      step_seconds: that the step took.
      width: of the table, in characters.
    """
    rows = _rows(["layer"])
    few = len(plan.devices) <= _MOST_DEVICES
    for device in plan.devices if few else ["longest"]:
        rows.add_column(f"{shorten(device)}: predicted ms", justify="right")
        rows.add_column("measured", justify="right")
    predicted = {layer.name: layer.seconds for layer in plan.layers}
    nothing = (0.0,) * len(plan.devices)
    lines = {name: (predicted.get(name, nothing), measured.get(name, nothing)) for name in {**predicted, **measured}}
    predicted_all, measured_all = (
        [math.fsum(of_device) for of_device in zip(nothing, *of_all.values(), strict=True)]
        for of_all in (predicted, measured)
    )
    lines["all"] = tuple(predicted_all), tuple(measured_all)
    for name, pair in lines.items():
        if any(map(any, pair)):
            both = zip(*(of_name if few else [max(of_name)] for of_name in pair), strict=True)
            rows.add_row(name, *(f"{seconds * 1e3:.3g}" for of_device in both for seconds in of_device))
    both = f"{seconds_text(plan.seconds)} predicted, {seconds_text(step_seconds)} in this one"
    return f"{_printed(rows, width)}\n\na step: {both}, which tracing made longer"


def alternatives(layers: Sequence[LayerAlternatives], *, width: int = _WIDTH) -> str:
    """Layers by ways to divide them: by how many ms a step would be longer; and how to read it."""
    if not layers:
        return "alternatives: none, the plan has one device"
    shown = [way for way in ALTERNATIVES if any(layer.seconds[way] is not None for layer in layers)]
    rows = _rows(["layer", "computes: ms", "sends: ms", *(_WAYS.get(way, way) for way in shown)])
    for layer in layers:
        planned = (layer.compute_seconds, layer.sending_seconds)
        rows.add_row(layer.name, *(f"{s * 1e3:.3g}" for s in planned), *(_difference(layer, way) for way in shown))
    return f"{_printed(rows, width)}\n\n{_HOW_TO_READ}"


def _difference(layer: LayerAlternatives, way: str) -> str:
    seconds = layer.seconds[way]
    if way == layer.chosen:
        return "0 *"
    return "-" if seconds is None else f"{seconds * 1e3:+.3g}"


def _rows(columns: Sequence[str]) -> Any:
    rich_table = extras.import_package("rich.table", extra="plan", user="the table of a plan")
    rows = rich_table.Table(box=None, pad_edge=False, header_style="")
    for number, column in enumerate(columns):
        rows.add_column(column, justify="right" if number else "left")
    return rows


def _printed(rows: Any, width: int) -> str:
    console = extras.import_package("rich.console", extra="plan", user="the table of a plan")
    text = io.StringIO()
    console.Console(file=text, width=width, color_system=None).print(rows)
    return "\n".join(line.rstrip() for line in text.getvalue().splitlines())


def _cells(seconds: Sequence[float], sent_bytes: Sequence[int]) -> list[str]:
    pairs = zip(seconds, sent_bytes, strict=True)
    return [cell for s, b in pairs for cell in (f"{s * 1e3:.3g}", f"{b / 1e6:.3g}" if b else "")]


def _cells_of_all(seconds: Sequence[float], sent_bytes: Sequence[int]) -> list[str]:
    return [f"{min(seconds) * 1e3:.3g} to {max(seconds) * 1e3:.3g}", _cells([0.0], [sum(sent_bytes)])[1]]


def _split(layer: LayerPlan, layout: Layout) -> str:
    """What is split of a layer, without its own prefix; names with the same sizes, over the same axis, together."""
    names: dict[tuple[tuple[int, ...], str], list[str]] = {}
    for name, sizes in layer.split.items():
        axis = f" over {layout.axis_name_of(name)}" if len(layout.mesh_shape) > 1 else ""
        names.setdefault((sizes, axis), []).append(name.removeprefix(f"{layer.name}/"))
    return "; ".join(f"{', '.join(own)} {sizes_text(sizes)}{axis}" for (sizes, axis), own in names.items()) or _WHOLE


def sizes_text(sizes: Sequence[int]) -> str:
    """Sizes, of many devices those that differ by no more than one together.

    Example:
      >>> sizes_text((40, 20)), sizes_text((5,) * 6 + (4,) * 26 + (0,) * 32)
      ('40+20', '32 x 4 to 5+32 x 0')
    """
    if len(sizes) <= _MOST_SIZES:
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


def summary(plan: Plan) -> str:
    """What is predicted, and what it is compared with."""
    device, alone = plan.alone
    many = len(plan.devices) > _MOST_DEVICES
    groups = ranges_of(plan.devices) if many else [(name, (number,)) for number, name in enumerate(plan.devices)]
    devices = [name for name, _ in groups]
    lines = []
    if len(plan.devices) == 1:
        lines.append(f"{device} alone: {seconds_text(alone)} a step are predicted, and no split over more devices less")
    else:
        lines.append(
            f"{', '.join(devices)}: {seconds_text(plan.seconds)} a step are predicted, and {seconds_text(alone)} "
            f"on {device} alone"
        )
    each = (f"{name}, each" if len(numbers) > 1 else name for name, numbers in groups)
    most = (max(plan.memory_bytes[number] for number in numbers) for _, numbers in groups)
    needed = ("; " if many else ", ").join(f"{bytes_text(n)} on {d}" for d, n in zip(each, most, strict=True))
    lines.append(f"memory: {needed}")
    return "\n".join(lines)
