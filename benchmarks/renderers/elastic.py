"""The report on workers that change: step times around a cut and a return, lost workers, and the cost of watching."""

import functools
import pathlib
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks import drawing
from benchmarks.cases.elastic import AUTO, CUT, FRESH, LOSSES, NETWORKS, SAVES, STATIC, STEADY
from benchmarks.renderers.document import Part, Report
from benchmarks.renderers.tables import (
    Row,
    bullets,
    cell,
    could_not,
    group_by,
    machines,
    on_machines,
    span,
    succeeded,
    table,
    tabulate,
)

_GOAL = 0.9  # of a fresh plan's throughput
_LATER = 10  # steps after a change, whose median is a step's time
_INTERVAL = 60.0  # seconds between checkpoints
_STARTS = (*(f"{what}/" for what in LOSSES), "torchrun/")  # of variants
_ON_LOSSES = (
    "VGG-11 and 128 images on three workers of 0.6 cores. A killed worker closes its connections. One that is stopped "
    "for ever (SIGSTOP) does not: it is found within 23 s. Ours waits 1 s for the return of the worker. torchrun waits "
    "for more agents for 30 s by default, and for 1 s with short waits. It continues from the newest checkpoint."
)
_ON_STEADY = (
    "LeNet on two workers of one core; the time of the training process and both workers. `off` measures nothing."
)
_ON_SAVING = "VGG-11 on two workers of one core, in turns; the mean of all steps."
_COLOURS = dict(zip((AUTO, STATIC, FRESH), drawing.COLOURS, strict=False))


def _settled(row: Row | None, phase: str) -> float | None:
    return None if row is None or phase not in row["settled_seconds"] else row["settled_seconds"][phase]["median"]


def _draw(networks: Mapping[str, Mapping[str, Row]], path: pathlib.Path) -> None:
    with drawing.panels(path, len(networks), width=8.0, height=2.6) as axes:
        for ax, (network, ways) in zip(axes, networks.items(), strict=True):
            _draw_network(ax, ways)
            ax.set_title(drawing.title({"network": network}))
        axes[-1].set_xlabel("step")


def _draw_network(ax: Any, ways: Mapping[str, Row]) -> None:
    for way in (AUTO, STATIC):
        if way in ways:
            seconds = ways[way]["step_seconds"][1:]
            ax.plot(range(2, len(seconds) + 2), seconds, color=_COLOURS[way], linewidth=1.2, label=way)
    if fresh := _settled(ways.get(FRESH), "cut"):
        ax.axhline(fresh, color=_COLOURS[FRESH], linestyle="--", linewidth=1, label="fresh plan for the cut")
    if AUTO in ways:
        for step in ways[AUTO]["phases"].values():
            ax.axvline(step, color=drawing.GREY, linewidth=1)
        for event in ways[AUTO]["events"]:
            ax.axvline(event["step"], color=_COLOURS[AUTO], linestyle=":", linewidth=1)
    drawing.plain_log(ax)
    ax.set_ylabel("s per step")


def _ratio(seconds: float | None, of: float | None) -> float | None:
    """Return the throughput over that of steps of `of` seconds."""
    return None if seconds is None or of is None else of / seconds


def _line(network: str, ways: Mapping[str, Row]) -> list[object]:
    auto, static, fresh = (ways.get(way) for way in (AUTO, STATIC, FRESH))
    before, cut, restored = (_settled(auto, phase) for phase in ("before", "cut", "restored"))
    new = _settled(fresh, "cut")
    ratios = [None if ratio is None else f"{ratio:.2f}" for ratio in (_ratio(cut, new), _ratio(restored, before))]
    return [network, before, _settled(static, "cut"), cut, new, ratios[0], restored, ratios[1]]


