from collections.abc import Iterable
from typing import Any

from tensorflow.compat.v1 import Graph, Tensor, Variable

class FuncGraph(Graph):
    name: str
    inputs: list[Tensor]
    outputs: list[Tensor]
    structured_outputs: Any
    @property
    def captures(self) -> Iterable[tuple[Tensor, Tensor]]: ...  # from outside, and within
    @property
    def variables(self) -> tuple[Variable, ...]: ...
