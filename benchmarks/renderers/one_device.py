"""The report on one device: a table per network and batch size, and a picture of the ratios."""

import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks import drawing
from benchmarks.cases.one_device import CONTENDERS, OURS
from benchmarks.renderers.tables import GIB, Row, group_by, table_of

_CLOCKS = {"wall": ("wall time", drawing.COLOURS[0], "o", 0.13), "cpu": ("CPU time", drawing.COLOURS[1], "s", -0.13)}


def _table(group: Sequence[Row]) -> str:
    peak = max((row["gflops_per_second"] for row in group if row["contender"].startswith("peak")), default=None)
    columns = {
        "": lambda row: row["contender"],
        "wall s/step": lambda row: row["wall_seconds_per_step"],
        "CPU s/step": lambda row: row["cpu_seconds_per_step"],
        "wall ratio": lambda row: row.get("wall_ratio"),
        "CPU ratio": lambda row: row.get("cpu_ratio"),
        "GFLOP/s": lambda row: row["gflops_per_second"],
        "of peak": lambda row: None if peak is None else f"{row['gflops_per_second'] / peak:.0%}",
        "memory GiB": lambda row: row["max_memory_bytes"] / GIB,
    }
    return table_of([row for row in group if "failed" not in row], columns)


def _notes(group: Sequence[Row]) -> list[str]:
    ours = next(row for row in group if row["contender"] == OURS)
    idle = max((row["others_cpu_share"] for row in group if "failed" not in row), default=0.0)
    losses = (f"{row['contender']} {row['losses'][0]:.6f}, {row['losses'][1]:.6f}" for row in group if "losses" in row)
    threads = (f"{row['contender']}: {row['threads']}" for row in group if "threads" in row)
    return [
        f"* {ours['parameters']:,} parameters, {ours['flops_per_step'] / 1e9:.1f} GFLOP per step (two per "
        "multiply-add of convolutions and dense layers, forward and backward).",
        f"* Losses before and after the first step: {'; '.join(losses)}.",
        f"* {ours['repeats']} repeats of {ours['steps']} steps after {ours['warmup']} steps; seed {ours['seed']}. "
        f"Those who waited used at most {idle:.1%} of a core together.",
        f"* Threads: {'; '.join(threads)}.",
        *(f"* {row['contender']} could not be measured: {row['failed']}" for row in group if "failed" in row),
    ]


def _draw_group(ax: Any, group: Sequence[Row]) -> None:
    shown = [row for row in group if "wall_ratio" in row and row["contender"] != OURS][::-1]
    for clock, (label, colour, marker, shift) in _CLOCKS.items():
        ratios = [row[f"{clock}_ratio"] for row in shown]
        errors = [[abs(ratio["median"] - ratio[end]) for ratio in ratios] for end in ("min", "max")]
        ax.errorbar(
            [ratio["median"] for ratio in ratios],
            [place + shift for place in range(len(shown))],
            xerr=errors,
            fmt=marker,
            color=colour,
            markersize=5,
            elinewidth=1.2,
            label=label,
        )
    ax.axvline(1, color=drawing.GREY, linewidth=1, label=f"{OURS} itself")
    ax.set_yticks(range(len(shown)), [row["contender"] for row in shown])
    ax.set_ylim(-0.6, len(shown) - 0.4)
    ax.set_title(drawing.title(group[0]))
    ax.tick_params(labelbottom=True)


def _draw(groups: Mapping[Any, Sequence[Row]], path: pathlib.Path) -> None:
    figure, axes = drawing.make(len(groups), 1, width=7.0, height=2.6, sharex=True)
    for ax, group in zip(axes.flat, groups.values(), strict=True):
        _draw_group(ax, group)
    drawing.legend(figure)
    axes[-1, 0].set_xlim(left=0)
    axes[-1, 0].set_xlabel(f"time per step as a multiple of {OURS}'s: median, minimum and maximum")
    drawing.save(figure, path)


def render(rows: Sequence[Row], directory: pathlib.Path) -> str:
    """Draws one_device.png; returns the body of the report."""
    order = list(CONTENDERS)
    rows = sorted(rows, key=lambda row: (row["network"], row["batch_size"], order.index(row["contender"])))
    groups = group_by(rows, lambda row: (row["network"], row["batch_size"]))
    _draw(groups, directory / "one_device.png")
    parts = [
        "![Ratios of time per step](one_device.png)",
        f"Median (minimum to maximum) over the repeats. A ratio is a contender's time divided by {OURS}'s of the same "
        "repeat: above 1, the contender is slower. The peak is the faster of a large float32 product and a large "
        "convolution in TensorFlow, measured in the same run. Keras trains by `train_on_batch`, "
        "without jit_compile unless it says so; PyTorch eagerly unless it says so.",
    ]
    for (network, batch_size), group in groups.items():
        parts += [f"## {network}, batch {batch_size}", _table(group), *_notes(group)]
    return "\n\n".join(parts)
