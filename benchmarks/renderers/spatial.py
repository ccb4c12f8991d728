"""The report on large 3D CNNs: tables of time, memory, limits and input, what was predicted, and what is projected."""

import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks import figures, scaling
from benchmarks.cases.spatial import ALONE, CONV, EVEN, INPUT, LIMIT, MEMORY, MODELLED, PROJECTED, STRONG, WEAK
from benchmarks.renderers import markdown

Row = Mapping[str, Any]
_MB = 1e6
_DEMANDED = 0.15  # by how much predictions of steps, and memory, may be off
_DEVICES = 2048  # of the largest projection


def _of(rows: Sequence[Row], *parts: str) -> list[Row]:
    return [row for row in rows if row["part"] in parts]


def _settings(rows: Sequence[Row]) -> dict[str, list[Row]]:
    groups: dict[str, list[Row]] = {}
    for row in rows:
        groups.setdefault(row["setting"], []).append(row)
    return groups


def _median(row: Row) -> float:
    return row["wall_seconds_per_step"]["median"]


def _batch(row: Row) -> int:
    """Volumes per step."""
    return row.get("batch_size", 1)


def _speedup(row: Row, first: Row) -> float:
    """How many times as many voxels a second as the first way does."""
    voxels = [one["extents"][0] * one["extents"][1] * one["extents"][2] for one in (row, first)]
    return voxels[0] / voxels[1] * _median(first) / _median(row)


def _error(row: Row, first: Row) -> float:
    return scaling.predict(row, first).seconds / _median(row) - 1


def _cores(row: Row) -> str:
    return ", ".join(f"{row['fractions'][index]:g}" for index in row["workers"])


def _steps(rows: Sequence[Row]) -> str:
    header = ["way", "cores", "planes", "s/step", "speedup", "MB sent", "of it halo", "predicted s", "error"]
    lines = []
    for row in rows:
        if "failed" in row:
            lines.append([row["way"], _cores(row), *["-"] * 7])
            continue
        halo = sum(own["halo_bytes"] for own in row["exchanged"])
        lines.append(
            [
                row["way"],
                _cores(row),
                ":".join(map(str, row["sizes"].get("depth", [row["extents"][0]]))),
                markdown.spread(row["wall_seconds_per_step"]),
                f"{_speedup(row, rows[0]):.2f}",
                markdown.number(row["received_bytes"] / _MB),
                f"{halo / row['sent_bytes']:.0%}" if row["sent_bytes"] else "-",
                "-" if row is rows[0] else markdown.number(scaling.predict(row, rows[0]).seconds),
                "-" if row is rows[0] else f"{_error(row, rows[0]):+.0%}",
            ]
        )
    return markdown.table(header, lines)


def _spent(rows: Sequence[Row]) -> str:
    """How each worker spends a traced step."""
    header = ["way", "worker", "computing ms", "receiving ms", "waiting ms", "halos on their way ms", "convolving then"]
    lines = []
    for row in rows:
        for index, used, both in zip(row["workers"], row["usage"], row["overlap"], strict=False):
            halo = both["halo_seconds"]
            lines.append(
                [
                    row["way"],
                    str(index),
                    *(markdown.number(1e3 * used[name]) for name in ("computing", "receiving", "waiting")),
                    markdown.number(1e3 * halo),
                    f"{both['both_seconds'] / halo:.0%}" if halo else "-",
                ]
            )
    return markdown.table(header, lines)


def _notes(rows: Sequence[Row]) -> str:
    first = rows[0]
    link = first["link"]
    notes = [
        f"Limited by {' and '.join(dict.fromkeys(first['limits']))}. Link: {link['bytes_per_second'] / 1e9:.2f} GB/s "
        f"and {1e3 * link['latency_seconds']:.2g} ms a hop. {first['repeats']} repeats of {first['steps']} step, in "
        f"turns; seed {first['seed']}.",
        f"The losses before the first and the second step are the same within "
        f"{max(row['loss_error'] for row in rows):.1e} of their value.",
        *(f"{row['way']} failed: {row['failed']}" for row in rows if "failed" in row),
    ]
    ways = {row["way"]: row for row in rows if "failed" not in row}
    if first["part"] == CONV and {ALONE, EVEN} <= ways.keys():
        notes.append(_demands(ways, first))
    return "\n".join(f"* {note}" for note in notes)


