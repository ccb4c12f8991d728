"""Delay Ctrl-C until two actions that belong together are complete."""

import contextlib
import signal
import threading
import types
from collections.abc import Iterator


@contextlib.contextmanager
def defer() -> Iterator[None]:
    """Hold back Ctrl-C until the end of the context.

    Python cannot interrupt a step of TensorFlow anyway. Without this, KeyboardInterrupt is raised as soon as the step
    returns, and its results are lost although the devices have them.
    """
    handler = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(handler):
        yield
        return
    arrived: list[tuple[int, types.FrameType | None]] = []
    signal.signal(signal.SIGINT, lambda number, frame: arrived.append((number, frame)))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)
        if arrived:
            handler(*arrived[0])
