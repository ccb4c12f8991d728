"""Explain a plan of one device by the costs of its layers, and any plan by the devices that it leaves out."""

import contextlib
import dataclasses
from collections.abc import Sequence

from mtf_hetero._compat import mtf
from mtf_hetero._support import deadline
from mtf_hetero._support.deadline import OutOfTimeError
from mtf_hetero.layout import Layout
from mtf_hetero.planner import work
from mtf_hetero.planner.machines import Machines
from mtf_hetero.planner.outline import ranges_of
from mtf_hetero.planner.plan import LeftOut, Plan
from mtf_hetero.planner.problem import AXIS
from mtf_hetero.planner.search import NoAssignmentError
from mtf_hetero.planner.thresholds import Search, threshold
from mtf_hetero.profile.work import layer_of, live

ARITHMETIC, MEMORY, LAUNCHES = "arithmetic", "memory", "launches"
_OTHER = "(other)"  # operations without a layer


@dataclasses.dataclass(frozen=True)
class LayerCost:
    """The time of a layer in a step on one device.

    Args:
      name: of the layer.
      seconds: that it takes.
      limits: {ARITHMETIC, MEMORY or LAUNCHES: seconds of the operations that this limits}.
    """

    name: str
    seconds: float
    limits: dict[str, float]

    @property
    def limit(self) -> str:
        """The limit of most of the time."""
        return max(self.limits, key=self.limits.__getitem__)


def layer_costs(graph: mtf.Graph, machines: Machines, plan: Plan) -> tuple[LayerCost, ...]:
    """Return the time of each layer in a plan of one device, in the graph's order.

    Args:
      graph: of a training step.
      machines: the devices.
      plan: for one of them.
    """
    machine = machines.only([machines.names.index(plan.devices[0])]).devices[0]
    operations = live(graph)
    owners = layer_of(operations, graph.trainable_variables)
    whole = Layout([(AXIS, 1)], ())
    costs: dict[str, dict[str, float]] = {}
    for op in operations:
        flops, moved_bytes = work.of_operation(op, whole, 0)
        seconds = machine.seconds(flops, moved_bytes, work.kind_of(op) if machine.factors else "")
        if not seconds:
            continue
        launch = min(machine.operation_seconds, seconds)
        rate = ARITHMETIC if flops * machine.bytes_per_second >= moved_bytes * machine.flops_per_second else MEMORY
        limits = costs.setdefault(owners.get(op, _OTHER), {ARITHMETIC: 0.0, MEMORY: 0.0, LAUNCHES: 0.0})
        limits[rate] += seconds - launch
        limits[LAUNCHES] += launch
    if _OTHER in costs:
        costs[_OTHER] = costs.pop(_OTHER)  # the last one
    return tuple(LayerCost(name, sum(limits.values()), limits) for name, limits in costs.items())


def devices_left_out(
    graph: mtf.Graph, machines: Machines, plan: Plan, search: Search, *, seconds: float
) -> tuple[LeftOut, ...]:
    """Return why a plan leaves devices out, one for each kind of them.

    Args:
      graph: of which the plan was made.
      machines: all devices that there are.
      plan: for some of them.
      search: returns the plan for other machines, as `find` does.
      seconds: for all thresholds together; what is not known by then is None.
    """
    names = [name for name in machines.names if name not in plan.devices]
    found = []
    with deadline.within(seconds), contextlib.suppress(OutOfTimeError):
        for label, numbers in ranges_of(names):
            deadline.check()
            found.append(_left_out(graph, machines, plan, search, label, names[numbers[0]]))
    return tuple(found)


def _left_out(graph: mtf.Graph, machines: Machines, plan: Plan, search: Search, label: str, device: str) -> LeftOut:
    used = [number for number, name in enumerate(machines.names) if name == device or name in plan.devices]
    some = machines.only(used)
    alone = together = least = None
    with contextlib.suppress(NoAssignmentError):
        alone = search(machines.only([machines.names.index(device)])).seconds
    smaller = search(some)
    if device not in smaller.devices:
        together = smaller.runner_up
        least = threshold(graph, some, smaller, search, seconds=max(0.0, deadline.left()))
    return LeftOut(label, device, alone, together, least)


def total(costs: Sequence[LayerCost]) -> LayerCost:
    """Return the sum of layers' costs."""
    limits = {limit: sum(cost.limits[limit] for cost in costs) for limit in (ARITHMETIC, MEMORY, LAUNCHES)}
    return LayerCost("all", sum(limits.values()), limits)
