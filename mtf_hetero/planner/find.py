"""Find the best layout for a step on devices: search, refine, and compare with the simple layouts.

The search adds up the time of each operation on its slowest device, and of its messages. A step overlaps some of these.
So the layouts that the search finds, and each layout that splits one family of names alone, are predicted as
timelines, and the fastest wins. Sizes are chosen again for the split dimensions until that gains nothing.
"""

import contextlib
import dataclasses
import functools
import itertools
import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import TypeAlias

from mtf_hetero._compat import mtf
from mtf_hetero._support import deadline, garbage
from mtf_hetero._support.deadline import OutOfTimeError
from mtf_hetero.layout import Layout
from mtf_hetero.planner import search, work
from mtf_hetero.planner.candidate import Candidate, choices_of, plan_of
from mtf_hetero.planner.machines import Machines, kinds_of
from mtf_hetero.planner.plan import Plan
from mtf_hetero.planner.problem import (
    AXIS,
    EXACT,
    WHOLE,
    Along,
    Choice,
    Menus,
    Problem,
    axis_of,
    problem_of,
    sizes_of,
)
from mtf_hetero.planner.refine import EVALUATIONS, Sizes, refine
from mtf_hetero.planner.sample import crowd_of
from mtf_hetero.planner.sketched import Held
from mtf_hetero.planner.timeline import Timeline, predict
from mtf_hetero.profile.work import layer_of, live

_ROUNDS = 3
_FAMILIES = 6  # that are tried alone
_PAIRED = 3  # families of which two are tried together, one over each axis of a mesh
_SHAPES = 2  # meshes of two axes of so many devices, where these are many
_NEAR = 1.25  # how much longer two families alone may take, for a mesh of two axes to be searched
_LIKELY = 2  # numbers of devices, of many, that are searched
_KINDS = 4  # of devices, of many, each of which, with those that are faster, may be all that has something
ROWS, COLUMNS = "rows", "columns"
Progress: TypeAlias = Callable[[int, float], None]
Problems: TypeAlias = dict[tuple, tuple[Machines, Problem]]


def report_nothing(count: int, seconds: float) -> None:
    """Stand in for a progress that is not shown."""


@garbage.uncollected()
def find(
    graph: mtf.Graph,
    machines: Machines,
    *,
    names: Collection[str] | None = None,
    seconds: float = 60.0,
    progress: Progress = report_nothing,
    problems: Problems | None = None,
    refines: bool = True,
) -> Plan:
    """Return the plan with the least predicted time; if a time limit passes, the best one so far.

    Args:
      graph: mtf.Graph of a training step, on one mesh. Nothing of it is lowered.
      machines: the devices that there are; a plan may leave some out.
      names: of the dimensions to split, over the best number of devices; None: they are searched for.
      seconds: after which a search that is short of memory returns the best that it has found.
      progress: called now and then, with the number of layouts looked at and the seconds of the best, or infinity.
      problems: filled by a search, and makes another one of the same graph on devices of the same names quicker.
      refines: whether sizes are chosen anew in the end, which leaves the devices as they are.

    Raises:
      search.NoAssignmentError: no layout keeps to the devices' memory.
      ValueError: the graph has no operation.
    """
    operations = live(graph)
    if not operations:
        raise ValueError("the graph has no operation; build a training step")
    finder = _Finder(graph, operations, machines, seconds, progress, {} if problems is None else problems, refines)
    return finder.plan() if names is None else finder.plan_of_names(names)


def describe(graph: mtf.Graph, machines: Machines, layout: Layout) -> Plan:
    """Return the plan with a given layout, whether or not it is the best.

    Args:
      graph: as of `find`.
      machines: one device per processor of the layout.
      layout: the Layout.

    Raises:
      NotImplementedError: the layout splits what an operation needs whole.
    """
    finder = _Finder(graph, live(graph), machines, 0.0, report_nothing, {}, refines=False)
    return finder.plan_of(layout)


