from collections.abc import Sequence

SCALAR_SUMMARIES_COLLECTION_KEY: str

class BalancedVariablePlacer:
    def __init__(self, devices: Sequence[str], init_usage: Sequence[int] | None = None) -> None: ...
