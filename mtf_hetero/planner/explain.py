"""Explain a plan by its layers: what another split of one would cost; of one device, where the time goes.

The rest of a plan stays as it is, so that the additional traffic between the layer and its neighbours is counted.
"""

import dataclasses
import math
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence

from mtf_hetero._compat import mtf
from mtf_hetero._support import extras, garbage
from mtf_hetero.cost.machines import Machines
from mtf_hetero.cost.model import ALONE, Model
from mtf_hetero.graph import roles
from mtf_hetero.layout.partition import split_among_positive
from mtf_hetero.planner.plan import LayerPlan, Plan
from mtf_hetero.planner.planning import Planner
from mtf_hetero.planner.space import Space, Split, Splits

WHOLE, ONE = "whole on each", "on one device"
ALTERNATIVES = (WHOLE, ONE, *roles.KINDS)
ARITHMETIC, MEMORY, LAUNCHES = "arithmetic", "memory", "launches"
_OTHER = "(other)"  # operations without a layer


@dataclasses.dataclass(frozen=True)
class LayerAlternatives:
    """The ways to split a layer.

    Args:
      name: of the layer.
      chosen: the plan's way, one of ALTERNATIVES.
      compute_seconds: that the slowest device computes for it as it is planned.
      sending_seconds: until all that it sends as it is planned is sent, if nothing else were.
      seconds: {alternative: by how much the predicted step is longer with it}; None where it is not possible.
      sizes: {alternative: {dimension of the layer: sizes}}, of those that are possible.
    """

    name: str
    chosen: str
    compute_seconds: float
    sending_seconds: float
    seconds: Mapping[str, float | None]
    sizes: Mapping[str, Mapping[str, tuple[int, ...]]]


@garbage.without_collection()
def explain(
    graph: mtf.Graph, machines: Machines, plan: Plan, *, progress: bool = False
) -> tuple[LayerAlternatives, ...]:
    """Return by how much a step would be longer if each layer in turn were split in each other way.

    A dimension that other layers share, such as the batch of a Keras model, is not split otherwise: no layer alone can.
    The sizes are those that the same dimension has under another name in the plan, so that neighbours fit together, and
    else in proportion to the devices' speeds. "On one device" is on the fastest. Memory is not looked at.
    On a mesh of two axes, over whichever of them is quicker, and no layer on one device.

    Args:
      graph: of which the plan was made.
      machines: all devices that there are.
      plan: as `find` gives it.
      progress: whether to show a bar on standard error.

    Returns:
      One per layer that has a product and dimensions of its own; none for a plan of one device.
    """
    if len(plan.devices) == 1:
        return ()
    explainer = _Explainer(graph, machines.by_name(plan.devices), plan)
    layers = [layer for layer in plan.layers if explainer.has_alternatives(layer)]
    with extras.progress_bar(
        total=len(layers), desc="alternatives", unit=" layers", disable=not progress, file=sys.stderr, leave=False
    ) as bar:
        found = []
        for layer in layers:
            found.append(explainer.alternatives(layer))
            bar.update()
    return tuple(found)