def _demands(ways: Mapping[str, Row], first: Row) -> str:
    """What is asked of the convolutional part, beside what was measured."""
    alone, even = ways[ALONE], ways[EVEN]
    if len(set(first["fractions"])) == 1:
        apart = even["apart_seconds_per_step"]
        return (
            f"Two workers are {_speedup(even, alone):.2f} times as fast as one; demanded is 1.85. Their slabs as "
            f"networks of their own, at once and without any exchange, take {markdown.spread(apart)} s, which would be "
            f"{_median(alone) / apart['median']:.2f} times as fast."
        )
    best = min((row for way, row in ways.items() if way not in (ALONE, EVEN)), key=_median, default=None)
    if best is None:
        return "No uneven split was measured."
    by_speed = ways.get("2:1", best)
    return (
        f"Split by speed, 2:1, the step is {_speedup(by_speed, alone):.2f} times as fast as the fast worker alone "
        f"(demanded: 1.35) and {_speedup(by_speed, even):.2f} times as fast as the even split (demanded: 1.3); the "
        f"best of the grid, {best['way']}, {_speedup(best, alone):.2f} and {_speedup(best, even):.2f} times."
    )


def _layers(rows: Sequence[Row]) -> str:
    """The layers' times behind the predictions, on the slowest worker of each way."""
    names = list(dict.fromkeys(name for row in rows for name in row["layer_seconds"]))
    lines = []
    for name in names:
        found = [row["layer_seconds"].get(name) for row in rows]
        lines.append([name, *("-" if own is None else markdown.number(1e3 * max(own)) for own in found)])
    parts = [scaling.predict(row, rows[0]) for row in rows]
    lines.append(["all layers, as the first way's step takes them", *(markdown.number(1e3 * p.compute) for p in parts)])
    lines.append(["sending and receiving", *(markdown.number(1e3 * part.exchange) for part in parts)])
    lines.append(["waiting in halo exchanges", *(markdown.number(1e3 * part.wait) for part in parts)])
    lines.append(["the session's call", *(markdown.number(1e3 * part.call) for part in parts)])
    lines.append(["step, predicted", *(markdown.number(1e3 * part.seconds) for part in parts)])
    lines.append(["step, measured", *(markdown.number(1e3 * _median(row)) for row in rows)])
    return markdown.table(["ms", *(row["way"] for row in rows)], lines)


def _accuracy(settings: Mapping[str, Sequence[Row]]) -> str:
    errors = {
        f"{name}/{row['way']}": _error(row, rows[0])
        for name, rows in settings.items()
        for row in rows[1:]
        if "failed" not in row
    }
    within = sum(abs(error) <= _DEMANDED for error in errors.values())
    worst = max(errors, key=lambda name: abs(errors[name]))
    return (
        f"Of {len(errors)} steps, {within} are predicted within {_DEMANDED:.0%}; the worst is {worst}, by "
        f"{errors[worst]:+.0%}."
    )


def _memory(rows: Sequence[Row]) -> str:
    header = ["cube", "workers", "peak MB", "1/p of alone", "share and halo MB", "error", "estimated MB"]
    lines = []
    for row in rows:
        alone = _alone(rows, row)
        expected = scaling.expected_bytes(row, alone) if alone is not None else None
        peak = max(row["peak_bytes"])
        lines.append(
            [
                str(row["edge"]),
                str(len(row["fractions"])),
                markdown.number(peak / _MB),
                markdown.number(max(alone["peak_bytes"]) / len(row["fractions"]) / _MB) if alone else "-",
                markdown.number(max(expected) / _MB) if expected else "-",
                f"{peak / max(expected) - 1:+.0%}" if expected else "-",
                markdown.number(max(row["estimated_bytes"]) / _MB),
            ]
        )
    return markdown.table(header, lines)


def _alone(rows: Sequence[Row], row: Row) -> Row | None:
    return next((one for one in rows if one["edge"] == row["edge"] and len(one["fractions"]) == 1), None)


