"""Layers that mtf lacks: grouped convolutions, pools of any windows, batch norm, lookups, larger images, and rounds.

Most are an mtf.Operation with a gradient of its own. On an UnevenMeshImpl a layout may split any of their dimensions;
on a mesh of mtf's own, those along which nothing needs to be sent.

Example:
  >>> x = depthwise_conv2d(images, name="depthwise1")  # an mtf.Tensor [batch, height, width, channels]
  >>> x = batch_norm(x, training=True, name="norm1")
  >>> x = pool(x, kind="max", size=3, strides=2, padding="SAME")
  >>> updates = batch_norm_updates(images.graph)  # run them with each training step
"""

from mtf_hetero.ops.functions import DrawOperation, Function, FunctionOperation, OnceOperation, PartialSumOperation
from mtf_hetero.ops.grouped_conv import (
    GroupedConv2dOperation,
    GroupedConvInputGradient,
    GroupedConvKernelGradient,
    depthwise_conv2d,
    grouped_conv2d,
    separable_conv2d,
)
from mtf_hetero.ops.lookup import LookupGradientOperation, LookupOperation, lookup
from mtf_hetero.ops.norm import (
    BatchNormGradientOperation,
    BatchNormOperation,
    MomentsOperation,
    batch_norm,
    batch_norm_updates,
    update_average,
)
from mtf_hetero.ops.pool import PoolGradientOperation, PoolOperation, pool
from mtf_hetero.ops.rounds import AfterOperation, CutOperation, PlaceOperation, in_rounds
from mtf_hetero.ops.shuffle import DepthToSpaceOperation, SpaceToDepthOperation, depth_to_space, space_to_depth
from mtf_hetero.ops.upsample import dilate, upsample

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
