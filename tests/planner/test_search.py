"""The search of the planner: equal to trying all assignments, with limits and without."""

import itertools
import math

import numpy as np
import pytest

from mtf_hetero.planner import search
from mtf_hetero.planner.search import Limit, NoAssignmentError, Table

PROBLEMS = 200


def _problem(seed):
    """Random tables over few variables, some combinations of which are forbidden, and a limit or two."""
    rng = np.random.default_rng(seed)
    choices = {f"v{i}": int(rng.integers(2, 4)) for i in range(int(rng.integers(2, 8)))}

    def table(forbid):
        scope = tuple(rng.permutation(list(choices))[: rng.integers(0, 4)])
        costs = rng.integers(0, 100, [choices[v] for v in scope]).astype(float)
        if forbid and scope:
            costs[rng.random(costs.shape) < 0.15] = np.inf
        return Table(scope, costs)

    tables = [table(True) for _ in range(int(rng.integers(2, 12)))]
    limits = []
    for number in range(int(rng.integers(0, 3))):
        of_limit = tuple(table(False) for _ in range(int(rng.integers(1, 5))))
        largest = sum(float(t.costs.max()) for t in of_limit)
        limits.append(Limit(f"memory of device {number}", of_limit, float(rng.uniform(0.3, 1.0)) * largest))
    return tables, limits


def _by_trying_all(tables, limits):
    choices = {}
    for table in [*tables, *(t for limit in limits for t in limit.tables)]:
        choices |= dict(zip(table.variables, table.costs.shape, strict=True))
    best = math.inf
    for places in itertools.product(*(range(count) for count in choices.values())):
        assignment = dict(zip(choices, places, strict=True))
        if all(sum(t.at(assignment) for t in limit.tables) <= limit.bound for limit in limits):
            best = min(best, sum(t.at(assignment) for t in tables))
    return best


def _check(solution, tables, limits, expected):
    assert solution.cost == pytest.approx(expected)
    assert sum(t.at(solution.assignment) for t in tables) == pytest.approx(expected)
    for limit in limits:
        assert sum(t.at(solution.assignment) for t in limit.tables) <= limit.bound * (1 + 1e-9)
    assert solution.gap == 0.0


def test_equals_trying_all(monkeypatch):
    programmes, solve = [], search._solve_programme
    monkeypatch.setattr(search, "_solve_programme", lambda *of: programmes.append(of) or solve(*of))
    for seed in range(PROBLEMS):
        tables, limits = _problem(seed)
        expected = _by_trying_all(tables, limits)
        if math.isinf(expected):
            with pytest.raises(NoAssignmentError):
                search.minimize(tables, limits)
            continue
        solution = search.minimize(tables, limits)
        _check(solution, tables, limits, expected)
    assert 0 < len(programmes) < PROBLEMS


def test_integer_programme_equals_elimination(monkeypatch):
    for seed in range(0, PROBLEMS, 5):
        tables, _ = _problem(seed)
        try:
            expected = search.minimize(tables)
        except NoAssignmentError:
            continue
        if not expected.assignment:
            continue
        with monkeypatch.context() as patch:
            patch.setattr(search, "MOST_ENTRIES", 0)
            solution = search.minimize(tables)
        _check(solution, tables, [], expected.cost)


def test_order_of_a_chain_and_of_a_cycle_has_the_least_width():
    chain = [(f"v{i}", f"v{i + 1}") for i in range(20)]
    assert max(len(clique) for _, clique in search.elimination_order(chain)) == 2
    assert max(len(clique) for _, clique in search.elimination_order([*chain, ("v20", "v0")])) == 3


def test_a_long_chain_is_solved():
    """2^200 assignments."""
    rng = np.random.default_rng(1)
    tables = [Table((f"v{i}", f"v{i + 1}"), rng.random([2, 2])) for i in range(200)]
    solution = search.minimize(tables)
    best = np.zeros(2)  # Viterbi's
    for table in tables:
        best = (best[:, None] + table.costs).min(axis=0)
    assert solution.cost == pytest.approx(best.min())


def test_a_constant_and_no_variable():
    assert search.minimize([Table((), np.array(3.0))]).cost == 3.0
    assert search.minimize([]).assignment == {}


def test_all_forbidden():
    with pytest.raises(NoAssignmentError, match="every assignment is forbidden"):
        search.minimize([Table(("a",), np.full(2, np.inf))])


def test_a_limit_that_nothing_keeps_is_named():
    weight = Table(("a",), np.array([5.0, 6.0]))
    with pytest.raises(NoAssignmentError, match="memory of gpu:0"):
        search.minimize([Table(("a",), np.array([1.0, 0.0]))], [Limit("memory of gpu:0", (weight,), 4.0)])


@pytest.mark.parametrize(
    ("tables", "problem"),
    [
        (lambda: [Table(("a", "a"), np.zeros([2, 2]))], "each variable once"),
        (lambda: [Table(("a",), np.zeros([2, 2]))], "2 axes"),
        (lambda: [Table(("a",), np.array([np.nan, 1.0]))], "NaN or minus infinity"),
        (lambda: [Table(("a",), np.zeros(2)), Table(("a",), np.zeros(3))], "3 choices in one table and 2"),
    ],
)
def test_bad_tables(tables, problem):
    with pytest.raises(ValueError, match=problem):
        search.minimize(tables())
