"""The best layout for a step on devices: searched, refined, and compared with the simple ones.

The search adds up what each operation takes on its slowest device and what is sent; a step overlaps some of that, so
what it finds, and every layout that splits one family of names alone, is then looked at as a timeline, and the fastest
wins. Sizes are chosen anew for what turned out to be split, until that gains nothing.
"""

import dataclasses
import math
from collections.abc import Collection, Mapping, Sequence

import numpy as np

from mtf_hetero._compat import mtf
from mtf_hetero._support.graphs import mtf_size_bytes
from mtf_hetero.layout import Layout
from mtf_hetero.planner import roles, search, work
from mtf_hetero.planner.machines import Machines
from mtf_hetero.planner.plan import LayerPlan, Plan
from mtf_hetero.planner.problem import AXIS, WHOLE, Problem, prefixes
from mtf_hetero.planner.refine import Sizes, refine
from mtf_hetero.planner.timeline import Timeline, predict
from mtf_hetero.profile.footprint import bytes_by_dim
from mtf_hetero.profile.work import layer_of, live

_ROUNDS = 3
_FAMILIES = 6  # that are tried alone
_SEPARATOR = "\n"


@dataclasses.dataclass(frozen=True, eq=False)
class _Candidate:
    machines: Machines
    layout: Layout
    timeline: Timeline
    gap: float


