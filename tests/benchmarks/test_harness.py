"""The tools of all cases: turns, comparison of losses, progress from part to part."""

import dataclasses
import functools

import pytest

from benchmarks import harness
from benchmarks.rows import Writer


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


def test_a_case_measures_the_parts_that_are_asked_for(tmp_path):
    @dataclasses.dataclass(frozen=True)
    class Two(harness.Case):
        steps: int = 3

        def parts(self):
            return {name: functools.partial(self._measure, name) for name in ("first", "second")}

        def _measure(self, name, writer, bar):
            writer.write(name, self.columns(warmup=0))

    case = Two()
    assert case.variants() == ("first", "second")
    assert case.make_toy().toy
    assert case.columns(warmup=0) == {"seed": 1, "warmup": 0, "steps": 3, "repeats": None, "shares": None}
    writer = Writer("two", tmp_path)
    case.measure(writer, ("second",))
    assert writer.path.read_text(encoding="utf-8").count('"variant": "second"') == 1
    with pytest.raises(ValueError, match="--steps is 0; it must be a whole number of at least 1"):
        dataclasses.replace(case, steps=0).check()
