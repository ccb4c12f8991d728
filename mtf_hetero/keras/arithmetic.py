"""Operations of keras.ops between the tensors of a model: arithmetic, reductions, shapes."""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from mtf_hetero._compat import mtf, tf
from mtf_hetero.keras import merging, shapes
from mtf_hetero.keras._keras import keras
from mtf_hetero.keras.activations import elementwise, softmax
from mtf_hetero.keras.call import Call
from mtf_hetero.keras.pooling import reduce_max
from mtf_hetero.keras.registry import register

_NUMPY, _NN = "keras.src.ops.numpy.", "keras.src.ops.nn."


def _binary(call: Call, x: Any, y: Any, *, combine: Callable[..., mtf.Tensor]) -> mtf.Tensor:
    return merging.combined(call, [x, y], combine)


def _divide(x: Any, y: Any, output_shape: mtf.Shape) -> mtf.Tensor:
    return mtf.multiply(x, mtf.reciprocal(y) if isinstance(y, mtf.Tensor) else 1 / y, output_shape=output_shape)


for _name, _combine in (
    ("Add", merging.add),
    ("Subtract", merging.subtract),
    ("Multiply", merging.multiply),
    ("Divide", _divide),
    ("TrueDivide", _divide),
    ("Maximum", merging.maximum),
    ("Minimum", merging.minimum),
):
    register(_NUMPY + _name)(functools.partial(_binary, combine=_combine))


def _unary(call: Call, x: mtf.Tensor, *, function: Callable[[tf.Tensor], tf.Tensor]) -> mtf.Tensor:
    return elementwise(x, function, call.name)


for _name, _function in (
    ("Absolute", tf.abs),
    ("Abs", tf.abs),
    ("Cos", tf.cos),
    ("Exp", tf.exp),
    ("Expm1", tf.math.expm1),
    ("Log", tf.math.log),
    ("Log1p", tf.math.log1p),
    ("Negative", tf.negative),
    ("Reciprocal", tf.math.reciprocal),
    ("Sin", tf.sin),
    ("Sqrt", tf.sqrt),
    ("Square", tf.square),
    ("Tanh", tf.tanh),
):
    register(_NUMPY + _name, elementwise=True)(functools.partial(_unary, function=_function))
for _name in ("Sigmoid", "Silu", "HardSigmoid", "HardSilu", "Relu6", "Softplus", "Softsign", "Selu"):
    _of = getattr(keras.ops, {"HardSigmoid": "hard_sigmoid", "HardSilu": "hard_silu"}.get(_name, _name.lower()))
    register(_NN + _name, elementwise=True)(functools.partial(_unary, function=_of))


@register(_NN + "Relu", elementwise=True)
def _relu(call: Call, x: mtf.Tensor) -> mtf.Tensor:
    return mtf.relu(x)


@register(_NN + "Gelu", elementwise=True)
def _gelu(call: Call, x: mtf.Tensor) -> mtf.Tensor:
    approximate = call.layer.approximate
    return elementwise(x, lambda t: keras.ops.gelu(t, approximate=approximate), call.name)


@register(_NN + "Softmax")
def _softmax(call: Call, x: mtf.Tensor) -> mtf.Tensor:
    axis = call.layer.axis
    return softmax(x, axis if isinstance(axis, int) else tuple(axis))


@register(_NUMPY + "Power")
def _power(call: Call, x: Any, y: Any) -> mtf.Tensor:
    if not isinstance(x, mtf.Tensor) or isinstance(y, mtf.Tensor) or np.size(y) != 1:
        raise NotImplementedError(f"{call.layer.name!r} raises to a power that is not a number; give a number")
    exponent = float(y)
    return elementwise(x, lambda t: tf.pow(t, tf.constant(exponent, t.dtype)), call.name)


def _axes(x: mtf.Tensor, axis: int | Sequence[int] | None) -> list[int]:
    axes = range(x.shape.ndims) if axis is None else [axis] if isinstance(axis, int) else axis
    return sorted(a % x.shape.ndims for a in axes)


def _reduction(call: Call, x: mtf.Tensor, *, reduce: Callable[..., mtf.Tensor]) -> mtf.Tensor:
    axes = _axes(x, call.layer.axis)
    kept = [dim for axis, dim in enumerate(x.shape.dims) if axis not in axes]
    y = reduce(x, output_shape=mtf.Shape(kept))
    if not call.layer.keepdims:
        return y
    dims = [call.dim(f"all{a}", 1) if a in axes else dim for a, dim in enumerate(x.shape.dims)]
    return mtf.reshape(y, dims)


def _variance(x: mtf.Tensor, output_shape: mtf.Shape) -> mtf.Tensor:
    x -= mtf.reduce_mean(x, output_shape=output_shape)
    return mtf.reduce_mean(mtf.square(x), output_shape=output_shape)