def _delay(row: Row, event: Row) -> tuple[str, int, float] | None:
    """Return (the phase that a change of the shares belongs to, steps, seconds since it began); None: it has none."""
    begun = {phase: step for phase, step in row["phases"].items() if step <= event["step"]}
    if not begun:
        return None
    phase = max(begun, key=begun.__getitem__)
    return phase, event["step"] - begun[phase], sum(row["step_seconds"][begun[phase] : event["step"]])


def _changes(networks: Mapping[str, Mapping[str, Row]]) -> list[tuple[str, Row, Row]]:
    """Return (network, row, event) of all changes of the shares."""
    return [(name, row, event) for name, ways in networks.items() for row in ways.values() for event in row["events"]]


def _step_after(row: Row, event: Row) -> float | None:
    """Return the seconds of a step after a change; the pause ends with the first one."""
    later = row["step_seconds"][event["step"] + 1 :][:_LATER]
    return statistics.median(later) if later else None


def _change_line(network: str, row: Row, event: Row) -> list[object]:
    delay = _delay(row, event)
    after = None if delay is None else f"{delay[0]}, {delay[1]} steps, {delay[2]:.1f} s"
    seconds = [event["seconds_paused"], _step_after(row, event)]
    return [f"{network}, {event['step']}", after, *seconds, _gain(event), _sizes(event), event["why"]]


def _conclude_steady(steady: Mapping[str, Row], saving: Mapping[str, Row]) -> str:
    texts = []
    if len(steady) == len(STEADY):
        auto, off = (steady[way]["cpu_seconds_per_step"]["median"] for way in STEADY)
        count = steady[AUTO]["steps"] * steady[AUTO]["repeats"]
        texts.append(
            f"In {count:,} steps on two equal workers, the shares change {steady[AUTO]['changes']} times. Watching "
            f"takes {max(auto / off - 1, 0.0):.1%} of the processor time."  # below 0 it is noise
        )
    if len(saving) == len(SAVES):
        saved, unsaved = (saving[way]["mean_seconds"]["median"] for way in SAVES)
        cost = max(saved / unsaved - 1, 0.0) * saving["saved"]["interval"] / _INTERVAL
        texts.append(f"A checkpoint every {_INTERVAL:g} s takes {cost:.1%} of the time.")
    return " ".join(texts)


def _conclude_losses(losses: Sequence[Row]) -> str:
    killed, stopped, theirs = (
        [row["seconds"] for row in succeeded(losses) if row["variant"].startswith(start)] for start in _STARTS
    )
    texts = []
    if killed:
        beside = f"; with torchrun {span(theirs, '.1f')} s" if theirs else ""
        texts.append(f"From kill -9 of a worker to the next finished step: {span(killed, '.1f')} s{beside}.")
    if stopped:
        texts.append(f"From the stop of one for ever: {span(stopped, '.1f')} s.")
    return " ".join(texts)


def _conclude(
    networks: Mapping[str, Mapping[str, Row]],
    losses: Sequence[Row],
    steady: Mapping[str, Row],
    saving: Mapping[str, Row],
) -> list[str]:
    texts = []
    pairs = {
        name: (_settled(ways.get(AUTO), "cut"), _settled(ways.get(FRESH), "cut")) for name, ways in networks.items()
    }
    ratios = {name: ratio for name, pair in pairs.items() if (ratio := _ratio(*pair)) is not None}
    if ratios:
        each = ", ".join(f"{ratio:.2f} ({drawing.title({'network': name})})" for name, ratio in ratios.items())
        made = "reached" if min(ratios.values()) >= _GOAL else "missed"
        texts.append(
            f"After the cut, moved shares reach {each} of a fresh plan's throughput; the goal of {_GOAL} is {made}."
        )
    if changes := _changes(networks):
        firsts: dict[tuple[str, str], tuple[int, float]] = {}
        for network, row, event in changes:
            if delay := _delay(row, event):
                firsts.setdefault((network, delay[0]), delay[1:])
        steps, seconds = zip(*firsts.values(), strict=True)
        pauses = [event["seconds_paused"] for _, _, event in changes]
        lost = [pause - (_step_after(*change[1:]) or 0.0) for pause, change in zip(pauses, changes, strict=True)]
        texts.append(
            f"The first change follows after {span(steps, '.0f')} steps, or {span(seconds, '.1f')} s. A change pauses "
            f"training for {span(pauses, '.1f')} s, or {span(lost, '.1f')} s without the first step."
        )
    texts += filter(None, [_conclude_steady(steady, saving), _conclude_losses(losses)])
    return texts


