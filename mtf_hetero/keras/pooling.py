"""Pools, global ones too."""

import functools
from typing import Any

from mtf_hetero._compat import mtf
from mtf_hetero.keras import dims as naming
from mtf_hetero.keras._keras import keras
from mtf_hetero.keras.call import Call
from mtf_hetero.keras.registry import register
from mtf_hetero.layers import pool


def _pool(call: Call, x: mtf.Tensor, *, kind: str, rank: int) -> mtf.Tensor:
    layer = call.layer
    x = naming.spatial(x, call.name, rank)
    batch, *space, channels = x.shape.dims
    size, strides = _per_dim(layer.pool_size, rank), _per_dim(layer.strides or layer.pool_size, rank)
    if rank == 1:  # one dimension of space is given a second, of one pixel
        x, size, strides = mtf.reshape(x, [batch, call.dim("one", 1), *space, channels]), [1, *size], [1, *strides]
    y = pool(x, kind=kind, size=size, strides=strides, padding=layer.padding.upper(), name=call.name)
    return mtf.reshape(y, [batch, *y.shape.dims[-rank - 1 :]])


def _per_dim(value: Any, rank: int) -> list[int]:
    return [value] * rank if isinstance(value, int) else list(value)


def _global(call: Call, x: mtf.Tensor, *, kind: str, rank: int) -> mtf.Tensor:
    x = naming.spatial(x, call.name, rank)
    batch, *space, channels = x.shape.dims
    y = (mtf.reduce_mean if kind == "avg" else reduce_max)(x, output_shape=mtf.Shape([batch, channels]))
    if not call.layer.keepdims:
        return y
    ones = [mtf.Dimension(f"{dim.name}/all", 1) for dim in space]
    return mtf.reshape(y, [batch, *ones, channels])


def reduce_max(x: mtf.Tensor, output_shape: mtf.Shape) -> mtf.Tensor:
    """The maximum. As in TensorFlow, those that are equal to it share its gradient; in mtf each has all of it."""
    most = mtf.reduce_max(mtf.stop_gradient(x), output_shape=output_shape)
    chosen = mtf.stop_gradient(mtf.cast(mtf.equal(x, most), x.dtype))
    mean = mtf.reduce_sum(x * chosen, output_shape=output_shape) / mtf.reduce_sum(chosen, output_shape=output_shape)
    return mtf.stop_gradient(most - mean) + mean


for _rank in (1, 2, 3):
    for _kind, _name in (("max", "Max"), ("avg", "Average")):
        register(getattr(keras.layers, f"{_name}Pooling{_rank}D"))(functools.partial(_pool, kind=_kind, rank=_rank))
        register(getattr(keras.layers, f"Global{_name}Pooling{_rank}D"))(
            functools.partial(_global, kind=_kind, rank=_rank)
        )
