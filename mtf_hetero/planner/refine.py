"""Sizes, corrected by what a whole step is predicted to take.

A search divides each dimension in proportion to the devices' speeds at it. What a device loses to messages, and when
it waits for another, is seen only in the step as a whole: so each device in turn gets more or less of all that is
split, as long as the step becomes shorter.
"""

import functools
import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

from mtf_hetero.partition import split_among_positive

Sizes: TypeAlias = Mapping[str, tuple[int, ...]]
FACTORS = (0.5, 0.8, 0.93, 1.07, 1.25, 2.0)  # on what a device has
MOST_DEVICES = 8  # of more, one hardly matters
EVALUATIONS = 120  # over the number of devices that are priced: a prediction takes as much longer
_LEAST_GAIN = 1e-3  # as a fraction


def refine(
    sizes: Sizes,
    seconds_of: Callable[[Sizes], float],
    *,
    granules: Mapping[str, int] | None = None,
    evaluations: int | None = None,
    groups: Sequence[Sequence[int]] | None = None,
) -> Sizes:
    """Sizes with which a step is shorter, or the same ones.

    Args:
      sizes: {dimension: one size per device}; a device that has nothing of one keeps nothing.
      seconds_of: from sizes to the seconds of a step; infinity where they are not allowed.
      granules: {dimension: units of which a size is to be a multiple}; absent: 1.
      evaluations: how often to ask, at most; None: 120 over the number of devices, or of groups.
      groups: numbers of the devices that are alike and have like sizes; None: each is a group.

    Example:
      >>> refine({"batch": (128, 128)}, lambda sizes: max(sizes["batch"][0], 3 * sizes["batch"][1]))
      {'batch': (193, 63)}
    """
    if groups is None:
        groups = [(number,) for number in range(max(map(len, sizes.values()), default=0))]
    groups = tuple(map(tuple, groups))
    count = len(groups)
    if not 2 <= count <= MOST_DEVICES:
        return sizes
    best, least = sizes, seconds_of(sizes)
    left = EVALUATIONS // count if evaluations is None else evaluations
    turns = list(itertools.product(range(count), FACTORS))
    position = since = 0
    while left > 0 and since < len(turns):
        group, factor = turns[position % len(turns)]
        position, since = position + 1, since + 1
        changed = {
            name: _with_more(of_name, groups, group, factor, (granules or {}).get(name, 1))
            for name, of_name in best.items()
        }
        if changed == best:
            continue
        left -= 1
        seconds = seconds_of(changed)
        if seconds < least * (1 - _LEAST_GAIN):
            best, least, since, position = changed, seconds, 0, position - 1  # the same once more
    return best


@functools.lru_cache(maxsize=2**12)
def _with_more(
    sizes: tuple[int, ...], groups: tuple[tuple[int, ...], ...], group: int, factor: float, granule: int
) -> tuple[int, ...]:
    """A division in which the devices of a group have so many times as much, as far as there is."""
    if not sizes[groups[group][0]]:
        return sizes
    weights = [0.0] * len(sizes)
    for number, members in enumerate(groups):
        size = sum(sizes[member] for member in members) / len(members)
        for member in members:
            weights[member] = size * (factor if number == group else 1.0)
    return split_among_positive(sum(sizes), weights, multiple_of=granule)
