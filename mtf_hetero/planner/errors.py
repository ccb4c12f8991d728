"""Errors of a search that finds no plan which is allowed, with the plan that is nearest."""

import math

from mtf_hetero._support.units import seconds_text
from mtf_hetero.planner.objective import Objective
from mtf_hetero.planner.plan import Plan
from mtf_hetero.planner.search import NoAssignmentError
from mtf_hetero.planner.verdict import names_text


class TooLargeError(NoAssignmentError):
    """No layout keeps to the devices' memory.

    Args:
      nearest: the plan that was looked at whose device most short of memory lacks least.
    """

    def __init__(self, nearest: Plan) -> None:
        super().__init__("no layout of the step fits the devices' memory")
        self.nearest = nearest


class TooSlowError(NoAssignmentError):
    """No layout keeps to the limit of seconds.

    Args:
      fastest: the fastest plan.
      objective: with the limit.
    """

    def __init__(self, fastest: Plan, objective: Objective) -> None:
        takes, devices = seconds_text(fastest.seconds), names_text(fastest.devices)
        super().__init__(
            f"most_seconds is {objective.most_seconds:g}, but the fastest layout takes {takes} per step, on {devices}; "
            f"give {_rounded_up(fastest.seconds):g} or more, or add devices"
        )
        self.fastest = fastest


def _rounded_up(seconds: float) -> float:
    """Return seconds with three digits that are no fewer."""
    unit = 10.0 ** (math.floor(math.log10(seconds)) - 2)
    return math.ceil(seconds / unit) * unit
