"""The layout for a program on the devices that are here: measured, planned, and tried before it is believed.

A first figure says how much a split can save at most: where that is less than measuring takes, the fastest device alone
is used. Else the plan, the recipe that is predicted to be the fastest and the fastest device alone take turns at whole
steps, and what is more than the simplest is used only where it wins by more than the spread of the turns. All of it
keeps one time limit: when that passes, the best that has been tried is used, or the fastest device alone.
"""

import contextlib
import dataclasses
import functools
import os
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from mtf_hetero._compat import mtf, tf
from mtf_hetero._support import deadline, extras, logs
from mtf_hetero._support.deadline import OutOfTimeError
from mtf_hetero._support.units import seconds_text
from mtf_hetero.cluster import Cluster, shorten
from mtf_hetero.cluster.devices import complete
from mtf_hetero.layout import Layout
from mtf_hetero.planner import calibration, quick, trying
from mtf_hetero.planner.choice import ALONE, PLAN, Choice, Found, busy_warning, said, tried
from mtf_hetero.planner.find import describe
from mtf_hetero.planner.held import estimated, find_fitting, fits
from mtf_hetero.planner.known import Known
from mtf_hetero.planner.machines import Machines
from mtf_hetero.planner.plan import Plan
from mtf_hetero.planner.quick import Figure
from mtf_hetero.profile.hardware import representatives
from mtf_hetero.profile.trial import Trial

SECONDS = 30.0  # that choosing a layout takes at most, where nothing else is said
_THOROUGH_SECONDS = 120.0  # from this limit on, devices are measured thoroughly
_MEASURING = 0.55  # of the time that is left, for measuring the devices; the rest is for planning and trying
_CPU, _GPU = 5e10, 5e12  # floating-point operations a second, where nothing is known
_LAST_WORDS = 2.0  # times as long as building the graph takes: for that, and to describe what is used in the end
_FIRST = "first alone"  # of candidates, the first figure's device, where another is measured to be faster
_SURE = 0.25  # of a device's memory: where the sketch of a step needs less, the step is not lowered to be sure
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
    """Finds the fastest layout on the devices of a cluster.

    Logical devices of one CPU share its cores: the first one stands for them.

    Args:
      build: builds a training step in TensorFlow's default graph, a new one each time, and returns its mtf.Graph.
      cluster: the devices.
      recipes: {name: from a graph and the devices' speeds to a layout}, to compare with.
      names: of the dimensions that the plan divides; None: it may divide any.
      memory_bytes: {device: bytes}, in place of what TensorFlow reports.
      seconds: that all of it may take; None: 30. From 120 on, the devices are measured more thoroughly.
      steps: that the training takes: nothing is measured where that takes longer than a split could save; None: many.
      cache_dir: where what is measured of the devices is kept; None: nowhere. The trials are run each time.
      progress: whether to show a bar, or lines where there is no terminal.

    Raises:
      ValueError: the graph assigns no variable, or the step fits on no set of the devices.
    """
    begin, seconds = time.monotonic(), SECONDS if seconds is None else seconds
    warning, lines = busy_warning(), []
    first = representatives(cluster.devices)
    if shared := [f"{device} shares the cores of {other}" for device, other in first.items() if device != other]:
        lines.append(f"not split over {len(cluster.devices)} devices: {'; '.join(shared)}")
    cluster = dataclasses.replace(cluster, devices=tuple(dict.fromkeys(first.values())))
    memory_bytes = memory_bytes or {}
    if len(cluster.devices) == 1:
        found = _without_time(build, _built(build), cluster, names, memory_bytes, {}, "there is no other device")
        warning = ""
    else:
        hide = None if progress else True  # None: shown on a terminal
        total = 1 + calibration.parts(len(cluster.devices)) + 1 + trying.ROUNDS
        with extras.progress_bar(total=total, unit="part", disable=hide, leave=False) as bar:
            limits = {"seconds": seconds, "steps": steps, "cache_dir": cache_dir, "is_busy": bool(warning)}
            search = _Search(build, cluster, recipes, names, memory_bytes, bar=bar, **limits)
            found = search.run()
            lines += search.lines
    lines += tried(found)
    headline = shorten(f"{said(found)} (chosen in {time.monotonic() - begin:.0f} s)")
    predicted = {name: plan.seconds for name, plan in found.candidates.items()}
    lines = (*map(shorten, lines), headline)
    return Choice(found.name, found.plan, headline, lines, warning, found.trials, predicted, found.machines)


