"""What the runner asks of a case."""

import abc
import dataclasses
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, ClassVar

import tqdm

from benchmarks.rows import Writer


@dataclasses.dataclass(frozen=True)
class Case(abc.ABC):
    """A measurement behind one table or figure. Its fields are its settings.

    Args:
      seed: of initial values, data, and the order in which things are measured.
      toy: whether to try it out on something small, which no report shows.
    """

    seed: int = 1
    toy: bool = False

    name: ClassVar[str]
    summary: ClassVar[str]

    @abc.abstractmethod
    def variants(self) -> tuple[str, ...]:
        """Names of the parts that can be measured alone."""

    @abc.abstractmethod
    def measure(self, writer: Writer, variants: tuple[str, ...]) -> None:
        """Measures these variants, and writes a row as soon as it is known."""

    @abc.abstractmethod
    def make_toy(self) -> "Case":
        """The same in small, for a trial of seconds."""

    def check(self) -> None:
        """Raises ValueError for a setting that is out of range."""
        for name, least in (("repeats", 1), ("steps", 1), ("warmup", 0), ("seed", 0)):
            value = getattr(self, name, None)
            if value is not None and value < least:
                raise ValueError(f"--{name} is {value}; it must be a whole number of at least {least}")


@contextmanager
def progress(total: int, unit: str) -> Iterator[Any]:
    """A progress bar on the standard error, where that is a terminal."""
    with tqdm.tqdm(total=total, unit=f" {unit}", dynamic_ncols=True, disable=None) as bar:
        yield bar
