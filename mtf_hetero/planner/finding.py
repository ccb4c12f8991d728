"""Find the best layout for a step on devices: search, refine, and compare with the simple layouts.

Whether a plan is better than another one says the objective: the time of a step, or its price. For the price, more sets
of devices are searched: those for which a lower bound is below the best price so far.

The search adds up the time of each operation on its slowest device, and of its messages, although some of it overlaps.
So the layouts that it finds, and those that split one family of names alone, are predicted as timelines. The best one
wins. Sizes are chosen again for the split dimensions until that gains nothing.
"""

import contextlib
import dataclasses
import itertools
import math
import operator
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import TypeAlias

from mtf_hetero._compat import mtf
from mtf_hetero._support import deadline
from mtf_hetero._support.deadline import OutOfTimeError
from mtf_hetero.cost.machines import Machines
from mtf_hetero.cost.sample import EXACT
from mtf_hetero.cost.timeline import Timeline
from mtf_hetero.layout import CannotSplitError, Layout
from mtf_hetero.planner import search
from mtf_hetero.planner import space as space_lib
from mtf_hetero.planner.candidate import Candidate
from mtf_hetero.planner.errors import TooLargeError, TooSlowError
from mtf_hetero.planner.objective import FASTEST, TIME, Objective
from mtf_hetero.planner.plan import Plan
from mtf_hetero.planner.refine import EVALUATIONS, Sizes, refine
from mtf_hetero.planner.slotted import MOST_DEVICES, Slotted
from mtf_hetero.planner.space import WHOLE, Menus, Space, Split, Splits
from mtf_hetero.planner.spaces import Spaces
from mtf_hetero.planner.subsets import Subset, Subsets

# Of a second of messages that no product awaits: as much of it as the links are busy is sent beside the computation.
# At its full price, single layers are computed by one device although the sums of all would cost nothing.
_PRICES = (1.0, 0.5, 0.25)
_ROUNDS = 3  # of searches: the sizes of each are in proportion to the work that the last one split
_FAMILIES = 6  # that are tried alone
_PAIRED = 3  # families of which two are tried together, one over each mesh axis
_NEAR = 1.25  # times as long as the best plan: two families on a mesh of two axes for which that is searched
_CLOSE = 1.05  # times as long as the best plan: one on a mesh of another kind whose sizes are corrected too
_HOPELESS = 2.0  # times as long as the best plan: a layout that is not searched by memory where it does not fit
_LIKELY = 2  # numbers of devices that are searched, if these are many
_KINDS = 4  # of many devices, up to which each kind ends a subset
_LEAST_GAIN = 1e-6  # of a bound, as a fraction: less is rounding
_seconds = operator.attrgetter("seconds")
ROWS, COLUMNS = "rows", "columns"
Progress: TypeAlias = Callable[[int, float], None]


