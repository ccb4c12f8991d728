"""The report on large 3D CNNs: tables of time, memory, limits and input, what was predicted, and what is projected."""

import pathlib
from collections.abc import Mapping, Sequence

from benchmarks import scaling
from benchmarks.cases.spatial import ALONE, CONV, EVEN, INPUT, LIMIT, MEMORY, MODELLED, PROJECTED, STRONG, WEAK
from benchmarks.renderers import spatial_drawing
from benchmarks.renderers.tables import (
    MB,
    Row,
    bullets,
    cell,
    group_by,
    in_turns,
    limits,
    losses_agree,
    median,
    per_link,
    table,
    table_of,
)

_DEMANDED = 0.15  # by how much predictions of steps, and memory, may be off


def _steps(rows: Sequence[Row]) -> str:
    first = rows[0]

    def halo(row: Row) -> str | None:
        received = sum(worker["halo_bytes"] for worker in row["exchanged"])
        return f"{received / row['sent_bytes']:.0%}" if row["sent_bytes"] else None

    columns = {
        "way": lambda row: row["way"],
        "cores": lambda row: ", ".join(f"{row['fractions'][index]:g}" for index in row["workers"]),
        "planes": lambda row: ":".join(map(str, row["sizes"].get("depth", [row["extents"][0]]))),
        "s/step": lambda row: row["wall_seconds_per_step"],
        "speedup": lambda row: f"{scaling.speedup(row, first):.2f}",
        "MB sent": lambda row: row["received_bytes"] / MB,
        "of it halo": halo,
        "predicted MB": lambda row: row["predicted_bytes"] / MB,
        "predicted s": lambda row: row["predicted_seconds"],
        "error": lambda row: f"{scaling.error(row):+.0%}",
    }
    return table_of(rows, columns, labels=2)


def _spent(rows: Sequence[Row]) -> str:
    """How each worker spends a traced step."""
    header = ["way", "worker", "computing ms", "receiving ms", "waiting ms", "halos on their way ms", "convolving then"]
    lines = []
    for row in rows:
        for index, used, both in zip(row["workers"], row["usage"], row["overlap"], strict=False):
            halo = both["halo_seconds"]
            spent = (1e3 * used[name] for name in ("computing", "receiving", "waiting"))
            passed = f"{both['both_seconds'] / halo:.0%}" if halo else None
            lines.append([row["way"], index, *spent, 1e3 * halo, passed])
    return table(header, lines)


def _notes(rows: Sequence[Row]) -> str:
    first = rows[0]
    ways = {row["way"]: row for row in rows if "failed" not in row}
    return bullets(
        [
            f"{limits(first)} Link: {per_link(first['link'])} hop. {in_turns(first)}",
            losses_agree(rows),
            *(f"{row['way']} failed: {row['failed']}" for row in rows if "failed" in row),
            _demands(ways, first) if first["part"] == CONV and {ALONE, EVEN} <= ways.keys() else "",
        ]
    )


def _demands(ways: Mapping[str, Row], first: Row) -> str:
    """What is asked of the convolutional part, beside what was measured."""
    alone, even = ways[ALONE], ways[EVEN]
    speedup = scaling.speedup
    if len(set(first["fractions"])) == 1:
        apart = even["apart_seconds_per_step"]
        return (
            f"Two workers are {speedup(even, alone):.2f} times as fast as one; demanded is 1.85. Their slabs as "
            f"networks of their own, at once and without any exchange, take {cell(apart)} s, which would be "
            f"{median(alone) / apart['median']:.2f} times as fast."
        )
    best = min((row for way, row in ways.items() if way not in (ALONE, EVEN)), key=median, default=None)
    if best is None:
        return "No uneven split was measured."
    by_speed = ways.get("2:1", best)
    return (
        f"Split by speed, 2:1, the step is {speedup(by_speed, alone):.2f} times as fast as the fast worker alone "
        f"(demanded: 1.35) and {speedup(by_speed, even):.2f} times as fast as the even split (demanded: 1.3); the "
        f"best of the grid, {best['way']}, {speedup(best, alone):.2f} and {speedup(best, even):.2f} times."
    )


