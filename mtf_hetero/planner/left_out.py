"""Explain why a plan leaves devices out: with which links, or at which speed, they would make a step better.

A threshold has two digits. The search for a layout is repeated with faster links, or faster devices. At the threshold
the plan uses a device that it left out, and one step below it does not. The first guess needs no search: at that value
the layout for the fastest links, or devices, begins to win. All that is of the plan's objective: time, or price.
"""

import contextlib
import dataclasses
import functools
import math
from collections.abc import Callable

from mtf_hetero._support import deadline
from mtf_hetero._support.deadline import OutOfTimeError
from mtf_hetero.cost.machines import Link, Machines
from mtf_hetero.planner.errors import TooSlowError
from mtf_hetero.planner.objective import FASTEST, Objective
from mtf_hetero.planner.outline import name_ranges
from mtf_hetero.planner.plan import BANDWIDTH, SPEED, LeftOut, Plan, Threshold
from mtf_hetero.planner.planning import Planner
from mtf_hetero.planner.search import NoAssignmentError

_BITS_PER_GIGABIT = 1e9
_FASTEST_LINK = 1e5  # gigabits a second: as good as no limit
_FASTEST_DEVICE = 1000.0  # times as fast


@dataclasses.dataclass(frozen=True)
class Search:
    """The search that found a plan, to be repeated for other figures of the machines.

    Args:
      planner: of the graph of which the plan was made.
      find: returns the plan for some machines, as `Planner.find` does.
      objective: of the plan, and of those that it returns.
    """

    planner: Planner
    find: Callable[[Machines], Plan]
    objective: Objective = FASTEST


def devices_left_out(search: Search, machines: Machines, plan: Plan, *, seconds: float) -> tuple[LeftOut, ...]:
    """Return why a plan leaves devices out, one for each kind of them.

    Args:
      search: that found the plan.
      machines: all devices that there are.
      plan: for some of them.
      seconds: for all thresholds together; those that are unknown by then are None.
    """
    names = [name for name in machines.names if name not in plan.devices]
    found = []
    with deadline.within(seconds), contextlib.suppress(OutOfTimeError):
        for label, numbers in name_ranges(names):
            deadline.check()
            found.append(_analyse_device(search, machines, plan, label, names[numbers[0]]))
    return tuple(found)


def _analyse_device(search: Search, machines: Machines, plan: Plan, label: str, device: str) -> LeftOut:
    used = [number for number, name in enumerate(machines.names) if name == device or name in plan.devices]
    some = machines.only(used)
    alone = together = least = None
    try:
        alone = search.find(machines.by_name([device])).seconds
    except TooSlowError as error:
        alone = error.fastest.seconds
    except NoAssignmentError:  # it is short of memory
        pass
    smaller = search.find(some)
    if device not in smaller.devices:
        together = smaller.runner_up
        left = max(0.0, deadline.seconds_left())
        least = threshold(search, some, smaller, seconds=left)
    return LeftOut(label, device, alone, together, least)


def threshold(search: Search, machines: Machines, plan: Plan, *, seconds: float) -> Threshold | None:
    """Return the bandwidth from which devices left out would be used, or else the factor on their speed.

    Args:
      search: that found the plan.
      machines: all devices that there are.
      plan: for some of them.
      seconds: after which the closest bounds so far are returned.

    Returns:
      None if no device is left out, or none was found to be worth using within the time.
    """
    if len(plan.devices) == len(machines.devices):
        return None
    links = [machines.link_between(a, b) for a in range(len(machines.devices)) for b in range(a)]
    slowest = min(link.bytes_per_second for link in links) * 8 / _BITS_PER_GIGABIT
    faster_links = functools.partial(with_bandwidth, machines)
    faster_devices = functools.partial(with_speed, machines, plan)
    with deadline.within(seconds):
        for kind, least, most, changed in (
            (BANDWIDTH, slowest, _FASTEST_LINK, faster_links),
            (SPEED, 1.0, _FASTEST_DEVICE, faster_devices),
        ):
            bounds = _Bisection(search, plan, changed).bounds(_index(least), _index(most))
            if bounds is not None:
                low, high, devices = bounds
                is_exact = high - low == 1
                is_found = is_exact or high < _index(most)
                return Threshold(kind, _value(high) if is_found else math.inf, devices, is_exact=is_exact)
    return None


