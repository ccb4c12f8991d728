"""Find the cheapest assignment of choices to variables; the cost is a sum of tables over few variables each. Pure.

Without limits, variable elimination finds it exactly: a variable is minimised out of all tables that have it, and a
table over its neighbours takes their place. The order of least fill-in keeps these tables small. With limits on other
sums, such as a device's memory, or if a table would be too large, HiGHS solves an integer programme through SciPy. It
also gives a bound of the optimum.
"""

import collections
import dataclasses
import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import NoReturn

import numpy as np

from mtf_hetero._support import extras

MOST_ENTRIES = 2**22  # of a table that elimination makes
_OPTIMAL, _INFEASIBLE = 0, 2  # as scipy.optimize.milp says


class NoAssignmentError(ValueError):
    """No assignment is allowed, or none keeps to the limits."""


@dataclasses.dataclass(frozen=True, eq=False)
class Table:
    """The costs of each combination of choices of some variables.

    Args:
      variables: each once.
      costs: one axis per variable, one entry per choice; infinity where a combination is forbidden.

    Raises:
      ValueError: a variable stands twice, the costs have another number of axes, or a cost is NaN.
    """

    variables: tuple[str, ...]
    costs: np.ndarray

    def __post_init__(self) -> None:
        costs = np.asarray(self.costs, dtype=np.float64)
        if len(set(self.variables)) != len(self.variables) or costs.ndim != len(self.variables):
            raise ValueError(
                f"a table of the variables {list(self.variables)} has {costs.ndim} axes; give one axis per variable, "
                "each variable once"
            )
        if np.isnan(costs).any() or np.isneginf(costs).any():
            raise ValueError(
                f"a table of the variables {list(self.variables)} has a cost that is NaN or minus infinity; "
                "give numbers, or infinity for what is forbidden"
            )
        object.__setattr__(self, "costs", costs)

    def at(self, assignment: Mapping[str, int]) -> float:
        """Return the cost of an assignment of these variables, and others."""
        return float(self.costs[tuple(assignment[variable] for variable in self.variables)])


@dataclasses.dataclass(frozen=True, eq=False)
class Limit:
    """A sum of tables that may not be larger than a bound.

    Args:
      name: what a message calls it.
      tables: of non-negative numbers.
      bound: the largest sum that is allowed.
    """

    name: str
    tables: tuple[Table, ...]
    bound: float


@dataclasses.dataclass(frozen=True)
class Solution:
    """The cheapest assignment.

    Args:
      assignment: {variable: index of its choice}.
      cost: of it.
      bound: no assignment costs less; the cost itself if that is proven to be the least.
    """

    assignment: Mapping[str, int]
    cost: float
    bound: float

    @property
    def gap(self) -> float:
        """The fraction of the cost by which the optimum may be lower."""
        return max(0.0, (self.cost - self.bound) / abs(self.cost)) if self.cost else 0.0


def minimize(tables: Iterable[Table], limits: Sequence[Limit] = (), *, seconds: float = 60.0) -> Solution:
    """Return the assignment with the least sum of tables that keeps to all limits.

    Args:
      tables: variables of the same name have the same number of choices.
      limits: see `Limit`; variables that no table has are assigned too.
      seconds: after which an integer programme gives the best that it has found.

    Raises:
      NoAssignmentError: every assignment is forbidden, or breaks a limit.
      ValueError: a variable has another number of choices in another table.

    Example:
      >>> alike = Table(("a", "b"), np.array([[0, 1], [1, 0]]))
      >>> minimize([Table(("a",), np.array([3, 1])), alike]).assignment
      {'a': 1, 'b': 1}
    """
    tables = list(tables)
    choices = _choices([*tables, *(table for limit in limits for table in limit.tables)])
    order = elimination_order([table.variables for table in tables])
    entries = max((math.prod(choices[v] for v in clique) for _, clique in order), default=1)
    if entries <= MOST_ENTRIES or not choices:
        solution = _eliminate(tables, choices, order)
        if all(sum(table.at(solution.assignment) for table in limit.tables) <= limit.bound for limit in limits):
            return solution
    if not choices:
        _raise_no_assignment(_INFEASIBLE, limits, seconds)
    return _solve_programme(tables, choices, limits, seconds)


