"""The division of N units over p processors, by share or by measured time, without TensorFlow.

Both functions give whole numbers that sum to the total exactly, keep the minimum and the caps, and always end. Shares
are taken as exact fractions, so that the result does not depend on the order or the rounding of floating-point sums.
"""

import bisect
import collections
import heapq
import itertools
import math
import numbers
from collections.abc import Callable, Sequence
from fractions import Fraction

import numpy as np

Caps = Sequence[int | None] | None
TimeFn = Callable[[int], float]


_LEAVE_OUT = "remove a processor that should do nothing"


def check_shares(shares: Sequence[float], *, name: str = "shares", remedy: str = _LEAVE_OUT) -> None:
    """Check that there is at least one share and that each is a positive finite number.

    Args:
      shares: one relative weight per processor.
      name: what the message calls them.
      remedy: what the message advises where one is not positive.

    Raises:
      ValueError: no shares, or one that is not a positive finite number (True and False are not numbers here).
    """
    shares = list(shares)
    if not shares:
        raise ValueError(f"{name} are empty; give one positive number per processor")
    for i, share in enumerate(shares):
        real = isinstance(share, numbers.Real) and not isinstance(share, bool)
        if not (real and math.isfinite(share) and share > 0):
            raise ValueError(
                f"{name} are {shares}: number {i} is {share!r}, but each must be finite and greater than zero; {remedy}"
            )


def split_by_share(
    total: int, shares: Sequence[float], *, minimum: int = 1, multiple_of: int = 1, caps: Caps = None
) -> tuple[int, ...]:
    """Divides `total` units in proportion to the shares.

    The fractional target of processor i is clamp(level * shares[i], minimum, caps[i]), with the one level at which the
    targets sum to the total: what a minimum takes or a cap leaves is borne by the others in proportion. Targets are
    rounded by largest remainder; a tie goes to the larger share, then to the lower index.

    Args:
      total: number of units.
      shares: one relative weight per processor; only their ratios matter.
      minimum: least number of units of a processor, rounded up to a multiple of the granule.
      multiple_of: the granule; every size is a multiple of it.
      caps: most units of each processor, None for no cap; rounded down to a multiple of the granule.

    Returns:
      One size per processor.

    Raises:
      ValueError: an argument is out of range, or no division satisfies all of them.

    Example:
      >>> split_by_share(60, [70, 25, 5])
      (42, 15, 3)
    """
    check_shares(shares)
    granules, low, highs = _check_bounds(total, len(shares), minimum=minimum, multiple_of=multiple_of, caps=caps)
    alike = collections.Counter(zip(shares, highs, strict=True))  # thousands of processors are of a few kinds
    weights = [_to_fraction(share) for share, _ in alike]
    targets = _fill(granules, weights, low, [high for _, high in alike], list(alike.values()))
    kinds = [(math.floor(target) - target, -weight) for target, weight in zip(targets, weights, strict=True)]
    rank_of = {kind: rank for rank, kind in enumerate(sorted(set(kinds)))}
    ranks = dict(zip(alike, map(rank_of.__getitem__, kinds), strict=True))
    least = {kind: math.floor(target) for kind, target in zip(alike, targets, strict=True)}
    processors = list(zip(shares, highs, strict=True))
    sizes = [least[kind] for kind in processors]
    order = sorted(range(len(sizes)), key=lambda i: (ranks[processors[i]], i))
    for i in order[: granules - sum(sizes)]:
        sizes[i] += 1
    return tuple(size * multiple_of for size in sizes)


def split_among_positive(
    total: int, weights: Sequence[float], *, minimum: int = 1, multiple_of: int = 1, caps: Caps = None
) -> tuple[int, ...]:
    """Divides `total` units as `split_by_share` does, among the processors with a positive weight; the others get none.

    Args:
      total: number of units.
      weights: one per processor, none negative and at least one positive.
      minimum: least number of units of a processor with a positive weight.
      multiple_of: as of `split_by_share`, as are the caps.
      caps: one per processor.

    Returns:
      One size per processor.

    Raises:
      ValueError: as of `split_by_share`.

    Example:
      >>> split_among_positive(60, [3, 0, 1])
      (45, 0, 15)
    """
    positive = [weight for weight in weights if weight != 0]
    mine = None if caps is None else [cap for cap, weight in zip(caps, weights, strict=True) if weight != 0]
    parts = iter(split_by_share(total, positive, minimum=minimum, multiple_of=multiple_of, caps=mine))
    return tuple(next(parts) if weight != 0 else 0 for weight in weights)