def _reduce_min(x: mtf.Tensor, output_shape: mtf.Shape) -> mtf.Tensor:
    return -reduce_max(-x, output_shape)


for _name, _reduce in (
    ("Mean", mtf.reduce_mean),
    ("Sum", mtf.reduce_sum),
    ("Max", reduce_max),
    ("Amax", reduce_max),
    ("Min", _reduce_min),
    ("Amin", _reduce_min),
    ("Var", _variance),
):
    register(_NUMPY + _name)(functools.partial(_reduction, reduce=_reduce))


@register(_NUMPY + "Reshape")
def _reshape(call: Call, x: mtf.Tensor) -> mtf.Tensor:
    batch, *sizes = call.layer.newshape
    if batch not in (None, -1, x.shape.dims[0].size) or (batch == -1 and -1 in sizes):
        raise NotImplementedError(f"{call.layer.name!r} reshapes the batch to {batch}; do not reshape the batch")
    return shapes.reshaped(call, x, [-1 if size is None else size for size in sizes])


@register(_NUMPY + "Transpose")
def _transpose(call: Call, x: mtf.Tensor) -> mtf.Tensor:
    axes = call.layer.axes
    return shapes.transposed(call, x, list(reversed(range(x.shape.ndims))) if axes is None else list(axes))


@register(_NUMPY + "ExpandDims")
def _expand_dims(call: Call, x: mtf.Tensor) -> mtf.Tensor:
    (axis,) = [call.layer.axis] if isinstance(call.layer.axis, int) else call.layer.axis
    axis %= x.shape.ndims + 1
    return mtf.reshape(x, [*x.shape.dims[:axis], call.dim("one", 1), *x.shape.dims[axis:]])


@register(_NUMPY + "Squeeze")
def _squeeze(call: Call, x: mtf.Tensor) -> mtf.Tensor:
    axes = [a for a, dim in enumerate(x.shape.dims) if a and dim.size == 1]
    axes = axes if call.layer.axis is None else _axes(x, call.layer.axis)
    return mtf.reshape(x, [dim for a, dim in enumerate(x.shape.dims) if a not in axes])


@register(_NUMPY + "Concatenate")
def _concatenate(call: Call, xs: Sequence[mtf.Tensor]) -> mtf.Tensor:
    return merging.concatenate(call, xs, call.layer.axis)


@register(_NUMPY + "GetItem")
def _get_item(call: Call, x: mtf.Tensor, key: Any) -> mtf.Tensor:
    keys = list(key) if isinstance(key, tuple) else [key]
    if Ellipsis in keys:
        place = keys.index(Ellipsis)
        keys[place : place + 1] = [slice(None)] * (x.shape.ndims - len(keys) + 1)
    dropped = []
    for axis, (item, dim) in enumerate(zip(keys, x.shape.dims, strict=False)):
        if isinstance(item, slice) and item.step in (None, 1):
            begin, end, _ = item.indices(dim.size)
        elif isinstance(item, int):
            begin, end = item % dim.size, item % dim.size + 1
            dropped.append(axis)
        else:
            raise NotImplementedError(
                f"{call.layer.name!r} indexes a tensor with [{item}]; use only whole numbers and slices"
            )
        if (begin, end) != (0, dim.size):
            x = mtf.slice(x, begin, end - begin, dim.name)
    return mtf.reshape(x, [dim for axis, dim in enumerate(x.shape.dims) if axis not in dropped])


@register(_NUMPY + "Matmul")
def _matmul(call: Call, x: mtf.Tensor, y: mtf.Tensor) -> mtf.Tensor:
    """[..., a, b] by [..., b, c], of one rank."""
    if not (isinstance(x, mtf.Tensor) and isinstance(y, mtf.Tensor)) or x.shape.ndims != y.shape.ndims < 2:
        raise NotImplementedError(f"{call.layer.name!r} multiplies matrices of different ranks")
    outer = [call.dim("batch" if not i else f"dim{i}", dim.size) for i, dim in enumerate(x.shape.dims[:-2])]
    a, b, c = (call.dim(name, n) for name, n in zip("abc", (*x.shape.to_integer_list[-2:], y.shape.dims[-1].size)))
    x, y = mtf.reshape(x, [*outer, a, b]), mtf.reshape(y, [*outer, b, c])
    return mtf.einsum([x, y], mtf.Shape([*outer, a, c]), name=call.name)


@register("keras.src.ops.core.Cast")
def _cast(call: Call, x: mtf.Tensor) -> mtf.Tensor:
    return mtf.cast(x, tf.as_dtype(call.layer.dtype))
