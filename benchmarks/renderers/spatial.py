"""The report on large 3D CNNs: tables of step times and predictions, memory, limits, input and projections."""

import functools
from collections.abc import Mapping, Sequence

from benchmarks import scaling
from benchmarks.cases.spatial import ALONE, CONV, EVEN, INPUT, LIMIT, MEMORY, MODELLED, PROJECTED, STRONG, WEAK
from benchmarks.renderers import spatial_drawing
from benchmarks.renderers.document import Details, Part, Report
from benchmarks.renderers.tables import (
    MB,
    Row,
    Table,
    bullets,
    cell,
    group_by,
    in_turns,
    limits,
    losses_agree,
    median,
    number,
    on_machines,
    per_link,
    span,
    succeeded,
    table,
    tabulate,
)

_DEMANDED = 0.15  # the largest error of predicted step times, and of memory, that we accept


def _steps(rows: Sequence[Row]) -> Table:
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
    return tabulate(rows, columns, labels=2)


def _spent(rows: Sequence[Row]) -> Table:
    """Each worker's use of a traced step."""
    header = [
        "way",
        "worker",
        "computing ms",
        "receiving ms",
        "waiting ms",
        "halos in flight ms",
        "convolving meanwhile",
    ]
    lines = []
    for row in rows:
        for index, used, both in zip(row["workers"], row["usage"], row["overlap"], strict=False):
            halo = both["halo_seconds"]
            spent = (1e3 * used[name] for name in ("computing", "receiving", "waiting"))
            passed = f"{both['both_seconds'] / halo:.0%}" if halo else None
            lines.append([row["way"], index, *spent, 1e3 * halo, passed])
    return table(header, lines, labels=2)


def _notes(rows: Sequence[Row]) -> str:
    first = rows[0]
    ways = {row["way"]: row for row in succeeded(rows)}
    return bullets(
        [
            f"{limits(first)} Link: {per_link(first['link'])} hop. {in_turns(first)}",
            losses_agree(rows),
            *(f"{row['way']} failed: {row['failed']}" for row in rows if "failed" in row),
            _demands(ways, first) if first["part"] == CONV and {ALONE, EVEN} <= ways.keys() else "",
        ]
    )


def _demands(ways: Mapping[str, Row], first: Row) -> str:
    """Return a note on the convolutional part: its measured speedups, and those that we ask for."""
    alone, even = ways[ALONE], ways[EVEN]
    speedup = scaling.speedup
    if len(set(first["fractions"])) == 1:
        apart = even["apart_seconds_per_step"]
        return (
            f"Two workers are {speedup(even, alone):.2f} times as fast as one (asked for: 1.85). Their slabs as "
            f"networks of their own, at the same time and without any exchange, need {cell(apart)} s, "
            f"{median(alone) / apart['median']:.2f} times as fast."
        )
    best = min((row for way, row in ways.items() if way not in (ALONE, EVEN)), key=median, default=None)
    if best is None:
        return "No uneven split was measured."
    by_speed = ways.get("2:1", best)
    return (
        f"Split by speed, 2:1, the step is {speedup(by_speed, alone):.2f} times as fast as the fast worker alone "
        f"(asked for: 1.35) and {speedup(by_speed, even):.2f} times as fast as the even split (asked for: 1.3). The "
        f"best of the grid, {best['way']}, reaches {speedup(best, alone):.2f} and {speedup(best, even):.2f} times."
    )


def _layers(rows: Sequence[Row]) -> Table:
    """Return the layers' times behind the predictions, on the slowest worker of each way."""
    seconds = {
        name: [row["predicted_layer_seconds"].get(name) for row in rows]
        for name in dict.fromkeys(name for row in rows for name in row["predicted_layer_seconds"])
    } | {
        "computing, busiest worker": [row["predicted_computing_seconds"] for row in rows],
        "messages and waiting": [row["predicted_seconds"] - row["predicted_computing_seconds"] for row in rows],
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
        f"{within} of {len(errors)} predicted step times are within {_DEMANDED:.0%}; the worst is off by "
        f"{errors[worst]:+.0%} ({worst})."
    )


def _timed(rows: Sequence[Row], everything: Sequence[Row]) -> list[Part]:
    """Return the sections of the settings whose steps were timed and predicted."""
    parts: list[Part] = []
    if succeeded(rows):
        parts.append(
            "Median (minimum to maximum) over the repeats. Speedup: voxels per second over the first way's. MB sent "
            "are counted in a traced step. Predicted: by the planner's cost model, from the measurements of "
            "`--layout=auto` on the workers of that way, without lowering the graph."
        )
    for title, group in group_by(rows, lambda row: row["setting"]).items():
        good = succeeded(group)
        details = Details(
            "Each worker's use of a step, and the parts of the prediction",
            [
                "Halos in flight: the time in which halos are on their way, and its share with convolutions running.",
                _spent(good),
                "The parts of the predicted step time:",
                _layers(good),
            ],
        )
        heading = f"## {title}: {group[0]['network']}{on_machines(group, everything)}"
        parts += [heading, _steps(group), _notes(group), details]
    return parts


