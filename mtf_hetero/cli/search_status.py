"""Show a search for a layout on a terminal: the seconds, the number of layouts, and the best layout so far."""

import contextlib
import math
import sys
import time

from mtf_hetero._support import extras
from mtf_hetero._support.units import seconds_text

_SEARCHING = "searching for a layout"


class SearchStatus(contextlib.AbstractContextManager["SearchStatus"]):
    """A line at the bottom of a terminal; in a log, one line at the end.

    Args:
      quiet: whether nothing is shown.
    """

    def __init__(self, *, quiet: bool = False) -> None:
        self._quiet, self._live = quiet, None
        self._begin, self._phase = time.monotonic(), _SEARCHING
        self._count, self._best, self._seconds = 0, math.inf, 0.0

    def __enter__(self) -> "SearchStatus":
        if not self._quiet and sys.stderr.isatty():
            live, console = (
                extras.import_package(f"rich.{module}", extra="plan", user="the progress of a search")
                for module in ("live", "console")
            )
            self._live = live.Live(
                get_renderable=self._line,
                console=console.Console(stderr=True, highlight=False),
                refresh_per_second=4,
                transient=True,
            )
            self._live.__enter__()
        return self

    def __exit__(self, *exception: object) -> None:
        if self._live is not None:
            self._live.__exit__(*exception)
        elif not self._quiet and exception[0] is None:
            sys.stderr.write(f"{self._count} layouts searched in {self._seconds:.0f} s\n")

    def report(self, count: int, seconds: float) -> None:
        """Record the number of layouts so far, and the fastest step."""
        self._count, self._best, self._seconds = count, seconds, time.monotonic() - self._begin

    def enter(self, phase: str) -> None:
        """Show another phase of the work, which has no reports."""
        self._phase = phase

    def _line(self) -> str:
        line = f"{self._phase}: {time.monotonic() - self._begin:.0f} s"
        if self._phase != _SEARCHING:
            return line
        best = "" if self._best == math.inf else f", best {seconds_text(self._best)} per step"
        return f"{line}, {self._count} layouts{best}"
