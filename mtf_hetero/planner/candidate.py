"""A layout that the search looks at, and the plan that it makes."""

import dataclasses
from collections.abc import Collection, Mapping, Sequence

from mtf_hetero._compat import mtf
from mtf_hetero._support.graphs import mtf_size_bytes
from mtf_hetero.layout import Layout
from mtf_hetero.planner import roles
from mtf_hetero.planner.machines import Machines
from mtf_hetero.planner.plan import LayerPlan, Plan, RunnerUp
from mtf_hetero.planner.problem import Along, Choice, Problem
from mtf_hetero.planner.sketched import Held
from mtf_hetero.planner.timeline import Timeline


@dataclasses.dataclass(frozen=True, eq=False)
class Candidate:
    """A layout that the search looks at.

    Args:
      problem: the step on the devices of the layout.
      layout: how the tensors lie on them.
      timeline: the step that is predicted.
      gap: by how much a better layout may cost less, of the costs that the search adds up, as a fraction.
    """

    problem: Problem
    layout: Layout
    timeline: Timeline
    gap: float

    @property
    def machines(self) -> Machines:
        """The devices of the layout."""
        return self.problem.everyone

    def used_devices(self) -> tuple[str, ...]:
        """Return the names of the devices that have a part of something; of several, none where nothing is split."""
        vectors = [(self.layout.axis_of(name) or 0, sizes) for name, sizes in self.layout.sizes]
        if not vectors:
            return self.machines.names if len(self.machines.names) == 1 else ()
        places = map(self.layout.coordinates, range(self.layout.size))
        parts = zip(self.machines.names, places, strict=True)
        return tuple(name for name, place in parts if any(sizes[place[axis]] for axis, sizes in vectors))

    def summarized(self) -> RunnerUp:
        """Return what a plan holds of the runner-up."""
        busiest = max(map(self.timeline.busy_seconds, range(len(self.problem.machines.devices))))
        return RunnerUp(self.used_devices(), self.timeline.seconds, self.timeline.seconds - busiest)


def plan_of(
    best: Candidate, operations: Sequence[mtf.Operation], owners: Mapping[mtf.Operation, str], held: Held
) -> Plan:
    """Return the plan that a candidate makes, beside which no other is known yet.

    Args:
      best: the candidate.
      operations: mtf operations of the step, in the graph's order.
      owners: {operation: its layer}.
      held: the memory of the step.
    """
    layout, names, crowd = best.layout, best.machines.names, best.problem.crowd
    split = dict(layout.sizes)
    layers: dict[str, tuple[dict[str, tuple[int, ...]], list[float], list[int]]] = {}
    for op in operations:
        layer = owners.get(op)
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

    products = roles.products(operations, owners)
    layers_by_name = {op.name: layer for op, layer in owners.items()}
    for transfer in best.timeline.sent:
        if (layer := layers_by_name.get(transfer.operation)) in layers:
            layers[layer][2][transfer.source] += round(transfer.bytes * transfer.times)
    extents = {
        dim.name: max(dim.size, 0)
        for op in operations
        for tensor in op.outputs
        for dim in sorted(tensor.shape.dims, key=lambda dim: dim.size)
        if dim.name in split and dim.size == sum(split[dim.name])
    }
    return Plan(
        devices=names,
        layout=layout,
        seconds=best.timeline.seconds,
        alone=(names[0], best.timeline.seconds),
        gap=best.gap,
        layers=tuple(
            LayerPlan(n, s, of_all(t), of_all(b, crowd.senders), *roles.along(products.get(n), split, s))
            for n, (s, t, b) in layers.items()
        ),
        memory_bytes=held.needed(layout, range(len(names))),
        extents=extents,
        provenance={
            "parameters_bytes": str(
                sum(mtf_size_bytes(op.outputs[0]) for op in operations if isinstance(op, mtf.Variable))
            )
        },
        timeline=tuple(dataclasses.replace(s, device=crowd.shown[s.device]) for s in best.timeline.merged()),
    )


def choices_of(layout: Layout, extents: Mapping[str, Collection[int]]) -> dict[str, Choice]:
    """Return the splits of a layout, by the largest of each dimension's extents."""
    found: dict[str, Choice] = {}
    for name, of_name in extents.items():
        axis = layout.axis_of(mtf.Dimension(name, max(of_name)))
        if axis is not None:
            sizes = layout.split(name, max(of_name))
            found[name] = sizes if len(layout.mesh_shape) == 1 else Along(axis, sizes)
    return found
