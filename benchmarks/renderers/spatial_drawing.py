"""The pictures of the report on large 3D CNNs: speedups, splits, memory and projection."""

import math
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks import drawing, scaling
from benchmarks.cases.spatial import EVEN
from benchmarks.renderers.tables import MB, Row, group_by

_SPLITS = {"even slabs": drawing.GREY, "slabs by shares": drawing.COLOURS[0]}


def draw(
    rows: tuple[Sequence[Row], Sequence[Row], Sequence[Row], Mapping[int, Sequence[Row]]], path: pathlib.Path
) -> None:
    """Draw a panel for each kind of rows that there is.

    Args:
      rows: of strong and weak scaling, of the convolutional part, of memory, and {workers per sample: projections}.
      path: of the PNG.
    """
    panels: list[tuple[Any, Any]] = list(
        zip((_draw_speedups, _draw_splits, _draw_memory, _draw_projection), rows, strict=True)
    )
    panels = [(draw_panel, drawn) for draw_panel, drawn in panels if drawn]
    with drawing.panels(path, len(panels), min(len(panels), 2), height=4.2, colours={}) as axes:
        for ax, (draw_panel, drawn) in zip(axes, panels, strict=True):
            draw_panel(ax, drawn)
            ax.legend(fontsize=8, loc="best")


def _draw_speedups(ax: Any, rows: Sequence[Row]) -> None:
    most = 1
    groups = sorted(group_by(rows, lambda row: row["setting"]).values(), key=lambda group: group[0]["extents"])
    for colour, group in zip(drawing.COLOURS, groups, strict=False):
        counts = [len(row["workers"]) for row in group]
        first, last = group[0]["extents"], group[-1]["extents"]
        volume = f"{_size(first)} voxels" if first == last else "larger with more workers"
        speedups = [scaling.speedup(row, group[0]) for row in group]
        network = drawing.title({"network": group[0]["network"]})
        ax.plot(counts, speedups, "o-", color=colour, label=f"{network}, {volume}")
        most = max(most, *counts)
    ax.plot([1, most], [1, most], "--", color=drawing.GREY, linewidth=1, label="ideal")
    ax.set_ylim(0, most * 1.3)
    ax.set_title("More workers of a quarter of a core")
    ax.set_xlabel("workers")
    ax.set_ylabel("speedup over one worker (voxels per second)")


def _size(extents: Sequence[int]) -> str:
    return f"{extents[0]}³" if len(set(extents)) == 1 else " x ".join(map(str, extents))


def _draw_splits(ax: Any, rows: Sequence[Row]) -> None:
    """Draw the ways of each setting, beneath a line that names it."""
    even, by_shares = _SPLITS

    def place(group: Sequence[Row]) -> tuple[float, int, int]:
        return -sum(group[0]["fractions"]), -math.prod(group[0]["extents"]), group[0].get("batch_size", 1)

    names, height = {}, 0
    for group in sorted(group_by(rows, lambda row: row["setting"]).values(), key=place):
        first = group[0]
        cores = " + ".join(f"{cores:g}" for cores in first["fractions"])
        count = first.get("batch_size", 1)
        volumes = _size(first["extents"]) if count == 1 else f"{count} times {_size(first['extents'])}"
        ax.text(0, height, f" {volumes} voxels on {cores} cores", fontsize=8, fontweight="bold", va="center")
        for row in group[1:]:
            height += 1
            names[height] = row["way"].replace(":", " : ")
            kind = even if row["way"] == EVEN else by_shares
            ax.barh(height, scaling.speedup(row, first), color=_SPLITS[kind], height=0.7)
        height += 1
    for kind, colour in _SPLITS.items():
        ax.barh(0, 0, color=colour, label=kind)
    ax.axvline(1, color="black", linewidth=0.8)
    ax.set_yticks(list(names), list(names.values()))
    ax.tick_params(axis="y", labelsize=8, length=0)
    ax.set_ylim(height, -1)
    ax.grid(axis="y", visible=False)
    ax.set_title("CosmoFlow's convolutions on two workers")
    ax.set_xlabel("speedup over the faster worker alone")


def _draw_memory(ax: Any, rows: Sequence[Row]) -> None:
    counts: list[int] = []
    rows = sorted(rows, key=lambda row: len(row["fractions"]))
    ideal_label = "memory of one worker / workers"
    for colour, (edge, group) in zip(drawing.COLOURS, group_by(rows, lambda row: row["edge"]).items(), strict=False):
        alone, counts = group[0], [len(row["fractions"]) for row in group]
        peaks = [max(row["peak_bytes"]) / MB for row in group]
        ax.plot(counts, peaks, "o-", color=colour, label=f"measured, {edge}³ voxels")
        if len(alone["fractions"]) == 1:
            expected = [max(scaling.expected_bytes(row, alone)) / MB for row in group]
            ax.plot(counts, expected, ":", color=colour, label=f"share and halo, {edge}³ voxels")
            ax.plot(counts, [peaks[0] / count for count in counts], "--", color=drawing.GREY, lw=1, label=ideal_label)
            ideal_label = None
    drawing.plain_log(ax, x=counts)
    ax.set_title("Memory: CosmoFlow's convolutions")
    ax.set_xlabel("workers")
    ax.set_ylabel("peak memory of a worker, MB")


def _draw_projection(ax: Any, projected: Mapping[int, Sequence[Row]]) -> None:
    ticks: set[int] = set()
    for colour, (count, steps) in zip(drawing.COLOURS, projected.items(), strict=False):
        devices = [count * row["groups"] for row in steps]
        efficiency = [steps[0]["predicted_seconds"] / row["predicted_seconds"] for row in steps]
        ax.plot(devices, efficiency, "o-", color=colour, label=f"{count} workers per sample")
        ticks |= set(devices)
    ax.set_ylim(0, 1.05)
    drawing.plain_log(ax, x=sorted(ticks)[::2], y=False)
    ax.set_title("Modelled, not measured: more samples at a time")
    ax.set_xlabel("workers of a core")
    ax.set_ylabel("efficiency: samples per second and worker")
