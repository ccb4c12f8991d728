"""A layout that the search looks at, and the plan that it makes."""

import dataclasses
import functools
from collections.abc import Sequence

from mtf_hetero._compat import mtf
from mtf_hetero.cost.machines import Machines
from mtf_hetero.cost.timeline import Timeline
from mtf_hetero.graph import roles
from mtf_hetero.graph.walk import size_bytes
from mtf_hetero.layout import Layout
from mtf_hetero.planner.plan import STAGES, LayerPlan, Plan, RunnerUp, has_stages
from mtf_hetero.planner.space import Space


@dataclasses.dataclass(frozen=True, eq=False)
class Candidate:
    """A layout that the search looks at.

    Args:
      space: the layouts of which it is one.
      layout: how the tensors lie on the devices.
      timeline: the step that is predicted.
      gap: by how much a better layout may cost less, of the costs that the search adds up, as a fraction.
    """

    space: Space
    layout: Layout
    timeline: Timeline
    gap: float

    @property
    def machines(self) -> Machines:
        """The devices of the layout."""
        return self.space.model.machines

    @property
    def seconds(self) -> float:
        """The seconds of a step."""
        return self.timeline.seconds

    @functools.cached_property
    def memory_use(self) -> float:
        """The memory that it needs over what there is, on the device that is most short of it."""
        return self.space.model.memory_use(self.layout)

    @property
    def fits(self) -> bool:
        """Return whether each device has the memory that it needs."""
        return self.memory_use <= 1

    @property
    def different_sizes(self) -> int:
        """The number of different vectors of sizes of the split dimensions; 0 if nothing is split."""
        return len({sizes for _, sizes in self.layout.sizes})

    def used_devices(self) -> tuple[str, ...]:
        """Return the names of the devices that have a part of something; of several, none where nothing is split."""
        layout = self.layout.without_slots()
        vectors = [(layout.axis_of(name) or 0, sizes) for name, sizes in layout.sizes]
        if not vectors:
            return self.machines.names if len(self.machines.names) == 1 else ()
        places = map(layout.coordinates, range(layout.size))
        parts = zip(self.machines.names, places, strict=True)
        return tuple(name for name, place in parts if any(sizes[place[axis]] for axis, sizes in vectors))

    def summarized(self) -> RunnerUp:
        """Return what a plan holds of the runner-up."""
        busiest = max(map(self.timeline.busy_seconds, range(len(self.space.model.shown.devices))))
        return RunnerUp(self.used_devices(), self.seconds, self.seconds - busiest)

    def plan(self) -> Plan:
        """Return the plan that the candidate makes, beside which no other is known yet."""
        model, names = self.space.model, self.machines.names
        split = dict(self.layout.sizes)
        extents = {
            dim.name: max(dim.size, 0)
            for op in model.operations
            for tensor in op.outputs
            for dim in sorted(tensor.shape.dims, key=lambda dim: dim.size)
            if dim.name in split and dim.size == sum(split[dim.name])
        }
        variables = (op.outputs[0] for op in model.operations if isinstance(op, mtf.Variable))
        stages = {STAGES: "yes"} if has_stages(model.families.extents) else {}
        return Plan(
            devices=names,
            layout=self.layout,
            seconds=self.seconds,
            alone=(names[0], self.seconds),
            gap=self.gap,
            layers=self._layers(),
            memory_bytes=model.bytes_held(self.layout),
            extents=extents,
            provenance={"parameters_bytes": str(sum(map(size_bytes, variables))), **stages},
            timeline=tuple(span._replace(device=model.crowd.shown[span.device]) for span in self.timeline.merged()),
        )

    def _layers(self) -> tuple[LayerPlan, ...]:
        model, crowd = self.space.model, self.space.model.crowd
        split = dict(self.layout.without_slots().sizes)
        layers: dict[str, tuple[dict[str, tuple[int, ...]], list[float], list[int]]] = {}
        for op, layer in model.layers.items():
            mine = layers.setdefault(layer, ({}, [0.0] * len(crowd.shown), [0] * len(crowd.shown)))
            dims = {dim.name for tensor in op.outputs for dim in tensor.shape.dims}
            own = [name for name in sorted(dims) if name in split and name.rpartition("/")[0] in ("", layer)]
            mine[0].update({name: split[name] for name in own})
        for span in self.timeline.spans:
            if span.layer in layers:
                layers[span.layer][1][span.device] += span.end - span.begin
        layer_of = {op.name: layer for op, layer in model.layers.items()}
        for transfer in self.timeline.sent:
            if (layer := layer_of.get(transfer.operation)) in layers:
                layers[layer][2][transfer.source] += round(transfer.bytes * transfer.times)

        def of_all(values: Sequence, places: Sequence[int] | None = None) -> tuple:
            shown = values if places is None else [values[place] for place in places]
            return tuple(shown[place] for place in crowd.stands)

        products = roles.products(model.operations, model.layers)
        plans = []
        for name, (sizes, seconds, sent_bytes) in layers.items():
            along, kind = roles.along(products.get(name), split, sizes)
            if along:  # it may belong to the layer before, whose units are the inputs of this one
                sizes.setdefault(along, split[along])
            plans.append(LayerPlan(name, sizes, of_all(seconds), of_all(sent_bytes, crowd.senders), along, kind))
        return tuple(plans)
