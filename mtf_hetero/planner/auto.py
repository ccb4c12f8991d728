"""Choose the layout for a program on the devices that are here: measured, planned, and tried.

A first figure says how much a split can save at most. If measuring takes longer, the fastest device alone is used.
Otherwise the plan, the recipe with the best prediction and the fastest device alone take turns at whole steps. The one
with the least expected time is used. If there is no time for a turn of each, a plan is used only if it is predicted to
be much faster than the fastest device alone.
"""

import contextlib
import dataclasses
import functools
import math
import os
import time
from collections.abc import Callable, Collection, Mapping, Sequence

from mtf_hetero._compat import mtf, tf
from mtf_hetero._support import deadline, extras, logs
from mtf_hetero._support.deadline import OutOfTimeError
from mtf_hetero._support.units import seconds_text
from mtf_hetero.cluster import Cluster
from mtf_hetero.cluster.devices import complete, shorten
from mtf_hetero.cost import calibration, model, quick
from mtf_hetero.cost.hardware import representatives
from mtf_hetero.cost.known import Known
from mtf_hetero.cost.machines import Machines
from mtf_hetero.cost.quick import Figure
from mtf_hetero.cost.trial import Trial
from mtf_hetero.layout import CannotSplitError, Layout
from mtf_hetero.planner import trying
from mtf_hetero.planner.choice import ALONE, PLAN, Choice, busy_warning, describe_choice, describe_trials
from mtf_hetero.planner.fitting import checked, find_fitting, fits
from mtf_hetero.planner.plan import Plan
from mtf_hetero.planner.planning import Planner, describe

# Without a limit, choosing took 35 to over 200 s before the first step of a training, however short it was
SECONDS = 30.0  # limit for choosing a layout, if the user sets none and the training is not long
_THOROUGH_SECONDS = 120.0  # from this limit on, devices are measured thoroughly
_PART = 0.02  # of a long training, for choosing its layout: up to the limit above
_LARGE = 1.2  # a predicted gain: 147 of 154 measured steps took at most 1.15 times as long as predicted, or less
_MEASURING = 0.55  # of the remaining time, for measuring the devices; the rest is for planning and trying
_CPU, _GPU = 5e10, 5e12  # floating-point operations a second, if nothing is measured
_LAST_WORDS = 2.0  # times the seconds to build the graph: reserved to build it, and to describe the choice
_FIRST = "first alone"  # the candidate with the first figure's device, if another is measured to be faster
_UNTRIED = "there was no time to try it"
_TOO_LARGE = "the whole batch does not fit"
Recipe = Callable[[mtf.Graph, Sequence[float]], Layout]  # from a graph and the devices' speeds


def choose(
    build: Callable[[], mtf.Graph],
    cluster: Cluster,
    recipes: Mapping[str, Recipe],
    *,
    names: Collection[str] | None = None,
    memory_bytes: Mapping[str, float] | None = None,
    seconds: float | None = None,
    steps: int | None = None,
    cache_dir: str | os.PathLike | None = None,
    progress: bool = False,
) -> Choice:
    """Find the fastest layout on the devices of a cluster.

    Logical devices of one CPU share its cores: the first one stands for them.

    Args:
      build: builds a training step in TensorFlow's default graph, a new one each time, and returns its mtf.Graph.
      cluster: the devices.
      recipes: {name: from a graph and the devices' speeds to a layout}, to compare with.
      names: of the dimensions that the plan splits; None: any.
      memory_bytes: {device: bytes}, in place of those that TensorFlow reports.
      seconds: time limit; None: 30, or 2 % of a long training, up to 120. From 120 on, the devices are measured more
        thoroughly.
      steps: of the training: nothing is measured if that takes longer than a split could save; None: many.
      cache_dir: for measurements of the devices; None: nothing is cached. The trials are run each time.
      progress: whether to show a bar, or lines where there is no terminal.

    Raises:
      ValueError: the graph assigns no variable, or the step fits on no set of the devices.
    """
    begin = time.monotonic()
    warning, lines = busy_warning(), []
    first = representatives(cluster.devices)
    if shared := [f"{device} shares the cores of {other}" for device, other in first.items() if device != other]:
        lines.append(f"not split over {len(cluster.devices)} devices: {'; '.join(shared)}")
    cluster = dataclasses.replace(cluster, devices=tuple(dict.fromkeys(first.values())))
    is_alone = len(cluster.devices) == 1
    hide = None if progress and not is_alone else True  # None: shown on a terminal
    total = 1 + calibration.parts(len(cluster.devices)) + 1 + trying.ROUNDS
    with extras.progress_bar(total=total, unit="part", disable=hide, leave=False) as bar:
        limits = {"seconds": SECONDS if seconds is None else seconds, "may_extend": seconds is None, "steps": steps}
        limits |= {"cache_dir": cache_dir, "is_busy": bool(warning)}
        search = _Search(build, cluster, recipes, names, memory_bytes or {}, bar=bar, lines=lines, **limits)
        found = search.find_alone("; ".join(shared) or "there is no other device") if is_alone else search.run()
    lines += describe_trials(found)
    headline = shorten(f"{describe_choice(found)}; chosen in {time.monotonic() - begin:.0f} s")
    return dataclasses.replace(
        found, lines=(*map(shorten, lines), headline), warning="" if is_alone else warning, names=names
    )