def _layers(rows: Sequence[Row]) -> str:
    """The layers' times behind the predictions, on the slowest worker of each way."""
    seconds = {
        name: [row["predicted_layer_seconds"].get(name) for row in rows]
        for name in dict.fromkeys(name for row in rows for name in row["predicted_layer_seconds"])
    } | {
        "all that the busiest worker computes": [row["predicted_computing_seconds"] for row in rows],
        "messages, and waiting": [row["predicted_seconds"] - row["predicted_computing_seconds"] for row in rows],
        "step, predicted": [row["predicted_seconds"] for row in rows],
        "step, measured": [median(row) for row in rows],
    }
    lines = [[name, *(None if s is None else 1e3 * s for s in of_ways)] for name, of_ways in seconds.items()]
    return table(["ms", *(row["way"] for row in rows)], lines)


def _accuracy(rows: Sequence[Row]) -> str:
    errors = {f"{row['setting']}/{row['way']}": scaling.error(row) for row in rows}
    within = sum(abs(error) <= _DEMANDED for error in errors.values())
    worst = max(errors, key=lambda name: abs(errors[name]))
    return (
        f"Of {len(errors)} steps, {within} are predicted within {_DEMANDED:.0%}; the worst is {worst}, by "
        f"{errors[worst]:+.0%}."
    )


def _timed(rows: Sequence[Row]) -> list[str]:
    """The sections of the settings whose steps were timed and predicted."""
    done = [row for row in rows if "failed" not in row]
    parts = []
    if done:
        parts += [
            "Median (minimum to maximum) over the repeats. Speedups are in voxels a second over the first way. MB sent "
            "are counted in a traced step. Predicted: by the planner's cost model, of the workers of that way as "
            "`--layout=auto` measures them, and of a graph that was not lowered.",
            _accuracy(done),
        ]
    for title, group in group_by(rows, lambda row: row["setting"]).items():
        good = [row for row in group if "failed" not in row]
        parts += [f"## {title}: {group[0]['network']}", _steps(group), _notes(group)]
        parts += ["How each worker spends a traced step, and the time of halos that passes beside convolutions:"]
        parts += [_spent(good), "What the prediction is made of:", _layers(good)]
    return parts


def _memory(rows: Sequence[Row]) -> str:
    alone = {row["edge"]: row for row in reversed(rows) if len(row["fractions"]) == 1}

    def expected(row: Row) -> float | None:
        return max(scaling.expected_bytes(row, alone[row["edge"]])) / MB if row["edge"] in alone else None

    def error(row: Row) -> str | None:
        wanted = expected(row)
        return f"{max(row['peak_bytes']) / MB / wanted - 1:+.0%}" if wanted else None

    def part(row: Row) -> float | None:
        one = alone.get(row["edge"])
        return max(one["peak_bytes"]) / len(row["fractions"]) / MB if one else None

    columns = {
        "cube": lambda row: row["edge"],
        "workers": lambda row: len(row["fractions"]),
        "peak MB": lambda row: max(row["peak_bytes"]) / MB,
        "1/p of alone": part,
        "share and halo MB": expected,
        "error": error,
        "estimated MB": lambda row: max(row["estimated_bytes"]) / MB,
    }
    return table_of(rows, columns)


def _limits(rows: Sequence[Row]) -> str:
    header = ["limit GB a worker", "workers", "largest cube that trains", "its peak MB", "the next larger one"]
    groups = group_by(rows, lambda row: (row["memory_limit_bytes"], len(row["fractions"])))
    lines = []
    for (limit, count), tried in sorted(groups.items()):
        best = max((row for row in tried if row["trained"]), key=lambda row: row["edge"], default=None)
        failed = next((row for row in tried if not row["trained"]), None)
        largest = ["none", None] if best is None else [best["edge"], max(best["peak_bytes"]) / MB]
        larger = "was not tried" if failed is None else f"{failed['edge']}: {_end(failed)}"
        lines.append([f"{limit / 1e9:g}", count, *largest, larger])
    return table(header, lines)


def _end(row: Row) -> str:
    """How an attempt failed."""
    lost = [f"worker {index}" for index, code in enumerate(row.get("exit_codes") or ()) if code]
    if lost:
        return f"the kernel ended {', '.join(lost)}"
    return row["error"].partition(":")[2].strip()[:80].replace("|", " ") or row["error"]


