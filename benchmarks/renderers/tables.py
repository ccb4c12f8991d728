"""Groups of rows, and the tables that renderers make of them: {header: the cell of a row}."""

import dataclasses
import re
import textwrap
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

from mtf_hetero._support import tables as text_tables

Row = Mapping[str, Any]
Columns = dict[str, Callable[[Row], Any]]
Item = TypeVar("Item")
Key = TypeVar("Key", bound=Hashable)
MB, GIB = 1e6, 2**30
_NUMBER = re.compile(r"[-+]?\d[\d.,e+-]*%?( \(.*\))?$|-$")  # 1.5, -3%, 1e-9, 0.8 (0.7 to 0.9), or none
_MARKS = re.compile(r"\(R\)|\(TM\)| Processor")  # in the names of processors
_HEADER_WIDTH, _CELL_WIDTH = 12, 44  # of a column in lines of text; longer headers wrap, longer cells are cut


@dataclasses.dataclass(frozen=True)
class Table:
    """A table of text cells, for a Markdown report and for a terminal.

    Args:
      header: of each column.
      lines: of cells.
      labels: leading columns that name a line.
    """

    header: tuple[str, ...]
    lines: tuple[tuple[str, ...], ...]
    labels: int = 1

    def as_markdown(self) -> str:
        """Return the Markdown; columns of numbers are aligned to the right."""
        columns = [[line[i] for line in self.lines] for i in range(len(self.header))]
        rows = [self.header, ["---:" if all(map(_NUMBER.match, column)) else "---" for column in columns], *self.lines]
        return "\n".join("| " + " | ".join(row) + " |" for row in rows)

    def as_text(self, width: int = 80) -> str:
        """Lines of text; columns beyond the width follow below, after the columns that name a line."""
        cells = [[_shorten(line[i]) for line in self.lines] for i in range(len(self.header))]
        headers = [
            textwrap.wrap(header, max(_HEADER_WIDTH, *map(len, column), 1)) or [""]
            for header, column in zip(self.header, cells, strict=True)
        ]
        widths = [max(map(len, (*header, *column))) for header, column in zip(headers, cells, strict=True)]
        blocks = [list(range(self.labels + 1))[: len(widths)]]
        for index in range(self.labels + 1, len(widths)):
            if sum(2 + widths[i] for i in (*blocks[-1], index)) - 2 <= width:
                blocks[-1].append(index)
            else:
                blocks.append([*range(self.labels), index])
        texts = []
        for block in blocks:
            height = max(len(headers[i]) for i in block)
            columns = [[*[""] * (height - len(headers[i])), *headers[i], *cells[i]] for i in block]
            align = "".join("<" if i < self.labels else ">" for i in block)
            texts.append("\n".join(text_tables.lines(zip(*columns, strict=True), align)))
        return "\n\n".join(texts)


def _shorten(cell: str) -> str:
    cell = cell.replace("`", "").replace("**", "")
    return cell if len(cell) <= _CELL_WIDTH else f"{cell[: _CELL_WIDTH - 4]} ..."


def group_by(rows: Iterable[Item], key: Callable[[Item], Key]) -> dict[Key, list[Item]]:
    """{key: the rows, or other items, that have it}, in the order in which keys first occur."""
    groups: dict[Key, list[Item]] = {}
    for row in rows:
        groups.setdefault(key(row), []).append(row)
    return groups


def succeeded(rows: Iterable[Row]) -> list[Row]:
    """Return the rows that did not fail."""
    return [row for row in rows if "failed" not in row]


def machines(rows: Iterable[Row]) -> str:
    """Return the machines on which rows were measured: "2 cores of AMD EPYC"."""
    hosts = dict.fromkeys(f"{row['host']['cores']} cores of {row['host']['cpu']}" for row in rows)
    return " and on ".join(hosts)


