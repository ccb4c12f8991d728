"""Find the best layout for a step on devices: search, refine, and compare with the simple layouts.

The search adds up the time of each operation on its slowest device, and of its messages, although some of it overlaps.
So the layouts that it finds, and those that split one family of names alone, are predicted as timelines. The fastest
wins. Sizes are chosen again for the split dimensions until that gains nothing.
"""

import contextlib
import dataclasses
import itertools
import math
import operator
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
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
from mtf_hetero.planner.plan import Plan
from mtf_hetero.planner.refine import EVALUATIONS, Sizes, refine
from mtf_hetero.planner.slotted import MOST_DEVICES, Slotted
from mtf_hetero.planner.space import WHOLE, Menus, Space, Split, Splits
from mtf_hetero.planner.spaces import Spaces

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
_seconds = operator.attrgetter("seconds")
ROWS, COLUMNS = "rows", "columns"
Progress: TypeAlias = Callable[[int, float], None]


class TooLargeError(search.NoAssignmentError):
    """No layout keeps to the devices' memory.

    Args:
      nearest: the plan that was looked at whose device most short of memory lacks least.
    """

    def __init__(self, nearest: Plan) -> None:
        super().__init__("no layout of the step fits the devices' memory")
        self.nearest = nearest


def report_nothing(count: int, seconds: float) -> None:
    """Stand in for a progress that is not shown."""


