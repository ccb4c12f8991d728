from collections.abc import Callable, Sequence
from typing import Any

import tensorflow.compat.v1 as tf
from mesh_tensorflow.ops import Dimension, Mesh, Shape, Tensor, VariableDType

def dense(
    x: Tensor,
    new_dims: Dimension | Sequence[Dimension],
    reduced_dims: Sequence[Dimension] | None = None,
    expert_dims: Sequence[Dimension] | None = None,
    use_bias: bool = True,
    activation: Callable[[Tensor], Tensor] | None = None,
    master_dtype: tf.DType = ...,
    slice_dtype: tf.DType = ...,
    variable_dtype: VariableDType | None = None,
    kernel_initializer: Any = None,
    kernel_weights: Tensor | None = None,
    name: str | None = None,
) -> Tensor: ...

class DenseInitializer:
    def __call__(self, reduced_dims: Sequence[Dimension], new_dims: Sequence[Dimension]) -> Any: ...

class VarianceScalingInitializer(DenseInitializer):
    def __init__(self, scale: float = 1.0, mode: str = "fan_in", distribution: str = "normal") -> None: ...

class _Conv:
    def __call__(
        self,
        x: Tensor,
        output_dim: Dimension,
        filter_size: Sequence[int] = ...,
        strides: Sequence[int] = ...,
        padding: str = "SAME",
        filter_initializer: Any = None,
        variable_dtype: VariableDType | None = None,
        name: str | None = None,
    ) -> Tensor: ...

conv2d: _Conv
conv3d: _Conv
conv2d_transpose: _Conv
conv3d_transpose: _Conv

def layer_norm(x: Tensor, dim: Dimension, epsilon: float = 1e-6, name: str = "layer_prepostprocess") -> Tensor: ...
def batch_norm(
    x: Tensor,
    is_training: bool,
    momentum: float,
    epsilon: float = 1e-9,
    dims_idx_start: int = 0,
    dims_idx_end: int = -1,
    init_zero: bool = False,
    name: str | None = None,
) -> tuple[Tensor, list[Any]]: ...
def softmax_cross_entropy_with_logits(
    logits: Tensor, targets: Tensor, vocab_dim: Dimension, z_loss: float = 0.0
) -> Tensor: ...
def sigmoid_cross_entropy_with_logits(logits: Tensor, targets: Tensor) -> Tensor: ...
def dense_relu_dense(
    x: Tensor,
    hidden_channels: Dimension,
    is_training: bool,
    dropout: float = 0.0,
    dropout_broadcast_dims: Sequence[Dimension] | None = None,
    master_dtype: tf.DType = ...,
    slice_dtype: tf.DType = ...,
    name: str | None = None,
) -> Tensor: ...
def multihead_attention(
    query_antecedent: Tensor,
    memory_antecedent: Tensor | None,
    mask: Tensor | None,
    kv_channels: Dimension,
    heads: Dimension,
    is_training: bool,
    dropout: float = 0.0,
    dropout_broadcast_dims: Sequence[Dimension] | None = None,
    master_dtype: tf.DType = ...,
    slice_dtype: tf.DType = ...,
    name: str = "multihead_attention",
) -> Tensor: ...
def attention_mask_autoregressive(query_pos: Tensor, dtype: tf.DType = ...) -> Tensor: ...
def embedding_weights(
    mesh: Mesh,
    vocab_dim: Dimension,
    output_dim: Dimension | Sequence[Dimension] | Shape,
    variable_dtype: VariableDType,
    name: str = "embedding",
    ensemble_dim: Dimension | None = None,
    initializer: Any = None,
) -> Tensor: ...
def embedding(
    indices: Tensor,
    vocab_dim: Dimension,
    output_dim: Dimension | Sequence[Dimension] | Shape,
    variable_dtype: VariableDType,
    name: str = "embedding",
) -> Tensor: ...

class _Pool:
    def __call__(self, x: Tensor, ksize: Sequence[int] = ..., name: str = ...) -> Tensor: ...

max_pool2d: _Pool
max_pool3d: _Pool
avg_pool2d: _Pool
avg_pool3d: _Pool
