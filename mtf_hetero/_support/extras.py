"""Packages that the core does without: imported where they are used, so that none is missed before."""

import contextlib
import importlib
import importlib.util
import sys
import time
from typing import Any

LINE_SECONDS = 10.0  # between two lines that stand in for a bar


def import_package(name: str, *, extra: str, user: str) -> Any:
    """Imports a package, or a module of one, that an extra of mtf_hetero installs.

    Args:
      name: its full name.
      extra: the extra, "train".
      user: what needs it, for the message.

    Raises:
      ValueError: it is not installed.
    """
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        missing = (error.name or name).partition(".")[0]
        raise ValueError(f"{user} needs the package {missing}; pip install 'mtf_hetero[{extra}]'") from error


def has_progress_bars() -> bool:
    """Whether tqdm is installed, which shows them."""
    return importlib.util.find_spec("tqdm") is not None


def progress_bar(*, total: int | None, **options: Any) -> Any:
    """A tqdm bar, whose `update` counts; where tqdm is not installed, one that shows nothing.

    Where the standard error is no terminal, a bar with `disable=None`, which tqdm would not show, is a line now and
    then.

    Args:
      total: the count at its end.
      **options: as tqdm.tqdm has them.
    """
    if options.get("disable", False) is None and not sys.stderr.isatty():
        return _Lines(total, options.get("desc", ""), options.get("unit", "part"))
    if not has_progress_bars():
        return _NoBar(total)
    import tqdm

    return tqdm.tqdm(total=total, **options)


def write_above_bars(line: str, stream: Any = None) -> None:
    """Writes a line above the bars that a terminal shows.

    Args:
      line: without its end.
      stream: where to; None: the standard output.
    """
    stream = sys.stdout if stream is None else stream
    if has_progress_bars():
        import tqdm

        tqdm.tqdm.write(line, file=stream)
    else:
        stream.write(f"{line}\n")
    stream.flush()


class _NoBar(contextlib.AbstractContextManager["_NoBar"]):
    """Stands in for a bar: it counts, and shows nothing."""

    def __init__(self, total: int | None) -> None:
        self.total, self.n = total, 0.0

    def __exit__(self, *_: object) -> None:
        pass

    def update(self, count: float = 1) -> None:
        """Counts."""
        self.n += count

    def set_description(self, desc: str) -> None:
        """What is counted from now on."""


class _Lines(_NoBar):
    """Stands in for a bar where there is no terminal: a line, when some time has passed since the one before."""

    def __init__(self, total: int | None, desc: str, unit: str) -> None:
        super().__init__(total)
        self._desc, self._unit = desc, unit
        self._written = time.monotonic()

    def update(self, count: float = 1) -> None:
        super().update(count)
        if time.monotonic() - self._written >= LINE_SECONDS:
            self._written = time.monotonic()
            of = "" if self.total is None else f" of {self.total:g}"
            sys.stderr.write(f"{self._desc}: {self._unit} {self.n:g}{of} is done\n")
            sys.stderr.flush()

    def set_description(self, desc: str) -> None:
        self._desc = desc
