"""Objectives of a plan: the least time of a step, or its least price.

A second of a step on some devices is weighed by their rate: for the time, 1 on one device and 1.02 on several; for the
price, the sum of their prices. Of two plans the one with the lower product of seconds and rate is better. A plan that
keeps to a limit of seconds is better than one that does not, and of two that do not the faster one.
"""

import dataclasses
import math

from mtf_hetero.cost.links import is_number
from mtf_hetero.cost.machines import Machine, Machines

TIME, COST = "time", "cost"
NO_GAIN = 0.02  # of a step: too little to prefer several devices to one, or a layout that is less simple


@dataclasses.dataclass(frozen=True)
class Objective:
    """The objective of a plan.

    Args:
      name: TIME, the least seconds of a step, or COST, its least price: that of all devices of the plan.
      most_seconds: limit of a step, for COST; None: any.

    Raises:
      ValueError: another name, or a limit that is not allowed.
    """

    name: str = TIME
    most_seconds: float | None = None

    def __post_init__(self) -> None:
        if self.name not in (TIME, COST):
            raise ValueError(f"objective is {self.name!r}; it must be {TIME} or {COST}")
        if self.most_seconds is None:
            return
        if not (is_number(self.most_seconds) and self.most_seconds > 0):
            raise ValueError(f"most_seconds is {self.most_seconds!r}; it must be a number greater than zero")
        if self.name == TIME:
            raise ValueError(
                f"most_seconds is {self.most_seconds!r}, but the objective is {TIME}, which has no limit; leave "
                f"most_seconds out, or give the objective {COST}"
            )

    def check(self, machines: Machines) -> None:
        """Raise ValueError unless each device has the price that the objective needs."""
        for machine in machines.devices if self.name == COST else ():
            if machine.price_per_hour is None:
                raise ValueError(
                    f"device {machine.name!r} has no price per hour, which the objective {COST} needs of each device; "
                    'write it behind the kind, "T4 at 0.35", or as price_per_hour in a devices file'
                )

    def price(self, machine: Machine) -> float:
        """Return the price of a device for an hour; 0 if it does not matter."""
        return (machine.price_per_hour or 0.0) if self.name == COST else 0.0

    def rate(self, machines: Machines) -> float:
        """Return the weight of a second on some devices."""
        if self.name == COST:
            return math.fsum(map(self.price, machines.devices))
        return 1.0 if len(machines.devices) == 1 else 1.0 + NO_GAIN

    def allows(self, seconds: float) -> bool:
        """Return whether a step of so many seconds keeps to the limit."""
        return self.most_seconds is None or seconds <= self.most_seconds

    def key(self, seconds: float, machines: Machines) -> tuple[float, float, float]:
        """Return the key of a plan on some devices; of two plans, that with the lower key is better."""
        late = 0.0 if self.allows(seconds) else seconds
        weighed = self.rate(machines) * seconds if seconds < math.inf else math.inf  # a device may be free
        return late, weighed, seconds

    def as_good(self, seconds: float, machines: Machines, others: Machines) -> float:
        """Return the seconds in which a step on other devices is as good as one of these seconds on these devices."""
        rate, other = self.rate(machines), self.rate(others)
        if not self.allows(seconds) or rate == other:
            return seconds
        limit = math.inf if self.most_seconds is None else self.most_seconds
        return min(limit, rate * seconds / other if other else math.inf)


FASTEST = Objective()