class _Explainer:
    """The alternatives to a plan's layers."""

    def __init__(self, graph: mtf.Graph, machines: Machines, plan: Plan) -> None:
        everybody = range(len(machines.devices))
        self._fastest = max(everybody, key=lambda pnum: machines.devices[pnum].flops_per_second)
        self._model = Planner(graph).model_for(machines, plan.layout, [[self._fastest]])
        self._space = Space(self._model, plan.layout.mesh_shape)
        self._products = roles.products(self._model.operations, self._model.layers)
        self._layers = {op.name: layer for op, layer in self._model.layers.items()}
        self._splits = self._space.splits(plan.layout)
        self._axes = range(len(plan.layout.mesh_shape))
        self._menus = self._space.menus()
        self._families = {name: family for family in self._space.families for name in family}
        planned = self._model.timeline(plan.layout)
        self._seconds, self._sent = planned.seconds, planned.sent

    def has_alternatives(self, layer: LayerPlan) -> bool:
        """Return whether a layer has a product, and dimensions of its own that can be split."""
        return layer.name in self._products and bool(self._own(layer.name))

    def _own(self, layer: str) -> list[str]:
        """Return the dimensions of a layer that no other layer has."""
        return [name for name in self._families if name.rpartition("/")[0] == layer]

    def alternatives(self, layer: LayerPlan) -> LayerAlternatives:
        """Return by how much each way to split a layer would be longer."""
        own, chosen = set(self._own(layer.name)), self._planned_way(layer)
        rest = {name: split for name, split in self._splits.items() if name not in own}
        mine = {name: split for name, split in self._splits.items() if name in own}
        seconds: dict[str, float | None] = dict.fromkeys(ALTERNATIVES)
        splits: dict[str, Splits] = {chosen: mine}
        for alternative in ALTERNATIVES:
            if alternative == chosen:
                seconds[alternative] = 0.0
                continue
            if alternative == WHOLE and layer.along not in own:
                continue  # other layers share the dimension
            ways = [way for way in self._ways(layer.name, alternative) if self._space.is_allowed(rest | way)]
            if len(ways) > 1:
                ways = [min(ways, key=lambda way: self._cost(own, rest | way))]
            step = self._model.seconds(self._space.layout(rest | ways[0])) if ways else math.inf
            if step < math.inf:
                seconds[alternative], splits[alternative] = step - self._seconds, ways[0]
        sent = [transfer for transfer in self._sent if self._layers.get(transfer.operation) == layer.name]
        sizes = {way: {name: split.sizes for name, split in of_way.items()} for way, of_way in splits.items()}
        return LayerAlternatives(
            layer.name, chosen, max(layer.seconds), self._model.sending_seconds(sent), seconds, sizes
        )

    def _planned_way(self, layer: LayerPlan) -> str:
        kind = self._products[layer.name][1].get(layer.along)
        if kind is None:
            return WHOLE
        return ONE if sum(map(bool, layer.split[layer.along])) == 1 else kind

    def _ways(self, layer: str, alternative: str) -> Iterator[dict[str, Split]]:
        """Generate {dimension: split} of a layer for an alternative: several for one device, and for several axes."""
        if alternative == WHOLE:
            yield {}
            return
        mine = set(self._own(layer))
        kinds = {name: kind for name, kind in self._products[layer][1].items() if name in mine}
        space = [name for name, kind in kinds.items() if kind == roles.SPACE]
        for name, kind in kinds.items():
            if name in space[1:]:
                continue  # images are about as wide as they are high
            if alternative == kind or (alternative == ONE and kind != roles.SPACE):
                family = self._families.get(name, (name,))
                own = dict.fromkeys([name, *(other for other in self._own(layer) if other in family)])
                for axis in self._axes:
                    split = self._split(layer, name, alternative, axis)
                    if split is not None:
                        yield self._space.of_family(list(own), {other: [split] for other in own}, axis)

    def _split(self, layer: str, name: str, alternative: str, axis: int) -> Split | None:
        """Return how a dimension is split over an axis, or None if it cannot be; widths are not in the menus."""
        if len(self._axes) > 1:
            mine = next((split for split in self._menus.get(name, ()) if split.axis == axis), None)
            return None if alternative == ONE else mine
        op, _ = self._products[layer]
        extent = max(dim.size for x in (*op.inputs, *op.outputs) for dim in x.shape.dims if dim.name == name)
        devices = self._model.machines.devices
        if alternative == ONE:
            return Split(axis, tuple(extent if pnum == self._fastest else 0 for pnum in range(len(devices))))
        if extent < len(devices):
            return None
        if name not in self._menus:
            return Split(axis, split_among_positive(extent, [machine.flops_per_second for machine in devices]))
        neighbours = [self._splits[other] for other in self._families[name] if other in self._splits]
        known = [split for split in neighbours if sum(split.sizes) == extent and sum(map(bool, split.sizes)) > 1]
        return max(known, key=known.count) if known else next(iter(self._menus[name]), None)

    def _cost(self, own: Collection[str], splits: Splits) -> float:
        """Return the seconds of all operations with a dimension of a layer, in sequence: quicker than a whole step."""
        return self._model.sequential_seconds(self._space.list_operations(own), self._space.layout(splits))


@dataclasses.dataclass(frozen=True)
class LayerCost:
    """The time of a layer in a step on one device.

    Args:
      name: of the layer.
      limits: {ARITHMETIC, MEMORY or LAUNCHES: seconds of the operations that this limits}.
    """

    name: str
    limits: dict[str, float]

    @property
    def seconds(self) -> float:
        """The time of the layer."""
        return sum(self.limits.values())

    @property
    def limit(self) -> str:
        """The limit of most of the time."""
        return max(self.limits, key=self.limits.__getitem__)


def layer_costs(graph: mtf.Graph, machines: Machines, plan: Plan) -> tuple[LayerCost, ...]:
    """Return the time of each layer in a plan of one device, in the graph's order."""
    model = Model(graph, machines.by_name(plan.devices))
    (machine,) = model.machines.devices
    costs: dict[str, dict[str, float]] = {}
    for op in model.operations:
        (seconds,) = model.compute_seconds(op, ALONE)
        if not seconds:
            continue
        launch = min(machine.operation_seconds, seconds)
        flops, moved_bytes = model.amount(op)
        rate = ARITHMETIC if flops * machine.bytes_per_second >= moved_bytes * machine.flops_per_second else MEMORY
        limits = costs.setdefault(model.layers.get(op, _OTHER), dict.fromkeys((ARITHMETIC, MEMORY, LAUNCHES), 0.0))
        limits[rate] += seconds - launch
        limits[LAUNCHES] += launch
    if _OTHER in costs:
        costs[_OTHER] = costs.pop(_OTHER)  # the last one
    return tuple(LayerCost(name, limits) for name, limits in costs.items())


def total(costs: Sequence[LayerCost]) -> LayerCost:
    """Return the sum of layers' costs."""
    limits = (ARITHMETIC, MEMORY, LAUNCHES)
    return LayerCost("all", {limit: sum(cost.limits[limit] for cost in costs) for limit in limits})
