from collections.abc import Sequence
from typing import Any

from tensorflow.compat.v1 import Tensor, TensorLike

def __getattr__(name: str) -> Any: ...
def relu(features: TensorLike, name: str | None = None) -> Tensor: ...
def softmax(logits: TensorLike, axis: int | None = None, name: str | None = None, dim: int | None = None) -> Tensor: ...
def bias_add(
    value: TensorLike, bias: TensorLike, data_format: str | None = None, name: str | None = None
) -> Tensor: ...
def conv2d(
    input: TensorLike,
    filter: TensorLike = None,
    strides: Any = None,
    padding: Any = None,
    use_cudnn_on_gpu: bool = True,
    data_format: str = "NHWC",
    dilations: Sequence[int] = ...,
    name: str | None = None,
    filters: TensorLike = None,
) -> Tensor: ...
def conv3d(
    input: TensorLike,
    filter: TensorLike = None,
    strides: Any = None,
    padding: Any = None,
    data_format: str = "NDHWC",
    dilations: Sequence[int] = ...,
    name: str | None = None,
    filters: TensorLike = None,
) -> Tensor: ...
def conv2d_backprop_input(
    input_sizes: TensorLike,
    filter: TensorLike = None,
    out_backprop: TensorLike = None,
    strides: Any = None,
    padding: Any = None,
    use_cudnn_on_gpu: bool = True,
    data_format: str = "NHWC",
    dilations: Sequence[int] = ...,
    name: str | None = None,
    filters: TensorLike = None,
) -> Tensor: ...
def conv2d_backprop_filter(
    input: TensorLike,
    filter_sizes: TensorLike,
    out_backprop: TensorLike,
    strides: Any,
    padding: Any,
    use_cudnn_on_gpu: bool = True,
    data_format: str = "NHWC",
    dilations: Sequence[int] = ...,
    name: str | None = None,
) -> Tensor: ...
