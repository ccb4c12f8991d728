"""The tiers of the tests: the first has a test of every promise, within minutes; the second the rest of a product."""

from collections.abc import Collection, Iterable, Sequence
from typing import Any

import pytest
from oracle import ONCE

from mtf_hetero import Layout


def parametrize(names: str | tuple[str, ...], every: Iterable[Any], *, first: Collection[Any]) -> Any:
    """`pytest.mark.parametrize`, with some of the values in the first tier and the others in the second."""
    every, several = list(every), not isinstance(names, str)
    assert all(value in every for value in first), f"{first} are not all among {every}"

    def parameter(value: Any) -> Any:
        return pytest.param(*(value if several else [value]), marks=() if value in first else pytest.mark.full)

    return pytest.mark.parametrize(names, [parameter(value) for value in every])


def few(layouts: Iterable[Layout], count: int = 3) -> Sequence[Layout]:
    """So many of the layouts, that split as many dimensions as they can; of equals, those of fewer processors."""
    left, chosen, split = list(layouts), [], set()
    while left and len(chosen) < count:
        best = min(left, key=lambda layout: (-len(dict(layout.rules).keys() - split), layout.size))
        chosen.append(best)
        split |= dict(best.rules).keys()
        left.remove(best)
    return chosen


# For tests on many layouts, `chosen(layouts)`: the first tier on a few, the second on all
FEW_OR_ALL = [pytest.param(few, id="few"), pytest.param(list, id="all", marks=pytest.mark.full)]

# For tests of programs whose operations have tests of their own, `check(..., **options)`: how often each layout is run
ONCE_OR_ALL_KINDS = [pytest.param(ONCE, id="once"), pytest.param({}, id="all kinds", marks=pytest.mark.full)]

# For tests that need some workers and leave them as they were: `workers`, of conftest.py, is one cluster of a run
on_workers = pytest.mark.xdist_group("workers")
