"""Subsets of the devices that a search looks at, and bounds of the time of a step on them."""

import dataclasses
import functools
import itertools
import math
from collections.abc import Callable, Sequence
from typing import TypeAlias

import numpy as np

from mtf_hetero.cost.machines import Machines
from mtf_hetero.cost.model import Model
from mtf_hetero.cost.sample import EXACT
from mtf_hetero.planner.objective import TIME, Objective

_COMBINATIONS = 16  # of kinds of devices that the search for the least price looks at
_LOSS = 1.05  # times as long as without messages and waiting
Subset: TypeAlias = tuple[int, ...]  # numbers of devices
Counts: TypeAlias = Callable[[Sequence[int]], Sequence[int]]  # from an order to how many of its first devices to try


class Subsets:
    """The subsets of some devices that a search looks at.

    Args:
      model: the step on all devices.
      machines: all devices.
      objective: of the search.
    """

    def __init__(self, model: Model, machines: Machines, objective: Objective) -> None:
        self._model, self._machines, self._objective = model, machines, objective
        self._prices = [objective.price(machine) for machine in machines.devices]
        self._kinds = [
            dataclasses.replace(machine, name="", price_per_hour=price)
            for machine, price in zip(machines.devices, self._prices, strict=True)
        ]

    def by_speed(self) -> list[int]:
        """Return the devices' numbers, the fastest first."""
        seconds = self._model.unsplit_seconds()
        return sorted(range(len(seconds)), key=seconds.__getitem__)

    def by_memory(self, order: Sequence[int]) -> list[int]:
        """Return the devices' numbers, those with most memory first, and of as much as in an order."""
        limits = [machine.memory_bytes or math.inf for machine in self._machines.devices]
        return sorted(order, key=limits.__getitem__, reverse=True)

    def ends(self, order: Sequence[int]) -> list[int]:
        """Return where each run of equal devices ends, for devices in some order."""
        pairs = enumerate(itertools.pairwise([self._kinds[number] for number in order]), 1)
        return [*(number for number, (one, other) in pairs if one != other), len(order)]

    def choose(self, order: Sequence[int], counts: Counts) -> list[Subset]:
        """Return the subsets to search for, each in the order of speed.

        For the least time, these are some numbers of the fastest devices. For the least price, they are also each kind
        alone, and of a few devices the best combinations of kinds, by an estimate. Of many devices, they are also some
        numbers of those with the least price for their work.

        Args:
          order: of speed.
          counts: of the first devices of an order.
        """
        chosen = [tuple(order[:count]) for count in counts(order)]
        if self._objective.name == TIME:
            return chosen
        chosen += [(order[first],) for first in (0, *self.ends(order)[:-1])]
        if len(order) <= EXACT:
            chosen += sorted(combinations(self._kinds, order), key=self._estimate)[:_COMBINATIONS]
        else:
            prices = self._seconds.sum(axis=1) * self._prices
            by_price = sorted(order, key=prices.__getitem__)
            chosen += [tuple(sorted(by_price[:count], key=order.index)) for count in counts(by_price)]
        return sorted(dict.fromkeys(chosen), key=len)

    def _estimate(self, numbers: Sequence[int]) -> tuple[float, ...]:
        """Return the key of some devices that split a step nearly without loss."""
        speed = math.fsum(1.0 / self._seconds[number].sum() for number in numbers)
        return self._objective.key(_LOSS / speed, self._machines.some(numbers))

    def least_seconds(self, numbers: Sequence[int]) -> float:
        """Return a lower bound of the seconds of a step on some devices together."""
        chosen = list(numbers)
        return self._machines.step_seconds + least_seconds(self._seconds[chosen], [self._prices[n] for n in chosen])

    @functools.cached_property
    def _seconds(self) -> np.ndarray:
        """The seconds of each operation on each device while the others rest, [device, operation]."""
        busy = np.array([self._model.unsplit_seconds([op]) for op in self._model.operations]).T
        return busy * [[min(1.0, machine.alone_factor)] for machine in self._machines.devices]


def combinations(kinds: Sequence[object], order: Sequence[int]) -> list[Subset]:
    """Return a subset for each number of devices of each kind, the smallest ones first.

    Args:
      kinds: of each device; equal ones are alike.
      order: of the devices in each subset; of those of a kind, the first ones are in it.

    Example:
      >>> combinations(["a", "b", "b"], [2, 1, 0])
      [(0,), (2,), (2, 0), (2, 1), (2, 1, 0)]
    """
    alike: list[list[int]] = []
    for number in order:
        own = next((group for group in alike if kinds[group[0]] == kinds[number]), None)
        if own is None:
            alike.append(own := [])
        own.append(number)
    counts = itertools.product(*(range(len(group) + 1) for group in alike))
    chosen = [{n for group, count in zip(alike, each, strict=True) for n in group[:count]} for each in counts]
    return sorted((tuple(number for number in order if number in each) for each in chosen if each), key=len)


def least_seconds(seconds: np.ndarray, prices: Sequence[float]) -> float:
    """Return a lower bound of the seconds of a step on some devices together.

    Give each second of a device a weight. Each operation weighs at least as much as on the device on which it weighs
    least, whoever computes which part of it. In a step, all devices together have the sum of their weights a second.
    So the step takes at least the quotient. Prices as weights give the bound of the price, and speeds that of the time.

    Args:
      seconds: of each operation on each device alone, [device, operation].
      prices: of the devices.

    Example:
      >>> least_seconds(np.array([[1.0, 9.0], [9.0, 1.0]]), [1.0, 1.0])
      1.0
    """
    alone = seconds.sum(axis=1)
    if not alone.all():
        return 0.0
    weights = [1.0 / alone, *[np.asarray(prices)] * any(prices)]
    return max(float((each[:, None] * seconds).min(axis=0).sum() / each.sum()) for each in weights)
