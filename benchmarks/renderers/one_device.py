"""The reports on one device: step times of contenders, and where the time of a step goes."""

import functools
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks import drawing
from benchmarks.cases.one_device import CONTENDERS, LOWERINGS, OURS
from benchmarks.renderers.document import Details, Part, Report
from benchmarks.renderers.tables import (
    GIB,
    Row,
    Table,
    bullets,
    could_not,
    group_by,
    median,
    span,
    succeeded,
    table,
    tabulate,
)

_CLOCKS = {"wall": ("wall time", drawing.COLOURS[0], "o", 0.13), "cpu": ("CPU time", drawing.COLOURS[1], "s", -0.13)}
_LEAST = 0.005  # of the sum; smaller kinds are one line
_CLASSES = {  # of the picture; a kind is of the first class that has a word of its name
    "convolution": ("Conv",),
    "matrix product": ("MatMul", "Einsum"),
    "relu, pooling and their gradients": ("Relu", "Pool", "Greater", "Cast", "Select", "Equal"),
    "updates of variables": ("Assign", "Sub", "ReadVariable"),
    "the rest": ("",),
}


def _table(group: Sequence[Row]) -> Table:
    peak = max((row["gflops_per_second"] for row in group if row["contender"].startswith("peak")), default=None)
    columns = {
        "contender": lambda row: row["contender"],
        "wall s/step": lambda row: row["wall_seconds_per_step"],
        "CPU s/step": lambda row: row["cpu_seconds_per_step"],
        "wall ratio": lambda row: row.get("wall_ratio"),
        "CPU ratio": lambda row: row.get("cpu_ratio"),
        "GFLOP/s": lambda row: row["gflops_per_second"],
        "of peak": lambda row: None if peak is None else f"{row['gflops_per_second'] / peak:.0%}",
        "memory GiB": lambda row: row["max_memory_bytes"] / GIB,
    }
    return tabulate(succeeded(group), columns)


def _notes(group: Sequence[Row]) -> str:
    ours = next(row for row in group if row["contender"] == OURS)
    idle = max((row["others_cpu_share"] for row in succeeded(group)), default=0.0)
    losses = (f"{row['contender']} {row['losses'][0]:.6f}, {row['losses'][1]:.6f}" for row in group if "losses" in row)
    threads = (f"{row['contender']}: {row['threads']}" for row in group if "threads" in row)
    return bullets(
        [
            f"{ours['parameters']:,} parameters, {ours['flops_per_step'] / 1e9:.1f} GFLOP per step (two per "
            "multiply-add of convolutions and dense layers, forward and backward).",
            f"Losses before and after the first step: {'; '.join(losses)}.",
            f"{ours['repeats']} repeats of {ours['steps']} steps after {ours['warmup']} steps; seed {ours['seed']}. "
            f"Waiting contenders used at most {idle:.1%} of a core together.",
            f"Threads: {'; '.join(threads)}.",
        ]
    )


def _draw_ratios(ax: Any, group: Sequence[Row]) -> None:
    shown = [row for row in group if "wall_ratio" in row and row["contender"] != OURS][::-1]
    for clock, (label, colour, marker, shift) in _CLOCKS.items():
        ratios = [row[f"{clock}_ratio"] for row in shown]
        medians, places = [ratio["median"] for ratio in ratios], [place + shift for place in range(len(shown))]
        errors = [[abs(ratio["median"] - ratio[end]) for ratio in ratios] for end in ("min", "max")]
        style = {"fmt": marker, "color": colour, "markersize": 5, "elinewidth": 1.2}
        ax.errorbar(medians, places, xerr=errors, label=label, **style)
    ax.axvline(1, color=drawing.GREY, linewidth=1, label=f"{OURS} itself")
    ax.set_yticks(range(len(shown)), [row["contender"] for row in shown])
    ax.set_ylim(-0.6, len(shown) - 0.4)
    ax.set_title(drawing.title(group[0]))
    ax.tick_params(labelbottom=True)


def _draw(groups: Mapping[Any, Sequence[Row]], path: pathlib.Path) -> None:
    with drawing.panels(path, len(groups), width=7.0, height=2.6, sharex=True) as axes:
        for ax, group in zip(axes, groups.values(), strict=True):
            _draw_ratios(ax, group)
        axes[-1].set_xlim(left=0)
        axes[-1].set_xlabel(f"time per step as a multiple of {OURS}'s: median, minimum and maximum")


def _conclude(groups: Sequence[Sequence[Row]]) -> list[str]:
    """Return a sentence on each framework: its step time over ours, on all networks and batch sizes."""
    ratios = group_by((row for group in groups for row in group if "wall_ratio" in row), lambda row: row["contender"])
    medians = {name: [median(row, "wall_ratio") for row in of] for name, of in ratios.items() if name != OURS}
    texts = []
    for framework in ("stock mtf", "Keras", "PyTorch"):
        ways = [f"{name} {span(of)}" for name, of in medians.items() if name.partition(",")[0] == framework]
        texts += [f"{'; '.join(ways)} times the step time of {OURS}."] if ways else []
    rates = [row["gflops_per_second"] for group in groups for row in group if row["contender"] == OURS]
    peaks = [
        max((row["gflops_per_second"] for row in succeeded(group) if row["contender"].startswith("peak")), default=None)
        for group in groups
    ]
    parts = [rate / peak for rate, peak in zip(rates, peaks, strict=True) if peak]
    if parts:
        texts.append(f"{OURS} reaches {span(parts, '.0%')} of the peak rate, that of a large product or convolution.")
    return texts


