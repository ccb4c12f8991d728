"""Attention of several heads."""

from typing import Any

import numpy as np

from mtf_hetero._compat import mtf, tf
from mtf_hetero.keras import dims as naming
from mtf_hetero.keras._keras import keras
from mtf_hetero.keras.activations import softmax
from mtf_hetero.keras.call import Call
from mtf_hetero.keras.dense import drop
from mtf_hetero.keras.registry import register

_LOWEST = -1e9  # of a score that is not to count, as in Keras


@register(keras.layers.MultiHeadAttention)
def _multi_head_attention(
    call: Call,
    query: mtf.Tensor,
    value: mtf.Tensor,
    key: mtf.Tensor | None = None,
    *,
    use_causal_mask: bool = False,
    **options: Any,
) -> mtf.Tensor:
    """[NAME/batch, NAME/queries, NAME/outputs], of queries and values [batch, ..., channels]."""
    layer, (length, source) = call.layer, (query.shape.dims[1], value.shape.dims[1])
    given = [name for name, option in options.items() if option is not None and option is not False]
    if query.shape.ndims != 3 or value.shape.ndims != 3 or given or getattr(layer, "use_gate", False):
        what = ", ".join(given) or f"inputs {query.shape.to_string} or a gate"
        raise NotImplementedError(
            f"layer {layer.name!r} is called with {what}, which mtf_hetero.keras does not support; give it tensors "
            "of three dimensions, and no other mask than use_causal_mask"
        )
    keys, values = call.dim("keys", source.size), ("features", "value_features")
    queries, heads = call.dim("queries", length.size), call.dim("heads", layer.num_heads)
    q = _projected(call, query, queries, "query", heads, values[0])
    k = _projected(call, value if key is None else key, keys, "key", heads, values[0])
    v = _projected(call, value, keys, "value", heads, values[1])
    batch = q.shape.dims[0]
    q *= 1.0 / float(np.sqrt(layer.key_dim))
    scores = mtf.einsum([q, k], mtf.Shape([batch, heads, queries, keys]), name=f"{call.name}/scores")
    if use_causal_mask:
        after = mtf.less(
            mtf.range(q.mesh, queries, tf.int32), mtf.range(q.mesh, keys, tf.int32), mtf.Shape([queries, keys])
        )
        scores += mtf.cast(after, scores.dtype) * _LOWEST
    weights = softmax(scores)
    if call.training and layer.dropout:
        weights = drop(call, weights, layer.dropout, None)
    y = mtf.einsum([weights, v], mtf.Shape([batch, queries, heads, v.shape.dims[-1]]), name=f"{call.name}/values")
    return _output(call, y)


def _projected(call: Call, x: mtf.Tensor, length: mtf.Dimension, name: str, heads: Any, features: str) -> mtf.Tensor:
    """[NAME/batch, length, NAME/heads, NAME/features], of [batch, length, channels]."""
    dense = getattr(call.layer, f"{name}_dense")
    x = naming.entered(x, call.name, f"{name}_inputs")
    batch, _, inputs = x.shape.dims
    x = mtf.reshape(x, [batch, length, inputs])
    out = [heads, call.dim(features, dense.kernel.shape[-1])]
    part = Call(dense, f"{call.name}/{name}", call.building)
    y = mtf.einsum([x, part.variable(dense.kernel, [inputs, *out])], mtf.Shape([batch, length, *out]), name=part.name)
    return y if dense.bias is None else y + part.variable(dense.bias, out)


def _output(call: Call, y: mtf.Tensor) -> mtf.Tensor:
    dense = call.layer.output_dense
    batch, queries, *reduced = y.shape.dims
    units = call.dim("units", dense.kernel.shape[-1])
    part = Call(dense, f"{call.name}/attention_output", call.building)
    if len(dense.kernel.shape) != 3:
        raise NotImplementedError(
            f"layer {call.layer.name!r} has an output_shape of several dimensions; give one dimension"
        )
    kernel = part.variable(dense.kernel, [*reduced, units])
    y = naming.renamed(
        mtf.einsum([y, kernel], mtf.Shape([batch, queries, units]), name=part.name), [f"{call.name}/outputs"]
    )
    return y if dense.bias is None else y + part.variable(dense.bias, y.shape.dims[-1:])
