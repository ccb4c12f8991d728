"""Show on a terminal what a plan waits for: the seconds, and of a search the number of layouts and the best so far."""

import contextlib
import math
import os
import sys
import threading
import time

from mtf_hetero._support import extras
from mtf_hetero._support.units import seconds_text

_SILENT_SECONDS = 2.0  # before a log has a line on what is done


class SearchStatus(contextlib.AbstractContextManager["SearchStatus"]):
    """A line at the bottom of a terminal; in a log, a line for each phase that lasts, and one at the end.

    It has a file descriptor of its own, because the descriptor 2 is captured while TensorFlow is imported.
    """

    def __init__(self, phase: str, *, quiet: bool = False) -> None:
        self._quiet, self._live = quiet, None
        self._stream = sys.stderr
        self._timer: threading.Timer | None = None
        self._begin, self._phase = time.monotonic(), phase
        self._count, self._best, self._seconds = 0, math.inf, 0.0
        self._is_searching = False

    def __enter__(self) -> "SearchStatus":
        with contextlib.suppress(OSError, ValueError):  # no file, as in a notebook, or closed
            self._stream = os.fdopen(os.dup(sys.stderr.fileno()), "w", buffering=1)
        if not self._quiet and sys.stderr.isatty():
            live, console = (
                extras.import_package(f"rich.{module}", extra="plan", user="the progress of a search")
                for module in ("live", "console")
            )
            self._live = live.Live(
                get_renderable=self._line,
                console=console.Console(file=self._stream, highlight=False),
                refresh_per_second=4,
                transient=True,
            )
            self._live.__enter__()
        self.enter(self._phase)
        return self

    def __exit__(self, *exception: object) -> None:
        self._stop_timer()
        if self._live is not None:
            self._live.__exit__(*exception)
        elif not self._quiet and exception[0] is None:
            self._stream.write(f"{self._count} layouts searched in {self._seconds:.0f} s\n")
        if self._stream is not sys.stderr:
            self._stream.close()

    def report(self, count: int, seconds: float) -> None:
        """Record the number of layouts so far, and the fastest step."""
        self._count, self._best, self._seconds = count, seconds, time.monotonic() - self._begin
        self._is_searching = True

    def enter(self, phase: str) -> None:
        """Show another phase of the work."""
        self._stop_timer()
        self._begin, self._phase, self._is_searching = time.monotonic(), phase, False
        if self._live is None and not self._quiet:
            self._timer = threading.Timer(_SILENT_SECONDS, lambda: self._stream.write(f"{phase} ...\n"))
            self._timer.daemon = True
            self._timer.start()

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _line(self) -> str:
        line = f"{self._phase}: {time.monotonic() - self._begin:.0f} s"
        if not self._is_searching:
            return line
        best = "" if self._best == math.inf else f", best {seconds_text(self._best)} per step"
        return f"{line}, {self._count} layouts{best}"
