"""How a binary is left: by a signal at any moment, and past the threads that TensorFlow leaves behind."""

import atexit
import contextlib
import os
import signal
import sys
import threading
from types import FrameType
from typing import Any, NoReturn

STOPS = (signal.SIGHUP, signal.SIGTERM)
EXIT_CODES = tuple(128 + number for number in STOPS)


class StopOnSignal:
    """Raises SystemExit, with 128 + the signal's number, where SIGHUP or SIGTERM arrives. A context manager.

    mtf_hetero.StopOnSignalHook takes its place for as long as there are steps to finish. A signal that the process
    ignores, as under nohup, stays ignored.
    """

    def __init__(self) -> None:
        self._previous: dict[int, Any] = {}
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
        """Raises again what was raised where Python loses exceptions, in a finalizer for instance."""
        if self._arrived:
            raise SystemExit(128 + self._arrived[0])

    def _handle(self, number: int, frame: FrameType | None) -> None:
        self._arrived.append(number)
        self.check()


def say(text: str) -> None:
    """Prints a line on the standard error, where that is still there: after SIGHUP, the terminal is gone."""
    with contextlib.suppress(OSError):
        print(text, file=sys.stderr, flush=True)


def leave(code: int) -> NoReturn:
    """Ends the process.

    A call of TensorFlow's that waited for a lost worker may return while Python ends, which aborts the process. So
    Python does not end: what it does at its exit is done here.
    """
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    os._exit(code)
