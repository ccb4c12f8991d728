"""The tools of all cases: turns, comparison of losses, progress from part to part."""

import functools

import pytest

from benchmarks import harness


def test_all_ways_are_measured_once_per_repeat_in_a_random_order():
    order = []
    ways = {name: functools.partial(order.append, name) for name in "abc"}
    results = harness.take_turns(ways, repeats=20, seed=1)
    assert results == {name: [None] * 20 for name in "abc"}
    turns = [tuple(order[i : i + 3]) for i in range(0, 60, 3)]
    assert all(sorted(turn) == ["a", "b", "c"] for turn in turns)
    assert len(set(turns)) > 3
    again = []
    harness.take_turns({name: functools.partial(again.append, name) for name in "abc"}, repeats=20, seed=1)
    assert again == order


def test_losses_that_differ_by_more_than_rounding_fail():
    assert harness.compare_losses([2.0, 1.00005], [2.0, 1.0]) == {"loss_error": pytest.approx(5e-5)}
    compared = harness.compare_losses([2.0, 1.1], [2.0, 1.0])
    assert compared["failed"] == "losses [2.0, 1.1] instead of [2.0, 1.0]"