def _inputs(rows: Sequence[Row]) -> str:
    lines = []
    for row in rows:
        for index, planes in enumerate(row["split"]):
            share = planes * row["plane_bytes"] * row["volumes"]
            first, *later = [epoch[index] - row["read_bytes_without_input"][index] for epoch in row["read_bytes"]]
            waits = ", ".join(cell(1e3 * epoch[index]) for epoch in row["wait_seconds"])
            cores = ", ".join(f"{cores:g}" for cores in row["fractions"])
            read = [f"{share / MB:.2f}", f"{first / MB:.2f}", f"{first / share - 1:+.1%}"]
            lines.append([cores, index, planes, *read, ", ".join(f"{size / MB:.2f}" for size in later), waits])
    about = ["cores", "worker", "its planes", "its share MB"]
    return table([*about, "epoch 1 MB", "error", "epochs 2, 3 MB", "wait ms a step"], lines)


def _about(part: str, rows: Sequence[Row]) -> str:
    """What a section shows."""
    every = limits({"limits": [limit for row in rows for limit in row["limits"]]}).removesuffix(".")
    texts = {
        MEMORY: f"The largest of the workers, after {rows[0]['steps']} steps; each number of them in a cluster of its "
        "own. Share and halo: weights, their gradients and what TensorFlow itself takes, whole; its planes' part of "
        f"the rest of what one worker takes; and the halos that it receives. Demanded is within {_DEMANDED:.0%}.",
        LIMIT: f"The limit is to what a worker takes once it is up; {rows[0]['steps']} steps were run.",
        INPUT: f"{rows[0].get('volumes')} cubes of {rows[0]['edge']}, 16 bits, 4 channels; three epochs, in the first "
        "of which it is kept. Demanded is within 5 % of the share, and nothing later. Wait: of the last step "
        "of each epoch, in its trace.",
    }
    return f"{texts[part]} {every}; seed {rows[0]['seed']}."


def _model(projected: Mapping[int, Sequence[Row]]) -> list[str]:
    """The section on workers that are not there."""
    lines = []
    for count, steps in projected.items():
        for row in steps:
            workers, seconds = count * row["groups"], row["predicted_seconds"]
            rest = seconds - row["predicted_computing_seconds"]
            efficiency = f"{steps[0]['predicted_seconds'] / seconds:.2f}"
            sent = row["predicted_bytes"] / workers / MB
            lines.append([count, workers, row["groups"], seconds, seconds - rest, rest, sent, efficiency])
    first = next(iter(projected.values()))[0]
    about = ["workers per sample", "workers", "samples", "s/step", "computing", "messages, and waiting"]
    return [
        f"## Modelled: CosmoFlow at W={first['edge']}, data and spatial parallelism",
        "Not measured. The planner's cost model, for workers of one core that are each as fast as the first of two is "
        f"here beside the other, on the convolutional part at W={first['measured_edge']}: convolutions at "
        f"{first['flops_per_second'] / 1e9:.3g} GFLOP/s, over the link measured here, {per_link(first['link'])} hop, "
        "and with what a message costs the processors at its ends. Gradients are summed as mtf_hetero does it, each "
        "worker with each other one.",
        table([*about, "MB sent by a worker", "efficiency"], lines),
    ]


def render(rows: Sequence[Row], directory: pathlib.Path) -> str:
    """Draws spatial.png; returns the body of the report."""
    of = {part: [row for row in rows if row["part"] == part] for part in (CONV, MEMORY, LIMIT, INPUT, PROJECTED)}
    timed = [row for row in rows if row["part"] in (CONV, STRONG, WEAK)]
    done = group_by((row for row in timed if "failed" not in row), lambda row: row["part"] == CONV)
    assert all(row.get(MODELLED) for row in of[PROJECTED])
    projected = group_by(of[PROJECTED], lambda row: row["count"])
    path = directory / "spatial.png"
    spatial_drawing.draw(path, done.get(False, []), done.get(True, []), of[MEMORY], projected)
    parts = ["![Speedups, splits, memory and projection](spatial.png)", *_timed(timed)]
    for part, title, describe in (
        (MEMORY, "Memory: what a worker takes beyond what it holds before the first session", _memory),
        (LIMIT, "The largest cube within a memory limit, of CosmoFlow", _limits),
        (INPUT, "Input: bytes read by each worker, without what it reads when it makes its volumes", _inputs),
    ):
        if of[part]:
            parts += [f"## {title}", _about(part, of[part]), describe(of[part])]
    if projected:
        parts += _model(projected)
    return "\n\n".join(parts)