@dataclasses.dataclass(frozen=True, eq=False)
class _Search:
    """The search for a layout, within a time limit.

    Args:
      build: as of `choose`, as are those up to `cache_dir`.
      is_busy: whether the machine is, so that what is measured is not kept.
      bar: shows what is being done.
      lines: what the user should know of it.
    """

    build: Callable[[], mtf.Graph]
    cluster: Cluster
    recipes: Mapping[str, Recipe]
    names: Collection[str] | None
    memory_bytes: Mapping[str, float]
    seconds: float
    steps: int | None
    cache_dir: str | os.PathLike | None
    is_busy: bool
    bar: Any
    lines: list[str] = dataclasses.field(default_factory=list)

    def run(self) -> Found:
        """Return the layout that is found in time."""
        rates: dict[str, float] = {}
        try:
            with deadline.within(self.seconds - _LAST_WORDS * self._build_seconds):
                self._show("running first steps")
                rates = quick.measure_rates(self.cluster)
                if self.is_busy:
                    rates = quick.leveled(rates)
                guess = calibration.guess(self._graph, self.cluster, rates)
                if found := self._not_worth(guess, guess.trying_seconds):
                    return found
                with quick.whole_step(self.build, self.cluster, rates) as (trial, figure):
                    self.bar.update()
                    return self._found(trial, figure)
        except OutOfTimeError:
            about = self.cluster, self.names, self.memory_bytes, rates, self._no_time
            return _without_time(self.build, self._graph, *about)

    @functools.cached_property
    def _graph(self) -> mtf.Graph:
        return _built(self.build)

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

    def _found(self, trial: Trial, figure: Figure) -> Found:
        if found := self._not_worth(figure, figure.trying_seconds):
            return found
        is_thorough = self.seconds >= _THOROUGH_SECONDS
        efforts = [effort.name for effort in (calibration.THOROUGH, calibration.LIGHT)][: 1 if is_thorough else 2]
        known = Known(self.build, self.cluster, self.cache_dir, efforts)
        loaded = known.load()
        if loaded is None and (found := self._not_worth(figure, figure.measuring_seconds)):
            return found
        machines = self._measured(figure, known, is_thorough) if loaded is None else self._loaded(*loaded)
        self._show("planning")
        candidates = _candidates(self.build, machines, self.recipes, self.names)
        self.bar.update()
        if list(candidates) == [ALONE] and candidates[ALONE].devices == trial.devices:
            return Found(ALONE, candidates, machines, {}, "no split is predicted to be faster")
        return self._raced(candidates, machines, trial, figure)

    def _not_worth(self, figure: Figure, cost: float) -> Found | None:
        """The fastest device alone, where no split can save the time that finding one takes."""
        cost = min(self.seconds, cost)
        if self.steps is None or (saved := figure.most_saved(self.steps)) >= cost:
            return None
        machines = calibration.estimate(self._graph, self.cluster, figure, with_links=False)
        reason = f"in {self.steps} steps a split saves at most {seconds_text(saved)}, and finding it takes {cost:.0f} s"
        return _alone(self.build, self._graph, machines.with_memory(self.memory_bytes), figure.fastest, reason)

    def _estimated(self, figure: Figure) -> Machines:
        return calibration.estimate(self._graph, self.cluster, figure).with_memory(self.memory_bytes)

    def _loaded(self, machines: Machines, path: str) -> Machines:
        self.bar.update(calibration.parts(len(self.cluster.devices)))
        self.lines.append(f"the devices were measured before: {path}; delete the file to measure them again")
        return machines.with_memory(self.memory_bytes)

    def _measured(self, figure: Figure, known: Known, is_thorough: bool) -> Machines:
        """The devices as they are measured, or estimated where that takes too long."""
        self._show("measuring devices")

        def done(_: str) -> None:
            self.bar.update()

        limit = _MEASURING * deadline.left()
        try:
            with deadline.within(limit):
                if is_thorough and figure.thorough_seconds < limit:
                    machines = calibration.calibrate(self.build, self.cluster, done=done)
                else:
                    machines = calibration.calibrate_quickly(self.build, self.cluster, figure, done=done)
                if not self.is_busy and deadline.left() > 0:  # else a part of it may be missing
                    known.save(machines)
        except OutOfTimeError:
            self.lines.append("there was no time to measure the devices on the program; their rates are estimated")
            return self._estimated(figure)
        return machines.with_memory(self.memory_bytes)

    def _raced(self, candidates: Mapping[str, Plan], machines: Machines, trial: Trial, figure: Figure) -> Found:
        """The candidate that wins its trials, of those that there is time for."""
        opened, first = {ALONE: trial}, None
        if ALONE in candidates and candidates[ALONE].devices != trial.devices:
            first = _alone(self.build, self._graph, machines, trial.devices[0], "")
        if first is not None:  # which of two devices is faster is not sure, and this one runs already
            candidates, opened = {_FIRST: first.plan, **candidates}, {_FIRST: trial}
        simplest, best = next(iter(candidates)), min(candidates, key=lambda name: candidates[name].seconds)
        both = {name: candidates[name] for name in dict.fromkeys((simplest, best))}
        cost = trying.seconds_of(both, opened, figure.build_seconds)
        is_alone = len(candidates[simplest].devices) == 1
        if is_alone and self.steps is not None:
            saved = self.steps * (candidates[simplest].seconds - candidates[best].seconds)
            if saved < cost:
                reason = f"the predicted split saves {seconds_text(saved)} in {self.steps} steps"
                return Found(simplest, candidates, machines, {}, f"{reason}, and trying it takes {cost:.0f} s")
        if trying.seconds_of(candidates, opened, figure.build_seconds) > deadline.left():
            candidates = both
        self._show(f"trying {', '.join(candidates)}")
        trials = trying.race(self.build, self.cluster, candidates, opened=opened, done=self.bar.update)
        if trials:
            return Found(trying.winner(trials), candidates, machines, trials)
        if is_alone:
            return Found(simplest, candidates, machines, {}, self._no_time)
        return Found(best, candidates, machines, {}, "it was not tried")


