from collections.abc import Sequence

from mesh_tensorflow.ops import Operand, Operation, Tensor, Variable

class Optimizer:
    def apply_grads(self, grads: Sequence[Tensor | None], variables: Sequence[Variable]) -> list[Operation]: ...

class SgdOptimizer(Optimizer):
    def __init__(self, learning_rate: Operand) -> None: ...
    @property
    def lr(self) -> Operand: ...

class MomentumOptimizer(Optimizer):
    def __init__(self, learning_rate: Operand, momentum: Operand) -> None: ...
    @property
    def lr(self) -> Operand: ...
    @property
    def momentum(self) -> Operand: ...

class AdamWeightDecayOptimizer(Optimizer):
    def __init__(
        self,
        learning_rate: Operand,
        weight_decay_rate: float = 0.0,
        beta_1: float = 0.9,
        beta_2: float = 0.999,
        epsilon: float = 1e-6,
        exclude_from_weight_decay: Sequence[str] | None = None,
    ) -> None: ...

class AdafactorOptimizer(Optimizer):
    def __init__(
        self,
        multiply_by_parameter_scale: bool = True,
        learning_rate: Operand | None = None,
        decay_rate: Operand | None = None,
        beta1: float = 0.0,
        clipping_threshold: float | None = 1.0,
        factored: bool = True,
        epsilon1: float = 1e-30,
        epsilon2: float = 1e-3,
        min_dim_size_to_factor: int = 128,
        stacked_dim_names: Sequence[str] | None = None,
        exclude_from_parameter_scale: Sequence[str] | None = None,
    ) -> None: ...