def on_machines(rows: Iterable[Row], everything: Iterable[Row]) -> str:
    """Return " (2 cores of AMD EPYC)", which ends the heading of rows in a report on several machines; "" on one."""
    here = machines(rows)
    return "" if here == machines(everything) else f" ({_MARKS.sub('', here)})"


def median(row: Row, column: str = "wall_seconds_per_step") -> float:
    """Return the median of a column that was measured several times."""
    return row[column]["median"]


def number(value: float, digits: int = 3) -> str:
    """Return a number with so many significant digits, and with commas where there are more before the point."""
    return f"{value:.{digits}g}" if abs(value) < 10**digits else f"{value:,.0f}"


def power(value: float | None) -> str | None:
    """Return a difference by its power of ten: "3e-12"."""
    return None if value is None else "0" if not value else f"{value:.0e}"


def span(values: Iterable[float], form: str = ".2f") -> str:
    """Return the range of some numbers: "1.20 to 1.50", or "1.20" where both ends read the same."""
    values = list(values)
    return " to ".join(dict.fromkeys(format(end, form) for end in (min(values), max(values))))


def cell(value: Any) -> str:
    """Return a summary as median (minimum to maximum), a float to three digits, None as a dash, others unchanged."""
    if value is None:
        return "-"
    if isinstance(value, Mapping):
        return f"{number(value['median'])} ({number(value['min'])} to {number(value['max'])})"
    return number(value) if isinstance(value, float) else str(value)


def table(header: Sequence[str], lines: Iterable[Sequence[Any]], *, labels: int = 1) -> Table:
    """Return a table of cells of any kind."""
    return Table(tuple(header), tuple(tuple(map(cell, line)) for line in lines), labels)


def tabulate(rows: Iterable[Row], columns: Columns, *, labels: int = 1) -> Table:
    """Return a line per row; a row that failed shows only the first columns, which name it."""
    values = list(columns.values())
    lines = [
        [value(row) if number < labels or "failed" not in row else "-" for number, value in enumerate(values)]
        for row in rows
    ]
    return table(list(columns), lines, labels=labels)


def bullets(notes: Iterable[str]) -> str:
    """Return a list without its empty notes."""
    return "\n".join(f"* {note}" for note in notes if note)


def could_not(be: str, rows: Iterable[Row], name: str = "way") -> list[str]:
    """Return a sentence on each row that failed."""
    return [f"{row[name]} could not be {be}: {row['failed']}" for row in rows if "failed" in row]


def limits(row: Row) -> str:
    """Return a sentence on the limits of a row's workers."""
    return f"Each worker is limited by {' or '.join(dict.fromkeys(row['limits']))}."


def in_turns(row: Row) -> str:
    """Return a sentence on the repeats of a setting."""
    steps = f"{row['steps']} step{'s' * (row['steps'] != 1)}"
    return f"{row['repeats']} repeats of {steps}, in turns; seed {row['seed']}."


def split(row: Row, most: int | None = None) -> str | None:
    """Return the sizes into which dimensions are split, each once, and no more than so many."""
    sizes = [":".join(map(str, parts)) for parts in row["sizes"].values() if len(parts) > 1]
    distinct = list(dict.fromkeys(sizes))
    return "; ".join([*distinct[:most], *(["..."] if distinct[:most] != distinct else [])]) or None


def describe_link(row: Row) -> str:
    """Return the bandwidth to which the kernel limits the links of a row's workers."""
    return f"{row['link']} Mbit/s" if row["link"] else "loopback"


def per_link(link: Mapping[str, float]) -> str:
    """Return the measured bandwidth and latency of a link, up to the word that names a message."""
    return f"{link['bytes_per_second'] / 1e9:.2f} GB/s and {1e3 * link['latency_seconds']:.2g} ms per"


def losses_agree(rows: Iterable[Row], *, than: str = "the same in all ways") -> str:
    """Return the sentence on the losses by which all ways of a setting are compared."""
    error = max((row["loss_error"] for row in rows if "loss_error" in row), default=0.0)
    return f"The losses before the first and the second step are {than}, within {error:.1e} of their value."
