"""Normalisation: by the batch, by each example, by groups of channels, by given moments; and scales."""

import numpy as np

from mtf_hetero._compat import mtf, tf
from mtf_hetero.keras._keras import keras
from mtf_hetero.keras.call import Call
from mtf_hetero.keras.merging import aligned
from mtf_hetero.keras.registry import register
from mtf_hetero.layers import BatchNormOperation


def _wide(x: mtf.Tensor) -> tf.DType:
    """The type in which moments are computed."""
    return tf.float64 if x.dtype == tf.float64 else tf.float32


@register(keras.layers.BatchNormalization)
def _batch_norm(call: Call, x: mtf.Tensor) -> mtf.Tensor:
    layer, dtype = call.layer, _wide(x)
    if layer.renorm:
        raise NotImplementedError(f"layer {layer.name!r} has renorm=True, which mtf_hetero.keras does not support")
    groups = [x.shape.dims[layer.axis]]
    scale = call.variable(layer.gamma, groups, dtype=dtype) if layer.scale else None
    offset = call.variable(layer.beta, groups, dtype=dtype) if layer.center else None
    mean = call.variable(layer.moving_mean, groups, dtype=dtype)
    variance = call.variable(layer.moving_variance, groups, dtype=dtype)
    if not (call.training and layer.trainable):
        factor = mtf.rsqrt(variance + layer.epsilon)
        factor = factor if scale is None else factor * scale
        shift = -mean * factor
        shift = shift if offset is None else offset + shift
        return mtf.cast(mtf.cast(x, dtype) * factor + shift, x.dtype)
    scale = mtf.ones(x.mesh, mtf.Shape(groups), dtype) if scale is None else scale
    offset = mtf.zeros(x.mesh, mtf.Shape(groups), dtype) if offset is None else offset
    last = mtf.Shape([dim for dim in x.shape.dims if dim not in groups] + groups)  # the operation has channels last
    x, shape = x if x.shape == last else mtf.transpose(x, last), x.shape
    y, *moments = BatchNormOperation(x, scale, offset, epsilon=layer.epsilon, name=call.name).outputs
    for variable, moment in zip((layer.moving_mean, layer.moving_variance), moments, strict=True):
        call.move(variable, moment, layer.momentum)
    return y if shape == last else mtf.transpose(y, shape)


@register(keras.layers.LayerNormalization)
def _layer_norm(call: Call, x: mtf.Tensor) -> mtf.Tensor:
    layer, dtype = call.layer, _wide(x)
    axes = [layer.axis] if isinstance(layer.axis, int) else list(layer.axis)
    dims = [x.shape.dims[axis] for axis in axes]
    others = mtf.Shape([dim for dim in x.shape.dims if dim not in dims])
    y, variance = _centred(mtf.cast(x, dtype), others)
    factor = mtf.rsqrt(variance + layer.epsilon)
    if layer.rms_scaling:
        y = mtf.cast(x, dtype)
    y *= factor
    if layer.gamma is not None:
        y *= call.variable(layer.gamma, dims, dtype=dtype)
    if layer.beta is not None:
        y += call.variable(layer.beta, dims, dtype=dtype)
    return mtf.cast(y, call.dtype)


def _centred(x: mtf.Tensor, groups: mtf.Shape) -> tuple[mtf.Tensor, mtf.Tensor]:
    """x without its mean, and its variance, over all dimensions that the groups lack."""
    x -= mtf.reduce_mean(x, output_shape=groups)
    return x, mtf.reduce_mean(mtf.square(x), output_shape=groups)


@register(keras.layers.GroupNormalization)
def _group_norm(call: Call, x: mtf.Tensor) -> mtf.Tensor:
    layer, dtype = call.layer, _wide(x)
    axis = layer.axis % x.shape.ndims
    dim = x.shape.dims[axis]
    own = [call.dim("groups", layer.groups), call.dim("of_group", dim.size // layer.groups)]
    y = mtf.cast(mtf.reshape(x, [*x.shape.dims[:axis], *own, *x.shape.dims[axis + 1 :]]), dtype)
    y, variance = _centred(y, mtf.Shape([x.shape.dims[0], own[0]]))
    y = mtf.reshape(y * mtf.rsqrt(variance + layer.epsilon), x.shape)
    if layer.scale:
        y *= call.variable(layer.gamma, [dim], dtype=dtype)
    if layer.center:
        y += call.variable(layer.beta, [dim], dtype=dtype)
    return mtf.cast(y, call.dtype)


@register("keras.src.layers.normalization.rms_normalization.RMSNormalization")
def _rms_norm(call: Call, x: mtf.Tensor) -> mtf.Tensor:
    layer, dtype = call.layer, _wide(x)
    axes = [layer.axis] if isinstance(layer.axis, int) else list(layer.axis)
    dims = [x.shape.dims[axis] for axis in axes]
    others = mtf.Shape([dim for dim in x.shape.dims if dim not in dims])
    y = mtf.cast(x, dtype)
    y *= mtf.rsqrt(mtf.reduce_mean(mtf.square(y), output_shape=others) + layer.epsilon)
    return mtf.cast(y * call.variable(layer.scale, dims, dtype=dtype), call.dtype)


@register(keras.layers.Normalization)
def _normalization(call: Call, x: mtf.Tensor) -> mtf.Tensor:
    layer = call.layer
    x = mtf.cast(x, call.dtype)
    mean = aligned(call, x, layer.mean)
    deviation = aligned(call, x, np.maximum(np.sqrt(np.asarray(layer.variance)), keras.backend.epsilon()))
    return mean + x * deviation if layer.invert else (x - mean) / deviation


@register(keras.layers.Rescaling)
def _rescaling(call: Call, x: mtf.Tensor) -> mtf.Tensor:
    x = mtf.cast(x, call.dtype)
    scale, offset = (tf.make_ndarray(tf.make_tensor_proto(n)) for n in (call.layer.scale, call.layer.offset))
    return x * aligned(call, x, scale) + aligned(call, x, offset)  # Keras rounds them to float32, for float64 too


@register("keras.src.applications.convnext.LayerScale")
def _layer_scale(call: Call, x: mtf.Tensor) -> mtf.Tensor:
    return x * call.variable(call.layer.gamma, x.shape.dims[-1:])