class Finder:
    """The search for one step and some devices."""

    def __init__(
        self,
        spaces: Spaces,
        machines: Machines,
        seconds: float,
        progress: Progress = report_nothing,
        refines: bool = False,
        accepts: Callable[[Plan], bool] = lambda plan: True,
    ) -> None:
        self._spaces, self._machines, self._seconds = spaces, machines, seconds
        self._progress, self._refines, self._accepts = progress, refines, accepts
        self._fitting: dict[tuple[tuple[str, ...], Layout], Candidate] = {}  # those that use some device, and that fit
        self._is_short = False  # whether a candidate did not fit
        self._nearest: Candidate | None = None  # the one whose device most short of memory lacks least
        self._count = 0

    def plan(self) -> Plan:
        """Return the plan of the best candidate of all numbers of devices."""
        order = self._by_speed()
        alone = self._alone(order)
        with contextlib.suppress(OutOfTimeError):
            counts = self._counts(order)
            searched = set()
            for numbers in self._sets(order, counts):
                for candidate in self._candidates(numbers) if numbers not in searched else ():
                    self._enter(candidate)
                searched.add(numbers)
            grids = [shape for count in counts for shape in space_lib.mesh_shapes(count)]
            for candidate in self._on_grids(order, grids, self._least_seconds):
                self._enter(candidate)
            for numbers in self._orders(order, counts):
                for candidate in self._in_slots(numbers):
                    self._enter(candidate)
        return self._finished(alone)

    def _orders(self, order: Sequence[int], counts: Sequence[int]) -> Iterator[tuple[int, ...]]:
        """Generate few devices in an order: the fastest; if memory is short, one alone, and those with most of it."""
        orders = [order, *[self._by_memory(order)] * self._is_short]
        few = [count for count in (*[1] * self._is_short, *counts) if count <= MOST_DEVICES]
        yield from {frozenset(devices[:count]): tuple(devices[:count]) for count in few for devices in orders}.values()

    def _by_memory(self, order: Sequence[int]) -> list[int]:
        limits = [machine.memory_bytes or math.inf for machine in self._machines.devices]
        return sorted(order, key=limits.__getitem__, reverse=True)

    def _sets(self, order: Sequence[int], counts: Sequence[int]) -> Iterator[tuple[int, ...]]:
        """Generate the sets of devices to search for: the fastest, and if memory is short, those with most of it."""
        yield from (tuple(sorted(order[:count])) for count in counts)
        if self._is_short:
            by_memory = self._by_memory(order)
            yield from (tuple(sorted(by_memory[:count])) for count in {*counts, max(2, len(order) - 1)})

    def plan_of_names(self, names: Collection[str]) -> Plan:
        """Return the plan of the best split of these names, over any number of the fastest devices."""
        order = self._by_speed()
        alone = self._alone(order)
        with contextlib.suppress(OutOfTimeError):
            for count in space_lib.prefixes(len(order))[1:]:
                deadline.check()
                space = self._spaces.space(self._machines.only(sorted(order[:count])))
                self._enter(self._candidate(space, space.over_all(names), 0.0))
        return self._finished(alone)

    def plan_with(self, layout: Layout) -> Plan:
        """Return the plan with a given layout."""
        layout = self._spaces.model(self._machines).exact(layout)
        model = self._spaces.model_for(self._machines, layout)
        candidate = Candidate(Space(model, layout.mesh_shape), layout, model.timeline(layout), 0.0)
        return self._describe(candidate, self._alone(self._by_speed()))

    def _describe(self, best: Candidate, alone: Candidate) -> Plan:
        return dataclasses.replace(best.plan(), alone=(alone.machines.names[0], alone.seconds), alone_fits=alone.fits)

    def _alone(self, order: Sequence[int]) -> Candidate:
        """Keep and return the fastest device alone that has the memory; if none has it, return the fastest."""
        of_kinds = [order[first] for first in (0, *self._ends(order)[:-1])]
        for number in of_kinds:
            (candidate,) = self._candidates([number])
            if self._enter(candidate):
                return candidate
        return self._candidates(of_kinds[:1])[0]

    def _finished(self, alone: Candidate) -> Plan:
        if not self._fitting:
            raise TooLargeError(self._describe(self._nearest or alone, alone))
        fastest = sorted(self._fitting.values(), key=_seconds)
        best = fastest[0]
        with contextlib.suppress(OutOfTimeError):
            best = min(map(self._refined, self._to_refine(fastest)), key=_seconds)
        plan = self._beside(best, fastest, alone)
        if self._accepts(plan):
            return plan
        simplest = min(fastest, key=lambda candidate: candidate.different_sizes or math.inf)
        if simplest.different_sizes == best.different_sizes:  # its memory is predicted no better
            return plan
        simple = self._beside(simplest, fastest, alone)
        return simple if self._accepts(simple) else plan

    def _to_refine(self, fastest: Sequence[Candidate]) -> list[Candidate]:
        """Return the fastest candidate, and the fastest on a mesh of another kind if it takes about as long."""
        best = fastest[0]
        axes = len(best.layout.mesh_shape)
        others = (other for other in fastest if len(other.layout.mesh_shape) != axes)
        return [best, *(other for other in itertools.islice(others, 1) if other.seconds < _CLOSE * best.seconds)]

    def _beside(self, best: Candidate, fastest: Sequence[Candidate], alone: Candidate) -> Plan:
        """Return the plan of a candidate, beside the fastest one on a device that it leaves out."""
        names = set(best.machines.names)
        runner_up = next((other for other in fastest if not names.issuperset(other.used_devices())), None)
        plan = self._describe(best, alone)
        return plan if runner_up is None else dataclasses.replace(plan, runner_up=runner_up.summarized())

    @property
    def _least_seconds(self) -> float:
        """Seconds of the fastest candidate that fits; infinity without one."""
        return min(map(_seconds, self._fitting.values()), default=math.inf)

    def _enter(self, candidate: Candidate) -> bool:
        """Keep a candidate if it fits, and splits something; return whether it fits."""
        fits = candidate.fits
        self._is_short |= not fits
        if self._nearest is None or candidate.memory_use < self._nearest.memory_use:
            self._nearest = candidate
        if fits and candidate.used_devices():
            self._fitting[candidate.machines.names, candidate.layout] = candidate
        return fits

    def _on_grids(self, order: Sequence[int], shapes: Sequence[tuple[int, int]], seconds: float) -> Iterator[Candidate]:
        """Generate candidates on meshes of two axes, whose rows are of like devices, the fastest first.

        Two families of names, one over each axis, are tried on all meshes. The best mesh alone is searched, if it is
        not much slower than the best plan so far.
        """
        simple: list[Candidate] = []
        for rows, columns in shapes:
            machines = self._machines.only(order[: rows * columns])
            space = self._spaces.space(machines, (), [(ROWS, rows), (COLUMNS, columns)])
            simple += [self._candidate(space, splits, 0.0) for splits in self._of_two_families(space)]
        yield from simple
        likely = min(simple, key=_seconds, default=None)
        if likely is not None and likely.seconds < _NEAR * seconds:
            yield from self._searched(likely.space, likely.space.menus())

    def _in_slots(self, numbers: Sequence[int]) -> Iterator[Candidate]:
        """Generate layouts with slots on devices in this order."""
        machines = self._machines.only(numbers)
        if len(numbers) == 1 and any(names == machines.names for names, _ in self._fitting):
            return  # parts of a batch save one device no time
        space = self._spaces.space(machines)
        for layout, timeline in Slotted(space.model, is_short=self._is_short).list_fast(lambda: self._least_seconds):
            self._note()
            yield Candidate(space, layout, timeline, 0.0)

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
        """Return the numbers of fastest devices to search for: of many, the best for one family, and all."""
        if len(order) <= EXACT:
            return space_lib.prefixes(len(order))[1:]
        ladder = {len(order) >> shift for shift in range(len(order).bit_length()) if len(order) >> shift >= EXACT}
        ladder |= set(self._ends(order)) - {1}
        seconds = {}
        for count in sorted(ladder):
            space = self._spaces.space(self._machines.only(sorted(order[:count])))
            splits = next(iter(self._of_one_family(space, 1)), {})
            seconds[count] = self._candidate(space, splits, 0.0).seconds
        likely = sorted(seconds, key=seconds.__getitem__)[:_LIKELY]
        return sorted({*likely, len(order)})

    def _ends(self, order: Sequence[int]) -> list[int]:
        """Return where each run of equal devices ends, for devices in some order."""
        kinds = [dataclasses.replace(self._machines.devices[number], name="") for number in order]
        pairs = enumerate(itertools.pairwise(kinds), 1)
        return [*(number for number, (one, other) in pairs if one != other), len(order)]

    def _refined(self, candidate: Candidate) -> Candidate:
        """Return the candidate with sizes that fit and make the step as a whole shorter, if that is wanted."""
        if not self._refines or candidate.layout.slots:
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

    def _by_speed(self) -> list[int]:
        """Return the devices' numbers, the fastest first."""
        seconds = self._spaces.model(self._machines).unsplit_seconds()
        return sorted(range(len(seconds)), key=seconds.__getitem__)

    def _candidates(self, numbers: Sequence[int]) -> list[Candidate]:
        machines = self._machines.only(numbers)
        if len(numbers) == 1:
            return [self._candidate(self._spaces.space(machines), {}, 0.0)]
        deadline.check()
        fastest = sorted(range(len(numbers)), key=lambda pnum: -machines.devices[pnum].flops_per_second)
        subsets = [sorted(fastest[:count]) for count in self._subsets(numbers, fastest)]
        space = self._spaces.space(machines, subsets)
        found = [self._candidate(space, splits, 0.0) for splits in self._of_one_family(space)]
        least = min([self._least_seconds, *(candidate.seconds for candidate in found if candidate.fits)])
        is_short = any(not candidate.fits and candidate.seconds < _HOPELESS * least for candidate in found)
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
                least, found = min(map(_seconds, found), default=math.inf), [*found, *searched]
                if not searched or (used is not None and min(map(_seconds, searched)) >= least):
                    break
                used = space.operations_split(space.splits(min(searched, key=_seconds).layout))
        return found

    def _subsets(self, numbers: Sequence[int], fastest: Sequence[int]) -> Sequence[int]:
        """Return the numbers of fastest devices that a dimension may be split among: of many, the first kinds."""
        if len(numbers) <= EXACT:
            return space_lib.prefixes(len(numbers))
        ends = self._ends([numbers[pnum] for pnum in fastest])
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
        self._progress(self._count, self._least_seconds)
