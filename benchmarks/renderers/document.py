"""The form of a report: conclusions, picture, tables, provenance; in Markdown, and in lines for a terminal."""

import dataclasses
import pathlib
import textwrap
from collections.abc import Callable, Iterable, Sequence

from benchmarks.renderers.tables import Table, bullets

MOST_CONCLUSIONS = 4  # beside the line on where and when the rows were measured


@dataclasses.dataclass(frozen=True)
class Details:
    """Parts that a reader of the Markdown unfolds, and that a terminal does not show."""

    summary: str
    parts: Sequence["Part"]


Part = str | Table | Details  # a string is a paragraph, a list or a heading ("## ...") of Markdown


@dataclasses.dataclass(frozen=True)
class Report:
    """A report on the rows of a case.

    Args:
      conclusions: sentences with the figures that matter, computed from the rows.
      parts: tables, headings and paragraphs.
      picture: the text that stands for the picture.
      draw: draws the picture into a PNG; None where the rows have nothing to draw.
    """

    conclusions: Sequence[str]
    parts: Sequence[Part]
    picture: str = ""
    draw: Callable[[pathlib.Path], None] | None = None

    def __post_init__(self) -> None:
        if len(self.conclusions) > MOST_CONCLUSIONS:
            raise ValueError(f"{len(self.conclusions)} conclusions; a report begins with {MOST_CONCLUSIONS} at most")

    def as_markdown(self, title: str, *, name: str, measured: str, provenance: Part) -> str:
        """Return the whole file: conclusions, picture, parts, and where the rows come from."""
        picture = [f"![{self.picture}]({name}.png)"] if self.draw else []
        parts = [f"# {title}", bullets([*self.conclusions, measured]), *picture, *self.parts]
        return "\n\n".join(_as_markdown([*parts, "## Provenance", provenance])) + "\n"

    def as_text(self, width: int = 80) -> str:
        """Return the tables with their headings and notes, and the conclusions last, in lines of at most a width."""
        parts = [_as_text(part, width) for part in _without_prose(self.parts)]
        conclusions = [_as_text(bullets(self.conclusions), width)] if self.conclusions else []
        return "\n\n".join([*parts, *conclusions])


def _without_prose(parts: Sequence[Part]) -> list[Part]:
    """Return the tables, the lists, and the headings above them."""
    chosen: list[Part] = []
    for part in reversed(parts):
        is_list = isinstance(part, str) and part.startswith("* ")
        if isinstance(part, Table) or is_list or (_level(part) and chosen and _level(part) != _level(chosen[-1])):
            chosen.append(part)
    return chosen[::-1]


def _level(part: Part) -> int:
    """Return the level of a heading of Markdown; 0 for anything else."""
    return len(part) - len(part.lstrip("#")) if isinstance(part, str) else 0


def _as_markdown(parts: Iterable[Part]) -> Iterable[str]:
    for part in parts:
        if isinstance(part, Details):
            yield f'<details markdown="1">\n<summary>{part.summary}</summary>'  # the site reads Markdown in it
            yield from _as_markdown(part.parts)
            yield "</details>"
        elif text := part.as_markdown() if isinstance(part, Table) else part:
            yield text


def _as_text(part: Part, width: int) -> str:
    if isinstance(part, Table):
        return part.as_text(width)
    return "\n".join(_wrap(line.lstrip("# "), width) for line in str(part).splitlines())


def _wrap(text: str, width: int) -> str:
    indent = "  " if text.startswith("* ") else ""
    return textwrap.fill(text.replace("`", "").replace("**", ""), width, subsequent_indent=indent)
