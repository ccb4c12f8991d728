"""Run calls in daemon threads, because TensorFlow's calls ignore signals while they wait for a lost worker."""

import atexit
import concurrent.futures
import ctypes
import threading
import time
import weakref
from collections.abc import Callable
from typing import TypeVar

_Result = TypeVar("_Result")
_END_SECONDS = 5.0  # for all threads together; one that waits for a lost worker never ends
_begun: "weakref.WeakSet[threading.Thread]" = weakref.WeakSet()


def begin(work: Callable[[], _Result], name: str) -> "concurrent.futures.Future[_Result]":
    """Call a function in a daemon thread; returns the future of its result, or of the error that it raises.

    When Python ends, the function is interrupted with SystemExit at its next line of Python.
    """
    future: concurrent.futures.Future[_Result] = concurrent.futures.Future()

    def run() -> None:
        try:
            future.set_result(work())
        except BaseException as error:
            future.set_exception(error)

    thread = threading.Thread(target=run, name=name, daemon=True)
    _begun.add(thread)
    thread.start()
    return future


@atexit.register
def end_all() -> None:
    """Interrupt the threads that are left, and wait for them for some seconds.

    A call of TensorFlow that returns to Python while Python ends aborts the process. A call that waits for a lost
    worker does not return.
    """
    left = [thread for thread in _begun if thread.is_alive()]
    for thread in left:
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident or 0), ctypes.py_object(SystemExit))
    end = time.monotonic() + _END_SECONDS
    for thread in left:
        thread.join(max(end - time.monotonic(), 0.0))