def _between(best: int, tried: Sequence[int]) -> set[int]:
    """Return the numbers of devices, two or more, half way between the best one and those next to it.

    Example:
      >>> _between(16, [8, 16, 32])
      {12, 24}
    """
    near = [1, *tried][tried.index(best) :][:3]
    return {(one + other) // 2 for one, other in itertools.pairwise(near)} - {1}


def report_nothing(count: int, seconds: float) -> None:
    """Stand in for a progress that is not shown."""


class Finder:
    """The search for one step and some devices; see `Planner.find`."""

    def __init__(
        self,
        spaces: Spaces,
        machines: Machines,
        seconds: float,
        progress: Progress = report_nothing,
        refines: bool = False,
        accepts: Callable[[Plan], bool] = lambda plan: True,
        objective: Objective = FASTEST,
    ) -> None:
        self._spaces, self._machines, self._seconds = spaces, machines, seconds
        self._progress, self._refines, self._accepts = progress, refines, accepts
        self._objective = objective
        self._subsets = Subsets(spaces.model(machines), machines, objective)
        self._fitting: dict[tuple[tuple[str, ...], Layout], Candidate] = {}  # those that use some device, and that fit
        self._best: Candidate | None = None  # of these
        self._is_short = False  # whether a candidate did not fit
        self._nearest: Candidate | None = None  # the one whose device most short of memory lacks least
        self._count = 0

    def plan(self) -> Plan:
        """Return the plan of the best candidate of all numbers of devices."""
        order = self._subsets.by_speed()
        alone = self._alone(order)
        with contextlib.suppress(OutOfTimeError):
            chosen = self._subsets.choose(order, self._counts)
            searched = set()
            for numbers in filter(self._may_win, self._sets(order, chosen)):
                for candidate in self._candidates(numbers) if numbers not in searched else ():
                    self._enter(candidate)
                searched.add(numbers)
            for candidate in self._on_grids(filter(self._may_win, chosen)):
                self._enter(candidate)
            for numbers in filter(self._may_win, self._orders(order, chosen)):
                for candidate in self._in_slots(numbers):
                    self._enter(candidate)
        return self._finished(alone)

    def _may_win(self, numbers: Sequence[int]) -> bool:
        """Return whether a plan for some devices may be better than the best one so far."""
        if self._objective.name == TIME or self._best is None:
            return True  # the few sets of the fastest devices are all searched, also for a runner-up
        least = self._subsets.least_seconds(numbers)
        return least < (1 - _LEAST_GAIN) * self._as_good(self._best, self._machines.some(numbers))

    def _as_good(self, best: Candidate | None, machines: Machines) -> float:
        """Return the seconds in which a step on some devices is as good as a candidate's; infinity without one."""
        return math.inf if best is None else self._objective.as_good(best.seconds, best.machines, machines)

    def _key(self, candidate: Candidate) -> tuple[float, float, float]:
        return self._objective.key(candidate.seconds, candidate.machines)

    def _orders(self, order: Sequence[int], chosen: Sequence[Subset]) -> Iterator[Subset]:
        """Generate few devices in an order: the fastest; if memory is short, one alone, and those with most of it."""
        few = [numbers for numbers in (*[tuple(order[:1])] * self._is_short, *chosen) if len(numbers) <= MOST_DEVICES]
        by_memory = self._subsets.by_memory(order)
        ways = [(numbers, *[tuple(by_memory[: len(numbers)])] * self._is_short) for numbers in few]
        yield from {frozenset(numbers): numbers for numbers in itertools.chain.from_iterable(ways)}.values()

    def _sets(self, order: Sequence[int], chosen: Sequence[Subset]) -> Iterator[Subset]:
        """Generate the sets of devices to search for: the chosen ones; if memory is short, those with most of it."""
        yield from (tuple(sorted(numbers)) for numbers in chosen)
        if self._is_short:
            by_memory = self._subsets.by_memory(order)
            counts = {*map(len, chosen), max(2, len(order) - 1)}
            yield from (tuple(sorted(by_memory[:count])) for count in counts)

    def plan_of_names(self, names: Collection[str]) -> Plan:
        """Return the plan of the best split of these names, over the devices for which that is best."""
        order = self._subsets.by_speed()
        alone = self._alone(order)
        with contextlib.suppress(OutOfTimeError):
            for numbers in self._subsets.choose(order, lambda devices: space_lib.prefixes(len(devices))[1:]):
                deadline.check()
                space = self._spaces.space(self._machines.only(sorted(numbers)))
                self._enter(self._candidate(space, space.over_all(names), 0.0))
        return self._finished(alone)

    def plan_with(self, layout: Layout) -> Plan:
        """Return the plan with a given layout."""
        layout = self._spaces.model(self._machines).exact(layout)
        model = self._spaces.model_for(self._machines, layout)
        candidate = Candidate(Space(model, layout.mesh_shape), layout, model.timeline(layout), 0.0)
        return self._describe(candidate, self._alone(self._subsets.by_speed()))

    def _describe(self, best: Candidate, alone: Candidate) -> Plan:
        return dataclasses.replace(best.plan(), alone=(alone.machines.names[0], alone.seconds), alone_fits=alone.fits)

    def _alone(self, order: Sequence[int]) -> Candidate:
        """Keep and return the fastest device alone that has the memory; if none has it, return the fastest."""
        of_kinds = [order[first] for first in (0, *self._subsets.ends(order)[:-1])]
        for number in of_kinds:
            (candidate,) = self._candidates([number])
            if self._enter(candidate):
                return candidate
        return self._candidates(of_kinds[:1])[0]

    def _finished(self, alone: Candidate) -> Plan:
        if not self._fitting:
            raise TooLargeError(self._describe(self._nearest or alone, alone))
        ranked = sorted(self._fitting.values(), key=self._key)
        best = ranked[0]
        with contextlib.suppress(OutOfTimeError):
            best = min(map(self._refined, self._to_refine(ranked)), key=self._key)
        plan = self._beside(best, ranked, alone)
        if not self._objective.allows(plan.seconds):
            raise TooSlowError(plan, self._objective)
        if self._accepts(plan):
            return plan
        allowed = [candidate for candidate in ranked if self._objective.allows(candidate.seconds)]
        simplest = min(allowed, key=lambda candidate: candidate.different_sizes or math.inf, default=best)
        if simplest.different_sizes == best.different_sizes:  # its memory is predicted no better
            return plan
        simple = self._beside(simplest, ranked, alone)
        return simple if self._accepts(simple) else plan

    def _to_refine(self, ranked: Sequence[Candidate]) -> list[Candidate]:
        """Return the best candidate, and the best on a mesh, or on devices, of another kind if it is about as good."""
        firsts: dict[tuple[int, float], Candidate] = {}
        for candidate in ranked:
            kind = len(candidate.layout.mesh_shape), self._objective.rate(candidate.machines)
            firsts.setdefault(kind, candidate)
        best, *others = firsts.values()
        return [best, *(other for other in others if other.seconds < _CLOSE * self._as_good(best, other.machines))]

    def _beside(self, best: Candidate, ranked: Sequence[Candidate], alone: Candidate) -> Plan:
        """Return the plan of a candidate; of the time, beside the fastest one on a device that it leaves out."""
        names, plan = set(best.machines.names), self._describe(best, alone)
        runner_up = next((other for other in ranked if not names.issuperset(other.used_devices())), None)
        if runner_up is None or self._objective.name != TIME:  # of the price, bounds rule out what may be faster
            return plan
        return dataclasses.replace(plan, runner_up=runner_up.summarized())

    def _enter(self, candidate: Candidate) -> bool:
        """Keep a candidate if it fits, and splits something; return whether it fits."""
        fits = candidate.fits
        self._is_short |= not fits
        if self._nearest is None or candidate.memory_use < self._nearest.memory_use:
            self._nearest = candidate
        if fits and candidate.used_devices():
            self._fitting[candidate.machines.names, candidate.layout] = candidate
            if self._best is None or self._key(candidate) < self._key(self._best):
                self._best = candidate
        return fits

    def _on_grids(self, chosen: Iterable[Subset]) -> Iterator[Candidate]:
        """Generate candidates on meshes of two axes, whose rows are of like devices, the fastest first.

        Two families of names, one over each axis, are tried on all meshes. The best mesh alone is searched, if it is
        not much slower than the best plan so far.
        """
        simple: list[Candidate] = []
        best = self._best
        for numbers in chosen:
            for rows, columns in space_lib.mesh_shapes(len(numbers)):
                machines = self._machines.only(numbers)
                space = self._spaces.space(machines, (), [(ROWS, rows), (COLUMNS, columns)])
                simple += [self._candidate(space, splits, 0.0) for splits in self._of_two_families(space)]
        yield from simple
        likely = min(simple, key=self._key, default=None)
        if likely is not None and likely.seconds < _NEAR * self._as_good(best, likely.machines):
            yield from self._searched(likely.space, likely.space.menus())

    def _in_slots(self, numbers: Sequence[int]) -> Iterator[Candidate]:
        """Generate layouts with slots on devices in this order."""
        machines = self._machines.only(numbers)
        if len(numbers) == 1 and any(names == machines.names for names, _ in self._fitting):
            return  # parts of a batch save one device no time
        space = self._spaces.space(machines)
        slotted = Slotted(space.model, is_short=self._is_short)
        for layout, timeline in slotted.list_fast(
            lambda: self._as_good(self._best, machines), lambda: self._shown_seconds(machines)
        ):
            self._note()
            yield Candidate(space, layout, timeline, 0.0)

    def _shown_seconds(self, machines: Machines) -> float:
        """Return the seconds of the best runner-up so far, if a layout on these devices may be a better one."""
        used = set() if self._best is None else {*self._best.machines.names}
        if self._objective.name != TIME or used.issuperset(machines.names):
            return 0.0
        others = (other for other in self._fitting.values() if not used.issuperset(other.used_devices()))
        return min(map(_seconds, others), default=math.inf)

    def _searched(self, space: Space, menus: Menus) -> list[Candidate]:
        """Return the different candidates that a search finds at each of the prices; none if none is allowed."""
        found: dict[Layout, Candidate] = {}
        with contextlib.suppress(search.NoAssignmentError):
            limits = space.limits(menus)
            for tables in space.tables(menus, _PRICES):
                deadline.check()
                seconds = min(self._seconds, deadline.seconds_left())
                solution = search.minimize(tables, limits, seconds=seconds)
                splits = {name: menus[name][i - 1] for name, i in solution.assignment.items() if i != WHOLE}
                if (layout := space.layout(splits)) not in found:
                    found[layout] = self._candidate(space, splits, solution.gap)
        return list(found.values())

    def _of_two_families(self, space: Space) -> list[dict[str, Split]]:
        """Return splits of the family with most work and of one of the next, one over each axis of the mesh."""
        menus = space.menus()
        largest = space.largest(_PAIRED)
        ways = []
        for one, other in [pair for second in largest[1:] for pair in ((largest[0], second), (second, largest[0]))]:
            first, second = space.of_family(one, menus, 0), space.of_family(other, menus, 1)
            if first and second:
                ways.append(first | second)
        return ways

    def _counts(self, order: Sequence[int]) -> Sequence[int]:
        """Return the numbers of first devices to search for: of many, the best for one family, and all.

        Of the price, the best number is looked for more closely: one device less saves its price.
        """
        if len(order) <= EXACT:
            return space_lib.prefixes(len(order))[1:]
        ladder = {len(order) >> shift for shift in range(len(order).bit_length()) if len(order) >> shift >= EXACT}
        ladder |= set(self._subsets.ends(order)) - {1}
        keys: dict[int, tuple[float, ...]] = {}
        while ladder:
            for count in sorted(ladder):
                space = self._spaces.space(self._machines.only(sorted(order[:count])))
                splits = next(iter(self._of_one_family(space, 1)), {})
                keys[count] = self._key(self._candidate(space, splits, 0.0))
            likely = sorted(keys, key=keys.__getitem__)[:_LIKELY]
            ladder = set() if self._objective.name == TIME else _between(likely[0], sorted(keys)) - keys.keys()
        return sorted({*likely, len(order)})

    def _refined(self, candidate: Candidate) -> Candidate:
        """Return the candidate with sizes that fit and make the step shorter, if that is wanted or it is too slow."""
        if candidate.layout.slots or (self._objective.allows(candidate.seconds) and not self._refines):
            return candidate
        space = candidate.space

        def predict(splits: Splits) -> float:
            deadline.check()
            changed = self._candidate(space, splits, candidate.gap)
            return changed.seconds if changed.fits else math.inf

        splits, crowds = space.splits(candidate.layout), space.model.crowds
        for axis, crowd in enumerate(crowds):
            mine = {name: split.sizes for name, split in splits.items() if split.axis == axis}

            def with_others(sizes: Sizes, axis: int = axis, rest: Splits = splits) -> dict[str, Split]:
                return {**rest, **{name: Split(axis, of_name) for name, of_name in sizes.items()}}

            refined = refine(
                mine,
                lambda sizes: predict(with_others(sizes)),
                granules=space.granules,
                evaluations=EVALUATIONS // (len(space.model.shown.devices) * len(crowds)),
                groups=crowd.groups,
            )
            splits = with_others(refined)
        return self._candidate(space, splits, candidate.gap)

    def _candidates(self, numbers: Sequence[int]) -> list[Candidate]:
        machines = self._machines.only(numbers)
        if len(numbers) == 1:
            return [self._candidate(self._spaces.space(machines), {}, 0.0)]
        deadline.check()
        fastest = sorted(range(len(numbers)), key=lambda pnum: -machines.devices[pnum].flops_per_second)
        subsets = [sorted(fastest[:count]) for count in self._prefixes(numbers, fastest)]
        space = self._spaces.space(machines, subsets)
        found = [self._candidate(space, splits, 0.0) for splits in self._of_one_family(space)]
        fitting = [candidate.seconds for candidate in found if candidate.fits]
        slowest = _HOPELESS * min([self._as_good(self._best, machines), *fitting])
        is_short = any(not candidate.fits and candidate.seconds < slowest for candidate in found)
        if is_short:
            limited = [space.within_memory(space.splits(candidate.layout)) for candidate in found]
            found += [self._candidate(space, splits, 0.0) for splits in limited if splits]
        used: Mapping[str, Sequence[mtf.Operation]] | None = None
        menus: Menus | None = None
        with contextlib.suppress(OutOfTimeError):
            for _ in range(_ROUNDS):
                before, menus = menus, space.menus(subsets, used)
                if menus == before:
                    break
                searched = self._searched(space, space.with_memory(menus) if is_short else menus)
                is_faster = used is None or min(map(_seconds, searched), default=math.inf) < min(map(_seconds, found))
                found += searched
                if not (searched and is_faster):
                    break
                used = space.operations_split(space.splits(min(searched, key=_seconds).layout))
        return found

    def _prefixes(self, numbers: Sequence[int], fastest: Sequence[int]) -> Sequence[int]:
        """Return the numbers of fastest devices that a dimension may be split among: of many, the first kinds."""
        if len(numbers) <= EXACT:
            return space_lib.prefixes(len(numbers))
        ends = self._subsets.ends([numbers[pnum] for pnum in fastest])
        return (1, *ends) if 1 < len(ends) <= _KINDS else space_lib.prefixes(len(numbers))

    def _of_one_family(self, space: Space, most: int = _FAMILIES) -> list[dict[str, Split]]:
        """Return splits of each family alone, over all devices wherever no tensor is then split twice."""
        menus = space.menus()
        return [splits for family in space.largest(most) if (splits := space.of_family(family, menus))]

    def _candidate(self, space: Space, splits: Splits, gap: float) -> Candidate:
        layout = space.layout(splits)
        try:
            timeline = space.model.timeline(layout)
        except CannotSplitError:
            timeline = Timeline((), math.inf, ())
        self._note()
        return Candidate(space, layout, timeline, gap)

    def _note(self) -> None:
        """Count a layout that was compared."""
        self._count += 1
        self._progress(self._count, math.inf if self._best is None else self._best.seconds)
