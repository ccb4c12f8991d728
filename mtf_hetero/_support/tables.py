"""Format tables as lines of text."""

from collections.abc import Iterable, Sequence


def lines(
    rows: Iterable[Sequence[str]], align: str, *, gap: str = "  ", indent: str = "", least: Sequence[int] = ()
) -> list[str]:
    """Return rows of cells as lines. Each column is as wide as its widest cell, and a row may lack its last cells.

    A cell may have several lines. Those of the first row end beside each other, and those of others begin so.

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
    grid = [[cell.split("\n") for cell in row] for row in rows]
    formats = []
    for column, side in enumerate(align):
        cells = (row[column] for row in grid if column < len(row))
        widths = [*(len(line) for cell in cells for line in cell), *least[column : column + 1]]
        formats.append(f"{side}{max(widths, default=0)}")
    shown = []
    for number, row in enumerate(grid):
        height = max(map(len, row), default=1)
        blanks = [[""] * (height - len(cell)) for cell in row]
        tall = [[*blank, *cell] if number == 0 else [*cell, *blank] for cell, blank in zip(row, blanks, strict=True)]
        shown += [(indent + gap.join(map(format, line, formats))).rstrip() for line in zip(*tall, strict=True)]
    return shown