@dataclasses.dataclass(eq=False)
class _Search:
    """The search for a layout, within a time limit.

    Args:
      build: as of `choose`, as are those up to `cache_dir`.
      may_extend: whether a long training may extend the time limit.
      is_busy: whether the machine is, so that measurements are not cached.
      bar: shows the progress.
      lines: for the user.
      rates: {device: floating-point operations a second}, once they are known.
    """

    build: Callable[[], mtf.Graph]
    cluster: Cluster
    recipes: Mapping[str, Recipe]
    names: Collection[str] | None
    memory_bytes: Mapping[str, float]
    seconds: float
    may_extend: bool
    steps: int | None
    cache_dir: str | os.PathLike | None
    is_busy: bool
    bar: extras.Bar
    lines: list[str] = dataclasses.field(default_factory=list)
    rates: dict[str, float] = dataclasses.field(default_factory=dict)

    def run(self) -> Choice:
        """Return the layout that is found in time."""
        reserved = _LAST_WORDS * self._build_seconds
        begin = time.monotonic()
        try:
            with contextlib.ExitStack() as stack:
                with deadline.within(self.seconds - reserved):
                    self._show("running first steps")
                    rates = quick.measure_rates(self.cluster)
                    self.rates = quick.leveled(rates) if self.is_busy else rates
                    guess = calibration.guess(self._graph, self.cluster, self.rates)
                    if found := self._not_worth(guess, guess.trying_seconds):
                        return found
                    trial, figure = stack.enter_context(quick.whole_step(self.build, self.cluster, self.rates))
                self.bar.update()
                if self.may_extend and self.steps is not None:
                    longer = min(_PART * self.steps * figure.step_seconds, _THOROUGH_SECONDS)
                    self.seconds = max(self.seconds, float(round(longer)))
                with deadline.within(begin + self.seconds - reserved - time.monotonic()):
                    return self._find(trial, figure)
        except OutOfTimeError:
            return self.find_alone(self._no_time)

    def find_alone(self, reason: str) -> Choice:
        """Return the fastest device alone, by its rate or its kind; if the step does not fit there, a plan."""
        kinds = complete(self.cluster.devices)
        rates = self.rates or {name: _CPU if device.is_cpu else _GPU for name, device in kinds.items()}
        machines = calibration.unmeasured(self.cluster, rates).with_memory(self.memory_bytes)
        if found := self._alone(machines, quick.fastest(rates), reason):
            return found
        plan = find_fitting(self.build, machines, names=self.names)
        return Choice(PLAN, {PLAN: plan}, machines, {}, _UNTRIED if len(machines.devices) > 1 else _TOO_LARGE)

    def _alone(self, machines: Machines, device: str, reason: str) -> Choice | None:
        """Return a device alone, if the step fits there."""
        only = machines.by_name([device])
        plan = checked(describe(self._graph, only, model.ALONE), self.build, machines)
        return Choice(ALONE, {ALONE: plan}, machines, {}, reason) if fits(plan, machines) else None

    @functools.cached_property
    def _graph(self) -> mtf.Graph:
        with tf.Graph().as_default():
            return self.build()

    @functools.cached_property
    def _build_seconds(self) -> float:
        begin = time.monotonic()
        _ = self._graph
        return time.monotonic() - begin

    @property
    def _no_time(self) -> str:
        return f"there was no time to try a split; set measure_seconds above {self.seconds:g}"

    def _show(self, what: str) -> None:
        self.bar.set_description(f"choosing a layout, at most {self.seconds:g} s: {what}")

    def _find(self, trial: Trial, figure: Figure) -> Choice:
        if found := self._not_worth(figure, figure.trying_seconds):
            return found
        is_thorough = self.seconds >= _THOROUGH_SECONDS
        efforts = [effort.name for effort in (calibration.THOROUGH, calibration.LIGHT)][: 1 if is_thorough else 2]
        known = Known(self.build, self.cluster, self.cache_dir, efforts)
        loaded = known.load()
        if loaded is None and (found := self._not_worth(figure, figure.measuring_seconds)):
            return found
        machines = self._measure(figure, known, is_thorough) if loaded is None else self._loaded(*loaded)
        self._show("planning")
        candidates = _candidates(self.build, machines, self.recipes, self.names)
        self.bar.update()
        if list(candidates) == [ALONE] and candidates[ALONE].devices == trial.devices:
            return Choice(ALONE, candidates, machines, {}, "no split is predicted to be faster")
        return self._raced(candidates, machines, trial, figure)

    def _not_worth(self, figure: Figure, cost: float) -> Choice | None:
        """Return the fastest device alone, if no split can save the time that finding one takes."""
        cost = min(self.seconds, cost)
        if self.steps is None or (saved := figure.most_saved(self.steps)) >= cost:
            return None
        machines = calibration.estimate(self._graph, self.cluster, figure, with_links=False)
        reason = f"in {self.steps} steps a split saves at most {seconds_text(saved)}, and finding it takes {cost:.0f} s"
        return self._alone(machines.with_memory(self.memory_bytes), figure.fastest, reason)

    def _estimated(self, figure: Figure) -> Machines:
        return calibration.estimate(self._graph, self.cluster, figure).with_memory(self.memory_bytes)

    def _loaded(self, machines: Machines, path: str) -> Machines:
        self.bar.update(calibration.parts(len(self.cluster.devices)))
        self.lines.append(f"the devices were measured before: {path}; delete the file to measure them again")
        return machines.with_memory(self.memory_bytes)

    def _measure(self, figure: Figure, known: Known, is_thorough: bool) -> Machines:
        """Return the devices as measured, or estimated if measuring takes too long."""
        self._show("measuring devices")

        def done(_: str) -> None:
            self.bar.update()

        limit = _MEASURING * deadline.seconds_left()
        try:
            with deadline.within(limit):
                is_thorough = is_thorough and figure.thorough_seconds < limit
                about = None if is_thorough else figure
                machines = calibration.calibrate(self.build, self.cluster, figure=about, done=done)
                if not self.is_busy and deadline.seconds_left() > 0:  # else a part of it may be missing
                    known.save(machines)
        except OutOfTimeError:
            self.lines.append("there was no time to measure the devices on the program; their rates are estimated")
            return self._estimated(figure)
        return machines.with_memory(self.memory_bytes)

    def _raced(self, candidates: Mapping[str, Plan], machines: Machines, trial: Trial, figure: Figure) -> Choice:
        """Return the candidate with the least expected time, of those for which there is time."""
        opened, first = {ALONE: trial}, None
        if ALONE in candidates and candidates[ALONE].devices != trial.devices:
            first = self._alone(machines, trial.devices[0], "")
        if first is not None:  # which of two devices is faster is not sure, and this one runs already
            candidates, opened = {_FIRST: first.plan, **candidates}, {_FIRST: trial}
        simplest, best = next(iter(candidates)), min(candidates, key=lambda name: candidates[name].seconds)
        both = {name: candidates[name] for name in dict.fromkeys((simplest, best))}
        is_measured = Choice(simplest, candidates, machines, {}).is_measured
        # One round beside a prediction of measured devices is enough: in 28 recorded settings a step then takes 0.4 %
        # longer than the best one, as after five rounds. Two rounds of VGG-11 take longer than 30 s leave for trials
        about = opened, figure.build_seconds, 1 if is_measured else 2  # rounds: a good prediction counts as one more
        cost = trying.race_seconds(both, *about)
        is_alone = len(candidates[simplest].devices) == 1
        if is_alone and self.steps is not None:
            saved = self.steps * (candidates[simplest].seconds - candidates[best].seconds)
            if saved < cost:
                reason = f"the predicted split saves {seconds_text(saved)} in {self.steps} steps"
                return Choice(simplest, candidates, machines, {}, f"{reason}, and trying it takes {cost:.0f} s")
        if trying.race_seconds(candidates, *about) > deadline.seconds_left():
            candidates = both
        self._show(f"trying {', '.join(candidates)}")
        trials = {}
        if cost <= deadline.seconds_left():
            options = {"least": about[-1], "opened": opened, "done": self.bar.update}
            trials = trying.race(self.build, self.cluster, candidates, **options)
        if trials:
            predicted = {name: plan.seconds for name, plan in candidates.items()}
            return Choice(trying.winner(trials, predicted), candidates, machines, trials)
        gain = candidates[simplest].seconds / candidates[best].seconds
        if is_alone and not (is_measured and gain >= _LARGE):
            return Choice(simplest, candidates, machines, {}, self._no_time)
        return Choice(best, candidates, machines, {}, _UNTRIED)