def render(rows: Sequence[Row]) -> Report:
    """Return the report on step times: a table per network and batch size."""
    order = list(CONTENDERS)
    rows = sorted(rows, key=lambda row: (row["network"], row["batch_size"], order.index(row["contender"])))
    groups = group_by(rows, lambda row: (row["network"], row["batch_size"]))
    parts: list[Part] = [
        f"Median (minimum to maximum) over the repeats. A ratio is a contender's time divided by {OURS}'s of the same "
        "repeat: above 1, the contender is slower. The peak is the faster of a large float32 product and a large "
        "convolution in TensorFlow, measured in the same run. Keras trains by `train_on_batch`, "
        "without jit_compile unless the row says otherwise; PyTorch trains eagerly unless the row says otherwise.",
    ]
    for (network, batch_size), group in groups.items():
        details = Details("Parameters, losses, repeats and threads", [_notes(group)])
        failed = bullets(could_not("measured", group, "contender"))
        parts += [f"## {network}, batch {batch_size}", _table(group), failed, details]
    draw = functools.partial(_draw, groups)
    return Report(_conclude(list(groups.values())), parts, "Ratios of time per step", draw)


def _medians(row: Row) -> dict[str, float]:
    return {kind: median(row["kinds"], kind) for kind in row["kinds"]}


def _account(rows: Sequence[Row]) -> Table:
    seconds = {row["lowering"]: _medians(row) for row in rows}
    sums = {name: sum(kinds.values()) for name, kinds in seconds.items()}
    shown = {kind for name, kinds in seconds.items() for kind, s in kinds.items() if s >= _LEAST * sums[name]}
    rest = {name: sum(s for kind, s in kinds.items() if kind not in shown) for name, kinds in seconds.items()}

    def line(kind: str, of: Mapping[str, float]) -> list[str]:
        return [kind, *(f"{of[name] * 1e3:.2f} ({of[name] / sums[name]:.1%})" for name in seconds)]

    lines = [
        line(kind, {name: kinds.get(kind, 0.0) for name, kinds in seconds.items()})
        for kind in sorted(shown, key=lambda kind: -max(kinds.get(kind, 0.0) for kinds in seconds.values()))
    ]
    lines += [line("all others", rest), line("sum", sums)]
    lines.append(["operations run", *(f"{row['operations']:,}" for row in rows)])
    return table(["kind of operation, ms per step", *seconds], lines)


def _classes(row: Row) -> dict[str, float]:
    """{class: milliseconds a step}."""
    milliseconds = dict.fromkeys(_CLASSES, 0.0)
    for kind, seconds in _medians(row).items():
        milliseconds[next(name for name, words in _CLASSES.items() if any(word in kind for word in words))] += seconds
    return {name: 1e3 * seconds for name, seconds in milliseconds.items()}


def _draw_account(groups: Mapping[str, Sequence[Row]], path: pathlib.Path) -> None:
    colours = dict(zip(_CLASSES, drawing.COLOURS, strict=False))
    with drawing.panels(path, len(groups), width=7.0, height=1.5, colours=colours) as axes:
        for ax, group in zip(axes, groups.values(), strict=True):
            drawing.stacked_bars(ax, {row["lowering"]: _classes(row) for row in group}, colours, height=0.6)
            ax.set_xlabel("milliseconds of all operations in a step")
            ax.set_title(drawing.title(group[0]))


def _conclude_account(title: str, group: Sequence[Row]) -> str:
    """Return a sentence on a network: the sum, convolutions, and relu and pooling, in each lowering."""
    convolution, _, pooling, *_ = _CLASSES
    texts = []
    for row in group:
        classes = _classes(row)
        total = sum(classes.values())
        texts.append(
            f"{row['lowering']} {total:.0f} ms (convolutions {classes[convolution] / total:.0%}, relu and pooling "
            f"{classes[pooling]:.0f} ms)"
        )
    return f"Operations of a step of {title}: {'; '.join(texts)}."


def render_account(rows: Sequence[Row]) -> Report:
    """Return the report on where the time goes: a table per network."""
    order = list(LOWERINGS)
    rows = sorted(rows, key=lambda row: order.index(row["lowering"]))
    groups = group_by(rows, lambda row: f"{row['network']}, batch {row['batch_size']}")
    parts: list[Part] = [
        "Milliseconds of all operations of a kind in one step, and their share of the sum: the median of "
        f"{rows[0]['repeats']} traced steps. Operations that run side by side both count.",
    ]
    for title, group in groups.items():
        parts += [f"## {title}", _account(group)]
    conclusions = [_conclude_account(title, group) for title, group in groups.items()]
    return Report(conclusions, parts, "Where the time of a step goes", functools.partial(_draw_account, groups))
