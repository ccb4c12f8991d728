"""Rows in groups, and Markdown tables of them that declare their columns: {header: what a row has there}."""

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

Row = Mapping[str, Any]
Columns = Mapping[str, Callable[[Row], Any]]
Key = TypeVar("Key", bound=Hashable)
MB, GIB = 1e6, 2**30


def group_by(rows: Iterable[Row], key: Callable[[Row], Key]) -> dict[Key, list[Row]]:
    """{key: the rows that have it}, in the order in which keys first occur."""
    groups: dict[Key, list[Row]] = {}
    for row in rows:
        groups.setdefault(key(row), []).append(row)
    return groups


def median(row: Row, column: str = "wall_seconds_per_step") -> float:
    """The median of a column that was measured several times."""
    return row[column]["median"]


def number(value: float, digits: int = 3) -> str:
    """To so many significant digits, with commas where there are more before the point."""
    return f"{value:.{digits}g}" if abs(value) < 10**digits else f"{value:,.0f}"


def cell(value: Any) -> str:
    """A summary as median (minimum to maximum), a float to three digits, None as a dash; text and integers as is."""
    if value is None:
        return "-"
    if isinstance(value, Mapping):
        return f"{number(value['median'])} ({number(value['min'])} to {number(value['max'])})"
    return number(value) if isinstance(value, float) else str(value)


def table(header: Sequence[str], lines: Iterable[Sequence[Any]]) -> str:
    """A table of cells; the first column is aligned to the left, the others to the right."""
    rows = [header, ["---", *["---:"] * (len(header) - 1)], *([cell(value) for value in line] for line in lines)]
    return "\n".join("| " + " | ".join(row) + " |" for row in rows)


def table_of(rows: Iterable[Row], columns: Columns, *, labels: int = 1) -> str:
    """A line per row, of what columns show of it; of one that failed, only of the first columns, which name it."""
    values = list(columns.values())
    lines = [
        [value(row) if number < labels or "failed" not in row else "-" for number, value in enumerate(values)]
        for row in rows
    ]
    return table(list(columns), lines)


def bullets(notes: Iterable[str]) -> str:
    """A list; empty notes are left out."""
    return "\n".join(f"* {note}" for note in notes if note)


def could_not(be: str, rows: Iterable[Row], name: str = "way") -> list[str]:
    """A sentence on each row that failed."""
    return [f"{row[name]} could not be {be}: {row['failed']}" for row in rows if "failed" in row]


def limits(row: Row) -> str:
    """What limited the workers of a row."""
    return f"Limited by {' and '.join(dict.fromkeys(row['limits']))}."


def in_turns(row: Row) -> str:
    """How often the ways of a setting were timed."""
    return f"{row['repeats']} repeats of {row['steps']} step, in turns; seed {row['seed']}."


def division(row: Row, most: int | None = None) -> str | None:
    """The sizes into which dimensions are divided, each once, and no more than so many."""
    sizes = [":".join(map(str, parts)) for parts in row["sizes"].values() if len(parts) > 1]
    distinct = list(dict.fromkeys(sizes))
    return "; ".join([*distinct[:most], *(["..."] if distinct[:most] != distinct else [])]) or None


def per_link(link: Mapping[str, float]) -> str:
    """A measured link, in words."""
    return f"{link['bytes_per_second'] / 1e9:.2f} GB/s and {1e3 * link['latency_seconds']:.2g} ms a"


def losses_agree(rows: Iterable[Row], *, than: str = "the same") -> str:
    """The sentence on the losses by which all ways of a setting are compared."""
    error = max(row["loss_error"] for row in rows if "loss_error" in row)
    return f"The losses before the first and the second step are {than} within {error:.1e} of their value."
