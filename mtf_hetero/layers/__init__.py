"""Layers that mtf lacks: grouped convolutions, pools of any windows, batch norm, lookups, larger images, and rounds.

Most are an mtf.Operation with a gradient of its own. On an UnevenMeshImpl a layout may split any of their dimensions;
on a mesh of mtf's own, those along which nothing needs to be sent.

Example:
  >>> x = depthwise_conv2d(images, name="depthwise1")  # an mtf.Tensor [batch, height, width, channels]
  >>> x = batch_norm(x, training=True, name="norm1")
  >>> x = pool(x, kind="max", size=3, strides=2, padding="SAME")
  >>> updates = batch_norm_updates(images.graph)  # run them with each training step
"""

from mtf_hetero.layers.convolutions import depthwise_conv2d, grouped_conv2d, separable_conv2d
from mtf_hetero.layers.grouped_conv import (
    GroupedConv2dOperation,
    GroupedConvInputGradient,
    GroupedConvKernelGradient,
)
from mtf_hetero.layers.layers import batch_norm, batch_norm_updates, dilate, pool, update_average
from mtf_hetero.layers.lookups import LookupGradientOperation, LookupOperation, lookup
from mtf_hetero.layers.normalization import BatchNormGradientOperation, BatchNormOperation, MomentsOperation
from mtf_hetero.layers.pooling import PoolGradientOperation, PoolOperation
from mtf_hetero.layers.rounds import AfterOperation, CutOperation, PlaceOperation, in_rounds
from mtf_hetero.layers.shuffling import DepthToSpaceOperation, SpaceToDepthOperation, depth_to_space, space_to_depth
from mtf_hetero.layers.slices import (
    DrawOperation,
    Function,
    FunctionOperation,
    OnceOperation,
    PartialSumOperation,
)
from mtf_hetero.layers.upsampling import upsample

__all__ = [
    "AfterOperation",
    "BatchNormGradientOperation",
    "BatchNormOperation",
    "CutOperation",
    "DepthToSpaceOperation",
    "DrawOperation",
    "Function",
    "FunctionOperation",
    "GroupedConv2dOperation",
    "GroupedConvInputGradient",
    "GroupedConvKernelGradient",
    "LookupGradientOperation",
    "LookupOperation",
    "MomentsOperation",
    "OnceOperation",
    "PartialSumOperation",
    "PlaceOperation",
    "PoolGradientOperation",
    "PoolOperation",
    "SpaceToDepthOperation",
    "batch_norm",
    "batch_norm_updates",
    "depth_to_space",
    "depthwise_conv2d",
    "dilate",
    "grouped_conv2d",
    "in_rounds",
    "lookup",
    "pool",
    "separable_conv2d",
    "space_to_depth",
    "update_average",
    "upsample",
]
