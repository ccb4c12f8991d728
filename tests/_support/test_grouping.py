"""Groups of at most so many bytes."""

from mtf_hetero._support.grouping import group_by_bytes


def group(*sizes):
    return list(group_by_bytes(sizes, lambda size: size, 7))


def test_groups_are_full_and_in_order():
    assert group() == []
    assert group(3, 4, 1) == [[3, 4], [1]]
    assert group(0, 7, 0) == [[0, 7, 0]]


def test_a_larger_item_is_alone():
    assert group(9) == [[9]]
    assert group(1, 9, 2, 3) == [[1], [9], [2, 3]]