def _memory_errors(rows: Sequence[Row]) -> list[float]:
    """Return the differences of the peaks from share and halo, of more than one worker."""
    alone = {row["edge"]: row for row in reversed(rows) if len(row["fractions"]) == 1}
    several = [row for row in rows if row["edge"] in alone and len(row["fractions"]) > 1]
    return [max(row["peak_bytes"]) / max(scaling.expected_bytes(row, alone[row["edge"]])) - 1 for row in several]


def _memory(rows: Sequence[Row]) -> Table:
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
        "alone / workers MB": part,
        "share and halo MB": expected,
        "error": error,
        "estimated MB": lambda row: max(row["estimated_bytes"]) / MB,
    }
    return tabulate(rows, columns, labels=2)


def _largest(rows: Sequence[Row]) -> Row | None:
    """Return the row of the largest cube that trains."""
    return max((row for row in rows if row["trained"]), key=lambda row: row["edge"], default=None)


def _limits(rows: Sequence[Row]) -> Table:
    header = ["limit GB per worker", "workers", "largest cube that trains", "its peak MB", "the next larger one"]
    groups = group_by(rows, lambda row: (row["memory_limit_bytes"], len(row["fractions"])))
    lines = []
    for (limit, count), tried in sorted(groups.items()):
        best = _largest(tried)
        failed = next((row for row in tried if not row["trained"]), None)
        largest = ["none", None] if best is None else [best["edge"], max(best["peak_bytes"]) / MB]
        larger = "was not tried" if failed is None else f"{failed['edge']}: {_end(failed)}"
        lines.append([f"{limit / 1e9:g}", count, *largest, larger])
    return table(header, lines, labels=2)


def _end(row: Row) -> str:
    """Return the end of a failed attempt."""
    lost = [f"worker {index}" for index, code in enumerate(row.get("exit_codes") or ()) if code]
    if lost:
        return f"the kernel killed {', '.join(lost)}"
    return row["error"].partition(":")[2].strip()[:80].replace("|", " ") or row["error"]


def _inputs(rows: Sequence[Row]) -> Table:
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
    """Return the text at the head of a section."""
    texts = {
        MEMORY: f"The worker with the most, after {rows[0]['steps']} steps; each number of workers in a cluster of its "
        "own. Share and halo: weights, their gradients and TensorFlow's own memory, all in full; the share of its "
        f"planes in the rest of one worker's memory; and the received halos. We ask for {_DEMANDED:.0%} at most.",
        LIMIT: f"The limit is on a worker's memory beyond that after its start; {rows[0]['steps']} steps.",
        INPUT: f"{rows[0].get('volumes')} cubes of {rows[0]['edge']}, 16 bits, 4 channels; three epochs. Workers keep "
        "their planes in memory from the first epoch on. We ask for 5 % of the share at most, and for nothing read "
        "later. Wait: of the last step of each epoch, in its trace.",
    }
    every = limits({"limits": [limit for row in rows for limit in row["limits"]]})
    return f"{texts[part]} {every} Seed {rows[0]['seed']}."


def _model(projected: Mapping[int, Sequence[Row]]) -> list[Part]:
    """Return the section on workers that this machine does not have."""
    lines = []
    for count, steps in projected.items():
        for row in steps:
            workers, seconds = count * row["groups"], row["predicted_seconds"]
            rest = seconds - row["predicted_computing_seconds"]
            sent = row["predicted_bytes"] / workers / MB
            efficiency = f"{_efficiency(steps, row):.2f}"
            lines.append([count, workers, row["groups"], seconds, seconds - rest, rest, sent, efficiency])
    first = next(iter(projected.values()))[0]
    about = ["workers per sample", "workers", "samples", "s/step", "computing s", "messages and waiting s"]
    return [
        f"## Modelled: CosmoFlow at W={first['edge']}, data and spatial parallelism",
        "Not measured. The planner's cost model, for workers of one core that are each as fast as the first of two "
        f"here, measured beside the other on the convolutional part at W={first['measured_edge']}: convolutions at "
        f"{first['flops_per_second'] / 1e9:.3g} GFLOP/s, the link measured here, {per_link(first['link'])} hop, and "
        "the processor time of messages at both ends. Gradients are summed as mtf_hetero does it: each worker sends to "
        "each other one.",
        table([*about, "MB sent by a worker", "efficiency"], lines, labels=2),
    ]