def find(graph: mtf.Graph, machines: Machines, *, names: Collection[str] | None = None, seconds: float = 60.0) -> Plan:
    """The plan that is predicted to take the least time.

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
    return finder.plan(names)


def describe(graph: mtf.Graph, machines: Machines, layout: Layout) -> Plan:
    """The plan that splits as a layout does, whether or not it is the best.

    Args:
      graph: as of `find`.
      machines: one device per processor of the layout.
      layout: over one mesh axis.

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
        self._held = self._bytes_held()

    def plan(self, names: Collection[str] | None) -> Plan:
        """The best candidate of all numbers of devices, which divides these names if they are given."""
        order = self._by_speed()
        alone, *_ = self._candidates(order[:1])
        best = alone if self._fits(alone) else None
        for count in prefixes(len(order))[1:]:
            for candidate in self._candidates(sorted(order[:count]), names):
                if self._fits(candidate) and (best is None or candidate.timeline.seconds < best.timeline.seconds):
                    best = candidate
        if best is None:
            raise search.NoAssignmentError(self._too_large(alone))
        return self._described(self._refined(best), alone)

    def _refined(self, candidate: _Candidate) -> _Candidate:
        """The candidate with sizes by which the step as a whole is shorter, and which fit."""
        problem = Problem(self._operations, candidate.machines)

        def seconds_of(sizes: Sizes) -> float:
            changed = self._candidate(problem, sizes, candidate.gap)
            return changed.timeline.seconds if self._fits(changed) else math.inf

        sizes = refine(dict(candidate.layout.sizes), seconds_of, granules=problem.granules)
        return self._candidate(problem, sizes, candidate.gap)

    def plan_of(self, layout: Layout) -> Plan:
        """The plan that splits as a layout does."""
        problem = Problem(self._operations, self._machines)
        sizes = {
            name: layout.split(name, max(extents))
            for name, extents in problem.extents.items()
            if layout.axis_of(mtf.Dimension(name, max(extents))) is not None
        }
        timeline = predict(problem, problem.layout(sizes), self._owners)
        alone, *_ = self._candidates(self._by_speed()[:1])
        return self._described(_Candidate(self._machines, problem.layout(sizes), timeline, 0.0), alone)

    def _by_speed(self) -> list[int]:
        """The devices' numbers, the fastest first."""
        whole = Layout([(AXIS, 1)], ())
        measured = any(machine.factors for machine in self._machines.devices)
        amounts = [(*work.of_operation(op, whole, 0), work.kind_of(op) if measured else "") for op in self._operations]
        seconds = [math.fsum(machine.seconds(*amount) for amount in amounts) for machine in self._machines.devices]
        return sorted(range(len(seconds)), key=seconds.__getitem__)

    def _candidates(self, numbers: Sequence[int], names: Collection[str] | None = None) -> list[_Candidate]:
        machines = self._machines.only(numbers)
        problem = Problem(self._operations, machines)
        if len(numbers) == 1:
            return [self._candidate(problem, {}, 0.0)]
        everybody = tuple(range(len(numbers)))
        if names is not None:
            return [self._candidate(problem, problem.divided(names), 0.0)]
        fastest = sorted(everybody, key=lambda pnum: -machines.devices[pnum].flops_per_second)
        subsets = [sorted(fastest[:count]) for count in prefixes(len(numbers))]
        found = [self._candidate(problem, sizes, 0.0) for sizes in self._of_one_family(problem, everybody)]
        used = None
        for _ in range(_ROUNDS):
            menus = problem.menus(subsets, used)
            try:
                solution = search.minimize(problem.tables(menus), self._limits(menus, machines), seconds=self._seconds)
            except search.NoAssignmentError:
                break
            sizes = {name: menus[name][i - 1] for name, i in solution.assignment.items() if i != WHOLE}
            found.append(self._candidate(problem, sizes, solution.gap))
            if found[-1].timeline.seconds >= min(c.timeline.seconds for c in found[:-1]) and used is not None:
                break
            used = problem.operations_split(sizes)
        return found

    def _of_one_family(self, problem: Problem, everybody: Sequence[int]) -> list[Sizes]:
        """Each family alone, split over all devices wherever no tensor is then split twice."""
        menus = problem.menus([everybody])
        largest = sorted(problem.families, key=problem.work_of, reverse=True)[:_FAMILIES]
        return [sizes for family in largest if (sizes := problem.allowed_of(family, menus))]

    def _candidate(self, problem: Problem, sizes: Sizes, gap: float) -> _Candidate:
        layout = problem.layout(sizes)
        try:
            timeline = predict(problem, layout, self._owners)
        except NotImplementedError:
            timeline = Timeline((), math.inf, ())
        return _Candidate(problem.machines, layout, timeline, gap)

    def _bytes_held(self) -> dict[tuple[str, ...], int]:
        """{names of a shape: bytes of such tensors} at the moment when most is alive."""
        held = bytes_by_dim(self._operations, lambda shape: _SEPARATOR.join(shape.dimension_names) or None)
        return {tuple(label.split(_SEPARATOR)) if label else (): size for label, size in held.items()}

    def _memory(self, layout: Layout) -> tuple[int, ...]:
        """Bytes that each device needs."""
        fractions = {name: [size / sum(sizes) for size in sizes] for name, sizes in layout.sizes}
        whole = [1.0] * layout.size
        return tuple(
            math.ceil(
                math.fsum(
                    size * math.prod(fractions.get(name, whole)[pnum] for name in names)
                    for names, size in self._held.items()
                )
            )
            for pnum in range(layout.size)
        )

    def _limits(self, menus: Mapping[str, Sequence[tuple[int, ...]]], machines: Machines) -> list[search.Limit]:
        limits = []
        for pnum, machine in enumerate(machines.devices):
            if machine.memory_bytes is None:
                continue
            tables = []
            for names, size in self._held.items():
                scope = tuple(dict.fromkeys(name for name in names if menus.get(name)))
                parts = [[1.0, *(sizes[pnum] / sum(sizes) for sizes in menus[name])] for name in scope]
                fractions = np.array(1.0)
                for part in parts:
                    fractions = np.multiply.outer(fractions, part)
                tables.append(search.Table(scope, size * fractions))
            limits.append(search.Limit(f"memory of {machine.name}", tuple(tables), machine.memory_bytes))
        return limits

    def _fits(self, candidate: _Candidate) -> bool:
        limits = [machine.memory_bytes for machine in candidate.machines.devices]
        return all(
            limit is None or needed <= limit
            for needed, limit in zip(self._memory(candidate.layout), limits, strict=True)
        )

    def _too_large(self, alone: _Candidate) -> str:
        (needed,) = self._memory(alone.layout)
        has = ", ".join(f"{m.name} {(m.memory_bytes or math.inf) / 1e9:.3g} GB" for m in self._machines.devices)
        return f"a step needs {needed / 1e9:.3g} GB on one device, and no layout fits these: {has}; add devices"

    def _described(self, best: _Candidate, alone: _Candidate) -> Plan:
        layout, names = best.layout, best.machines.names
        split = dict(layout.sizes)
        layers: dict[str, tuple[dict[str, tuple[int, ...]], list[float], list[int]]] = {}
        for op in self._operations:
            layer = self._owners.get(op)
            if layer is None:
                continue
            mine = layers.setdefault(layer, ({}, [0.0] * len(names), [0] * len(names)))
            dims = {dim.name for tensor in op.outputs for dim in tensor.shape.dims}
            own = [name for name in sorted(dims) if name in split and name.rpartition("/")[0] in ("", layer)]
            mine[0].update({name: split[name] for name in own})
        for span in best.timeline.spans:
            if span.layer in layers:
                layers[span.layer][1][span.device] += span.end - span.begin
        products = roles.products(self._operations, self._owners)
        owners = {op.name: layer for op, layer in self._owners.items()}
        for transfer in best.timeline.sent:
            if (layer := owners.get(transfer.operation)) in layers:
                layers[layer][2][transfer.source] += transfer.bytes
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
                LayerPlan(n, s, tuple(t), tuple(b), *roles.along(products.get(n), split, s))
                for n, (s, t, b) in layers.items()
            ),
            memory_bytes=self._memory(layout),
            extents=extents,
            provenance={
                "parameters_bytes": str(
                    sum(mtf_size_bytes(op.outputs[0]) for op in self._operations if isinstance(op, mtf.Variable))
                )
            },
            timeline=best.timeline.merged(),
        )
