"""The best layout for a graph and a set of unequal devices: found, shown and explained before anything runs.

Example:
  >>> graph = build()  # an mtf.Graph of a training step
  >>> machines = cost.load("devices.yaml")
  >>> plan = planner.find(graph, machines)
  >>> round(plan.seconds, 4), plan.devices, dict(plan.layout.sizes)
  (0.0101, ('gpu:0', 'gpu:1'), {'batch': (3261, 835), ...})
  >>> planner.save(plan, "plan.json")  # mtf-hetero train --layout=plan.json
  >>> mesh_impl = mtf_hetero.UnevenMeshImpl.from_layout(plan.layout, plan.devices)

`find_fitting` takes a function that builds the graph, and keeps to the devices' memory by the lowered graph. Modules:
`auto` measures the devices that are here and tries what it finds, `explain`, `left_out`, `show` and `picture` say why.
"""

from typing import TYPE_CHECKING

from mtf_hetero._support import lazy

if TYPE_CHECKING:
    from mtf_hetero.planner.fitting import find_fitting
    from mtf_hetero.planner.plan import Plan, load, save
    from mtf_hetero.planner.planning import describe, find

__all__ = ["Plan", "describe", "find", "find_fitting", "load", "save"]

__getattr__, __dir__ = lazy.attach(
    __name__,
    {
        "Plan": "plan",
        "describe": "planning",
        "find": "planning",
        "find_fitting": "fitting",
        "load": "plan",
        "save": "plan",
    },
)
