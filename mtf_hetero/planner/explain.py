"""Explain a plan: by how much a step would be longer if one layer were split in another way.

The rest of the plan stays as it is, so that the additional traffic between the layer and its neighbours is counted.
"""

import dataclasses
import math
import sys
from collections.abc import Collection, Iterator, Mapping

from mtf_hetero._compat import mtf
from mtf_hetero._support import extras, garbage
from mtf_hetero.partition import split_among_positive
from mtf_hetero.planner import roles
from mtf_hetero.planner.machines import Machines
from mtf_hetero.planner.plan import LayerPlan, Plan
from mtf_hetero.planner.problem import Choice, axis_of, problem_of, sizes_of
from mtf_hetero.planner.timeline import predict
from mtf_hetero.profile.work import layer_of, live

WHOLE, ONE = "whole on each", "on one device"
ALTERNATIVES = (WHOLE, ONE, *roles.KINDS)


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


@garbage.uncollected()
def explain(
    graph: mtf.Graph, machines: Machines, plan: Plan, *, progress: bool = False
) -> tuple[LayerAlternatives, ...]:
    """Return by how much a step would be longer if each layer in turn were split in each other way.

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
    explainer = _Explainer(graph, machines.only([machines.names.index(name) for name in plan.devices]), plan)
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
        operations = live(graph)
        self._owners = layer_of(operations, graph.trainable_variables)
        self._products = roles.products(operations, self._owners)
        self._layers = {op.name: layer for op, layer in self._owners.items()}
        everybody = range(len(machines.devices))
        self._fastest = max(everybody, key=lambda pnum: machines.devices[pnum].flops_per_second)
        self._problem = problem_of(operations, machines, plan.layout, [[self._fastest]])
        self._sizes = self._problem.choices(plan.layout)
        self._axes = range(len(plan.layout.mesh_shape))
        self._menus = self._problem.menus([everybody]) if len(self._axes) == 1 else self._problem.menus_of_axes()
        self._families = {name: family for family in self._problem.families for name in family}
        planned = predict(self._problem, plan.layout, self._owners)
        self._seconds, self._sent = planned.seconds, planned.sent

    def has_alternatives(self, layer: LayerPlan) -> bool:
        """Return whether a layer has a product, and dimensions of its own that can be split."""
        return layer.name in self._products and bool(self._own(layer.name))

    def _own(self, layer: str) -> list[str]:
        """Return the dimensions of a layer that no other layer has."""
        return [name for name in self._families if name.rpartition("/")[0] == layer]

    def alternatives(self, layer: LayerPlan) -> LayerAlternatives:
        """Return by how much each way to split a layer would be longer."""
        own, chosen = set(self._own(layer.name)), self._chosen(layer)
        rest = {name: sizes for name, sizes in self._sizes.items() if name not in own}
        mine = {name: sizes for name, sizes in self._sizes.items() if name in own}
        seconds: dict[str, float | None] = dict.fromkeys(ALTERNATIVES)
        sizes: dict[str, Mapping[str, Choice]] = {chosen: mine}
        for alternative in ALTERNATIVES:
            if alternative == chosen:
                seconds[alternative] = 0.0
                continue
            ways = [way for way in self._ways(layer.name, alternative) if self._problem.is_allowed(rest | way)]
            if len(ways) > 1:
                ways = [min(ways, key=lambda way: self._cost(own, rest | way))]
            step = self._step(rest | ways[0]) if ways else math.inf
            if step < math.inf:
                seconds[alternative], sizes[alternative] = step - self._seconds, ways[0]
        sent = [transfer for transfer in self._sent if self._layers.get(transfer.operation) == layer.name]
        vectors = {way: {name: sizes_of(choice) for name, choice in of_way.items()} for way, of_way in sizes.items()}
        return LayerAlternatives(
            layer.name, chosen, max(layer.seconds), self._problem.sending_seconds(sent), seconds, vectors
        )

    def _chosen(self, layer: LayerPlan) -> str:
        kind = self._products[layer.name][1].get(layer.along)
        if kind is None:
            return WHOLE
        return ONE if sum(map(bool, layer.split[layer.along])) == 1 else kind

    def _ways(self, layer: str, alternative: str) -> Iterator[dict[str, Choice]]:
        """Generate {dimension: choice} of a layer for an alternative: several for one device, and for several axes."""
        if alternative == WHOLE:
            yield {}
            return
        kinds = self._products[layer][1]
        space = [name for name, kind in kinds.items() if kind == roles.SPACE]
        for name, kind in kinds.items():
            if name in space[1:]:
                continue  # images are about as wide as they are high
            if alternative == kind or (alternative == ONE and kind != roles.SPACE):
                family = self._families.get(name, (name,))
                own = dict.fromkeys([name, *(other for other in self._own(layer) if other in family)])
                for axis in self._axes:
                    choice = self._choice(layer, name, alternative, axis)
                    if choice is not None:
                        yield self._problem.allowed_of(list(own), {other: [choice] for other in own}, axis)

    def _choice(self, layer: str, name: str, alternative: str, axis: int) -> Choice | None:
        """Return how a dimension is split over an axis, or None if it cannot be; widths are not in the menus."""
        if len(self._axes) > 1:
            mine = next((choice for choice in self._menus.get(name, ()) if axis_of(choice) == axis), None)
            return None if alternative == ONE else mine
        op, _ = self._products[layer]
        extent = max(dim.size for x in (*op.inputs, *op.outputs) for dim in x.shape.dims if dim.name == name)
        devices = self._problem.everyone.devices
        if alternative == ONE:
            return tuple(extent if pnum == self._fastest else 0 for pnum in range(len(devices)))
        if extent < len(devices):
            return None
        if name not in self._menus:
            return split_among_positive(extent, [machine.flops_per_second for machine in devices])
        neighbours = (sizes_of(self._sizes[other]) for other in self._families[name] if other in self._sizes)
        known = [sizes for sizes in neighbours if sum(sizes) == extent and sum(map(bool, sizes)) > 1]
        return max(known, key=known.count) if known else next(iter(self._menus[name]), None)

    def _cost(self, own: Collection[str], sizes: Mapping[str, Choice]) -> float:
        """Return the seconds of all operations with a dimension of a layer, in sequence: quicker than a whole step."""
        tensors = ((op, (*op.inputs, *op.outputs)) for op in self._problem.operations)
        touched = [op for op, xs in tensors if any(name in own for x in xs for name in x.shape.dimension_names)]
        return self._problem.seconds(touched, self._problem.layout(sizes))

    def _step(self, sizes: Mapping[str, Choice]) -> float:
        """Return the seconds of a step with these splits; infinity if it is not possible."""
        try:
            return predict(self._problem, self._problem.layout(sizes), self._owners).seconds
        except NotImplementedError:
            return math.inf
