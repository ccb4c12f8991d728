"""The plan of a reshard, checked by doing it in NumPy."""

import math

import numpy as np
import pytest
from reshapes import reshards
from tiers import given_in_tiers

from mtf_hetero import Layout, mtf
from mtf_hetero.layout import blocks


def simulate(layout, old, new):
    """Carries out the plan; returns the number of elements that travelled to each processor."""
    whole = np.arange(math.prod(d.size for d in old)).reshape([d.size for d in old])

    def cut(array, begin, size):
        return array[tuple(slice(b, b + s) for b, s in zip(begin, size, strict=True))]

    slices = [cut(whole, layout.slice_begin(old, p), layout.slice_shape(old, p)) for p in range(layout.size)]
    expected = whole.reshape([d.size for d in new])
    sent = []
    for pnum in range(layout.size):
        move = blocks.plan_move(layout, old, new, pnum)
        pieces = [cut(slices[piece.source], piece.begin, piece.size) for piece in move.pieces]
        for axis in reversed(range(len(move.grid))):
            n = move.grid[axis]
            pieces = [np.concatenate(pieces[i : i + n], axis) for i in range(0, len(pieces), n)]
        y = pieces[0] if pieces else np.zeros(move.size, int)
        for shape, begin, size in move.reshapes if pieces else ():
            y = cut(y.reshape(shape), begin, size)
        np.testing.assert_array_equal(y, cut(expected, layout.slice_begin(new, pnum), layout.slice_shape(new, pnum)))
        sent.append(sum(math.prod(piece.size) for piece in move.pieces if piece.source != pnum))
    return sent


def dims(**sizes):
    return [mtf.Dimension(name, size) for name, size in sizes.items()]


def test_same_split_moves_nothing():
    layout = Layout("x:3", "f:x;c:x", {"x": [70, 25, 5]})
    assert simulate(layout, dims(b=2, f=60), dims(b=2, c=60)) == [0, 0, 0]


def test_all_gather_moves_what_is_missing():
    layout = Layout("x:3", "f:x", {"x": [70, 25, 5]})
    assert simulate(layout, dims(b=2, f=60), dims(b=2, c=60)) == [2 * 18, 2 * 45, 2 * 57]


def test_a_local_slice_moves_nothing():
    layout = Layout("x:3", "c:x", {"x": [70, 25, 5]})
    assert simulate(layout, dims(b=2, f=60), dims(b=2, c=60)) == [0, 0, 0]


def test_neighbours_exchange_the_difference_of_two_splits():
    layout = Layout("x:3", "f:x;c:x", sizes={"f": [42, 15, 3], "c": [20, 20, 20]})
    assert simulate(layout, dims(f=60), dims(c=60)) == [0, 20, 17]


def test_a_dimension_moves_from_one_axis_to_another():
    layout = Layout("x:2;y:2", "f:x;r:y", {"x": [2, 1], "y": [1, 3]})
    simulate(layout, dims(f=8, k=3), dims(r=8, k=3))


def test_flattening_a_split_dimension_gathers_it():
    layout = Layout("x:2", "c:x", {"x": [2, 1]})
    assert simulate(layout, dims(b=2, h=2, w=2, c=3), dims(b=2, k=12)) == [8, 16]


@pytest.mark.parametrize(
    ("old", "new", "groups"),
    [
        ([], [1], [(range(0), range(1))]),
        ([6], [2, 3], [(range(1), range(2))]),
        ([2, 3], [3, 2], [(range(2), range(2))]),
        ([4, 1], [4], [(range(1), range(1)), (range(1, 2), range(1, 1))]),
        ([7, 0], [0], [(range(2), range(1))]),
        ([0, 3], [0], [(range(1), range(1)), (range(1, 2), range(1, 1))]),
    ],
)
def test_group_dims(old, new, groups):
    assert blocks.group_dims(old, new) == groups


@given_in_tiers(reshards(), first=100, every=400)
def test_any_reshape_between_any_two_layouts(case):
    simulate(*case)
