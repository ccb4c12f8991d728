from collections.abc import Callable, Sequence

import tensorflow.compat.v1 as tf

class SaveSpec:
    name: str
    slice_spec: str
    dtype: tf.DType
    device: str | None
    def __init__(
        self,
        tensor: tf.Tensor | Callable[[], tf.Tensor],
        slice_spec: str,
        name: str,
        dtype: tf.DType | None = None,
        device: str | None = None,
    ) -> None: ...

class SaveableObject:
    op: tf.Variable | tf.Tensor | Callable[[], tf.Tensor]
    specs: Sequence[SaveSpec]
    name: str
    def __init__(
        self, op: tf.Variable | tf.Tensor | Callable[[], tf.Tensor], specs: Sequence[SaveSpec], name: str
    ) -> None: ...
    @property
    def device(self) -> str: ...
    def restore(
        self, restored_tensors: Sequence[tf.Tensor], restored_shapes: Sequence[tf.TensorShape] | None
    ) -> tf.Operation: ...
