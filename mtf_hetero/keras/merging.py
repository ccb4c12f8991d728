"""Layers of several inputs, and how tensors of other names and fewer dimensions are brought together."""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from mtf_hetero._compat import mtf, tf
from mtf_hetero.keras import dims as naming
from mtf_hetero.keras._keras import keras
from mtf_hetero.keras.call import Call
from mtf_hetero.keras.registry import register


def together(call: Call, xs: Sequence[mtf.Tensor]) -> tuple[list[mtf.Tensor], mtf.Shape]:
    """Tensors with the same names for the dimensions that NumPy would put upon each other, and the shape of the result.

    The names are those of the largest, but for its last: that is the layer's, so that a layout can choose for it. A
    tensor that is to be repeated along a dimension lacks it.
    """
    rank = max(x.shape.ndims for x in xs)
    padded = [[None] * (rank - x.shape.ndims) + list(x.shape.dims) for x in xs]
    largest = max(range(len(xs)), key=lambda i: xs[i].shape.size)
    result = []
    for column in range(rank):
        found = [padded[i][column] for i in (largest, *range(len(xs)))]
        dims = [dim for dim in found if dim is not None]
        result.append(next((dim for dim in dims if dim.size > 1), dims[0]))
    if rank > 1:
        result[-1] = call.dim("channels", result[-1].size)
    names = naming.unique(dim.name for dim in result)
    result = [mtf.Dimension(name, dim.size) for name, dim in zip(names, result, strict=True)]
    named = []
    for x, dims in zip(xs, padded, strict=True):
        kept = [new for dim, new in zip(dims, result, strict=True) if dim is not None and dim.size == new.size]
        named.append(mtf.reshape(x, kept))
    return named, mtf.Shape(result)


def aligned(call: Call, x: mtf.Tensor, array: Any) -> Any:
    """An array that does not change, as mtf's arithmetic with x takes it: a number, or an mtf.Tensor of x's dimensions.

    Raises:
      ValueError: NumPy would make the result larger than x.
    """
    array = np.asarray(array)
    if array.size == 1:
        return float(array.reshape([])) if x.dtype.is_floating else array.reshape([]).item()
    dims = x.shape.dims[x.shape.ndims - array.ndim :] if array.ndim <= x.shape.ndims else []
    if any(size not in (1, dim.size) for size, dim in zip(array.shape, dims, strict=False)) or not dims:
        raise ValueError(
            f"layer {call.layer.name!r} combines {x.shape.to_string} with an array of shape {list(array.shape)}, which "
            "would make it larger; repeat the input first"
        )
    kept = [dim for dim, size in zip(dims, array.shape, strict=True) if size == dim.size]
    array = array.reshape([dim.size for dim in kept])
    return mtf.import_tf_tensor(x.mesh, tf.constant(array.astype(x.dtype.as_numpy_dtype)), mtf.Shape(kept))


def combined(call: Call, values: Sequence[Any], combine: Callable[..., mtf.Tensor]) -> mtf.Tensor:
    """A function of two values after another, mtf.Tensors and what NumPy knows, as Keras repeats and casts them.

    Args:
      call: of the layer.
      values: of which one at least is an mtf.Tensor.
      combine: of two of them and the keyword `output_shape`.
    """
    tensors = [x for x in values if isinstance(x, mtf.Tensor)]
    dtype = _common(tensors)
    tensors, shape = together(call, [mtf.cast(x, dtype) for x in tensors])
    if len(tensors) == 1:
        (x,) = tensors
        values = [x if isinstance(v, mtf.Tensor) else aligned(call, x, v) for v in values]
    else:
        rest = iter(tensors)
        values = [next(rest) if isinstance(v, mtf.Tensor) else aligned(call, tensors[0], v) for v in values]
    return functools.reduce(functools.partial(combine, output_shape=shape), values)


def _common(tensors: Sequence[mtf.Tensor]) -> tf.DType:
    """The type of the result, as Keras has it of tensors of two types."""
    names = [x.dtype.name for x in tensors]
    return tf.as_dtype(names[0] if len(set(names)) == 1 else keras.backend.result_type(*names))


def add(x: Any, y: Any, output_shape: mtf.Shape) -> mtf.Tensor:
    """x + y."""
    return mtf.add(x, y, output_shape=output_shape)


def multiply(x: Any, y: Any, output_shape: mtf.Shape) -> mtf.Tensor:
    """x y."""
    return mtf.multiply(x, y, output_shape=output_shape)


def subtract(x: Any, y: Any, output_shape: mtf.Shape) -> mtf.Tensor:
    """x - y."""
    return mtf.sub(x, y, output_shape=output_shape)


def maximum(x: Any, y: Any, output_shape: mtf.Shape) -> mtf.Tensor:
    """The larger one. As in TensorFlow, the first has the gradient where they are equal."""
    return _chosen(mtf.greater_equal, x, y, output_shape)


def minimum(x: Any, y: Any, output_shape: mtf.Shape) -> mtf.Tensor:
    """The smaller one."""
    return _chosen(mtf.less_equal, x, y, output_shape)


def _chosen(compare: Callable[..., mtf.Tensor], x: Any, y: Any, output_shape: mtf.Shape) -> mtf.Tensor:
    tensor = x if isinstance(x, mtf.Tensor) else y
    first = mtf.stop_gradient(mtf.cast(compare(x, y, output_shape=output_shape), tensor.dtype))
    return mtf.multiply(first, x, output_shape=output_shape) + mtf.multiply(1 - first, y, output_shape=output_shape)


def _merge(call: Call, xs: Sequence[mtf.Tensor], *, combine: Callable[..., mtf.Tensor]) -> mtf.Tensor:
    return combined(call, xs, combine)


for _layer, _combine in (
    (keras.layers.Add, add),
    (keras.layers.Multiply, multiply),
    (keras.layers.Subtract, subtract),
    (keras.layers.Maximum, maximum),
    (keras.layers.Minimum, minimum),
):
    register(_layer)(functools.partial(_merge, combine=_combine))


@register(keras.layers.Average)
def _average(call: Call, xs: Sequence[mtf.Tensor]) -> mtf.Tensor:
    return combined(call, xs, add) * (1.0 / len(xs))


def concatenate(call: Call, xs: Sequence[mtf.Tensor], axis: int) -> mtf.Tensor:
    """Tensors one after another along a dimension, which is the layer's: NAME/channels, or what it was called."""
    rank = xs[0].shape.ndims
    axis %= rank
    names = list(xs[0].shape.dimension_names)
    names[axis] = f"{call.name}/{'channels' if axis == rank - 1 else naming.local(xs[0].shape.dims[axis])}"
    names = naming.unique(names)
    return mtf.concat([naming.renamed(x, names) for x in xs], names[axis])


@register(keras.layers.Concatenate)
def _concatenate(call: Call, xs: Sequence[mtf.Tensor]) -> mtf.Tensor:
    return concatenate(call, xs, call.layer.axis)


@register("keras.src.applications.inception_resnet_v2.CustomScaleLayer")
def _scaled_sum(call: Call, xs: Sequence[mtf.Tensor]) -> mtf.Tensor:
    x, y = xs
    return combined(call, [x, y * float(call.layer.scale)], add)
