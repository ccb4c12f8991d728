"""Optional packages, which the extras of setup.py install. Each is imported at its first use."""

import contextlib
import importlib
import importlib.metadata
import importlib.util
import shlex
import sys
import time
import types
from typing import TYPE_CHECKING, Any, TextIO, TypeAlias

if TYPE_CHECKING:
    import tqdm

Bar: TypeAlias = "tqdm.tqdm | _NoBar"
LINE_SECONDS = 10.0  # between two lines of a log without bars


def import_package(name: str, *, extra: str, user: str) -> types.ModuleType:
    """Import a package, or a module of one, that an extra of mtf_hetero installs.

    Args:
      name: full name of the package or module.
      extra: name of the extra, such as "train".
      user: the feature that needs the package, for the message.

    Raises:
      ValueError: the package is not installed.
    """
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        missing = (error.name or name).partition(".")[0]
        raise ValueError(f"{user} needs the package {missing}; pip install {_requirements(extra)}") from error


def _requirements(extra: str) -> str:
    """Return what pip has to install for an extra, whether mtf_hetero came from an index, a wheel or a checkout."""
    try:
        lines = importlib.metadata.requires("mtf_hetero") or []
    except importlib.metadata.PackageNotFoundError:  # imported from a checkout that is not installed
        return f"'.[{extra}]' in the checkout"
    marked = (line.partition(";") for line in lines)
    return " ".join(shlex.quote(name.strip()) for name, _, marker in marked if f'extra == "{extra}"' in marker)


def has_progress_bars() -> bool:
    """Return whether tqdm, which shows the bars, is installed."""
    return importlib.util.find_spec("tqdm") is not None


def progress_bar(*, total: int | None, **options: Any) -> "Bar":
    """Return a tqdm bar, or one that shows nothing if tqdm is not installed.

    With `disable=None`, tqdm shows no bar if the standard error is no terminal. Then this bar writes a line every
    LINE_SECONDS.
    """
    if options.get("disable", False) is None and not sys.stderr.isatty():
        return _Lines(total, options.get("desc", ""), options.get("unit", "part"))
    if not has_progress_bars():
        return _NoBar(total)
    import tqdm

    return tqdm.tqdm(total=total, **options)


def write_above_bars(line: str, stream: TextIO | None = None) -> None:
    """Write a line above the bars of a terminal.

    Args:
      line: without its end.
      stream: where to; None: the standard output.
    """
    target = sys.stdout if stream is None else stream
    if has_progress_bars():
        import tqdm

        tqdm.tqdm.write(line, file=target)
    else:
        target.write(f"{line}\n")
    target.flush()


class _NoBar(contextlib.AbstractContextManager["_NoBar"]):
    """Stands in for a bar: it counts, and shows nothing."""

    def __init__(self, total: int | None) -> None:
        self.total, self.n = total, 0.0

    def __exit__(self, *_: object) -> None:
        pass

    def update(self, count: float = 1) -> None:
        """Count."""
        self.n += count

    def set_description(self, desc: str) -> None:
        """Set the text before the count."""


class _Lines(_NoBar):
    """A bar without a terminal: it writes a line every LINE_SECONDS at most."""

    def __init__(self, total: int | None, desc: str, unit: str) -> None:
        super().__init__(total)
        self._desc, self._unit = desc, unit
        self._written = time.monotonic()

    def update(self, count: float = 1) -> None:
        super().update(count)
        if time.monotonic() - self._written >= LINE_SECONDS:
            self._written = time.monotonic()
            of = "" if self.total is None else f" of {self.total:g}"
            sys.stderr.write(f"{self._desc}: {self._unit} {self.n:g}{of} done\n")
            sys.stderr.flush()

    def set_description(self, desc: str) -> None:
        self._desc = desc