def with_bandwidth(machines: Machines, gigabits: float) -> Machines:
    """Return the same devices with links of at least so many gigabits a second."""

    def at_least(link: Link) -> Link:
        return dataclasses.replace(link, bytes_per_second=max(link.bytes_per_second, gigabits * _BITS_PER_GIGABIT / 8))

    links = {pair: at_least(link) for pair, link in machines.links.items()}
    return dataclasses.replace(machines, link=at_least(machines.link), links=links)


def with_speed(machines: Machines, plan: Plan, factor: float) -> Machines:
    """Return the devices of a plan as they are, and the others with so many times their rates."""
    devices = tuple(
        machine
        if machine.name in plan.devices
        else dataclasses.replace(
            machine,
            flops_per_second=machine.flops_per_second * factor,
            bytes_per_second=machine.bytes_per_second * factor,
        )
        for machine in machines.devices
    )
    return dataclasses.replace(machines, devices=devices)


def _value(index: int) -> float:
    """Return the number of two digits with an index: 1.0, 1.1, ... 9.9, 10, 11, ...; indices below zero are below one.

    Example:
      >>> _value(0), _value(31), _value(93), _value(-1)
      (1.0, 4.1, 13.0, 0.99)
    """
    decade, place = divmod(index, 90)
    return float(f"{10 + place}e{decade - 1}")


def _index(value: float) -> int:
    """Return the index of the largest number of two digits that is not larger."""
    decade = math.floor(math.log10(value)) - 1  # rounding may be wrong by one
    return max(index for index in range(90 * decade, 90 * (decade + 3)) if _value(index) <= value)


class _Bisection:
    """The search for the least value for whose machines, `changed(value)`, a plan uses devices that were left out."""

    def __init__(self, search: Search, plan: Plan, changed: Callable[[float], Machines]) -> None:
        self._search, self._plan, self._changed = search, plan, changed

    def bounds(self, low: int, high: int) -> tuple[int, int, tuple[str, ...]] | None:
        """Return the closest bounds within the time, and the devices that the plan at the upper one adds.

        Args:
          low: index of a value that is not enough.
          high: index of the largest value.

        Returns:
          None if the largest value is not enough, or the time too short to tell.
        """
        larger = None
        with contextlib.suppress(OutOfTimeError):
            larger = self._larger(high)
            probe = high if larger is None else self._crossing(larger, low, high)
            while larger is not None and high - low > 1:
                found = self._larger(min(probe, high - 1))
                if found is None:
                    low = min(probe, high - 1)
                else:
                    larger, high = found, min(probe, high - 1)
                probe = (low + high) // 2
        return None if larger is None else (low, high, self._added(larger))

    def _added(self, larger: Plan) -> tuple[str, ...]:
        return tuple(name for name in larger.devices if name not in self._plan.devices)

    def _larger(self, index: int) -> Plan | None:
        """Return the plan at a value if it uses devices that were left out.

        Raises:
          OutOfTimeError: it does not, but the search was cut short.
        """
        found = self._search.find(self._changed(_value(index)))
        if self._added(found):
            return found
        deadline.check()
        return None

    def _crossing(self, larger: Plan, low: int, high: int) -> int:
        """Return the index of the least value with which a larger plan's layout is better than the plan's."""
        keys = [self._key(plan) for plan in (larger, self._plan)]
        while high - low > 1:
            middle = (low + high) // 2
            machines = self._changed(_value(middle))
            low, high = (low, middle) if keys[0](machines) < keys[1](machines) else (middle, high)
        return high

    def _key(self, plan: Plan) -> Callable[[Machines], tuple[float, ...]]:
        """Return the function from machines to the key of a step that is laid out as in a plan."""

        def planned_devices(machines: Machines) -> Machines:
            return machines.by_name(plan.devices)

        model = self._search.planner.model_for(planned_devices(self._changed(1.0)), plan.layout)

        def key(machines: Machines) -> tuple[float, ...]:
            planned = planned_devices(machines)
            return self._search.objective.key(model.on(planned).seconds(plan.layout), planned)

        return key