def split_by_time(
    total: int, times: Sequence[TimeFn], *, minimum: int = 1, multiple_of: int = 1, caps: Caps = None
) -> tuple[int, ...]:
    """Divides `total` units so that the slowest processor is as fast as can be; exact for any time functions.

    Where no time falls with the number of units, granules are dealt one by one to whoever would then be fastest
    (a tie goes to the fewer units, then to the lower index). Otherwise a dynamic programme of
    O(processors * (total / multiple_of)^2) steps finds the least maximum, and of the divisions that reach it one with
    the least sum of times.

    Args:
      total: number of units.
      times: one function per processor from a number of units to seconds, called at every multiple of the granule
        that the processor could get. It may be infinite, and need not be monotone.
      minimum: least number of units of a processor, rounded up to a multiple of the granule.
      multiple_of: the granule; every size is a multiple of it.
      caps: most units of each processor, None for no cap; rounded down to a multiple of the granule.

    Returns:
      One size per processor.

    Raises:
      ValueError: an argument is out of range, a time is negative or not a number, or no division satisfies all.

    Example:
      >>> split_by_time(60, [lambda n: n / 70, lambda n: n / 25, lambda n: n / 5])
      (42, 15, 3)
    """
    if not times:
        raise ValueError("times are empty; give one function from units to seconds per processor")
    granules, low, highs = _check_bounds(total, len(times), minimum=minimum, multiple_of=multiple_of, caps=caps)
    tables = [
        [_seconds(time_fn, n * multiple_of, processor) for n in range(low, high + 1)]
        for processor, (time_fn, high) in enumerate(zip(times, highs, strict=True))
    ]
    spare = granules - low * len(tables)
    if all(a <= b for table in tables for a, b in itertools.pairwise(table)):
        extra = _deal(spare, tables)
    else:
        extra = _search(spare, [np.array(table) for table in tables])
    ends = all(math.isfinite(table[n]) for table, n in zip(tables, extra, strict=True))
    if not ends or sum(extra) != spare:
        raise ValueError(
            f"no split of total={total} has a finite time on every processor; "
            "raise the caps, or remove the processor whose time is infinite"
        )
    return tuple((low + n) * multiple_of for n in extra)


def _to_fraction(x: float) -> Fraction:
    if isinstance(x, numbers.Rational):
        return Fraction(int(x.numerator), int(x.denominator))  # NumPy's integers would overflow in products
    return Fraction(float(x))


def _check_whole(name: str, value: object, least: int) -> None:
    if isinstance(value, bool) or not isinstance(value, numbers.Integral) or value < least:
        raise ValueError(f"{name} is {value!r}, but must be a whole number; give {least} or more")