def _efficiency(steps: Sequence[Row], row: Row) -> float:
    """Return samples per second and worker, over those of the smallest projection."""
    return steps[0]["predicted_seconds"] / row["predicted_seconds"]


def _conclude_conv(rows: Sequence[Row]) -> str:
    """Return a sentence on the speedups of two workers, for each pair of workers over all sizes."""
    texts = []
    for cores, of_pair in group_by(rows, lambda row: ",".join(map(str, row["fractions"]))).items():
        even, best = [], []
        for first, *others in group_by(of_pair, lambda row: row["setting"]).values():
            even += [scaling.speedup(row, first) for row in others if row["way"] == EVEN]
            best += [scaling.speedup(min(others, key=median), first)] if others else []
        text = f"on {cores} cores {span(best)}" if best else ""
        texts += [f"{text} by the best split, {span(even)} evenly" if best != even and even else text]
    return f"Speedup of two workers over the faster one: {'; '.join(filter(None, texts))}." if any(texts) else ""


def _conclude_scaling(rows: Sequence[Row]) -> str:
    texts = []
    for setting, group in group_by(rows, lambda row: row["setting"]).items():
        last = max(group, key=lambda row: len(row["workers"]))
        texts.append(f"{setting} {scaling.speedup(last, group[0]):.2f} on {len(last['workers'])}")
    return f"Speedup of more workers over one: {'; '.join(texts)}." if texts else ""


def _conclude_memory(of: Mapping[str, Sequence[Row]]) -> str:
    """Sentences on memory, limit and input."""
    texts = []
    for edge, group in group_by(of[MEMORY], lambda row: row["edge"]).items():
        first, last = (pick(group, key=lambda row: len(row["fractions"])) for pick in (min, max))
        peaks = [f"{number(max(row['peak_bytes']) / MB)} MB on {len(row['fractions'])}" for row in (first, last)]
        texts.append(f"{' and '.join(peaks)} at W={edge}")
    texts = [f"Peak memory of a worker: {'; '.join(texts)}."] if texts else []
    errors = _memory_errors(of[MEMORY])
    texts += [f"Predicted within {max(map(abs, errors)):.0%}."] if errors else []
    tried = group_by(of[LIMIT], lambda row: (row["memory_limit_bytes"], len(row["fractions"])))
    best = {key: row["edge"] for key, group in tried.items() if (row := _largest(group)) is not None}
    if best:
        (limit, fewest), (_, most) = min(best), max(best)
        texts.append(
            f"The largest cube with {limit / 1e9:g} GB per worker: {best[limit, fewest]} on {fewest}, "
            f"{best[limit, most]} on {most} workers."
        )
    return " ".join(texts)


def _conclude_projection(projected: Mapping[int, Sequence[Row]]) -> str:
    texts = [
        f"{_efficiency(steps, steps[-1]):.2f} on {count * steps[-1]['groups']:,} workers, {count} per sample"
        for count, steps in projected.items()
    ]
    return f"Modelled efficiency, not measured: {'; '.join(texts)}." if texts else ""


def render(rows: Sequence[Row]) -> Report:
    """Return the report: a section per setting, and those on memory, limits, input and projections."""
    of = {part: [row for row in rows if row["part"] == part] for part in (CONV, MEMORY, LIMIT, INPUT, PROJECTED)}
    timed = [row for row in rows if row["part"] in (CONV, STRONG, WEAK)]
    done = group_by(succeeded(timed), lambda row: row["part"] == CONV)
    assert all(row.get(MODELLED) for row in of[PROJECTED])
    projected = group_by(of[PROJECTED], lambda row: row["count"])
    parts = _timed(timed, rows)
    for part, title, describe in (
        (MEMORY, "Memory of a worker beyond that before the first session", _memory),
        (LIMIT, "The largest cube within a memory limit, of CosmoFlow", _limits),
        (INPUT, "Input: bytes read by each worker, without those of a step that makes its volumes", _inputs),
    ):
        if of[part]:
            parts += [f"## {title}{on_machines(of[part], rows)}", _about(part, of[part]), describe(of[part])]
    if projected:
        parts += _model(projected)
    predicted = [_accuracy(succeeded(timed))] if succeeded(timed) else []
    conclusions = [
        _conclude_conv(done.get(True, [])),
        _conclude_scaling(done.get(False, [])),
        " ".join([*predicted, _conclude_projection(projected)]).strip(),
        _conclude_memory(of),
    ]
    drawn = (done.get(False, []), done.get(True, []), of[MEMORY], projected)
    draw = functools.partial(spatial_drawing.draw, drawn) if any(drawn) else None
    return Report(list(filter(None, conclusions)), parts, "Speedups, splits, memory and projection", draw)
