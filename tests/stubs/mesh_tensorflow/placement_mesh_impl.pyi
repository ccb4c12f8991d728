from collections.abc import Callable, Sequence
from typing import Any, Self

import tensorflow.compat.v1 as tf
from mesh_tensorflow.ops import LaidOutVariable, MeshImpl, RulesLike, ShapeLike, Variable

class PlacementMeshImpl(MeshImpl):
    # Subclasses have classes of their own
    class LaidOutTensor:
        def __init__(self, tensor_list: Sequence[tf.Tensor | int]) -> None: ...
        @property
        def tensor_list(self) -> list[tf.Tensor]: ...  # or numbers of processors, for slicewise alone
        @property
        def all_slices(self) -> list[tf.Tensor]: ...
        @property
        def slice_shape(self) -> list[int]: ...
        def to_laid_out_tensor(self) -> Self: ...

    LaidOutVariable: Callable[[Variable, Any], LaidOutVariable]  # from a variable, and the implementation

    def __init__(self, shape: ShapeLike, layout: RulesLike, devices: Sequence[str]) -> None: ...
    @property
    def devices(self) -> list[str]: ...
