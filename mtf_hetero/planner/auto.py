"""The layout for a program on the devices that are here: measured, planned, and tried before it is believed.

The plan, the recipe that is predicted to be the fastest and the fastest device alone take turns at whole steps. What is
more than the simplest is taken only where it wins by more than the spread of the turns.
"""

import contextlib
import dataclasses
import os
import statistics
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from mtf_hetero._compat import mtf, tf
from mtf_hetero._support import extras, logs
from mtf_hetero._support.units import seconds_text
from mtf_hetero.cluster import Cluster, shorten
from mtf_hetero.layout import Layout
from mtf_hetero.planner import calibration
from mtf_hetero.planner.find import describe
from mtf_hetero.planner.held import estimated, find_fitting, fits
from mtf_hetero.planner.known import measure_once
from mtf_hetero.planner.machines import Machines
from mtf_hetero.planner.plan import Plan
from mtf_hetero.profile.hardware import representatives
from mtf_hetero.profile.trial import Trial

ALONE, PLAN = "alone", "plan"
_ROUNDS = 5  # of the candidates' turns, at least three
_LEAST_ROUNDS = 3
_TURN_SECONDS = 0.3  # a worker under a CPU quota runs in periods of a tenth of a second
Recipe = Callable[[mtf.Graph, Sequence[float]], Layout]  # from a graph and the devices' speeds


@dataclasses.dataclass(frozen=True, eq=False)
class Choice:
    """What was chosen.

    Args:
      name: ALONE, PLAN, or that of a recipe.
      plan: what is split, on which devices; what is predicted of it.
      lines: what was chosen and why, for the user.
      trials: {name: seconds of a step in each of its turns}, of those that were tried.
      predicted: {name: seconds of a step}, of the same.
      machines: the devices as they were measured.
    """

    name: str
    plan: Plan
    lines: tuple[str, ...]
    trials: Mapping[str, tuple[float, ...]]
    predicted: Mapping[str, float]
    machines: Machines


def choose(
    build: Callable[[], mtf.Graph],
    cluster: Cluster,
    recipes: Mapping[str, Recipe],
    *,
    names: Collection[str] | None = None,
    memory_bytes: Mapping[str, float] | None = None,
    seconds: float = 30.0,
    cache_dir: str | os.PathLike | None = None,
    progress: bool = False,
) -> Choice:
    """Finds the fastest layout on the devices of a cluster.

    Logical devices of one CPU share its cores: the first one stands for them.

    Args:
      build: builds a training step in TensorFlow's default graph, a new one each time, and returns its mtf.Graph.
      cluster: the devices.
      recipes: {name: from a graph and the devices' speeds to a layout}, to compare with.
      names: of the dimensions that the plan divides; None: it may divide any.
      memory_bytes: {device: bytes}, in place of what TensorFlow reports.
      seconds: after which no further round of trials begins; there are at least three.
      cache_dir: where what is measured of the devices is kept; None: nowhere. The trials are run each time.
      progress: whether to show a bar, or lines where there is no terminal.

    Raises:
      ValueError: the graph assigns no variable, or the step fits on no set of the devices.
    """
    first = representatives(cluster.devices)
    devices = tuple(dict.fromkeys(first.values()))
    shared = [f"{device} shares the cores of {other}" for device, other in first.items() if device != other]
    lines = [f"not split over {len(cluster.devices)} devices: {'; '.join(shared)}"] if shared else []
    if len(devices) == 1 and not (memory_bytes or {}).get(devices[0]):
        return _nothing_to_choose(build, devices[0], lines)
    cluster = dataclasses.replace(cluster, devices=devices)
    total = calibration.parts(len(devices)) + 1 + _ROUNDS
    hide = None if progress else True  # None: shown on a terminal
    with extras.progress_bar(total=total, desc="planning", unit="part", disable=hide, leave=False) as bar:
        bar.set_description("measuring devices")
        machines, known = measure_once(
            lambda: calibration.calibrate(build, cluster, done=lambda _: bar.update()), build, cluster, cache_dir
        )
        if known:
            bar.update(calibration.parts(len(devices)))
            lines.append(f"the devices were measured before: {known}; delete the file to measure them again")
        machines = machines.with_memory(memory_bytes or {})
        bar.set_description("planning")
        candidates = _candidates(build, machines, recipes, names)
        bar.update()
        if list(candidates) == [ALONE]:
            trials: dict[str, tuple[float, ...]] = {}
        else:
            bar.set_description(f"trying {', '.join(candidates)}")
            trials = race(build, cluster, candidates, seconds=seconds, done=bar.update)
    name = winner(trials) if trials else ALONE
    predicted = {name: plan.seconds for name, plan in candidates.items()}
    lines += _reasons(name, candidates, trials)
    return Choice(name, candidates[name], tuple(map(shorten, lines)), trials, predicted, machines)


def _nothing_to_choose(build: Callable[[], mtf.Graph], device: str, lines: Sequence[str]) -> Choice:
    """One device, of which nothing has to be known."""
    machines = calibration.unmeasured(device)
    with tf.Graph().as_default():
        plan = describe(build(), machines, Layout([("all", 1)], ()))
    return Choice(ALONE, plan, (*lines, f"{device} alone: there is no other device"), {}, {}, machines)


