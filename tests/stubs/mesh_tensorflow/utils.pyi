from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any

SCALAR_SUMMARIES_COLLECTION_KEY: str

def outside_all_rewrites() -> AbstractContextManager[None]: ...

class BalancedVariablePlacer:
    def __init__(self, devices: Sequence[str], init_usage: Sequence[int] | None = None) -> None: ...
    def device_function(self, var: Any) -> str: ...
