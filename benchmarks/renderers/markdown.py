"""Tables in Markdown."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table; the first column is aligned to the left, the others to the right."""
    lines = [header, ["---", *["---:"] * (len(header) - 1)], *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def spread(summary: Mapping[str, float], digits: int = 3) -> str:
    """Median and, in brackets, minimum and maximum, to so many significant digits."""
    middle, low, high = (_number(summary[name], digits) for name in ("median", "min", "max"))
    return f"{middle} ({low} to {high})"


def _number(value: float, digits: int) -> str:
    return f"{value:.{digits}g}" if abs(value) < 10**digits else f"{value:,.0f}"


def number(value: Any, digits: int = 3) -> str:
    """A number to so many significant digits, or a dash."""
    return "-" if value is None else _number(float(value), digits)