def _limits(rows: Sequence[Row]) -> str:
    header = ["limit GB a worker", "workers", "largest cube that trains", "its peak MB", "the next larger one"]
    groups: dict[tuple[float, int], list[Row]] = {}
    for row in rows:
        groups.setdefault((row["memory_limit_bytes"], len(row["fractions"])), []).append(row)
    lines = []
    for (limit, count), tried in sorted(groups.items()):
        best = max((row for row in tried if row["trained"]), key=lambda row: row["edge"], default=None)
        failed = next((row for row in tried if not row["trained"]), None)
        lines.append(
            [
                f"{limit / 1e9:g}",
                str(count),
                "none" if best is None else str(best["edge"]),
                "-" if best is None else markdown.number(max(best["peak_bytes"]) / _MB),
                "was not tried" if failed is None else f"{failed['edge']}: {_end(failed)}",
            ]
        )
    return markdown.table(header, lines)


def _end(row: Row) -> str:
    """How an attempt failed."""
    lost = [f"worker {index}" for index, code in enumerate(row.get("exit_codes") or ()) if code]
    if lost:
        return f"the kernel ended {', '.join(lost)}"
    return row["error"].partition(":")[2].strip()[:80].replace("|", " ") or row["error"]


def _inputs(rows: Sequence[Row]) -> str:
    header = [
        "cores",
        "worker",
        "its planes",
        "its share MB",
        "epoch 1 MB",
        "error",
        "epochs 2, 3 MB",
        "wait ms a step",
    ]
    lines = []
    for row in rows:
        for index, planes in enumerate(row["split"]):
            share = planes * row["plane_bytes"] * row["volumes"]
            read = [epoch[index] - row["read_bytes_without_input"][index] for epoch in row["read_bytes"]]
            lines.append(
                [
                    ", ".join(f"{cores:g}" for cores in row["fractions"]),
                    str(index),
                    str(planes),
                    f"{share / _MB:.2f}",
                    f"{read[0] / _MB:.2f}",
                    f"{read[0] / share - 1:+.1%}",
                    ", ".join(f"{size / _MB:.2f}" for size in read[1:]),
                    ", ".join(markdown.number(1e3 * epoch[index]) for epoch in row["wait_seconds"]),
                ]
            )
    return markdown.table(header, lines)