def _check_bounds(
    total: int, count: int, *, minimum: int, multiple_of: int, caps: Caps
) -> tuple[int, int, tuple[int, ...]]:
    """Check the demands and convert them to granules: (total, least of each processor, most of each processor)."""
    _check_whole("total", total, 1)
    _check_whole("minimum", minimum, 0)
    _check_whole("multiple_of", multiple_of, 1)
    total, minimum, multiple_of = int(total), int(minimum), int(multiple_of)
    granules, rest = divmod(total, multiple_of)
    if rest:
        raise ValueError(
            f"total is {total}, but must be a multiple of multiple_of={multiple_of}; "
            f"give {total - rest + multiple_of}, or a granule that divides {total}"
        )
    low = -(-minimum // multiple_of)
    if granules < count * low:
        raise ValueError(
            f"total is {total}, but {count} processors need at least {low * multiple_of} each (minimum={minimum}, "
            f"multiple_of={multiple_of}), {count * low * multiple_of} together; use fewer processors or a lower minimum"
        )
    return granules, low, _check_caps(caps, count, granules, low, multiple_of)


def _check_caps(caps: Caps, count: int, granules: int, low: int, multiple_of: int) -> tuple[int, ...]:
    room = granules - (count - 1) * low
    if caps is None:
        return (room,) * count
    if len(caps) != count:
        raise ValueError(
            f"caps are {list(caps)}: {len(caps)} for {count} processors; give one per processor, None for no cap"
        )
    highs = []
    for i, cap in enumerate(caps):
        if cap is not None:
            _check_whole(f"caps[{i}]", cap, 0)
            if cap // multiple_of < low:
                raise ValueError(
                    f"caps[{i}] is {cap}, below the {low * multiple_of} units that each processor must have "
                    f"(minimum in multiples of {multiple_of}); raise the cap or lower the minimum"
                )
        highs.append(room if cap is None else min(room, int(cap) // multiple_of))
    if sum(highs) < granules:
        raise ValueError(
            f"caps are {list(caps)}: rounded down to multiples of {multiple_of}, they allow {sum(highs) * multiple_of} "
            f"units, less than total={granules * multiple_of}; raise a cap or set it to None"
        )
    return tuple(highs)


def _fill(
    granules: int, weights: Sequence[Fraction], low: int, highs: Sequence[int], counts: Sequence[int]
) -> list[Fraction]:
    """Fractional targets: the level is found exactly, between two of the levels at which a processor meets a bound.

    Args:
      granules: to divide.
      weights: of each kind of processor.
      low: granules of each at least.
      highs: of each kind of processor, at most.
      counts: how many there are of each kind.

    Example:
      >>> _fill(10, [Fraction(2), Fraction(1)], 1, [5, 9], [1, 1])  # the first meets its bound of 5
      [Fraction(5, 1), Fraction(5, 1)]
    """

    def targets(level: Fraction) -> list[Fraction]:
        return [min(max(level * w, Fraction(low)), Fraction(high)) for w, high in zip(weights, highs, strict=True)]

    levels = sorted({bound / w for w, high in zip(weights, highs, strict=True) for bound in (low, high)})

    def filled_units(level: Fraction) -> Fraction:
        return sum((count * target for count, target in zip(counts, targets(level), strict=True)), Fraction(0))

    k = bisect.bisect_left(levels, granules, key=filled_units)
    if k == 0:
        return targets(levels[0])
    below, above = filled_units(levels[k - 1]), filled_units(levels[k])
    part = Fraction(granules - below) / (above - below)
    return targets(levels[k - 1] + part * (levels[k] - levels[k - 1]))


def _seconds(time_fn: TimeFn, units: int, processor: int) -> float:
    seconds = float(time_fn(units))
    if not seconds >= 0:
        raise ValueError(
            f"times[{processor}]({units}) is {seconds}, but a time must be zero or more; measure this processor again"
        )
    return seconds


def _deal(spare: int, tables: Sequence[Sequence[float]]) -> list[int]:
    """Deals granules to whoever would then be fastest. Exact for non-decreasing tables.

    Were the maximum not least, another division would give less to the processor that has it and more to some other,
    whose next time would then be smaller; but that one was passed over.
    """
    extra = [0] * len(tables)
    heap = [(table[1], 1, p) for p, table in enumerate(tables) if len(table) > 1]
    heapq.heapify(heap)
    for _ in range(spare):
        _, n, p = heapq.heappop(heap)
        extra[p] = n
        if n + 1 < len(tables[p]):
            heapq.heappush(heap, (tables[p][n + 1], n + 1, p))
    return extra


def _search(spare: int, tables: Sequence[np.ndarray]) -> list[int]:
    """Least maximum of any tables, and then least sum among the divisions that reach it.

    Where no division is finite, what is returned does not sum to `spare`.
    """
    least_max = _best(spare, tables, np.maximum)[-1][spare]
    feasible = [np.where(table <= least_max, table, np.inf) for table in tables]
    best = _best(spare, feasible, np.add)
    extra = []
    for before, table in zip(reversed(best[:-1]), reversed(feasible), strict=True):
        most = min(len(table), spare + 1)
        extra.append(int(np.argmin(table[:most] + before[spare - most + 1 : spare + 1][::-1])))
        spare -= extra[-1]
    return extra[::-1]


def _best(spare: int, tables: Sequence[np.ndarray], combine: np.ufunc) -> list[np.ndarray]:
    """best[p][s] = the least combination of times with which the first p processors take s granules in all."""
    best = [np.full(spare + 1, np.inf)]
    best[0][0] = 0.0
    for table in tables:
        after = np.full(spare + 1, np.inf)
        for n, seconds in enumerate(table):
            if seconds < np.inf:
                np.minimum(after[n:], combine(best[-1][: spare + 1 - n], seconds), out=after[n:])
        best.append(after)
    return best
