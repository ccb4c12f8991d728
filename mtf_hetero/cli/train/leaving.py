"""End a program after a signal at any moment."""

import contextlib
import signal
import sys
import threading
from collections.abc import Callable
from types import FrameType

Handler = Callable[[int, FrameType | None], object] | int | None  # a handler of the module signal
STOPS = (signal.SIGHUP, signal.SIGTERM)
EXIT_CODES = tuple(128 + number for number in STOPS)  # as a shell reports a signal


class StopOnSignal:
    """Context manager that raises SystemExit, with 128 + the signal's number, when SIGHUP or SIGTERM arrives.

    mtf_hetero.StopOnSignalHook replaces it during the steps. A signal that the process ignores, as under nohup, stays
    ignored.
    """

    def __init__(self) -> None:
        self._previous: dict[int, Handler] = {}
        self._arrived: list[int] = []

    def __enter__(self) -> "StopOnSignal":
        if threading.current_thread() is threading.main_thread():
            for number in STOPS:
                if signal.getsignal(number) not in (signal.SIG_IGN, None):
                    self._previous[number] = signal.signal(number, self._handle)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def check(self) -> None:
        """Raise an exception again that Python has dropped, in a finalizer for instance."""
        if self._arrived:
            raise SystemExit(128 + self._arrived[0])

    def _handle(self, number: int, frame: FrameType | None) -> None:
        self._arrived.append(number)
        self.check()


def say(text: str) -> None:
    """Print a line on the standard error, if it still exists: after SIGHUP the terminal is gone."""
    with contextlib.suppress(OSError):
        sys.stderr.write(f"{text}\n")  # at once: another process may write there too
        sys.stderr.flush()