def _choices(tables: Iterable[Table]) -> dict[str, int]:
    choices: dict[str, int] = {}
    for table in tables:
        for variable, count in zip(table.variables, table.costs.shape, strict=True):
            if choices.setdefault(variable, count) != count:
                raise ValueError(
                    f"variable {variable!r} has {count} choices in one table and {choices[variable]} in another; "
                    "give it the same in all"
                )
    return choices


def elimination_order(scopes: Iterable[Sequence[str]]) -> list[tuple[str, tuple[str, ...]]]:
    """Return each variable with itself and its neighbours when its turn comes, in the order of least fill-in.

    Args:
      scopes: the variables of each table.

    Example:
      >>> elimination_order([("a", "b"), ("b", "c")])
      [('a', ('a', 'b')), ('b', ('b', 'c')), ('c', ('c',))]
    """
    scopes = list(scopes)
    names = list(dict.fromkeys(itertools.chain.from_iterable(scopes)))
    number = {name: i for i, name in enumerate(names)}
    neighbours = dict.fromkeys(range(len(names)), 0)  # sets as bits: with Python's sets, NASNet's order took 8 s
    for scope in scopes:
        together = sum(1 << number[name] for name in set(scope))
        for name in scope:
            neighbours[number[name]] |= together & ~(1 << number[name])

    def fill_in(variable: int) -> int:
        around = neighbours[variable]
        return sum((around & ~neighbours[other]).bit_count() - 1 for other in _ones(around)) // 2

    costs = {variable: fill_in(variable) for variable in neighbours}
    order = []
    while neighbours:
        variable = min(neighbours, key=lambda v: (costs[v], neighbours[v].bit_count()))
        mask = neighbours.pop(variable)
        del costs[variable]
        around = _ones(mask)
        order.append((names[variable], (names[variable], *sorted(names[other] for other in around))))
        for other in around:
            neighbours[other] &= ~(1 << variable)
        for a in around:
            for b in _ones(mask & ~neighbours[a] & ~(1 << a)):
                # It has a pair less to join; to count all pairs again took 17 of the 21 s of NASNetMobile's plan
                for other in _ones(neighbours[a] & neighbours[b]):
                    costs[other] -= 1
                neighbours[a] |= 1 << b
                neighbours[b] |= 1 << a
        costs.update({other: fill_in(other) for other in around})
    return order


def _ones(bits: int) -> list[int]:
    """Return the places of the ones of a number, from its end.

    Example:
      >>> _ones(0b1010)
      [1, 3]
    """
    places = []
    while bits:
        low = bits & -bits
        places.append(low.bit_length() - 1)
        bits ^= low
    return places


def _eliminate(
    tables: Sequence[Table], choices: Mapping[str, int], order: Sequence[tuple[str, tuple[str, ...]]]
) -> Solution:
    left = list(tables)
    decisions: list[tuple[str, tuple[str, ...], np.ndarray]] = []
    for variable, clique in order:
        mine = [table for table in left if variable in table.variables]
        left = [table for table in left if variable not in table.variables]
        total = np.zeros([choices[v] for v in clique])
        for table in mine:
            total += _spread(table, clique)
        decisions.append((variable, clique[1:], total.argmin(axis=0)))
        left.append(Table(clique[1:], total.min(axis=0)))
    cost = math.fsum(float(table.costs) for table in left)
    if math.isinf(cost):
        raise NoAssignmentError("every assignment is forbidden")
    assignment = dict.fromkeys(choices, 0)
    for variable, around, best in reversed(decisions):
        assignment[variable] = int(best[tuple(assignment[v] for v in around)])
    return Solution(assignment, cost, cost)


def _spread(table: Table, clique: Sequence[str]) -> np.ndarray:
    """Return a table's costs with an axis for each variable of a clique, of length one for those that it lacks."""
    order = sorted(range(len(table.variables)), key=lambda axis: clique.index(table.variables[axis]))
    lengths = dict(zip(table.variables, table.costs.shape, strict=True))
    return table.costs.transpose(order).reshape([lengths.get(variable, 1) for variable in clique])


