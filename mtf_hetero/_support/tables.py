"""Format tables as lines of text."""

from collections.abc import Iterable, Sequence


def lines(
    rows: Iterable[Sequence[str]], align: str, *, gap: str = "  ", indent: str = "", least: Sequence[int] = ()
) -> list[str]:
    """Return rows of cells as lines. Each column is as wide as its widest cell, and a row may lack its last cells.

    Args:
      rows: of cells.
      align: "<" or ">" for each column.
      gap: between columns.
      indent: before the first.
      least: the minimum widths of the first columns.

    Example:
      >>> lines([("layer", "ms"), ("conv1", "12.5")], "<>")
      ['layer    ms', 'conv1  12.5']
    """
    rows = list(rows)
    formats = []
    for column, side in enumerate(align):
        widths = [*(len(row[column]) for row in rows if column < len(row)), *least[column : column + 1]]
        formats.append(f"{side}{max(widths, default=0)}")
    return [(indent + gap.join(map(format, row, formats))).rstrip() for row in rows]