class _Finder:
    """The search for one graph and some devices."""

    def __init__(
        self,
        graph: mtf.Graph,
        operations: Sequence[mtf.Operation],
        machines: Machines,
        seconds: float,
        progress: Progress,
        problems: Problems,
        refines: bool,
    ) -> None:
        self._operations, self._machines, self._seconds = operations, machines, seconds
        self._progress, self._problems, self._refines = progress, problems, refines
        self._best: dict[tuple[str, ...], Candidate] = {}  # {devices: the fastest candidate that uses them and fits}
        self._count = 0
        self._owners = layer_of(operations, graph.trainable_variables)
        self._held = Held(operations)

    def plan(self) -> Plan:
        """Return the plan of the best candidate of all numbers of devices."""
        order = self._by_speed()
        alone = self._alone(order)
        with contextlib.suppress(OutOfTimeError):
            counts = self._counts(order)
            for count in counts:
                for candidate in self._candidates(sorted(order[:count])):
                    self._enter(candidate)
            grids = [shape for count in counts for shape in shapes_of(count)]
            for candidate in self._on_grids(order, grids, self._least_seconds):
                self._enter(candidate)
        return self._finished(alone)

    def plan_of_names(self, names: Collection[str]) -> Plan:
        """Return the plan of the best split of these names, over any number of the fastest devices."""
        order = self._by_speed()
        alone = self._alone(order)
        with contextlib.suppress(OutOfTimeError):
            for count in prefixes(len(order))[1:]:
                deadline.check()
                problem = self._problem(self._machines.only(sorted(order[:count])))
                self._enter(self._candidate(problem, problem.divided(names), 0.0))
        return self._finished(alone)

    def _described(self, best: Candidate, alone: Candidate) -> Plan:
        plan = plan_of(best, self._operations, self._owners, self._held)
        fastest = alone.machines.names[0], alone.timeline.seconds
        return dataclasses.replace(plan, alone=fastest, alone_fits=self._fits(alone))

    def _alone(self, order: Sequence[int]) -> Candidate:
        """Return the fastest device alone that has the memory, and keep it; if none has it, the fastest device."""
        of_kinds = [order[first] for first in (0, *self._ends(order)[:-1])]
        for number in of_kinds:
            (candidate,) = self._candidates([number])
            if self._enter(candidate):
                return candidate
        return self._candidates(of_kinds[:1])[0]

    def _finished(self, alone: Candidate) -> Plan:
        if not self._best:
            raise search.NoAssignmentError(self._too_large(alone))
        best = min(self._best.values(), key=lambda candidate: candidate.timeline.seconds)
        others = [other for names, other in self._best.items() if not set(best.machines.names).issuperset(names)]
        runner_up = min(others, key=lambda candidate: candidate.timeline.seconds, default=None)
        with contextlib.suppress(OutOfTimeError):
            best = self._refined(best) if self._refines else best
        plan = self._described(best, alone)
        return plan if runner_up is None else dataclasses.replace(plan, runner_up=runner_up.summarized())

    @property
    def _least_seconds(self) -> float:
        """Seconds of the fastest candidate that fits; infinity without one."""
        return min((candidate.timeline.seconds for candidate in self._best.values()), default=math.inf)

    def _problem(
        self, machines: Machines, subsets: Sequence[Sequence[int]] = (), shape: Sequence[tuple[str, int]] | None = None
    ) -> Problem:
        """Return the step on some devices; of a problem that is known, with the figures of these."""
        key = machines.names, tuple(map(tuple, subsets)), None if shape is None else tuple(shape)
        if key not in self._problems:
            self._problems[key] = machines, Problem(self._operations, machines, subsets, shape)
        known, problem = self._problems[key]
        return problem if known == machines else problem.with_figures(machines)

    def _enter(self, candidate: Candidate) -> bool:
        """Keep a candidate if it fits, and is the fastest so far that uses its devices; return whether it fits."""
        fits, devices = self._fits(candidate), candidate.used_devices()
        if not devices:
            return fits
        last = self._best.get(devices)
        if fits and (last is None or candidate.timeline.seconds < last.timeline.seconds):
            self._best[devices] = candidate
        return fits

    def _on_grids(self, order: Sequence[int], shapes: Sequence[tuple[int, int]], seconds: float) -> Iterator[Candidate]:
        """Generate candidates on meshes of two axes, whose rows are of like devices, the fastest first.

        Two families of names, one over each axis, are tried on all; that mesh alone on which they do best is searched,
        if they then take not much longer than a plan that was found.
        """
        simple: list[Candidate] = []
        for rows, columns in shapes:
            machines = self._machines.only(order[: rows * columns])
            problem = self._problem(machines, (), [(ROWS, rows), (COLUMNS, columns)])
            simple += [self._candidate(problem, sizes, 0.0) for sizes in self._of_two_families(problem)]
        yield from simple
        likely = min(simple, key=lambda candidate: candidate.timeline.seconds, default=None)
        if likely is not None and likely.timeline.seconds < _NEAR * seconds:
            yield from self._searched(likely.problem, likely.problem.menus_of_axes())

    def _searched(self, problem: Problem, menus: Menus) -> list[Candidate]:
        """Return the candidate that a search finds, or none."""
        deadline.check()
        try:
            tables, limits = problem.tables(menus), self._held.limits(menus, problem)
            deadline.check()
            solution = search.minimize(tables, limits, seconds=min(self._seconds, deadline.left()))
        except search.NoAssignmentError:
            return []
        sizes = {name: menus[name][i - 1] for name, i in solution.assignment.items() if i != WHOLE}
        return [self._candidate(problem, sizes, solution.gap)]

    def _of_two_families(self, problem: Problem) -> list[dict[str, Choice]]:
        """Return splits of the family with most work and of one of the next, one over each axis of the mesh."""
        menus = problem.menus_of_axes()
        largest = sorted(problem.families, key=problem.work_of, reverse=True)[:_PAIRED]
        ways = []
        for one, other in [pair for second in largest[1:] for pair in ((largest[0], second), (second, largest[0]))]:
            first, second = problem.allowed_of(one, menus, 0), problem.allowed_of(other, menus, 1)
            if first and second:
                ways.append(first | second)
        return ways

    def _counts(self, order: Sequence[int]) -> Sequence[int]:
        """Return the numbers of fastest devices to search for: of many, the best for one family, and all."""
        if len(order) <= EXACT:
            return prefixes(len(order))[1:]
        ladder = {len(order) >> shift for shift in range(len(order).bit_length()) if len(order) >> shift >= EXACT}
        ladder |= set(self._ends(order)) - {1}
        seconds = {}
        for count in sorted(ladder):
            numbers = sorted(order[:count])
            problem = self._problem(self._machines.only(numbers))
            sizes = next(iter(self._of_one_family(problem, range(count), 1)), {})
            seconds[count] = self._candidate(problem, sizes, 0.0).timeline.seconds
        likely = sorted(seconds, key=seconds.__getitem__)[:_LIKELY]
        return sorted({*likely, len(order)})

    def _ends(self, order: Sequence[int]) -> list[int]:
        """Return where each run of equal devices ends, for devices in some order."""
        kinds = [dataclasses.replace(self._machines.devices[number], name="") for number in order]
        pairs = enumerate(itertools.pairwise(kinds), 1)
        return [*(number for number, (one, other) in pairs if one != other), len(order)]

    def _refined(self, candidate: Candidate) -> Candidate:
        """Return the candidate with sizes that fit and make the step as a whole shorter."""
        problem = candidate.problem

        def seconds_of(sizes: Mapping[str, Choice]) -> float:
            deadline.check()
            changed = self._candidate(problem, sizes, candidate.gap)
            return changed.timeline.seconds if self._fits(changed) else math.inf

        choices = problem.choices(candidate.layout)
        for axis, crowd in enumerate(problem.crowds):
            mine = {name: sizes_of(choice) for name, choice in choices.items() if axis_of(choice) == axis}

            def with_others(sizes: Sizes, axis: int = axis, rest: Mapping[str, Choice] = choices) -> dict[str, Choice]:
                if len(problem.crowds) == 1:
                    return dict(sizes)
                return {**rest, **{name: Along(axis, of_name) for name, of_name in sizes.items()}}

            asked = EVALUATIONS // (len(problem.machines.devices) * len(problem.crowds))
            refined = refine(
                mine,
                lambda sizes: seconds_of(with_others(sizes)),
                granules=problem.granules,
                evaluations=asked,
                groups=crowd.groups,
            )
            choices = with_others(refined)
        return self._candidate(problem, choices, candidate.gap)

    def plan_of(self, layout: Layout) -> Plan:
        """Return the plan with a given layout."""
        whole = Problem(self._operations, self._machines, None, layout.mesh_shape)
        layout = whole.layout(choices_of(layout, whole.extents))
        problem = problem_of(self._operations, self._machines, layout)
        timeline = predict(problem, layout, self._owners)
        return self._described(Candidate(problem, layout, timeline, 0.0), self._alone(self._by_speed()))

    def _by_speed(self) -> list[int]:
        """Return the devices' numbers, the fastest first."""
        whole = Layout([(AXIS, 1)], ())
        measured = any(machine.factors for machine in self._machines.devices)
        amounts = [(*work.of_operation(op, whole, 0), work.kind_of(op) if measured else "") for op in self._operations]
        crowd = crowd_of(kinds_of(self._machines, []))
        shown = [self._machines.devices[number] for number in crowd.shown]
        seconds = [math.fsum(machine.seconds(*amount) for amount in amounts) for machine in shown]
        seconds = [seconds[place] for place in crowd.stands]
        return sorted(range(len(seconds)), key=seconds.__getitem__)

    def _candidates(self, numbers: Sequence[int]) -> list[Candidate]:
        machines = self._machines.only(numbers)
        if len(numbers) == 1:
            return [self._candidate(self._problem(machines), {}, 0.0)]
        deadline.check()
        everybody = tuple(range(len(numbers)))
        fastest = sorted(everybody, key=lambda pnum: -machines.devices[pnum].flops_per_second)
        subsets = [sorted(fastest[:count]) for count in self._subsets(numbers, fastest)]
        problem = self._problem(machines, subsets)
        found = [self._candidate(problem, sizes, 0.0) for sizes in self._of_one_family(problem, everybody)]
        used = None
        with contextlib.suppress(OutOfTimeError):
            for _ in range(_ROUNDS):
                menus = problem.menus(subsets, used)
                searched = self._searched(problem, menus)
                if not searched:
                    break
                found += searched
                if found[-1].timeline.seconds >= min(c.timeline.seconds for c in found[:-1]) and used is not None:
                    break
                used = problem.operations_split(problem.choices(found[-1].layout))
        return found

    def _subsets(self, numbers: Sequence[int], fastest: Sequence[int]) -> Sequence[int]:
        """Return the numbers of fastest devices that a dimension may be split among: of many, the first kinds."""
        if len(numbers) <= EXACT:
            return prefixes(len(numbers))
        ends = self._ends([numbers[pnum] for pnum in fastest])
        return (1, *ends) if 1 < len(ends) <= _KINDS else prefixes(len(numbers))

    def _of_one_family(
        self, problem: Problem, everybody: Sequence[int], most: int = _FAMILIES
    ) -> list[dict[str, Choice]]:
        """Return splits of each family alone, over all devices wherever no tensor is then split twice."""
        menus = problem.menus([everybody])
        largest = sorted(problem.families, key=problem.work_of, reverse=True)[:most]
        return [sizes for family in largest if (sizes := problem.allowed_of(family, menus))]

    def _candidate(self, problem: Problem, sizes: Mapping[str, Choice], gap: float) -> Candidate:
        layout = problem.layout(sizes)
        try:
            timeline = predict(problem, layout, self._owners)
        except NotImplementedError:
            timeline = Timeline((), math.inf, ())
        self._count += 1
        self._progress(self._count, self._least_seconds)
        return Candidate(problem, layout, timeline, gap)

    def _fits(self, candidate: Candidate) -> bool:
        problem = candidate.problem
        needed = self._held.needed(candidate.layout, problem.crowd.shown)
        limits = [machine.memory_bytes for machine in problem.machines.devices]
        return all(limit is None or each <= limit for each, limit in zip(needed, limits, strict=True))

    def _too_large(self, alone: Candidate) -> str:
        (needed,) = self._held.needed(alone.layout, [0])
        limits = [f"{(m.memory_bytes or math.inf) / 1e9:.3g} GB" for m in self._machines.devices]
        first = [0, *self._ends(range(len(limits)))[:-1]]  # of those that are alike
        has = ", ".join(f"{self._machines.names[number]} {limits[number]}" for number in first)
        return (
            f"a step needs {needed / 1e9:.3g} GB on one device, and no layout fits these: {has}; add devices, or use "
            "a smaller batch"
        )


def shapes_of(count: int) -> list[tuple[int, int]]:
    """Return the meshes of so many processors, at least two rows by two columns; of many, those nearest to a square.

    Example:
      >>> shapes_of(8), shapes_of(60)
      ([(2, 4), (4, 2)], [(6, 10), (10, 6)])
    """
    shapes = [(rows, count // rows) for rows in range(2, count // 2 + 1) if count % rows == 0]
    return shapes if count <= EXACT else sorted(shapes, key=lambda shape: abs(shape[0] - shape[1]))[:_SHAPES]


@functools.cache
def prefixes(count: int, most: int = 3) -> tuple[int, ...]:
    """Return the numbers of fastest devices to try: 1, all, and a few between.

    Example:
      >>> prefixes(2), prefixes(16)
      ((1, 2), (1, 8, 16))
    """
    if count <= most:
        return tuple(range(1, count + 1))
    return (1, *sorted({max(2, count >> shift) for shift in range(most - 1)}))