class _Programme:
    """An integer programme: a column for each choice of a variable, and one for each combination of a table's choices.

    A combination counts as chosen as much as each of its choices. So the tables' costs are linear in the columns.

    Args:
      choices: {variable: number of its choices}.
      tables: all of them; what one forbids is left out.
    """

    def __init__(self, choices: Mapping[str, int], tables: Iterable[Table]) -> None:
        self.choices = choices
        self.first = dict(zip(choices, itertools.accumulate(choices.values(), initial=0)))
        self.binaries = self.count = sum(choices.values())
        self.values: list[float] = []  # of the equations
        self.entries: list[tuple[int, int, float]] = []  # equation, column, coefficient
        self.combinations: dict[tuple[str, ...], dict[tuple[int, ...], int]] = {}
        allowed: dict[tuple[str, ...], np.ndarray] = {}
        for table in tables:
            finite = np.isfinite(table.costs)
            allowed[table.variables] = allowed.get(table.variables, finite) & finite
        for variable, count in choices.items():
            self._equate({self.first[variable] + choice: 1.0 for choice in range(count)}, 1.0)
        for scope, finite in allowed.items():
            self._add_scope(scope, [tuple(map(int, place)) for place in np.argwhere(finite)])

    def _equate(self, coefficients: Mapping[int, float], value: float) -> None:
        self.entries += [(len(self.values), column, factor) for column, factor in coefficients.items()]
        self.values.append(value)

    def _add_scope(self, scope: tuple[str, ...], places: Sequence[tuple[int, ...]]) -> None:
        """Add the columns of a scope, and the equations that tie them to those of its variables."""
        columns = self.combinations[scope] = {place: self.count + i for i, place in enumerate(places)}
        self.count += len(places)
        for axis, variable in enumerate(scope):
            by_choice: dict[int, dict[int, float]] = collections.defaultdict(dict)
            for place, column in columns.items():
                by_choice[place[axis]][column] = 1.0
            for choice in range(self.choices[variable]):
                self._equate({**by_choice[choice], self.first[variable] + choice: -1.0}, 0.0)

    def row(self, tables: Iterable[Table]) -> np.ndarray:
        """Return the coefficients of a sum of tables."""
        row = np.zeros(self.count)
        for table in tables:
            for place, column in self.combinations[table.variables].items():
                row[column] += table.costs[place]
        return row


def _solve_programme(
    tables: Sequence[Table], choices: Mapping[str, int], limits: Sequence[Limit], seconds: float
) -> Solution:
    optimize, sparse = (
        extras.import_package(f"scipy.{module}", extra="plan", user="a plan for devices short of memory")
        for module in ("optimize", "sparse")
    )
    constant = math.fsum(float(table.costs) for table in tables if not table.variables)
    held = [[table for table in limit.tables if table.variables] for limit in limits]
    tables = [table for table in tables if table.variables]
    programme = _Programme(choices, [*tables, *itertools.chain.from_iterable(held)])
    equations, columns, factors = zip(*programme.entries, strict=True)
    shape = len(programme.values), programme.count
    matrix = sparse.csr_matrix((factors, (equations, columns)), shape=shape)
    constraints = [optimize.LinearConstraint(matrix, programme.values, programme.values)]
    for limit, of_limit in zip(limits, held, strict=True):
        left = limit.bound - math.fsum(float(table.costs) for table in limit.tables if not table.variables)
        scale = max(abs(limit.bound), 1.0)  # bytes: HiGHS wants numbers near one
        constraints.append(optimize.LinearConstraint(programme.row(of_limit)[None] / scale, -np.inf, left / scale))
    objective = programme.row(tables)
    scale = max(float(np.abs(objective).max(initial=0.0)), 1e-300)
    found = optimize.milp(
        objective / scale,
        integrality=np.arange(programme.count) < programme.binaries,
        bounds=optimize.Bounds(0.0, 1.0),
        constraints=constraints,
        options={"time_limit": seconds, "mip_rel_gap": 0.0},
    )
    if found.x is None:
        _raise_no_assignment(found.status, limits, seconds)
    assignment = {
        variable: int(np.argmax(found.x[first : first + choices[variable]]))
        for variable, first in programme.first.items()
    }
    cost = constant + math.fsum(table.at(assignment) for table in tables)
    bound = cost if found.status == _OPTIMAL else min(cost, float(found.mip_dual_bound) * scale + constant)
    return Solution(assignment, cost, bound)


def _raise_no_assignment(status: int, limits: Sequence[Limit], seconds: float) -> NoReturn:
    if status != _INFEASIBLE:
        raise NoAssignmentError(f"none was found in {seconds:g} s; allow more time")
    names = ", ".join(limit.name for limit in limits)
    raise NoAssignmentError(f"every assignment is forbidden{f' or breaks a limit: {names}' if names else ''}")