def _candidates(
    build: Callable[[], mtf.Graph],
    machines: Machines,
    recipes: Mapping[str, Recipe],
    names: Collection[str] | None = None,
) -> dict[str, Plan]:
    """Return the fastest device alone, if the step fits there; the best recipe; and the plan, if it is neither."""
    plan = find_fitting(build, machines, names=names)
    with tf.Graph().as_default():
        graph = build()
        found: dict[str, Plan] = {}
        fastest = next(number for number, name in enumerate(machines.names) if name == plan.alone[0])
        alone = machines.only([fastest])
        whole = checked(describe(graph, alone, model.ALONE), build, machines)
        if fits(whole, machines):
            found[ALONE] = whole
        if len(plan.devices) == 1:
            return found or {PLAN: plan}
        tried = describe_recipes(graph, machines, recipes)
        for name in sorted(tried, key=lambda name: tried[name].seconds):
            recipe_plan = checked(tried[name], build, machines)
            if fits(recipe_plan, machines):
                found[name] = recipe_plan
                break
        if all(plan.layout != other.layout for other in found.values()):
            found[PLAN] = plan
        # A slow first figure once made the device alone slower, and the gain of a split too large
        resting = dataclasses.replace(machines, devices=tuple(machine.alone() for machine in machines.devices))
        speeds = dict(zip(machines.names, calibration.speeds(graph, resting), strict=True))
        return {name: _capped(each, whole, speeds) for name, each in found.items()}


def _capped(plan: Plan, alone: Plan, speeds: Mapping[str, float]) -> Plan:
    """Return the plan, predicted to be no faster than the sum of its devices' speeds, which noise may exceed.

    Args:
      plan: for some devices.
      alone: for one of them.
      speeds: {device: steps a second alone}.
    """
    gain = math.fsum(speeds[name] for name in plan.devices) / speeds[alone.devices[0]]
    return dataclasses.replace(plan, seconds=max(plan.seconds, alone.seconds / gain))


def describe_recipes(graph: mtf.Graph, machines: Machines, recipes: Mapping[str, Recipe]) -> dict[str, Plan]:
    """Return {name: plan} of the recipes that split something of a graph on the devices."""
    planner, plans = Planner(graph), {}
    speeds = [1.0 / seconds for seconds in planner.model(machines).unsplit_seconds()]
    for name, recipe in recipes.items():
        with logs.log_level(tf.logging.ERROR):
            try:
                layout = recipe(graph, speeds)
            except ValueError:  # a recipe says so if the graph has nothing that it splits, or too little for so many
                continue
            with contextlib.suppress(CannotSplitError):
                plans[name] = planner.describe(machines, layout)
    return plans