def render(rows: Sequence[Row]) -> Report:
    """Return the report: tables of step times, of the changes, of lost workers, and of steady ones."""
    steady = {row["watched"]: row for row in rows if "watched" in row}
    saving = {row["saves"]: row for row in rows if "saves" in row}
    losses = [row for row in rows if row["variant"].startswith(_STARTS)]
    networks: dict[str, dict[str, Row]] = {}
    for row in rows:
        if "way" in row:
            networks.setdefault(row["network"], {})[row["way"]] = row
    networks = {name: networks[name] for name in NETWORKS if name in networks}
    parts: list[Part] = [
        f"Two workers of one core each; the second one is cut to {CUT} cores in mid-run and restored later. Seconds of "
        "a step are the median of the last steps of each phase. Fresh: a new training on workers of these speeds, with "
        "`--layout=auto`.",
    ]
    if networks:
        header = ["network", "before s", "cut, static s", "cut, auto s", "cut, fresh s", "of fresh"]
        header += ["restored s", "of before"]
        for of_place in group_by(networks.items(), lambda item: machines(item[1].values())).values():
            heading = f"## Step time{on_machines(of_place[0][1].values(), rows)}"
            parts += [heading, table(header, [_line(network, ways) for network, ways in of_place])]
        lines = [_change_line(*change) for change in _changes(networks)]
        header = ["step", "after", "paused s", "of it a step s", "gain", "sizes", "why"]
        parts += ["## Changes", table(header, lines)] if lines else []
    if losses:
        columns = {
            "variant": lambda row: row["variant"],
            "step s": lambda row: statistics.median(row["step_seconds"][1:]),
            "until detected s": lambda row: row.get("detected"),
            "to the next step s": lambda row: row["seconds"],
            "steps repeated": lambda row: row["repeated"],
            "continued from": lambda row: row["source"],
        }
        for of_place in group_by(losses, lambda row: machines([row])).values():
            heading = f"## One of three workers is killed, or stopped for ever{on_machines(of_place, rows)}"
            parts += [heading, tabulate(of_place, columns)]
        parts += [_ON_LOSSES, bullets(could_not("measured", losses, "variant"))]
    if steady:
        columns = {
            "`--rebalance`": lambda row: row["watched"],
            "steps": lambda row: row["steps"] * row["repeats"],
            "changes": lambda row: row["changes"],
            "processor time of a step ms": lambda row: 1e3 * row["cpu_seconds_per_step"]["median"],
        }
        heading = f"## Steady workers{on_machines(steady.values(), rows)}"
        parts += [heading, tabulate(list(steady.values()), columns), _ON_STEADY]
    if saving:
        columns = {
            "checkpoint every s": lambda row: row["interval"] if row["saves"] == "saved" else None,
            "steps": lambda row: row["steps"] * row["repeats"],
            "step s, mean": lambda row: row["mean_seconds"]["median"],
        }
        heading = f"## Checkpoints{on_machines(saving.values(), rows)}"
        parts += [heading, tabulate(list(saving.values()), columns), _ON_SAVING]
    draw = functools.partial(_draw, networks) if networks else None
    return Report(_conclude(networks, losses, steady, saving), parts, "Step time of each step", draw)


def _gain(event: Row) -> str | None:
    return None if event["predicted_gain"] is None else f"{event['predicted_gain']:.0%}"


def _sizes(event: Row) -> str | None:
    return "; ".join(f"{name} {', '.join(map(cell, sizes))}" for name, sizes in (event["sizes"] or {}).items()) or None
