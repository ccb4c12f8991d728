"""Pooling and its gradient: whole windows only, so the spatial dimensions are whole."""

from typing import Any

from mtf_hetero._compat import mtf
from mtf_hetero.lowering.registry import register, require_whole


@register(mtf.PoolOperation, mtf.PoolBackPropOperation)
def lower_pool(op: Any, lowering: Any) -> None:
    """As mtf does, once it is certain that no window is cut."""
    spatial = len(op._ksize)
    dims = {dim for t in [*op.inputs, *op.outputs] for dim in t.shape.dims[-spatial - 1 : -1]}
    require_whole(op, lowering, sorted(dims), "pooling")
    type(op).lower(op, lowering)
