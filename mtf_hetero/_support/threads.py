"""Run calls in daemon threads, because TensorFlow's calls ignore signals while they wait for a lost worker."""

import concurrent.futures
import threading
from collections.abc import Callable
from typing import TypeVar

_Result = TypeVar("_Result")


def begin(work: Callable[[], _Result], name: str) -> "concurrent.futures.Future[_Result]":
    """Call a function in a daemon thread; returns the future of its result, or of the error that it raises."""
    future: concurrent.futures.Future[_Result] = concurrent.futures.Future()

    def run() -> None:
        try:
            future.set_result(work())
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=run, name=name, daemon=True).start()
    return future
