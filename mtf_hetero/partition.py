"""How a number of units is divided over processors: by share, or by measured time. Pure integer arithmetic.

Everything that divides a dimension uses these two functions, so there is one rounding rule.
"""

import heapq
import math
import numbers
from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any

import numpy as np


def check_shares(shares: Sequence[Any], *, name: str = "shares") -> None:
    """Raises ValueError, in one line, unless the shares are finite positive numbers and there is at least one."""
    if not shares:
        raise ValueError(f"{name} are empty; give one positive number per processor")
    for share in shares:
        real = isinstance(share, numbers.Real) and not isinstance(share, (bool, np.bool_))
        if not real or not math.isfinite(share) or share <= 0:
            raise ValueError(f"{name} are {list(shares)}: {share!r} is not a positive number; give one per processor")


def _granules(
    total: int, count: int, minimum: int, multiple_of: int, caps: Sequence[int | None] | None
) -> tuple[int, int, list[int]]:
    """Checks the demands; returns the total, the minimum and the caps in units of the granule."""
    for name, value, least in (("total", total, 1), ("minimum", minimum, 0), ("multiple_of", multiple_of, 1)):
        if not isinstance(value, numbers.Integral) or isinstance(value, bool) or value < least:
            raise ValueError(f"{name} is {value!r}; it must be a whole number of at least {least}")
    if total % multiple_of:
        raise ValueError(f"total is {total}, which is not a multiple of multiple_of={multiple_of}; change one of the two")
    least = -(-minimum // multiple_of)
    units = total // multiple_of
    if count * least > units:
        raise ValueError(
            f"total is {total}: too little for {count} processors with at least {least * multiple_of} each; "
            "use fewer processors or a smaller minimum"
        )
    if caps is None:
        return units, least, [units] * count
    if len(caps) != count:
        raise ValueError(f"caps are {list(caps)}: {len(caps)} for {count} processors; give one per processor, or None")
    most = [units if cap is None else min(units, cap // multiple_of) for cap in caps]
    for cap, limit in zip(caps, most, strict=True):
        if limit < least:
            raise ValueError(f"a cap is {cap}, below the least size of {least * multiple_of}; raise it, or leave one out")
    if sum(most) < units:
        raise ValueError(
            f"caps are {list(caps)}: together they allow {sum(most) * multiple_of} of {total}; raise a cap or add devices"
        )
    return units, least, most


def split_by_share(
    total: int,
    shares: Sequence[float],
    *,
    minimum: int = 1,
    multiple_of: int = 1,
    caps: Sequence[int | None] | None = None,
) -> tuple[int, ...]:
    """Divides `total` units in proportion to shares: largest remainders, within bounds.

    What a processor may not take beyond its cap goes to the others in proportion, and what it gets to reach the
    minimum is taken from them in proportion. Ties go to the larger share, then to the lower index.

    Args:
      total: units to divide.
      shares: one positive weight per processor; only their ratios matter.
      minimum: least size, in units.
      multiple_of: every size is a multiple of it, in units.
      caps: largest size per processor, in units; None where there is no limit.

    Returns:
      One size per processor; they add up to `total`.

    Raises:
      ValueError: a share that is not positive, or demands that cannot all be met.

    Example:
      >>> split_by_share(60, [70, 25, 5])
      (42, 15, 3)
    """
    check_shares(shares)
    units, least, most = _granules(total, len(shares), minimum, multiple_of, caps)
    weights = [Fraction(share) for share in shares]
    targets = _proportional(units, weights, least, most)
    sizes = [math.floor(target) for target in targets]
    order = sorted(range(len(sizes)), key=lambda p: (sizes[p] - targets[p], -weights[p], p))
    for p in order[: units - sum(sizes)]:
        sizes[p] += 1
    return tuple(size * multiple_of for size in sizes)


def _proportional(units: int, weights: Sequence[Fraction], least: int, most: Sequence[int]) -> list[Fraction]:
    """clamp(x * weight, least, most) for the x with which they add up to `units`.

    The sum grows with x and is linear between the points where a processor leaves or reaches a bound.
    """

    def clamped(x: Fraction) -> list[Fraction]:
        return [min(max(x * w, Fraction(least)), Fraction(m)) for w, m in zip(weights, most, strict=True)]

    points = sorted({Fraction(least) / w for w in weights} | {m / w for w, m in zip(weights, most, strict=True)})
    below = max((x for x in points if sum(clamped(x)) <= units), default=points[0])
    fixed = Fraction(0)
    free = Fraction(0)
    for w, m in zip(weights, most, strict=True):
        if least <= below * w < m:
            free += w
        else:
            fixed += min(max(below * w, Fraction(least)), Fraction(m))
    return clamped((units - fixed) / free) if free else clamped(below)


def split_by_time(
    total: int,
    times: Sequence[Callable[[int], float]],
    *,
    minimum: int = 1,
    multiple_of: int = 1,
    caps: Sequence[int | None] | None = None,
) -> tuple[int, ...]:
    """Divides `total` units so that the slowest processor is as early as it can be: exact min-max.

    Among the divisions with the least maximum it takes one with the least sum of times.

    Args:
      total: units to divide.
      times: per processor, the seconds that it needs for n units. Any function: steps and dips are respected.
      minimum: least size, in units.
      multiple_of: every size is a multiple of it, in units.
      caps: largest size per processor, in units; None where there is no limit.

    Returns:
      One size per processor; they add up to `total`.

    Raises:
      ValueError: a time that is negative or not a number, or demands that cannot all be met.

    Example:
      >>> split_by_time(12, [lambda n: 1.0 * n, lambda n: 2.0 * n])
      (8, 4)
    """
    if not times:
        raise ValueError("times are empty; give one function per processor")
    units, least, most = _granules(total, len(times), minimum, multiple_of, caps)
    spare = units - least * len(times)  # no processor can have more than this above the minimum
    tables = []
    for p, (time, limit) in enumerate(zip(times, most, strict=True)):
        sizes = range(least, min(limit, least + spare) + 1)
        tables.append(np.array([time(n * multiple_of) for n in sizes], dtype=float))
        wrong = np.flatnonzero(~(tables[-1] >= 0))
        if wrong.size:
            n = sizes[wrong[0]] * multiple_of
            raise ValueError(f"the time of processor {p} for {n} units is {time(n)!r}; it must be a number from 0 on")
    if all((np.diff(table) >= 0).all() for table in tables):
        extra = _greedy(spare, tables)
    else:
        extra = _dynamic_programme(spare, tables)
    return tuple((least + e) * multiple_of for e in extra)


def _greedy(spare: int, tables: Sequence[np.ndarray]) -> list[int]:
    """Gives each next granule to the processor that would then be the earliest; exact for non-decreasing times."""
    extra = [0] * len(tables)
    heap = [(table[1], p) for p, table in enumerate(tables) if len(table) > 1]
    heapq.heapify(heap)
    for _ in range(spare):
        _, p = heapq.heappop(heap)
        extra[p] += 1
        if extra[p] + 1 < len(tables[p]):
            heapq.heappush(heap, (tables[p][extra[p] + 1], p))
    return extra


def _dynamic_programme(spare: int, tables: Sequence[np.ndarray]) -> list[int]:
    """First the least maximum, then the least sum of times among the divisions that reach it."""
    limit = _fold(spare, tables, np.maximum)[0][spare]
    bounded = [np.where(table <= limit, table, np.inf) for table in tables]
    _, choices = _fold(spare, bounded, np.add)
    extra, left = [], spare
    for choice in reversed(choices):
        extra.append(int(choice[left]))
        left -= extra[-1]
    return extra[::-1]


def _fold(spare: int, tables: Sequence[np.ndarray], combine: Any) -> tuple[np.ndarray, list[np.ndarray]]:
    """best[n]: the least combined time in which the processors so far do n granules; choices[p][n]: p's part of n."""
    best = np.full(spare + 1, np.inf)
    best[0] = 0.0
    choices = []
    for table in tables:
        following = np.full(spare + 1, np.inf)
        choice = np.zeros(spare + 1, dtype=int)
        for e, seconds in enumerate(table):
            candidate = combine(best[: spare + 1 - e], seconds)
            better = candidate < following[e:]
            following[e:][better] = candidate[better]
            choice[e:][better] = e
        best = following
        choices.append(choice)
    return best, choices
