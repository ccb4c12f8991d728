"""Axes as products of dimensions: properties of random unifications, and the cases that a step has."""

import itertools
import math

import tiers
from hypothesis import strategies as st

from mtf_hetero.importer.naming import Names, common_factors, divide_factors

SIZES = st.lists(st.sampled_from([1, 2, 3, 4, 5, 6, 12]), min_size=1, max_size=4)


def entered(*shapes):
    names = Names()
    for number, shape in enumerate(shapes):
        names.enter(number, shape, [f"t{number}/{axis}" for axis in range(len(shape))])
    return names


def flat(names, tensor):
    return tuple(itertools.chain.from_iterable(names.axes(tensor)))


def labels(names, tensor):
    return [[names.label(d) for d in axis] for axis in names.axes(tensor)]


def check(names, shapes):
    for number, shape in enumerate(shapes):
        axes = names.axes(number)
        assert [math.prod(map(names.size, axis)) for axis in axes] == list(shape)
        dims = flat(names, number)
        assert len(dims) == len(set(dims))
        assert all(names.size(d) > 1 for d in dims)


@tiers.given_in_tiers(st.lists(SIZES, min_size=2, max_size=5), st.randoms(use_true_random=False))
def test_sizes_stay_and_no_tensor_has_a_dimension_twice(shapes, random):
    names = entered(*shapes)
    for _ in range(12):
        one, other = (random.randrange(len(shapes)) for _ in range(2))
        if random.random() < 0.5:
            pair = flat(names, one), flat(names, other)
        else:
            pair = random.choice(names.axes(one)), random.choice(names.axes(other))
        if math.prod(map(names.size, pair[0])) != math.prod(map(names.size, pair[1])):
            continue
        if names.unify(*pair):
            assert names.resolve(pair[0]) == names.resolve(pair[1])
            assert names.unify(*pair)
        check(names, shapes)


@tiers.given_in_tiers(SIZES, st.integers(0, 3))
def test_common_factors_make_both(sizes, count):
    merged = [math.prod(sizes[:count]), *sizes[count:]]
    factors = common_factors(sizes, merged)
    assert factors is not None and math.prod(factors) == math.prod(sizes)
    for one in (sizes, merged):
        parts = divide_factors(one, factors)
        assert [math.prod(part) for part in parts] == one
        assert list(itertools.chain(*parts)) == factors


def test_reshapes_give_products():
    names = entered((14, 6, 8), (84, 8))
    assert names.unify(flat(names, 0), flat(names, 1))
    assert labels(names, 1) == [["t0/0", "t0/1"], ["t0/2"]]


def test_what_a_later_reshape_finds_holds_for_earlier_axes():
    names = entered((8, 28), (5, 28), (5, 7, 4))
    assert names.unify(names.axes(0)[1], names.axes(1)[1])
    assert names.unify(flat(names, 1), flat(names, 2))
    assert labels(names, 0) == [["t0/0"], ["t0/1_0", "t0/1_1"]]


def test_sizes_without_common_factors_stay_apart():
    names = entered((6, 4), (4, 6))
    assert not names.unify(flat(names, 0), flat(names, 1))
    assert labels(names, 0) == [["t0/0"], ["t0/1"]]
    assert common_factors([6, 4], [6, 5]) is None


def test_a_tensor_keeps_its_dimensions_apart():
    names = entered((6, 6), (6,))
    assert names.unify(names.axes(0)[0], names.axes(1)[0])
    assert not names.unify(names.axes(0)[1], names.axes(1)[0])


def test_fixed_dimensions_are_neither_divided_nor_unified():
    names = Names()
    names.fix("w", [[("w/0", 6)], [("w/1a", 2), ("w/1b", 3)]])
    names.fix("v", [[("w/0", 6)], [("v/1", 6)]])
    names.enter("x", (6, 2, 3), ["x/0", "x/1", "x/2"])
    assert names.axes("w")[0] == names.axes("v")[0]
    assert not names.unify(names.axes("w")[0], names.axes("v")[1])
    assert not names.unify(names.axes("v")[1], tuple(itertools.chain(*names.axes("x")[1:])))
    assert names.unify(names.axes("x")[0], names.axes("v")[0])
    assert labels(names, "x")[0] == ["w/0"]


def test_a_label_that_a_dimension_was_given_stays():
    names = entered((8,), (8,), (8,))
    names.prefer(names.axes(1)[0], "conv/height")
    names.prefer(names.axes(1)[0], "pool/height")
    assert names.unify(names.axes(0)[0], names.axes(1)[0])
    assert names.label(names.axes(0)[0][0]) == "conv/height"
    names.prefer(names.axes(2)[0], "next/height")
    assert names.unify(names.axes(0)[0], names.axes(2)[0])
    assert names.label(names.axes(2)[0][0]) == "conv/height"
