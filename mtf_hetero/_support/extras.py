"""Packages that the core does without: imported where they are used, so that none is missed before."""

import contextlib
import importlib
import importlib.util
from typing import Any


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

    Args:
      total: the count at its end.
      **options: as tqdm.tqdm has them.
    """
    if not has_progress_bars():
        return _NoBar(total)
    import tqdm

    return tqdm.tqdm(total=total, **options)


class _NoBar(contextlib.AbstractContextManager["_NoBar"]):
    """Stands in for a bar: it counts, and shows nothing."""

    def __init__(self, total: int | None) -> None:
        self.total, self.n = total, 0.0

    def __exit__(self, *_: object) -> None:
        pass

    def update(self, count: float = 1) -> None:
        """Counts."""
        self.n += count
