"""Python's search for cycles that nobody refers to, which looks at all objects again and again while many are made."""

import contextlib
import gc
from collections.abc import Iterator


@contextlib.contextmanager
def uncollected() -> Iterator[None]:
    """While this lasts, cycles are not searched for: a third of what a plan for many devices takes.

    Also a decorator. What is in no cycle is freed at once, as ever.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
