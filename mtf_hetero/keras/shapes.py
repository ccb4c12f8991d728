"""Layers that pad, crop, repeat, flatten, reshape and permute, and layers that only regularise."""

from collections.abc import Sequence
from typing import Any

from mtf_hetero._compat import mtf
from mtf_hetero.keras import dims as naming
from mtf_hetero.keras._keras import keras
from mtf_hetero.keras.call import Call
from mtf_hetero.keras.dims import Flattened
from mtf_hetero.keras.registry import register
from mtf_hetero.layers import upsample


def _pairs(value: Any) -> list[tuple[int, int]]:
    """(before, after) per dimension of space, as Keras keeps it: of one dimension without the outer tuple."""
    return [tuple(value)] if isinstance(value[0], int) else [tuple(pair) for pair in value]


@register(keras.layers.ZeroPadding1D, keras.layers.ZeroPadding2D, keras.layers.ZeroPadding3D)
def _zero_padding(call: Call, x: mtf.Tensor) -> mtf.Tensor:
    """The names stay, so that what lies in parts is padded in parts."""
    for dim, pair in zip(x.shape.dims[1:-1], _pairs(call.layer.padding), strict=True):
        if any(pair):
            x = mtf.pad(x, list(pair), dim.name)
    return x


@register(keras.layers.Cropping1D, keras.layers.Cropping2D, keras.layers.Cropping3D)
def _cropping(call: Call, x: mtf.Tensor) -> mtf.Tensor:
    for dim, (before, after) in zip(x.shape.dims[1:-1], _pairs(call.layer.cropping), strict=True):
        if before or after:
            x = mtf.slice(x, before, dim.size - before - after, dim.name)
    return x


@register(keras.layers.UpSampling1D, keras.layers.UpSampling2D, keras.layers.UpSampling3D)
def _upsampling(call: Call, x: mtf.Tensor) -> mtf.Tensor:
    layer, rank = call.layer, x.shape.ndims - 2
    method = getattr(layer, "interpolation", "nearest")
    if method not in ("nearest", "bilinear"):
        raise NotImplementedError(
            f"layer {layer.name!r} has interpolation={method!r}, which mtf_hetero.keras does not support; use "
            "'nearest' or 'bilinear'"
        )
    factors = [layer.size] * rank if isinstance(layer.size, int) else list(layer.size)
    return upsample(naming.spatial(x, call.name, rank), factors, method=method, name=call.name)


@register(keras.layers.Flatten)
def _flatten(call: Call, x: mtf.Tensor) -> mtf.Tensor | Flattened:
    if x.shape.ndims == 1:
        return mtf.reshape(x, [*x.shape.dims, call.dim("channels", 1)])
    return Flattened(x) if x.shape.ndims > 2 else x


def reshaped(call: Call, x: mtf.Tensor, sizes: Sequence[int]) -> mtf.Tensor:
    """[batch, NAME/dim1, NAME/dim2, ...]; where the dimensions are those that there were, with their local names."""
    batch, *others = x.shape.dims
    sizes = list(sizes)
    if -1 in sizes:
        known = -mtf.list_product(sizes)
        sizes[sizes.index(-1)] = mtf.Shape(others).size // known
    same = [dim.size for dim in others] == sizes
    names = [naming.local(dim) for dim in others] if same else [f"dim{i}" for i in range(1, len(sizes) + 1)]
    if not same and len(sizes) > 1 and others and others[-1].size == sizes[-1]:
        names[-1] = "channels"
    names = naming.unique(["batch", *names])
    return mtf.reshape(x, [call.dim(name, size) for name, size in zip(names, [batch.size, *sizes], strict=True)])


@register(keras.layers.Reshape, flattened=True)
def _reshape(call: Call, x: mtf.Tensor | Flattened) -> mtf.Tensor:
    return reshaped(call, x.tensor if isinstance(x, Flattened) else x, call.layer.target_shape)


def transposed(call: Call, x: mtf.Tensor, order: Sequence[int]) -> mtf.Tensor:
    """The dimensions in another order, each with its own name."""
    x = naming.renamed(x, [f"{call.name}/{name}" for name in naming.unique(naming.local(d) for d in x.shape.dims)])
    return mtf.transpose(x, mtf.Shape([x.shape.dims[axis] for axis in order]))


@register(keras.layers.Permute)
def _permute(call: Call, x: mtf.Tensor) -> mtf.Tensor:
    return transposed(call, x, [0, *call.layer.dims])


@register(keras.layers.RepeatVector)
def _repeat(call: Call, x: mtf.Tensor) -> mtf.Tensor:
    x = call.enter(x, "channels")
    batch, channels = x.shape.dims
    return mtf.broadcast(x, mtf.Shape([batch, call.dim("length", call.layer.n), channels]))


@register(keras.layers.Identity, keras.layers.ActivityRegularization, elementwise=True)
def _identity(call: Call, x: mtf.Tensor) -> mtf.Tensor:
    return x


@register(keras.layers.GaussianNoise, keras.layers.GaussianDropout, elementwise=True)
def _noise(call: Call, x: mtf.Tensor) -> mtf.Tensor:
    if call.training:
        raise NotImplementedError(
            f"layer {call.layer.name!r} is a {type(call.layer).__name__}, which mtf_hetero.keras "
            "supports only in inference"
        )
    return x
