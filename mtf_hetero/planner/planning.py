"""Plans of one training step for any devices."""

from collections.abc import Callable, Collection
from typing import Any

from mtf_hetero._compat import mtf
from mtf_hetero._support import garbage
from mtf_hetero.cost.machines import Machines
from mtf_hetero.layout import Layout
from mtf_hetero.planner.finding import Finder, Progress, report_nothing
from mtf_hetero.planner.objective import FASTEST, Objective
from mtf_hetero.planner.plan import Plan
from mtf_hetero.planner.spaces import Spaces


class Planner(Spaces):
    """Plans of one training step for any devices.

    Args:
      graph: mtf.Graph of a training step, on one mesh. Nothing of it is lowered.

    Raises:
      ValueError: the graph has no operation.
    """

    @garbage.without_collection()
    def find(
        self,
        machines: Machines,
        *,
        names: Collection[str] | None = None,
        seconds: float = 60.0,
        progress: Progress = report_nothing,
        refines: bool = True,
        accepts: Callable[[Plan], bool] = lambda plan: True,
        objective: Objective = FASTEST,
    ) -> Plan:
        """Return the plan with the least predicted time, or price; if a time limit passes, the best one so far.

        If several devices are less than 2 % faster than one alone, that one is planned.

        Args:
          machines: all devices; a plan may leave some out.
          names: of the dimensions to split, over the best number of devices; None: all are searched.
          seconds: limit of a search that is short of memory; it then returns the best so far.
          progress: called with the number of layouts that were compared, and the seconds of the best, or infinity.
          refines: whether sizes are corrected in the end, without which a small gain of several devices is missed.
          accepts: says of a plan whether it may be the result. It is asked of the best one, then of one that splits
            all in like proportions, whose memory is predicted best. If it accepts neither, the result is the best.
          objective: the time of a step, or its price.

        Raises:
          TooLargeError: no layout keeps to the devices' memory.
          TooSlowError: none keeps to the limit of the objective.
          ValueError: a device has no price, but the objective is the price.
        """
        objective.check(machines)
        finder = Finder(self, machines, seconds, progress, refines, accepts, objective)
        return finder.plan() if names is None else finder.plan_of_names(names)

    def describe(self, machines: Machines, layout: Layout) -> Plan:
        """Return the plan with a given layout, whether or not it is the best.

        Args:
          machines: one device per processor of the layout.
          layout: the Layout.

        Raises:
          CannotSplitError: the layout splits what an operation needs whole.
        """
        return Finder(self, machines, 0.0).plan_with(layout)


def find(graph: mtf.Graph, machines: Machines, **options: Any) -> Plan:
    """Return the plan with the least predicted time for a graph; see `Planner.find`."""
    return Planner(graph).find(machines, **options)


def describe(graph: mtf.Graph, machines: Machines, layout: Layout) -> Plan:
    """Return the plan of a graph with a given layout; see `Planner.describe`."""
    return Planner(graph).describe(machines, layout)