def _projected(rows: Sequence[Row], rate: float, link: Mapping[str, float]) -> str:
    header = [
        "workers per sample",
        "workers",
        "samples",
        "s/step",
        "compute",
        "halo",
        "sums",
        "efficiency",
        "sums today",
    ]
    lines = []
    for row in rows:
        count = row["count"]
        alone = scaling.project(row, count, flops_per_second=rate, link=link).seconds
        for devices in _device_counts(count):
            found = scaling.project(row, devices, flops_per_second=rate, link=link)
            parts = (found.seconds, found.compute, found.halo, found.reduce)
            lines.append(
                [
                    str(count),
                    str(devices),
                    str(devices // count),
                    *map(markdown.number, parts),
                    f"{alone / found.seconds:.2f}",
                    markdown.number(found.direct),
                ]
            )
    return markdown.table(header, lines)


def _device_counts(count: int) -> list[int]:
    found = [count]
    while found[-1] * 4 <= _DEVICES:
        found.append(found[-1] * 4)
    return found if found[-1] == _DEVICES else [*found, _DEVICES]


def _rate(rows: Sequence[Row]) -> tuple[float, Mapping[str, float]] | None:
    """FLOP/s of a worker of one core on the largest cube that was measured alone, and the link between two such."""
    flops = {row["edge"]: row["flops"] for row in _of(rows, PROJECTED) if "count" not in row}
    alone = [row for row in _of(rows, CONV) if row["way"] == ALONE and row["extents"][0] in flops and _batch(row) == 1]
    if not alone:
        return None
    best = max(alone, key=lambda row: (row["extents"][0], row["fractions"]))
    return flops[best["extents"][0]] / _median(best), best["link"]


def _draw(rows: Sequence[Row], path: pathlib.Path) -> None:
    done = [row for row in rows if "failed" not in row]
    panels: list[tuple[Any, Any]] = [
        (_draw_speedups, _settings(_of(done, STRONG, WEAK))),
        (_draw_splits, _of(done, CONV)),
        (_draw_memory, _of(rows, MEMORY)),
        (_draw_projection, rows if _rate(rows) and any("count" in row for row in _of(rows, PROJECTED)) else ()),
    ]
    panels = [(draw, drawn) for draw, drawn in panels if drawn] or panels[1:2]
    columns = min(len(panels), 2)
    figure, axes = figures.make(-(-len(panels) // columns), columns, width=4.8, height=3.4)
    for ax, (draw, drawn) in zip(axes.flat, panels, strict=False):
        draw(ax, drawn)
    for ax in axes.flat[len(panels) :]:
        ax.set_axis_off()
    figures.save(figure, path)


def _draw_speedups(ax: Any, groups: Mapping[str, Sequence[Row]]) -> None:
    ends = []
    for colour, (name, of_setting) in zip(figures.COLOURS, groups.items(), strict=False):
        counts = [len(row["workers"]) for row in of_setting]
        speedups = [_speedup(row, of_setting[0]) for row in of_setting]
        ax.plot(counts, speedups, "o-", color=colour)
        ends.append((counts[-1], speedups[-1], name.replace("/", ", "), colour))
    if ends:
        most = max(end[0] for end in ends)
        ax.plot([1, most], [1, most], "--", color=figures.GREY, linewidth=1)
        ax.set_xlim(1, most * 1.45)
        ax.set_ylim(0, most * 1.05)
        figures.label_line_ends(ax, [*ends, (most, most, "ideal", figures.GREY)])
    ax.set_title("Speedup over one worker")
    ax.set_xlabel("workers of a quarter of a core")


def _draw_splits(ax: Any, rows: Sequence[Row]) -> None:
    def order(setting: tuple[str, Sequence[Row]]) -> tuple[float, int, int]:
        first = setting[1][0]
        return -sum(first["fractions"]), -first["extents"][0], _batch(first)

    for setting, of_setting in sorted(_settings(rows).items(), key=order):
        cores = setting.rpartition("/")[2].replace(",", " + ")
        for row in of_setting[1:]:
            volumes = "" if _batch(row) == 1 else f"{_batch(row)} of "
            label = f"{volumes}W={row['extents'][0]}, {cores}, {row['way']}"
            colour = figures.GREY if row["way"] == EVEN else figures.COLOURS[0]
            ax.barh(label, _speedup(row, of_setting[0]), color=colour, height=0.65)
    ax.invert_yaxis()
    ax.tick_params(axis="y", labelsize=7)
    ax.grid(axis="y", visible=False)
    ax.set_title("Convolutions: speedup over worker 0 alone")


def _draw_memory(ax: Any, rows: Sequence[Row]) -> None:
    for colour, edge in zip(figures.COLOURS, sorted({row["edge"] for row in rows}), strict=False):
        own = sorted((row for row in rows if row["edge"] == edge), key=lambda row: len(row["fractions"]))
        alone = _alone(rows, own[0])
        counts = [len(row["fractions"]) for row in own]
        ax.plot(counts, [max(row["peak_bytes"]) / _MB for row in own], "o-", color=colour, label=f"W={edge}")
        if alone is not None:
            expected = [max(scaling.expected_bytes(row, alone)) / _MB for row in own]
            ax.plot(counts, expected, ":", color=colour, label=f"W={edge}, share and halo")
            ideal = [max(alone["peak_bytes"]) / count / _MB for count in counts]
            ax.plot(counts, ideal, "--", color=figures.GREY, linewidth=1)
    if rows:
        ax.set_xscale("log", base=2)
        ax.set_yscale("log")
        ax.legend(fontsize=7)
    ax.set_title("Peak MB of a worker (dashed: 1/p)")
    ax.set_xlabel("workers")


def _draw_projection(ax: Any, rows: Sequence[Row]) -> None:
    found, modelled = _rate(rows), [row for row in _of(rows, PROJECTED) if "count" in row]
    for colour, row in zip(figures.COLOURS, modelled if found else (), strict=False):
        assert found is not None
        steps = [
            scaling.project(row, devices, flops_per_second=found[0], link=found[1])
            for devices in _device_counts(row["count"])
        ]
        rates = [step.devices / row["count"] / step.seconds for step in steps]
        ax.plot([step.devices for step in steps], rates, "o-", color=colour, label=f"{row['count']} per sample")
        ideal = [rates[0] * step.devices / steps[0].devices for step in steps]
        ax.plot([step.devices for step in steps], ideal, "--", color=figures.GREY, linewidth=1)
    if found and modelled:
        ax.set_xscale("log", base=2)
        ax.set_yscale("log")
        ax.legend(fontsize=7)
    ax.set_title("Modelled: samples a second (dashed: ideal)")
    ax.set_xlabel("workers of a core")


def render(rows: Sequence[Row], directory: pathlib.Path) -> str:
    """Draws spatial.png; returns the body of the report."""
    _draw(rows, directory / "spatial.png")
    timed = [row for row in _of(rows, CONV, STRONG, WEAK) if "failed" not in row]
    parts = ["![Speedups, splits, memory and projection](spatial.png)"]
    if timed:
        parts += [
            "Median (minimum to maximum) over the repeats. Speedups are in voxels a second over the first way. MB sent "
            "are counted in a traced step. Predicted: each layer's slab timed on one worker by itself, times what the "
            "first way's step takes of its layers' times, the messages of the lowered graph over the measured link, "
            f"half of each hop to either end, {1e3 * scaling.WAIT_SECONDS:g} ms of waiting in each halo exchange, "
            "fitted to the two workers at W=128 and longer in proportion where no worker has a whole core, and an "
            "empty call.",
            _accuracy(_settings(timed)),
        ]
    for title, of_setting in _settings(_of(rows, CONV, STRONG, WEAK)).items():
        good = [row for row in of_setting if "failed" not in row]
        parts += [f"## {title}: {of_setting[0]['network']}", _steps(of_setting), _notes(of_setting)]
        parts += ["How each worker spends a traced step, and the time of halos that passes beside convolutions:"]
        parts += [_spent(good), "What the prediction is made of:", _layers(good)]
    for part, title, table in (
        (MEMORY, "Memory: what a worker takes beyond what it holds before the first session", _memory),
        (LIMIT, "The largest cube within a memory limit, of CosmoFlow", _limits),
        (INPUT, "Input: bytes read by each worker, without what it reads when it makes its volumes", _inputs),
    ):
        of_part = _of(rows, part)
        if of_part:
            parts += [f"## {title}", _about(part, of_part), table(of_part)]
    found, modelled = _rate(rows), [row for row in _of(rows, PROJECTED) if "count" in row]
    if found and modelled:
        parts += [f"## Modelled: CosmoFlow at W={modelled[0]['edge']}, data and spatial parallelism", _model(found)]
        parts += [_projected(modelled, *found)]
    assert all(row.get(MODELLED) for row in modelled)
    return "\n\n".join(parts)


def _about(part: str, rows: Sequence[Row]) -> str:
    """What a section shows."""
    limits = " and ".join(dict.fromkeys(limit for row in rows for limit in row["limits"]))
    texts = {
        MEMORY: f"The largest of the workers, after {rows[0]['steps']} steps; each number of them in a cluster of its "
        "own. Share and halo: weights, their gradients and what TensorFlow itself takes, whole; its planes' part of "
        f"the rest of what one worker takes; and the halos that it receives. Demanded is within {_DEMANDED:.0%}.",
        LIMIT: f"The limit is to what a worker takes once it is up; {rows[0]['steps']} steps were run.",
        INPUT: f"{rows[0].get('volumes')} cubes of {rows[0]['edge']}, 16 bits, 4 channels; three epochs, in the first "
        "of which it is kept. Demanded is within 5 % of the share, and nothing later. Wait: of the last step "
        "of each epoch, in its trace.",
    }
    return f"{texts[part]} Limited by {limits}; seed {rows[0]['seed']}."


def _model(found: tuple[float, Mapping[str, float]]) -> str:
    rate, link = found
    return (
        f"Not measured. Workers of one core compute as many FLOP/s as one did alone on the convolutional part, "
        f"{rate / 1e9:.3g} G, and exchange over the link measured here, {link['bytes_per_second'] / 1e9:.2f} GB/s and "
        f"{1e3 * link['latency_seconds']:.2g} ms a hop, with nothing overlapped. What a worker of a group computes and "
        "exchanges is counted in the lowered graph. Gradients are summed by recursive halving and doubling; today each "
        "worker sends to each other one: the last column is what their latencies would cost."
    )
