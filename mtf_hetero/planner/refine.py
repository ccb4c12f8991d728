"""Correct sizes by the predicted time of the step.

A search divides each dimension in proportion to the devices' speeds. Only the step as a whole shows messages and
waiting. So each device in turn gets more or less of all that is split, as long as the step becomes shorter.
"""

import functools
import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

from mtf_hetero.layout.partition import split_among_positive

Sizes: TypeAlias = Mapping[str, tuple[int, ...]]
FACTORS = (0.5, 0.8, 0.93, 1.07, 1.25, 2.0)  # on the sizes of a device
MOST_DEVICES = 8  # of more, one hardly matters
EVALUATIONS = 120  # over the number of devices that are priced: a prediction takes as much longer
_LEAST_GAIN = 1e-3  # as a fraction


def refine(
    sizes: Sizes,
    seconds_of: Callable[[Sizes], float],
    *,
    granules: Mapping[str, int],
    evaluations: int,
    groups: Sequence[Sequence[int]],
) -> Sizes:
    """Return sizes with which a step is shorter, or the same ones.

    Args:
      sizes: {dimension: one size per device}; a device with nothing of a dimension keeps nothing.
      seconds_of: from sizes to the seconds of a step; infinity for sizes that are not allowed.
      granules: {dimension: units of which a size is to be a multiple}; absent: 1.
      evaluations: the number of predictions, at most.
      groups: numbers of the devices that are alike and have like sizes.
    """
    count = len(groups)
    if not 2 <= count <= MOST_DEVICES:
        return sizes
    best, least, left = sizes, seconds_of(sizes), evaluations
    turns = list(itertools.product(range(count), FACTORS))

    @functools.cache  # of this call: a network repeats its layers
    def with_more(of_name: tuple[int, ...], group: int, factor: float, granule: int) -> tuple[int, ...]:
        return _with_more(of_name, groups, group, factor, granule)

    position = since = 0
    while left > 0 and since < len(turns):
        group, factor = turns[position % len(turns)]
        position, since = position + 1, since + 1
        changed = {name: with_more(of_name, group, factor, granules.get(name, 1)) for name, of_name in best.items()}
        if changed == best:
            continue
        left -= 1
        seconds = seconds_of(changed)
        if seconds < least * (1 - _LEAST_GAIN):
            best, least, since, position = changed, seconds, 0, position - 1  # the same once more
    return best


def _with_more(
    sizes: tuple[int, ...], groups: Sequence[Sequence[int]], group: int, factor: float, granule: int
) -> tuple[int, ...]:
    """Return a division in which the devices of a group have about so many times as much.

    Example:
      >>> _with_more((40, 20), [[0], [1]], 0, 1.25, 1)
      (43, 17)
    """
    if not sizes[groups[group][0]]:
        return sizes
    weights = [0.0] * len(sizes)
    for number, members in enumerate(groups):
        size = sum(sizes[member] for member in members) / len(members)
        for member in members:
            weights[member] = size * (factor if number == group else 1.0)
    return split_among_positive(sum(sizes), weights, multiple_of=granule)
