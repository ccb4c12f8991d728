"""Compare a plan with a traced step: the seconds of each device for each layer, measured and predicted."""

import collections
from collections.abc import Mapping, Sequence

from mtf_hetero._compat import mtf
from mtf_hetero.cluster.devices import complete
from mtf_hetero.cost import trace
from mtf_hetero.graph import assign_layers, live_operations
from mtf_hetero.mesh import traffic
from mtf_hetero.planner import show
from mtf_hetero.planner.plan import Plan

OTHER = "other"  # than a layer: the input, counting steps, work of no operation of mtf


def layer_seconds(
    graph: mtf.Graph, events: Sequence[trace.Event], devices: Sequence[str]
) -> Mapping[str, tuple[float, ...]]:
    """Return {layer: seconds in which each device computes for it}, without transfers and waiting."""
    owners = {op.name: layer for op, layer in assign_layers(live_operations(graph), graph.trainable_variables).items()}
    known = {op.name for op in graph.operations}
    completed = complete([*devices, *sorted({event.device for event in events})])
    place = {completed[device]: number for number, device in enumerate(devices)}
    computed: dict[str, list[list[trace.Event]]] = collections.defaultdict(lambda: [[] for _ in devices])
    for event in events:
        number = place.get(completed[event.device])
        if number is not None and not trace.TRANSFER.search(event.kind):
            computed[owners.get(traffic.find_operation(event.name, known), OTHER)][number].append(event)
    return {layer: tuple(map(trace.covered, of_layer)) for layer, of_layer in computed.items()}


def report(plan: Plan, graph: mtf.Graph, events: Sequence[trace.Event]) -> str:
    """Return a table of layers and devices, predicted and measured, and the step as a whole."""
    step_seconds = max((event.end_seconds for event in events), default=0.0)
    return show.comparison_table(plan, layer_seconds(graph, events, plan.devices), step_seconds)
