"""The layout that was chosen for a program, and the lines that tell the user."""

import dataclasses
import os
import statistics
from collections.abc import Mapping

from mtf_hetero._support.units import seconds_text
from mtf_hetero.planner.machines import Machines
from mtf_hetero.planner.plan import Plan

ALONE, PLAN = "alone", "plan"


@dataclasses.dataclass(frozen=True, eq=False)
class Choice:
    """The layout that was chosen.

    Args:
      name: ALONE, PLAN, or that of a recipe.
      plan: what is split, on which devices; what is predicted of it.
      headline: what was chosen and why, in one line, for the user.
      lines: the same with what was tried.
      warning: why the figures cannot be relied on, or "".
      trials: {name: seconds of a step in each of its turns}, of those that were tried.
      predicted: {name: seconds of a step}, of those that might have been.
      machines: the devices as they were measured.
    """

    name: str
    plan: Plan
    headline: str
    lines: tuple[str, ...]
    warning: str
    trials: Mapping[str, tuple[float, ...]]
    predicted: Mapping[str, float]
    machines: Machines

    @property
    def is_measured(self) -> bool:
        """Return whether the devices were measured on the program, not only estimated."""
        return any(machine.factors for machine in self.machines.devices)


@dataclasses.dataclass(frozen=True, eq=False)
class Found:
    """A layout that was found, and why it is used."""

    name: str
    candidates: Mapping[str, Plan]
    machines: Machines
    trials: Mapping[str, tuple[float, ...]]
    reason: str = ""

    @property
    def plan(self) -> Plan:
        return self.candidates[self.name]


def busy_warning() -> str:
    """Return a warning if more runs on this machine than it has cores; "" if it is idle, or its load is unknown."""
    load, cores = os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0, os.cpu_count() or 1
    if load <= cores:
        return ""
    return (
        f"this machine is busy (load average {load:.1f} on {cores} cores): measurements may be wrong and are not cached"
    )


def tried(found: Found) -> list[str]:
    """Return lines on the trials, for the user."""
    lines = []
    for name, times in found.trials.items():
        plan = found.candidates[name]
        low, middle, high = statistics.quantiles(times, n=4, method="inclusive")
        is_alone = len(plan.devices) == 1
        what = f"{plan.devices[0]} alone" if is_alone else "the plan" if name == PLAN else f"layout {name}"
        lines.append(
            f"tried: {what}, {seconds_text(middle)} per step ({seconds_text(low)} to {seconds_text(high)}), predicted "
            f"{seconds_text(plan.seconds)}{'; chosen' if name == found.name else ''}"
        )
    return lines


def said(found: Found) -> str:
    """Return the chosen layout and the reason, without the time that choosing took."""
    plan, devices = found.plan, found.plan.devices
    if len(devices) == 1:
        return f"Layout: {devices[0]} alone; {found.reason or 'no split won its trials'}"
    fastest, seconds = plan.alone
    text = (
        f"Layout: {'a plan' if found.name == PLAN else found.name} over {', '.join(devices[:-1])} and {devices[-1]}, "
        f"predicted {seconds / plan.seconds:.2f}x faster than {fastest} alone"
    )
    if ALONE in found.trials:
        before, after = (statistics.median(found.trials[name]) for name in (ALONE, found.name))
        text += f", {before / after:.2f}x when tried"
    return text + (f"; {found.reason}" if found.reason else "")
