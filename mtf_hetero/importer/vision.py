"""Signatures of operations on images that are no convolutions: they leave examples, and mostly channels, alone."""

from typing import Any

from mtf_hetero.importer.signature import Signature, Table, leading

TABLE = Table()
_WHOLE = frozenset("hwpq")


@TABLE.rule("LRN")
def _normalize(op: Any) -> Signature:
    return Signature(["nhwc"], ["nhwc"], frozenset("c"))


@TABLE.rule("LRNGrad")
def _normalize_gradient(op: Any) -> Signature:
    return Signature(["nhwc"] * 3, ["nhwc"], frozenset("c"))


@TABLE.rule("CropAndResize")
def _crop(op: Any) -> Signature:
    return Signature(["nhwc", "bt", "b", None], ["bpqc"], _WHOLE | frozenset("nt"))


@TABLE.rule("CropAndResizeGradImage")
def _crop_gradient(op: Any) -> Signature:
    return Signature(["bpqc", "bt", "b", None], ["nhwc"], _WHOLE | frozenset("nt"), summed=frozenset("b"), shape=3)


@TABLE.rule("CropAndResizeGradBoxes")
def _crop_gradient_of_boxes(op: Any) -> Signature:
    return Signature(["bpqc", "nhwc", "bt", "b"], ["bt"], _WHOLE | frozenset("nct"))


@TABLE.rule("Dilation2D")
def _dilate(op: Any) -> Signature:
    return Signature(["nhwc", "ijc"], ["npqc"], _WHOLE | frozenset("ij"))


@TABLE.rule("Dilation2DBackpropInput")
def _dilate_back_to_image(op: Any) -> Signature:
    return Signature(["nhwc", "ijc", "npqc"], ["nhwc"], _WHOLE | frozenset("ij"))


@TABLE.rule("Dilation2DBackpropFilter")
def _dilate_back_to_kernel(op: Any) -> Signature:
    return Signature(["nhwc", "ijc", "npqc"], ["ijc"], _WHOLE | frozenset("ij"), summed=frozenset("n"))


@TABLE.rule("ScaleAndTranslate")
def _scale(op: Any) -> Signature:
    return Signature(["nhwc", None, None, None], ["npqc"], _WHOLE)


@TABLE.rule("ScaleAndTranslateGrad")
def _scale_gradient(op: Any) -> Signature:
    return Signature(["npqc", "nhwc", None, None], ["nhwc"], _WHOLE)


@TABLE.rule("MaxPoolWithArgmax")
def _pool_with_argmax(op: Any) -> Signature | None:
    """Return the signature of a pool whose indices count the pixels and channels of one image."""
    if op.attr("include_batch_in_index"):
        return None
    return Signature(["nhwc"], ["npqf", "npqf"], _WHOLE | frozenset("cf"))


@TABLE.rule("MaxPoolGradWithArgmax")
def _pool_with_argmax_gradient(op: Any) -> Signature | None:
    if op.attr("include_batch_in_index"):
        return None
    return Signature(["nhwc", "npqf", "npqf"], ["nhwc"], _WHOLE | frozenset("cf"))


@TABLE.rule("ExtractVolumePatches")
def _volume_patches(op: Any) -> Signature:
    return Signature(["ndhwc"], ["nopqf"], _WHOLE | frozenset("docf"))


@TABLE.rule("DrawBoundingBoxes", "DrawBoundingBoxesV2")
def _draw_boxes(op: Any) -> Signature:
    return Signature(["nhwc", "nbt", *[None] * (len(op.inputs) - 2)], ["nhwc"], frozenset("hwcbt"))


@TABLE.rule("CombinedNonMaxSuppression")
def _suppress(op: Any) -> Signature | None:
    return leading(op, [3, 2, *[None] * (len(op.inputs) - 2)], [2, 1, 1, 0])
