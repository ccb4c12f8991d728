"""The best layout for a step on devices: searched, refined, and compared with the simple ones.

The search adds up what each operation takes on its slowest device and what is sent; a step overlaps some of that, so
what it finds, and every layout that splits one family of names alone, is then looked at as a timeline, and the fastest
wins. Sizes are chosen anew for what turned out to be split, until that gains nothing.
"""

import contextlib
import dataclasses
import itertools
import math
from collections.abc import Collection, Iterator, Mapping, Sequence

from mtf_hetero._compat import mtf
from mtf_hetero._support import deadline, garbage
from mtf_hetero._support.deadline import OutOfTimeError
from mtf_hetero._support.graphs import mtf_size_bytes
from mtf_hetero.layout import Layout
from mtf_hetero.planner import roles, search, work
from mtf_hetero.planner.machines import Machines, kinds_of
from mtf_hetero.planner.plan import LayerPlan, Plan
from mtf_hetero.planner.problem import (
    AXIS,
    EXACT,
    WHOLE,
    Along,
    Choice,
    Menus,
    Problem,
    axis_of,
    choices_of,
    prefixes,
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


@dataclasses.dataclass(frozen=True, eq=False)
class _Candidate:
    problem: Problem
    layout: Layout
    timeline: Timeline
    gap: float

    @property
    def machines(self) -> Machines:
        """The devices of the layout."""
        return self.problem.everyone


@garbage.uncollected()
def find(graph: mtf.Graph, machines: Machines, *, names: Collection[str] | None = None, seconds: float = 60.0) -> Plan:
    """The plan that is predicted to take the least time; where a time limit passes, the best of those looked at.

    Args:
      graph: mtf.Graph of a training step, on one mesh. Nothing of it is lowered.
      machines: the devices that there are; a plan may leave some out.
      names: of the dimensions to divide, over as many devices as it pays; None: they are searched for.
      seconds: after which a search that meets a memory limit takes the best that it has found.

    Raises:
      search.NoAssignmentError: no layout keeps to the devices' memory.
      ValueError: the graph has no operation.
    """
    operations = live(graph)
    if not operations:
        raise ValueError("the graph has no operation; build a training step")
    finder = _Finder(graph, operations, machines, seconds)
    return finder.plan() if names is None else finder.plan_of_names(names)


def describe(graph: mtf.Graph, machines: Machines, layout: Layout) -> Plan:
    """The plan that splits as a layout does, whether or not it is the best.

    Args:
      graph: as of `find`.
      machines: one device per processor of the layout.
      layout: the Layout.

    Raises:
      NotImplementedError: the layout splits what an operation needs whole.
    """
    finder = _Finder(graph, live(graph), machines, 0.0)
    return finder.plan_of(layout)


class _Finder:
    """The search for one graph and some devices."""

    def __init__(
        self, graph: mtf.Graph, operations: Sequence[mtf.Operation], machines: Machines, seconds: float
    ) -> None:
        self._operations, self._machines, self._seconds = operations, machines, seconds
        self._owners = layer_of(operations, graph.trainable_variables)
        self._held = Held(operations)

    def plan(self) -> Plan:
        """The best candidate of all numbers of devices."""
        order = self._by_speed()
        alone, *_ = self._candidates(order[:1])
        best = alone if self._fits(alone) else None
        with contextlib.suppress(OutOfTimeError):
            counts = self._counts(order)
            for count in counts:
                for candidate in self._candidates(sorted(order[:count])):
                    best = self._better(best, candidate)
            grids = [shape for count in counts for shape in shapes_of(count)]
            for candidate in self._on_grids(order, grids, math.inf if best is None else best.timeline.seconds):
                best = self._better(best, candidate)
        return self._finished(best, alone)

    def plan_of_names(self, names: Collection[str]) -> Plan:
        """The best division of these names, over any number of the fastest devices."""
        order = self._by_speed()
        alone, *_ = self._candidates(order[:1])
        best = alone if self._fits(alone) else None
        with contextlib.suppress(OutOfTimeError):
            for count in prefixes(len(order))[1:]:
                deadline.check()
                problem = Problem(self._operations, self._machines.only(sorted(order[:count])), [])
                best = self._better(best, self._candidate(problem, problem.divided(names), 0.0))
        return self._finished(best, alone)

    def _finished(self, best: _Candidate | None, alone: _Candidate) -> Plan:
        if best is None:
            raise search.NoAssignmentError(self._too_large(alone))
        with contextlib.suppress(OutOfTimeError):
            best = self._refined(best)
        return self._described(best, alone)

    def _better(self, best: _Candidate | None, other: _Candidate) -> _Candidate | None:
        """The faster one of those that fit."""
        if not self._fits(other) or (best is not None and best.timeline.seconds <= other.timeline.seconds):
            return best
        return other

    def _on_grids(
        self, order: Sequence[int], shapes: Sequence[tuple[int, int]], seconds: float
    ) -> Iterator[_Candidate]:
        """Candidates on meshes of two axes, whose rows are of like devices, the fastest first.

        Two families of names, one over each axis, are tried on all; that mesh alone on which they do best is searched,
        if they then take not much longer than a plan that was found.
        """
        simple: list[_Candidate] = []
        for rows, columns in shapes:
            machines = self._machines.only(order[: rows * columns])
            problem = Problem(self._operations, machines, [], [(ROWS, rows), (COLUMNS, columns)])
            simple += [self._candidate(problem, sizes, 0.0) for sizes in self._of_two_families(problem)]
        yield from simple
        likely = min(simple, key=lambda candidate: candidate.timeline.seconds, default=None)
        if likely is not None and likely.timeline.seconds < _NEAR * seconds:
            yield from self._searched(likely.problem, likely.problem.menus_of_axes())

    def _searched(self, problem: Problem, menus: Menus) -> list[_Candidate]:
        """What a search finds: one candidate, or none."""
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
        """The family with most work and one of the next, one over each axis of the mesh."""
        menus = problem.menus_of_axes()
        largest = sorted(problem.families, key=problem.work_of, reverse=True)[:_PAIRED]
        ways = []
        for one, other in [pair for second in largest[1:] for pair in ((largest[0], second), (second, largest[0]))]:
            first, second = problem.allowed_of(one, menus, 0), problem.allowed_of(other, menus, 1)
            if first and second:
                ways.append(first | second)
        return ways

    def _counts(self, order: Sequence[int]) -> Sequence[int]:
        """How many of the fastest devices to search for: of many, those with which one family does best, and all."""
        if len(order) <= EXACT:
            return prefixes(len(order))[1:]
        ladder = {len(order) >> shift for shift in range(len(order).bit_length()) if len(order) >> shift >= EXACT}
        ladder |= set(self._ends(order)) - {1}
        seconds = {}
        for count in sorted(ladder):
            numbers = sorted(order[:count])
            problem = Problem(self._operations, self._machines.only(numbers), [])
            sizes = next(iter(self._of_one_family(problem, range(count), 1)), {})
            seconds[count] = self._candidate(problem, sizes, 0.0).timeline.seconds
        likely = sorted(seconds, key=seconds.__getitem__)[:_LIKELY]
        return sorted({*likely, len(order)})

    def _ends(self, order: Sequence[int]) -> list[int]:
        """Of devices in some order, up to where those that are alike follow one another."""
        kinds = [dataclasses.replace(self._machines.devices[number], name="") for number in order]
        pairs = enumerate(itertools.pairwise(kinds), 1)
        return [*(number for number, (one, other) in pairs if one != other), len(order)]

    def _refined(self, candidate: _Candidate) -> _Candidate:
        """The candidate with sizes by which the step as a whole is shorter, and which fit."""
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
        """The plan that splits as a layout does."""
        whole = Problem(self._operations, self._machines, None, layout.mesh_shape)
        layout = whole.layout(choices_of(layout, whole.extents))
        problem = problem_of(self._operations, self._machines, layout)
        timeline = predict(problem, layout, self._owners)
        alone, *_ = self._candidates(self._by_speed()[:1])
        return self._described(_Candidate(problem, layout, timeline, 0.0), alone)

    def _by_speed(self) -> list[int]:
        """The devices' numbers, the fastest first."""
        whole = Layout([(AXIS, 1)], ())
        measured = any(machine.factors for machine in self._machines.devices)
        amounts = [(*work.of_operation(op, whole, 0), work.kind_of(op) if measured else "") for op in self._operations]
        crowd = crowd_of(kinds_of(self._machines, []))
        shown = [self._machines.devices[number] for number in crowd.shown]
        seconds = [math.fsum(machine.seconds(*amount) for amount in amounts) for machine in shown]
        seconds = [seconds[place] for place in crowd.stands]
        return sorted(range(len(seconds)), key=seconds.__getitem__)

    def _candidates(self, numbers: Sequence[int]) -> list[_Candidate]:
        machines = self._machines.only(numbers)
        if len(numbers) == 1:
            return [self._candidate(Problem(self._operations, machines), {}, 0.0)]
        deadline.check()
        everybody = tuple(range(len(numbers)))
        fastest = sorted(everybody, key=lambda pnum: -machines.devices[pnum].flops_per_second)
        subsets = [sorted(fastest[:count]) for count in self._subsets(numbers, fastest)]
        problem = Problem(self._operations, machines, subsets)
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
        """How many of the fastest of some devices something may be divided among: of many, those of the first kinds."""
        if len(numbers) <= EXACT:
            return prefixes(len(numbers))
        ends = self._ends([numbers[pnum] for pnum in fastest])
        return (1, *ends) if 1 < len(ends) <= _KINDS else prefixes(len(numbers))

    def _of_one_family(
        self, problem: Problem, everybody: Sequence[int], most: int = _FAMILIES
    ) -> list[dict[str, Choice]]:
        """Each family alone, split over all devices wherever no tensor is then split twice."""
        menus = problem.menus([everybody])
        largest = sorted(problem.families, key=problem.work_of, reverse=True)[:most]
        return [sizes for family in largest if (sizes := problem.allowed_of(family, menus))]

    def _candidate(self, problem: Problem, sizes: Mapping[str, Choice], gap: float) -> _Candidate:
        layout = problem.layout(sizes)
        try:
            timeline = predict(problem, layout, self._owners)
        except NotImplementedError:
            timeline = Timeline((), math.inf, ())
        return _Candidate(problem, layout, timeline, gap)

    def _fits(self, candidate: _Candidate) -> bool:
        problem = candidate.problem
        needed = self._held.needed(candidate.layout, problem.crowd.shown)
        limits = [machine.memory_bytes for machine in problem.machines.devices]
        return all(limit is None or each <= limit for each, limit in zip(needed, limits, strict=True))

    def _too_large(self, alone: _Candidate) -> str:
        (needed,) = self._held.needed(alone.layout, [0])
        limits = [f"{(m.memory_bytes or math.inf) / 1e9:.3g} GB" for m in self._machines.devices]
        first = [0, *self._ends(range(len(limits)))[:-1]]  # of those that are alike
        has = ", ".join(f"{self._machines.names[number]} {limits[number]}" for number in first)
        return f"a step needs {needed / 1e9:.3g} GB on one device, and no layout fits these: {has}; add devices"

    def _described(self, best: _Candidate, alone: _Candidate) -> Plan:
        layout, names, crowd = best.layout, best.machines.names, best.problem.crowd
        split = dict(layout.sizes)
        layers: dict[str, tuple[dict[str, tuple[int, ...]], list[float], list[int]]] = {}
        for op in self._operations:
            layer = self._owners.get(op)
            if layer is None:
                continue
            mine = layers.setdefault(layer, ({}, [0.0] * len(crowd.shown), [0] * len(crowd.shown)))
            dims = {dim.name for tensor in op.outputs for dim in tensor.shape.dims}
            own = [name for name in sorted(dims) if name in split and name.rpartition("/")[0] in ("", layer)]
            mine[0].update({name: split[name] for name in own})
        for span in best.timeline.spans:
            if span.layer in layers:
                layers[span.layer][1][span.device] += span.end - span.begin

        def of_all(values: Sequence, places: Sequence[int] | None = None) -> tuple:
            shown = values if places is None else [values[place] for place in places]
            return tuple(shown[place] for place in crowd.stands)

        products = roles.products(self._operations, self._owners)
        owners = {op.name: layer for op, layer in self._owners.items()}
        for transfer in best.timeline.sent:
            if (layer := owners.get(transfer.operation)) in layers:
                layers[layer][2][transfer.source] += round(transfer.bytes * transfer.times)
        extents = {
            dim.name: max(dim.size, 0)
            for op in self._operations
            for tensor in op.outputs
            for dim in sorted(tensor.shape.dims, key=lambda dim: dim.size)
            if dim.name in split and dim.size == sum(split[dim.name])
        }
        return Plan(
            devices=names,
            layout=layout,
            seconds=best.timeline.seconds,
            alone=(alone.machines.names[0], alone.timeline.seconds),
            gap=best.gap,
            layers=tuple(
                LayerPlan(n, s, of_all(t), of_all(b, crowd.senders), *roles.along(products.get(n), split, s))
                for n, (s, t, b) in layers.items()
            ),
            memory_bytes=self._held.needed(layout, range(len(names))),
            extents=extents,
            provenance={
                "parameters_bytes": str(
                    sum(mtf_size_bytes(op.outputs[0]) for op in self._operations if isinstance(op, mtf.Variable))
                )
            },
            timeline=tuple(dataclasses.replace(s, device=crowd.shown[s.device]) for s in best.timeline.merged()),
        )


def shapes_of(count: int) -> list[tuple[int, int]]:
    """The meshes of so many processors: rows by columns, two at least of each; of many, those that are nearly square.

    Example:
      >>> shapes_of(8), shapes_of(60)
      ([(2, 4), (4, 2)], [(6, 10), (10, 6)])
    """
    shapes = [(rows, count // rows) for rows in range(2, count // 2 + 1) if count % rows == 0]
    return shapes if count <= EXACT else sorted(shapes, key=lambda shape: abs(shape[0] - shape[1]))[:_SHAPES]
