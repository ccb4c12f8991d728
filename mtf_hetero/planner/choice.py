"""The layout that was chosen for a program, and the lines that tell the user."""

import dataclasses
import os
import statistics
from collections.abc import Collection, Mapping

from mtf_hetero._support.units import seconds_text
from mtf_hetero.cost.machines import Machines
from mtf_hetero.planner.plan import Plan

ALONE, PLAN = "alone", "plan"


@dataclasses.dataclass(frozen=True, eq=False)
class Choice:
    """The layout that was chosen.

    Args:
      name: ALONE, PLAN, or that of a recipe.
      candidates: {name: plan} of all that were compared.
      machines: the devices as measured.
      trials: {name: seconds of a step in each turn} of the candidates that were tried.
      reason: for the choice, if the trials do not tell it.
      lines: on the trials, and last the headline, for the user.
      warning: why the figures are not reliable, or "".
      names: of the dimensions to which the choice was limited; None: it was not.
    """

    name: str
    candidates: Mapping[str, Plan]
    machines: Machines
    trials: Mapping[str, tuple[float, ...]]
    reason: str = ""
    lines: tuple[str, ...] = ()
    warning: str = ""
    names: Collection[str] | None = None

    @property
    def plan(self) -> Plan:
        """The plan that was chosen."""
        return self.candidates[self.name]

    @property
    def headline(self) -> str:
        """The choice and the reason, in one line, for the user."""
        return self.lines[-1]

    @property
    def is_measured(self) -> bool:
        """Return whether the devices were measured on the program, not only estimated."""
        return any(machine.factors for machine in self.machines.devices)

    @property
    def allows_any_layout(self) -> bool:
        """Return whether any other layout may take its place, predicted with its figures of the devices."""
        return self.is_measured and self.names is None


def busy_warning() -> str:
    """Return a warning if more runs on this machine than it has cores; "" if it is idle, or its load is unknown."""
    load, cores = os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0, os.cpu_count() or 1
    if load <= cores:
        return ""
    return (
        f"this machine is busy (load average {load:.1f} on {cores} cores): measurements may be wrong and are not cached"
    )


def describe_trials(found: Choice) -> list[str]:
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


def describe_choice(found: Choice) -> str:
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
