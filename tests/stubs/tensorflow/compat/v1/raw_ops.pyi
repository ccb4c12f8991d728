"""Functions of operations, of which each returns its outputs: a tensor, or a named tuple of several."""

from collections.abc import Callable
from typing import Any

def __getattr__(name: str) -> Callable[..., Any]: ...
