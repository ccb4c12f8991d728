"""The report on one device: a table per network and batch size, and a picture of the ratios."""

import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks import figures
from benchmarks.cases.one_device import CONTENDERS, OURS
from benchmarks.renderers import markdown

Row = Mapping[str, Any]
Groups = dict[tuple[str, int], list[Row]]


def _groups(rows: Sequence[Row]) -> Groups:
    """{(network, batch size): rows in the order of CONTENDERS}."""
    order = list(CONTENDERS)
    groups: Groups = {}
    for row in sorted(rows, key=lambda row: (row["network"], row["batch_size"], order.index(row["contender"]))):
        groups.setdefault((row["network"], row["batch_size"]), []).append(row)
    return groups


def _table(group: Sequence[Row]) -> str:
    header = ["", "wall s/step", "CPU s/step", "wall ratio", "CPU ratio", "GFLOP/s", "of peak", "memory GiB"]
    peak = max((row["gflops_per_second"] for row in group if row["contender"].startswith("peak")), default=None)
    lines = []
    for row in group:
        if "failed" in row:
            continue
        cells = [markdown.spread(row[f"{clock}_seconds_per_step"]) for clock in ("wall", "cpu")]
        cells += [markdown.spread(row[f"{c}_ratio"]) if f"{c}_ratio" in row else "-" for c in ("wall", "cpu")]
        share = "-" if peak is None else f"{row['gflops_per_second'] / peak:.0%}"
        memory = markdown.number(row["max_memory_bytes"] / 2**30)
        lines.append([row["contender"], *cells, markdown.number(row["gflops_per_second"]), share, memory])
    return markdown.table(header, lines)


def _notes(group: Sequence[Row]) -> list[str]:
    ours = next(row for row in group if row["contender"] == OURS)
    idle = max((row["others_cpu_share"] for row in group if "failed" not in row), default=0.0)
    notes = [
        f"{ours['parameters']:,} parameters, {ours['flops_per_step'] / 1e9:.1f} GFLOP per step (two per multiply-add "
        "of convolutions and dense layers, forward and backward).",
        "Losses before and after the first step: "
        + "; ".join(
            f"{row['contender']} {row['losses'][0]:.6f}, {row['losses'][1]:.6f}" for row in group if "losses" in row
        )
        + ".",
        f"{ours['repeats']} repeats of {ours['steps']} steps after {ours['warmup']} steps; seed {ours['seed']}. Those "
        f"who waited used at most {idle:.1%} of a core together.",
    ]
    threads = {row["contender"]: row["threads"] for row in group if "threads" in row}
    notes.append("Threads: " + "; ".join(f"{name}: {text}" for name, text in threads.items()) + ".")
    return notes + [f"{row['contender']} could not be measured: {row['failed']}" for row in group if "failed" in row]


def _draw(groups: Groups, path: pathlib.Path) -> None:
    figure, axes = figures.make(len(groups), 1, width=7.0, height=2.6, sharex=True)
    for ax, ((network, batch_size), group) in zip(axes[:, 0], groups.items(), strict=True):
        shown = [row for row in group if "wall_ratio" in row and row["contender"] != OURS][::-1]
        for clock, colour, marker, shift in (
            ("wall", figures.COLOURS[0], "o", 0.13),
            ("cpu", figures.COLOURS[1], "s", -0.13),
        ):
            ratios = [row[f"{clock}_ratio"] for row in shown]
            middle = [ratio["median"] for ratio in ratios]
            errors = [
                [m - ratio["min"] for m, ratio in zip(middle, ratios, strict=True)],
                [ratio["max"] - m for m, ratio in zip(middle, ratios, strict=True)],
            ]
            heights = [i + shift for i in range(len(shown))]
            label = {"wall": "wall time", "cpu": "CPU time"}[clock]
            ax.errorbar(
                middle, heights, xerr=errors, fmt=marker, color=colour, markersize=5, elinewidth=1.2, label=label
            )
        ax.axvline(1, color=figures.GREY, linewidth=1)
        ax.set_yticks(range(len(shown)), [row["contender"] for row in shown])
        ax.set_ylim(-0.6, len(shown) - 0.4)
        ax.set_title(f"{network}, batch {batch_size}")
        ax.tick_params(labelbottom=True)
    figure.legend(*axes[0, 0].get_legend_handles_labels(), loc="outside upper right", ncols=2)
    axes[-1, 0].set_xlim(left=0)
    axes[-1, 0].set_xlabel(f"time per step as a multiple of {OURS}'s: median, minimum and maximum")
    figures.save(figure, path)


def render(rows: Sequence[Row], directory: pathlib.Path) -> str:
    """Draws one_device.png; returns the body of the report."""
    groups = _groups(rows)
    _draw(groups, directory / "one_device.png")
    parts = [
        "![Ratios of time per step](one_device.png)",
        f"Median (minimum to maximum) over the repeats. A ratio is a contender's time divided by {OURS}'s of the same "
        "repeat: above 1, the contender is slower. The peak is the faster of a large float32 product and a large "
        "convolution in TensorFlow, measured in the same run. Keras trains by `train_on_batch`, "
        "without jit_compile unless it says so; PyTorch eagerly unless it says so.",
    ]
    for (network, batch_size), group in groups.items():
        parts += [f"## {network}, batch {batch_size}", _table(group), *(f"* {note}" for note in _notes(group))]
    return "\n\n".join(parts)
