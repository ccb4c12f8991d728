"""The layout that was chosen for a program, and the lines that tell the user."""

import dataclasses
import math
import os
import statistics
from collections.abc import Collection, Mapping, Sequence

from mtf_hetero._support.units import seconds_text
from mtf_hetero.cluster.devices import shorten
from mtf_hetero.cost.machines import Machines
from mtf_hetero.planner.plan import LayerPlan, Plan
from mtf_hetero.planner.show import sizes_text
from mtf_hetero.planner.verdict import names_text

ALONE, PLAN = "alone", "plan"
_ALIKE = 0.03  # of a dimension, by which the parts of two layers that are split alike may differ
_MOST_DEVICES = 8  # that the headline names


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
    def fallback(self) -> Plan | None:
        """Return the fastest device alone, if the chosen split was not tried; else None."""
        is_split = len(self.plan.devices) > 1
        return self.candidates.get(ALONE) if is_split and not self.trials else None

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
        low, middle, high = statistics.quantiles((*times, *times), n=4, method="inclusive")  # of one round, too
        is_alone = len(plan.devices) == 1
        what = f"{plan.devices[0]} alone" if is_alone else "the plan" if name == PLAN else f"layout {name}"
        lines.append(
            f"tried: {what}, {seconds_text(middle)} per step ({seconds_text(low)} to {seconds_text(high)}), predicted "
            f"{seconds_text(plan.seconds)}{'; chosen' if name == found.name else ''}"
        )
    return lines


def describe_choice(found: Choice) -> str:
    """Return the chosen layout and the reason, without the time that choosing took."""
    plan, devices = found.plan, list(map(shorten, found.plan.devices))
    reason = f"; {found.reason}" if found.reason else ""
    if len(devices) == 1:
        return f"Layout: {devices[0]} alone{plan.parts_text}{reason or _compare_split(found)}"
    text = f"Layout: {describe_split(plan) or found.name} on {_describe_devices(devices)}; "
    if ALONE not in found.candidates:
        return f"{text}no device alone has the memory for the whole batch{reason}"
    alone = found.candidates[ALONE]
    predicted = f"predicted {alone.seconds / plan.seconds:.2f}x"
    if not found.trials:
        return f"{text}{predicted} faster than {shorten(alone.devices[0])} alone{reason}"
    ratio = _measured_ratio(found, ALONE, found.name)
    word = "faster than" if ratio >= 1.0 else "as fast as"  # in the trials; the prediction counts for the choice, too
    return f"{text}{ratio:.2f}x {word} {shorten(alone.devices[0])} alone ({predicted}){reason}"


def _compare_split(found: Choice) -> str:
    """Return how fast the best split was that was tried; "" if none was."""
    splits = [name for name in found.trials if len(found.candidates[name].devices) > 1]
    if not splits:
        return ""
    best = min(splits, key=lambda name: statistics.median(found.trials[name]))
    predicted = found.plan.seconds / found.candidates[best].seconds
    return f"; the best split was {_measured_ratio(found, found.name, best):.2f}x as fast (predicted {predicted:.2f}x)"


def _measured_ratio(found: Choice, before: str, after: str) -> float:
    """Return the median seconds of a step with a candidate over those with another one."""
    return statistics.median(found.trials[before]) / statistics.median(found.trials[after])


def _describe_devices(names: Sequence[str]) -> str:
    return names_text(names) if len(names) <= _MOST_DEVICES else f"{len(names)} devices"


def describe_split(plan: Plan) -> str:
    """Return the sizes of the split that has the most work, and the number of other splits; "" if nothing is split.

    Layers whose products are split alike count as one split.

    Example:
      >>> describe_split(plan)
      'batch 22+10 of 32 and 2 more splits'
    """
    if plan.is_pipeline:
        return f"a pipeline of {plan.parts} parts of the batch"
    splits: list[list[LayerPlan]] = []
    for layer in sorted(plan.layers, key=_work, reverse=True):
        if layer.along and _work(layer):
            alike = next((split for split in splits if _is_alike(split[0], layer)), None)
            if alike is None:
                splits.append([layer])
            else:
                alike.append(layer)
    if not splits:
        return ""
    splits.sort(key=lambda split: math.fsum(map(_work, split)), reverse=True)
    first, sizes = splits[0][0].along, splits[0][0].split[splits[0][0].along]
    short = first.rpartition("/")[2]
    axis = f" over {plan.layout.axis_name_of(first)}" if len(plan.layout.mesh_shape) > 1 else ""
    more = f" and {len(splits) - 1} more split{'s' if len(splits) > 2 else ''}" if len(splits) > 1 else ""
    return f"{first if short.isdecimal() else short} {sizes_text(sizes)} of {sum(sizes)}{axis}{more}{plan.parts_text}"


def _work(layer: LayerPlan) -> float:
    return math.fsum(layer.seconds)


def _is_alike(one: LayerPlan, other: LayerPlan) -> bool:
    """Return whether the products of two layers are split over the same kind of dimension in nearly equal parts."""
    parts = [[size / sum(sizes) for size in sizes] for sizes in (one.split[one.along], other.split[other.along])]
    return (one.kind, len(parts[0])) == (other.kind, len(parts[1])) and all(
        abs(a - b) <= _ALIKE for a, b in zip(*parts, strict=True)
    )
