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
        """The whole file: conclusions, picture, parts, and where the rows come from."""
        picture = [f"![{self.picture}]({name}.png)"] if self.draw else []
        parts = [f"# {title}", bullets([*self.conclusions, measured]), *picture, *self.parts]
        return "\n\n".join(_as_markdown([*parts, "## Provenance", provenance])) + "\n"

    def as_text(self, width: int = 80) -> str:
        """The tables with their headings, and the conclusions last, in lines of at most a width."""
        parts = [_as_text(part, width) for part in _tables_with_headings(self.parts)]
        notes = [_wrap(note, width, initial="* ") for note in self.conclusions]
        return "\n\n".join([*parts, *(["\n".join(notes)] if notes else [])])


def _tables_with_headings(parts: Sequence[Part]) -> list[Part]:
    """The tables, and the headings above tables."""
    chosen: list[Part] = []
    for part in reversed(parts):
        if isinstance(part, Table) or (_level(part) and chosen and _level(part) != _level(chosen[-1])):
            chosen.append(part)
    return chosen[::-1]


def _level(part: Part) -> int:
    """The level of a heading of Markdown; 0 for anything else."""
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
    return part.as_text(width) if isinstance(part, Table) else _wrap(str(part).lstrip("# "), width)


def _wrap(text: str, width: int, initial: str = "") -> str:
    text = text.replace("`", "").replace("**", "")
    return "\n".join(textwrap.wrap(text, width, initial_indent=initial, subsequent_indent=" " * len(initial)))
