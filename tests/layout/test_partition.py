"""The arithmetic of division: properties, brute force on small totals, and the sizes and failures of the paper."""

import itertools
import math
from fractions import Fraction
from unittest import mock

import numpy as np
import pytest
from hypothesis import example
from hypothesis import strategies as st
from tiers import given_in_tiers

from mtf_hetero.layout import partition
from mtf_hetero.layout.partition import split_by_share, split_by_time

SHARES = st.lists(st.integers(1, 100) | st.floats(1e-6, 1e6), min_size=1, max_size=6)


@st.composite
def demands(draw, shares=SHARES):
    """(total, shares, minimum, multiple_of, caps) that some division satisfies."""
    shares = draw(shares)
    multiple_of = draw(st.sampled_from([1, 1, 2, 3, 8]))
    minimum = draw(st.integers(0, 9))
    low = -(-minimum // multiple_of)
    granules = draw(st.integers(max(1, low * len(shares)), low * len(shares) + 200))
    caps = draw(st.lists(st.none() | st.integers(low, low + 100), min_size=len(shares), max_size=len(shares)))
    if None not in caps and sum(caps) < granules:
        caps[draw(st.integers(0, len(caps) - 1))] = None
    slack = draw(st.integers(0, multiple_of - 1))
    caps = [None if cap is None else cap * multiple_of + slack for cap in caps]
    return granules * multiple_of, shares, minimum, multiple_of, draw(st.sampled_from([None, caps]))


def split(demand):
    total, shares, minimum, multiple_of, caps = demand
    return split_by_share(total, shares, minimum=minimum, multiple_of=multiple_of, caps=caps)


def check_demand(sizes, demand):
    total, shares, minimum, multiple_of, caps = demand
    assert len(sizes) == len(shares)
    assert all(type(size) is int for size in sizes)
    assert sum(sizes) == total
    assert min(sizes) >= minimum
    assert all(size % multiple_of == 0 for size in sizes)
    assert all(cap is None or size <= cap for size, cap in zip(sizes, caps or sizes, strict=True))


def check_nearest(sizes, demand):
    """No whole division is nearer to water-filling: one level lies within a granule of every unclamped processor."""
    _, shares, minimum, multiple_of, caps = demand
    low = -(-minimum // multiple_of)
    above, below = [], [Fraction(0)]
    for size, share, cap in zip(sizes, shares, caps or [None] * len(sizes), strict=True):
        n, share = size // multiple_of, Fraction(share)
        if n > low:
            below.append((n - 1) / share)  # the target is over n - 1
        if cap is None or n < cap // multiple_of:
            above.append((n + 1) / share)  # the target is under n + 1
    assert not above or max(below) < min(above)


class TestSplitByShare:
    @pytest.mark.parametrize(
        ("total", "shares", "options", "sizes"),
        [
            (60, [70, 25, 5], {}, (42, 15, 3)),  # sizes of the paper
            (120, [70, 25, 5], {}, (84, 30, 6)),
            (240, [70, 25, 5], {}, (168, 60, 12)),
            (480, [70, 25, 5], {}, (336, 120, 24)),
            (60, [98, 1, 1], {}, (58, 1, 1)),  # the paper's code gives a zero, or no division, here and below
            (3, [33, 33, 34], {}, (1, 1, 1)),
            (64, [40, 40, 20], {}, (26, 25, 13)),
            (64, [1, 1, 1], {}, (22, 21, 21)),
            (64, [70, 25, 5], {"multiple_of": 8}, (40, 16, 8)),
            (10, [1, 1, 1], {"caps": [1, None, None]}, (1, 5, 4)),
            (60, [70, 25, 5], {"caps": [30, None, None]}, (30, 25, 5)),
            (60, [90, 8, 2], {"minimum": 10}, (40, 10, 10)),
            (60, [90, 8, 2], {"minimum": 9, "multiple_of": 10}, (40, 10, 10)),
            (60, [90, 8, 2], {"minimum": 10, "caps": [20, None, 39]}, (20, 30, 10)),
            (2, [1, 1, 100], {"minimum": 0}, (0, 0, 2)),
            (7, [0.1], {}, (7,)),
            (10, [0.7, 0.2, 0.1], {}, (7, 2, 1)),
            (3, [1, 2], {}, (1, 2)),
            (2, [1, 3], {}, (1, 1)),
            (3, [1, 5], {"minimum": 0}, (0, 3)),  # targets 0.5 and 2.5: the larger share has the last unit
            (3, np.array([1, 2], np.int8), {}, (1, 2)),
            (100, np.array([100, 100, 100, 100], np.int8), {}, (25, 25, 25, 25)),
            (6, np.array([1, 2], np.float32), {}, (2, 4)),
            (np.int64(6), (1, 2), {"minimum": np.int32(1), "caps": np.array([1, 6])}, (1, 5)),
            (4, [1e-300, 1e300], {}, (1, 3)),
        ],
    )
    def test_sizes(self, total, shares, options, sizes):
        assert split_by_share(total, shares, **options) == sizes

    @given_in_tiers(demands())
    def test_demands_are_kept_and_nearest_to_water_filling(self, demand):
        sizes = split(demand)
        check_demand(sizes, demand)
        check_nearest(sizes, demand)

    @given_in_tiers(SHARES, st.integers(1, 10_000), st.sampled_from([1, 2, 8]))
    def test_quota(self, shares, granules, multiple_of):
        sizes = split_by_share(granules * multiple_of, shares, minimum=0, multiple_of=multiple_of)
        whole = sum(map(Fraction, shares))
        for size, share in zip(sizes, shares, strict=True):
            assert abs(size - granules * multiple_of * Fraction(share) / whole) < multiple_of

    @given_in_tiers(demands(), st.integers(0, 5), st.floats(1, 100) | st.integers(1, 3))
    def test_monotone_in_the_own_share(self, demand, i, factor):
        total, shares, *rest = demand
        i %= len(shares)
        more = [Fraction(share) * (Fraction(factor) if j == i else 1) for j, share in enumerate(shares)]
        assert split((total, more, *rest))[i] >= split(demand)[i]

    @given_in_tiers(demands(), st.fractions(Fraction(1, 1000), 1000))
    def test_scale_invariant(self, demand, factor):
        total, shares, *rest = demand
        assert split((total, [Fraction(share) * factor for share in shares], *rest)) == split(demand)

    @given_in_tiers(demands(), st.randoms(use_true_random=False))
    def test_permutation_equivariant(self, demand, random):
        total, shares, minimum, multiple_of, caps = demand
        order = random.sample(range(len(shares)), len(shares))
        permuted = [caps[i] for i in order] if caps else None
        sizes = split((total, [shares[i] for i in order], minimum, multiple_of, permuted))
        original = split(demand)
        if len(set(shares)) == len(shares):
            assert sizes == tuple(original[i] for i in order)
        elif not caps:
            assert sorted(sizes) == sorted(original)

    @given_in_tiers(demands())
    def test_larger_share_has_no_less(self, demand):
        total, shares, minimum, multiple_of, _ = demand
        sizes = split((total, shares, minimum, multiple_of, None))
        for (a, m), (b, n) in itertools.combinations(zip(shares, sizes, strict=True), 2):
            assert a == b or (a < b) == (m < n) or m == n

    @given_in_tiers(st.lists(st.integers(1, 50), min_size=1, max_size=6))
    @example([42, 15, 3])
    def test_own_sizes_as_shares(self, sizes):
        assert split_by_share(sum(sizes), sizes) == tuple(sizes)

    def test_many_processors(self):
        sizes = split_by_share(100_000, [1 / (i + 1) for i in range(500)])
        assert (len(sizes), sum(sizes), min(sizes)) == (500, 100_000, 29)


TIMES = st.sampled_from([0.0, 1.0, 1.5, 2.0, 3.0, 5.0, 8.0, math.inf])


@st.composite
def timed_demands(draw, monotone):
    count = draw(st.integers(1, 3))
    demand = draw(demands(st.just([1] * count)).filter(lambda d: d[0] // d[3] <= 14))
    length = demand[0] // demand[3] + 1
    tables = draw(st.lists(st.lists(TIMES, min_size=length, max_size=length), min_size=count, max_size=count))
    return demand, [sorted(table) for table in tables] if monotone else tables


def brute_force(demand, tables):
    """(least maximum, least sum among the divisions that reach it), over all divisions."""
    total, shares, minimum, multiple_of, caps = demand
    ranges = [
        range(-(-minimum // multiple_of), (total if cap is None else min(cap, total)) // multiple_of + 1)
        for cap in caps or [None] * len(shares)
    ]
    divisions = [d for d in itertools.product(*ranges) if sum(d) * multiple_of == total]
    times = [[table[n] for table, n in zip(tables, division, strict=True)] for division in divisions]
    return min((max(t), sum(t)) for t in times)


class TestSplitByTime:
    def check(self, demand, tables):
        """Compares the maximum; returns (sum of times, least sum), or None where no division is finite."""
        total, _, minimum, multiple_of, caps = demand
        times = [lambda n, table=table: table[n // multiple_of] for table in tables]
        options = {"minimum": minimum, "multiple_of": multiple_of, "caps": caps}
        least_max, least_sum = brute_force(demand, tables)
        if least_max == math.inf:
            with pytest.raises(
                ValueError, match=f"no split of total={total} has a finite time on every processor; raise"
            ):
                split_by_time(total, times, **options)
            return None
        sizes = split_by_time(total, times, **options)
        check_demand(sizes, demand)
        seconds = [t(n) for t, n in zip(times, sizes, strict=True)]
        assert max(seconds) == least_max
        return sum(seconds), least_sum

    @given_in_tiers(timed_demands(monotone=True), first=100)
    def test_monotone_times_against_brute_force(self, drawn):
        self.check(*drawn)

    @given_in_tiers(timed_demands(monotone=False), first=100)
    def test_any_times_against_brute_force(self, drawn):
        def search(spare, tables):
            return partition._search(spare, [np.array(table) for table in tables])

        with mock.patch.object(partition, "_deal", search):  # monotone or not, by the dynamic programme
            sums = self.check(*drawn)
        if sums:
            assert sums[0] == pytest.approx(sums[1])

    @pytest.mark.parametrize("total", [60, 120, 240, 480])
    def test_constant_speeds_give_the_shares(self, total):
        times = [lambda n, speed=speed: n / speed for speed in (70, 25, 5)]
        assert split_by_time(total, times) == split_by_share(total, [70, 25, 5])

    def test_ties_are_dealt_evenly(self):
        assert split_by_time(7, [lambda n: 1.0] * 3) == (3, 2, 2)

    def test_larger_programme(self):
        times = [lambda n: n / 40 + (n % 8 > 0), lambda n: n / 40 + (n % 4 > 0), lambda n: n / 20]
        sizes = split_by_time(960, times)
        assert sum(sizes) == 960
        assert max(t(n) for t, n in zip(times, sizes, strict=True)) == pytest.approx(9.6)

    @pytest.mark.parametrize("seconds", [math.nan, -1e-9, -math.inf])
    def test_bad_time(self, seconds):
        with pytest.raises(
            ValueError, match=rf"times\[1\]\(3\) is {seconds}, but a time must be zero or more; measure"
        ):
            split_by_time(6, [lambda n: n, lambda n: seconds if n == 3 else n])

    def test_no_times(self):
        with pytest.raises(ValueError, match="times are empty; give one function"):
            split_by_time(6, [])


BOTH = pytest.mark.parametrize(
    "split_3",
    [
        lambda total, **options: split_by_share(total, [1, 1, 1], **options),
        lambda total, **options: split_by_time(total, [float] * 3, **options),
    ],
    ids=["by_share", "by_time"],
)


@BOTH
@pytest.mark.parametrize(
    ("total", "options", "message"),
    [
        (0, {}, r"total is 0, but must be a whole number; give 1 or more"),
        (-3, {}, r"total is -3, but must be a whole number; give 1 or more"),
        (6.0, {}, r"total is 6\.0, but must be a whole number; give 1 or more"),
        (True, {}, r"total is True, but must be a whole number; give 1 or more"),
        (6, {"minimum": -1}, r"minimum is -1, but must be a whole number; give 0 or more"),
        (6, {"minimum": 0.5}, r"minimum is 0\.5, but must be a whole number; give 0 or more"),
        (6, {"multiple_of": 0}, r"multiple_of is 0, but must be a whole number; give 1 or more"),
        (65, {"multiple_of": 8}, r"total is 65, but must be a multiple of multiple_of=8; give 72, or a granule"),
        (
            2,
            {},
            r"total is 2, but 3 processors need at least 1 each .*, 3 together; use fewer processors or a lower min",
        ),
        (
            40,
            {"minimum": 9, "multiple_of": 8},
            r"total is 40, but 3 processors need at least 16 each \(minimum=9, multiple_of=8\), 48 together; use fewer",
        ),
        (6, {"caps": [1, 2]}, r"caps are \[1, 2\]: 2 for 3 processors; give one per processor, None for no cap"),
        (
            6,
            {"caps": [1, 2, 2]},
            r"caps are \[1, 2, 2\]: rounded down to multiples of 1, they allow 5 units, less than total=6; raise",
        ),
        (24, {"multiple_of": 8, "caps": [15, 15, 15]}, None),
        (
            32,
            {"multiple_of": 8, "caps": [15, 15, 15]},
            r"caps are \[15, 15, 15\]: rounded down to multiples of 8, they allow 24 units",
        ),
        (6, {"minimum": 2, "caps": [None, 1, None]}, r"caps\[1\] is 1, below the 2 units .*; raise the cap or lower"),
        (6, {"caps": [None, -1, None]}, r"caps\[1\] is -1, but must be a whole number; give 0 or more"),
        (6, {"caps": [None, 2.5, None]}, r"caps\[1\] is 2\.5, but must be a whole number"),
    ],
)
def test_demands_that_cannot_be_met(split_3, total, options, message):
    if message is None:
        assert split_3(total, **options) == (8, 8, 8)
        return
    with pytest.raises(ValueError, match=message) as caught:
        split_3(total, **options)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("share", [0, -1, 0.0, math.nan, math.inf, -math.inf, True, "70", None, 1j])
def test_bad_share(share):
    with pytest.raises(ValueError, match=r"^speeds are \[.*\]: number 1 is .*, but each must be finite and greater"):
        partition.check_shares([1, share], name="speeds")


def test_no_shares():
    with pytest.raises(ValueError, match="^shares are empty; give one positive number per processor$"):
        split_by_share(6, [])


@pytest.mark.parametrize(
    "shares", [[1], (0.5, 2), [Fraction(1, 3)], np.array([1.5, 2]), [np.int64(3)], [5e-324, 1e308]]
)
def test_good_shares(shares):
    partition.check_shares(shares)
