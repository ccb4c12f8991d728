"""Layers that mtf lacks: pools whose windows overlap or reach beyond the image, batch normalisation, and rounds.

Each is an mtf.Operation with a gradient of its own. On an UnevenMeshImpl a layout may split any of their dimensions; on
a mesh of mtf's own, those along which nothing needs to be sent.
"""

from mtf_hetero.layers.layers import batch_norm, batch_norm_updates, dilate, pool
from mtf_hetero.layers.normalization import BatchNormGradientOperation, BatchNormOperation
from mtf_hetero.layers.pooling import PoolGradientOperation, PoolOperation
from mtf_hetero.layers.rounds import AfterOperation, CutOperation, PlaceOperation, in_rounds

__all__ = [
    "AfterOperation",
    "BatchNormGradientOperation",
    "BatchNormOperation",
    "CutOperation",
    "PlaceOperation",
    "PoolGradientOperation",
    "PoolOperation",
    "batch_norm",
    "batch_norm_updates",
    "dilate",
    "in_rounds",
    "pool",
]
