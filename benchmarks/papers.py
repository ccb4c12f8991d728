"""Read the papers' figures beside ours from docs/reproduction.md, for the end of a run."""

import re
import textwrap

from benchmarks.rows import ROOT

PAGE = ROOT / "docs" / "reproduction.md"
_COMMAND = re.compile(r"`python -m benchmarks\.run (\w+)([^`]*)`")
_ONLY = re.compile(r"--only=(\S+)")


def compare(case: str, only: str | None) -> str:
    """Return the rows of the page that a command reproduces, as text; "": there are none.

    Args:
      case: of the command.
      only: its --only; None: all variants, so all rows of the case.
    """
    blocks = []
    for line in PAGE.read_text(encoding="utf-8").splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if len(cells) == 6 and _reproduces(cells[1], case, only):
            result, _, _, paper, ours, difference = (
                re.sub(r"[*`]|\[([^]]*)\]\([^)]*\)", r"\1", cell) for cell in cells
            )
            facts = [f"paper: {paper}", f"ours, stored: {ours}", *([] if difference == "-" else [f"why: {difference}"])]
            blocks.append("\n".join([result, *(textwrap.indent(textwrap.fill(fact, 76), "  ") for fact in facts)]))
    return "\n".join([f"The papers' figures ({PAGE.relative_to(ROOT)}):", *blocks]) if blocks else ""


def _reproduces(commands: str, case: str, only: str | None) -> bool:
    """Return whether one of a cell's commands measures the given variants, or a part of them."""
    found = [(name, _ONLY.search(flags)) for name, flags in _COMMAND.findall(commands)]
    return any(name == case and (only is None or (part is not None and only in part[1])) for name, part in found)
