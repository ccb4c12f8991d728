"""The tiers of the tests: the first has a test of every promise, within minutes; the second the rest of a product."""

import inspect
import itertools
import os
import pathlib
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any

import pytest

from mtf_hetero.layout import Layout

TURNS = 3  # landings that run everything once
LANDING = pathlib.Path(__file__).parents[2] / ".ci/landing"  # its number, and the commit before it

CONSTANT, VARIABLE, FED, MIXED = "constant", "variable", "fed", "mixed"  # kinds of inputs of the oracle
KINDS = (CONSTANT, VARIABLE, FED)

# Of `oracle.check`, where the operations of a program have tests of their own: one run on each layout
ONCE: dict[str, Any] = {"kinds": (MIXED,), "exports": False}


def parametrize(names: str | tuple[str, ...], every: Iterable[Any], *, first: Collection[Any]) -> Any:
    """`pytest.mark.parametrize`, with some of the values in the first tier and the others in the second."""
    every, several = list(every), not isinstance(names, str)
    assert all(value in every for value in first), f"{first} are not all among {every}"

    def parameter(value: Any) -> Any:
        return pytest.param(*(value if several else [value]), marks=() if value in first else pytest.mark.full)

    return pytest.mark.parametrize(names, [parameter(value) for value in every])


def in_turn(every: Sequence[Any]) -> Sequence[Any]:
    """All of many cases that are alike; in a landing, a third of them, and another one in the next."""
    if "TESTS_REACHED" not in os.environ:  # which `pytest --landing` sets
        return every
    return every[int(LANDING.read_text(encoding="utf-8").split()[0]) % TURNS :: TURNS]


def few(layouts: Iterable[Layout], count: int = 3) -> Sequence[Layout]:
    """So many of the layouts, that split as many dimensions as they can; of equals, those of fewer processors."""
    left, chosen, split = list(layouts), [], set()
    while left and len(chosen) < count:
        best = min(left, key=lambda layout: (-len(dict(layout.rules).keys() - split), layout.size))
        chosen.append(best)
        split |= dict(best.rules).keys()
        left.remove(best)
    return chosen


# For tests on many layouts, `chosen(layouts)`: the first tier on one, the second on all
_ALL = pytest.param(list, id="all", marks=pytest.mark.full)
ONE_OR_ALL = [pytest.param(lambda layouts: few(layouts, 1), id="one"), _ALL]

# For tests of programs whose operations have tests of their own, `check(..., **options)`: how often each layout is run
ONCE_OR_ALL_KINDS = [pytest.param(ONCE, id="once"), pytest.param({}, id="all kinds", marks=pytest.mark.full)]

# The same for programs of many parts, `check(program(some(parts)), **options)`: the first tier with every fifth part,
# which of a product of lists of two to four has every value
SOME_ONCE_OR_ALL_KINDS = [
    pytest.param(lambda parts: list(parts)[::5], ONCE, id="some once"),
    pytest.param(list, {}, id="all kinds", marks=pytest.mark.full),
]


def each_of_a_kind(names: str | tuple[str, ...], every: Sequence[Any], *, first: Collection[Any]) -> Any:
    """The same over several cases, `(*names, "some", "options")`: in the second tier the cases share the kinds."""
    several, (some, once) = not isinstance(names, str), SOME_ONCE_OR_ALL_KINDS[0].values
    assert all(value in every for value in first), f"{first} are not all among {every}"

    def parameter(value: Any, *rest: Any, kind: str, **options: Any) -> Any:
        return pytest.param(*(value if several else [value]), *rest, id=f"{every.index(value)}-{kind}", **options)

    parameters = [parameter(value, some, once, kind="some once") for value in first]
    for kind, value in zip(itertools.cycle(KINDS), every):
        parameters.append(parameter(value, list, {"kinds": (kind,)}, kind=kind, marks=pytest.mark.full))
    return pytest.mark.parametrize((*(names if several else [names]), "some", "options"), parameters)


def given_in_tiers(*strategies: Any, first: int = 40, every: int = 200) -> Callable[[Any], Any]:
    """`hypothesis.given`, derandomised, with so many examples in the first tier, and with all in the second."""
    from hypothesis import given, settings  # most tests do without

    counts = [pytest.param(first, id="some"), pytest.param(every, id="all", marks=pytest.mark.full)]

    def decorate(test: Any) -> Any:
        def run(examples: int, *fixed: Any) -> None:
            options = settings(derandomize=True, deadline=None, max_examples=examples)
            options(given(*strategies)(test))(*fixed)

        def function(examples: int) -> None:
            run(examples)

        def method(self: Any, examples: int) -> None:
            run(examples, self)

        tiered = method if "self" in inspect.signature(test).parameters else function
        tiered.__name__, tiered.__doc__ = test.__name__, test.__doc__
        return pytest.mark.parametrize("examples", counts)(tiered)

    return decorate


# For tests that need some workers and leave them as they were: `workers`, of conftest.py, is one cluster of a process
on_workers = pytest.mark.xdist_group("workers")

# The same for files whose tests lose workers. They wait most of the time, so they have a process of their own
losing_workers = pytest.mark.xdist_group("lost workers")