def _candidates(
    build: Callable[[], mtf.Graph],
    machines: Machines,
    recipes: Mapping[str, Recipe],
    names: Collection[str] | None = None,
) -> dict[str, Plan]:
    """The fastest device alone, where it can hold the step; the best recipe; and the plan, where it is neither."""
    plan = find_fitting(build, machines, names=names)
    with tf.Graph().as_default():
        graph = build()
        found: dict[str, Plan] = {}
        fastest = next(number for number, name in enumerate(machines.names) if name == plan.alone[0])
        alone = machines.only([fastest])
        whole = _checked(describe(graph, alone, Layout([("all", 1)], ())), build, machines)
        if fits(whole, machines):
            found[ALONE] = whole
        if len(plan.devices) == 1:
            return found or {PLAN: plan}
        tried = of_recipes(graph, machines, recipes)
        for name in sorted(tried, key=lambda name: tried[name].seconds):
            recipe_plan = _checked(tried[name], build, machines)
            if fits(recipe_plan, machines):
                found[name] = recipe_plan
                break
        if all(plan.layout != other.layout for other in found.values()):
            found[PLAN] = plan
        return found


def of_recipes(graph: mtf.Graph, machines: Machines, recipes: Mapping[str, Recipe]) -> dict[str, Plan]:
    """{name: what is predicted of its layout} of those recipes that split something of a graph on the devices."""
    speeds, plans = calibration.speeds(graph, machines), {}
    for name, recipe in recipes.items():
        # it splits nothing, or too little for so many
        with contextlib.suppress(NotImplementedError, ValueError), logs.verbosity(tf.logging.ERROR):
            plans[name] = describe(graph, machines, recipe(graph, speeds))
    return plans


def _checked(plan: Plan, build: Callable[[], mtf.Graph], machines: Machines) -> Plan:
    """The plan with what it holds by the lowered graph, where a device has a limit."""
    limited = any(machine.memory_bytes is not None for machine in machines.devices)
    return estimated(plan, build) if limited else plan


def race(
    build: Callable[[], mtf.Graph],
    cluster: Cluster,
    candidates: Mapping[str, Plan],
    *,
    seconds: float,
    rounds: int = _ROUNDS,
    done: Callable[[], Any] = lambda: None,
) -> dict[str, tuple[float, ...]]:
    """{name: seconds of a step in each turn} of plans that take turns.

    Args:
      build: as of `choose`.
      cluster: where the devices are.
      candidates: {name: the plan}.
      seconds: after which no further round begins, but for the first three.
      rounds: of turns, at most.
      done: called after each round.
    """
    turns: dict[str, list[float]] = {name: [] for name in candidates}
    with contextlib.ExitStack() as stack:
        trials = {}
        for name, plan in candidates.items():
            trials[name] = stack.enter_context(Trial(build, plan.layout, plan.devices, cluster))
            trials[name].run()  # TensorFlow prepares the graph
        spent = 0.0
        for number in range(rounds):
            if number >= _LEAST_ROUNDS and spent >= seconds:
                break
            for name, trial in trials.items():
                steps = [trial.run()]
                if number == 0 or steps[0] < _TURN_SECONDS:  # the first after a pause, or after the very first
                    spent += steps.pop()
                while not steps or sum(steps) < _TURN_SECONDS:
                    steps.append(trial.run())
                spent += sum(steps)
                turns[name].append(statistics.fmean(steps))
            done()
    return {name: tuple(times) for name, times in turns.items()}


def winner(trials: Mapping[str, Sequence[float]]) -> str:
    """The one to take: a later one only where it beats the one before in more than three quarters of the rounds.

    Args:
      trials: {name: seconds of a step in each round}, the simplest first.

    Example:
      >>> winner({"alone": (1.0, 1.1, 1.0), "batch": (0.9, 1.2, 1.1), "plan": (0.8, 0.9, 0.8)})
      'plan'
    """
    best, *others = trials
    for other in others:
        ratios = [b / a for a, b in zip(trials[best], trials[other], strict=True)]
        if statistics.quantiles(ratios, n=4, method="inclusive")[2] < 1.0:
            best = other
    return best


def _reasons(name: str, candidates: Mapping[str, Plan], trials: Mapping[str, Sequence[float]]) -> list[str]:
    """What was found, for the user."""
    if not trials:
        (plan,) = candidates.values()
        return [f"not split: {plan.devices[0]} alone is predicted to be faster than any split"]
    lines = []
    for other, plan in candidates.items():
        low, middle, high = statistics.quantiles(trials[other], n=4, method="inclusive")
        what = f"{plan.devices[0]} alone" if other == ALONE else "the plan" if other == PLAN else f"layout {other}"
        lines.append(
            f"tried: {what}, {seconds_text(middle)} a step ({seconds_text(low)} to {seconds_text(high)}), predicted "
            f"{seconds_text(plan.seconds)}{', which is taken' if other == name else ''}"
        )
    return lines