def _built(build: Callable[[], mtf.Graph]) -> mtf.Graph:
    with tf.Graph().as_default():
        return build()


def _without_time(
    build: Callable[[], mtf.Graph],
    graph: mtf.Graph,
    cluster: Cluster,
    names: Collection[str] | None,
    memory_bytes: Mapping[str, float],
    rates: Mapping[str, float],
    reason: str,
) -> Found:
    """The fastest device alone, by its rate or its kind; where it cannot hold the step, the plan by the same."""
    if not rates:
        rates = {name: _CPU if device.is_cpu else _GPU for name, device in complete(cluster.devices).items()}
    machines = calibration.unmeasured(cluster, rates).with_memory(memory_bytes)
    found = _alone(build, graph, machines, quick.fastest_of(rates), reason)
    return found or Found(PLAN, {PLAN: find_fitting(build, machines, names=names)}, machines, {}, "it was not tried")


def _alone(
    build: Callable[[], mtf.Graph], graph: mtf.Graph, machines: Machines, device: str, reason: str
) -> Found | None:
    """A device alone, if it can hold the step."""
    only = machines.only([machines.names.index(device)])
    plan = _checked(describe(graph, only, Layout([("all", 1)], ())), build, machines)
    return Found(ALONE, {ALONE: plan}, machines, {}, reason) if fits(plan, machines) else None


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
    """The plan with what it holds by the lowered graph, where that may be near what a device has."""
    limits = {machine.name: machine.memory_bytes for machine in machines.devices}
    needed = zip(plan.devices, plan.memory_bytes, strict=True)
    is_sure = all((limit := limits.get(name)) is None or bytes_ < _SURE * limit for name, bytes_ in needed)
    return plan if is_sure else estimated(plan, build)
