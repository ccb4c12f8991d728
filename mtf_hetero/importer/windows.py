"""Signatures of convolutions, pools and other operations on images."""

import dataclasses
from collections.abc import Hashable, Mapping
from typing import Any

from mtf_hetero.importer.signature import Signature, Table, leading, through

TABLE = Table()
_SPACE = {2: ("hw", "pq", "ij"), 3: ("dhw", "opq", "kij")}  # of the image, of its windows, of the kernel


def is_plain(op: Any) -> bool:
    """Return whether mtf or mtf_hetero has an operation for a convolution, a pool, or a gradient of one."""
    alone = [*op.attr("dilations", []), *_outer(op, "strides"), *_outer(op, "ksize")]
    is_last = op.attr("data_format", "NHWC") in ("NHWC", "NDHWC")
    return is_last and op.attr("padding") in ("SAME", "VALID") and set(alone) <= {1}


def _outer(op: Any, name: str) -> list[int]:
    """Return the sizes of windows, or the steps, along the batch and the channels."""
    sizes = op.attr(name, [])
    return [sizes[0], sizes[-1]] if sizes else []


def groups_of(op: Any) -> int:
    """Return the number of groups of a convolution, or of a gradient of one."""
    image, kernel = _image_and_kernel(op)
    return image[-1] // kernel[-2]


def _image_and_kernel(op: Any) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the shapes of the large image and the kernel."""
    if "BackpropInput" in op.type:
        return op.outputs[0].shape, op.inputs[1].shape
    return op.inputs[0].shape, (op.outputs[0] if "BackpropFilter" in op.type else op.inputs[1]).shape


def _letters_of_space(op: Any, rank: int) -> tuple[str, str, str]:
    """Return the letters of space of the large image, the small image and the kernel.

    Windows of one pixel, one after the other, leave a dimension as it is.
    """
    large, small, window = _SPACE[rank]
    sizes, steps = _image_and_kernel(op)[1][:rank], op.attr("strides")[1:-1]
    same = [is_plain(op) and size == step == 1 for size, step in zip(sizes, steps, strict=True)]
    return large, "".join(a if alike else b for a, b, alike in zip(large, small, same, strict=True)), window


def _of_convolution(
    op: Any, rank: int, channels: tuple[Any, Any, Any], sizes: Mapping[Any, int], summed: tuple[str, str]
) -> Signature:
    """Return the signature of a convolution, or of a gradient of one.

    Args:
      op: the operation.
      rank: number of dimensions of space.
      channels: the last letters of the image, of the kernel (two) and of the result.
      sizes: of letters in tuples.
      summed: letters that the convolution sums over, and those that its gradient to the image sums over.
    """
    large, small, window = _letters_of_space(op, rank)
    of_image, of_kernel, of_result = channels
    image, kernel, made = ["n", *large, of_image], [*window, *of_kernel], ["n", *small, of_result]
    is_split = is_plain(op)
    whole = frozenset(window) if is_split else frozenset(window + large + small)
    pairs = [*zip(large, small, strict=True), *([("C", "c")] if of_image == "C" else [])]
    kin = tuple((a, b) for a, b in pairs if a != b)
    options: dict[str, Any] = {"kin": kin, "sizes": sizes, "whole": whole}
    if "BackpropInput" in op.type:
        return Signature([None, kernel, made], [image], summed=frozenset(summed[1]), shape=0, **options)
    if "BackpropFilter" in op.type:
        over = frozenset(["n", *(small if is_split else "")])
        return Signature([image, None, made], [kernel], summed=over, shape=1, **options)
    return Signature([image, kernel], [made], summed=frozenset(summed[0]), **options)


@TABLE.rule(
    *("Conv2D", "Conv2DBackpropInput", "Conv2DBackpropFilter"),
    *("Conv3D", "Conv3DBackpropInputV2", "Conv3DBackpropFilterV2"),
)
def _convolution(op: Any) -> Signature | None:
    if op.attr("data_format", "") not in ("NHWC", "NDHWC"):
        return None
    rank, groups = 3 if "3D" in op.type else 2, groups_of(op)
    if groups == 1:  # the kernel has a name of its own for the channels
        return _of_convolution(op, rank, ("C" if is_plain(op) else "c", "cf", "f"), {}, ("c", "f"))
    *_, channels, filters = _image_and_kernel(op)[1]
    sizes: dict[Any, int] = {"g": groups, "c": channels, "f": filters // groups}
    signature = _of_convolution(op, rank, (("g", "c"), ("c", ("g", "f")), ("g", "f")), sizes, ("c", "f"))
    return signature if is_grouped(op) else _whole_groups(signature)


def is_grouped(op: Any) -> bool:
    """Return whether mtf_hetero has an operation for a convolution in groups."""
    return is_plain(op) and "3D" not in op.type


def _whole_groups(signature: Signature) -> Signature:
    """Return the signature of a convolution in groups by TensorFlow: of all groups at once."""
    return dataclasses.replace(signature, whole=signature.whole | set("gcf"), summed=signature.summed - set("cf"))


@TABLE.rule("DepthwiseConv2dNative", "DepthwiseConv2dNativeBackpropInput", "DepthwiseConv2dNativeBackpropFilter")
def _depthwise(op: Any) -> Signature | None:
    if op.attr("data_format", "NHWC") != "NHWC":
        return None
    *_, channels, multiplier = _image_and_kernel(op)[1]
    if multiplier == 1:  # then a slice of the channels has the same slice of the filters
        return _of_convolution(op, 2, ("c", ("c", None), "c"), {}, ("", ""))
    signature = _of_convolution(op, 2, ("c", "cm", ("c", "m")), {"c": channels, "m": multiplier}, ("", "m"))
    return signature if is_plain(op) else _whole_groups(signature)


def _is_over_space(op: Any) -> bool:
    """Return whether a pool leaves examples and channels alone."""
    sizes = op.attr("ksize")
    return op.attr("data_format", "NHWC") in ("NHWC", "NDHWC") and sizes[0] == sizes[-1] == 1


def _of_pool(op: Any, rank: int, operands: str, result: str, shape: int | None = None) -> Signature | None:
    """Return the signature of a pool, or of a gradient of one.

    Args:
      op: the operation.
      rank: number of dimensions of space.
      operands: "L" for a large image, "s" for a small one, "-" for a shape.
      result: likewise.
      shape: number of the operand that is the shape of the result.
    """
    large, small, _ = _SPACE[rank]
    letters = {"L": f"n{large}c", "s": f"n{small}c", "-": None}
    whole = frozenset() if is_plain(op) and not op.type.endswith("GradGrad") else frozenset(large + small)
    kin = tuple(zip(large, small, strict=True))
    found = Signature([letters[x] for x in operands], [letters[result] or ""], whole, kin=kin, shape=shape)
    return found if _is_over_space(op) else None


@TABLE.rule("MaxPool", "AvgPool", "MaxPool3D", "AvgPool3D")
def _pool(op: Any) -> Signature | None:
    return _of_pool(op, len(op.inputs[0].shape) - 2, "L", "s")


@TABLE.rule("MaxPoolGrad", "MaxPool3DGrad")
def _max_pool_gradient(op: Any) -> Signature | None:
    return _of_pool(op, len(op.inputs[0].shape) - 2, "Lss", "L")


@TABLE.rule("MaxPoolGradGrad", "MaxPool3DGradGrad")
def _max_pool_second_gradient(op: Any) -> Signature | None:
    return _of_pool(op, len(op.inputs[0].shape) - 2, "LsL", "s")


@TABLE.rule("AvgPoolGrad", "AvgPool3DGrad")
def _average_pool_gradient(op: Any) -> Signature | None:
    return _of_pool(op, len(op.inputs[1].shape) - 2, "-s", "L", shape=0)


@TABLE.rule("ResizeBilinear", "ResizeBicubic", "ResizeNearestNeighbor", "ResizeArea")
def _resize(op: Any) -> Signature:
    return Signature(["nhwc", None], ["npqc"], frozenset("hwpq"))


@TABLE.rule("ResizeBilinearGrad", "ResizeBicubicGrad")
def _resize_gradient(op: Any) -> Signature:
    return Signature(["npqc", "nhwc"], ["nhwc"], frozenset("hwpq"))


@TABLE.rule("ResizeNearestNeighborGrad")
def _resize_nearest_gradient(op: Any) -> Signature:
    return Signature(["npqc", None], ["nhwc"], frozenset("hwpq"))


@TABLE.rule("SpaceToBatchND", "BatchToSpaceND")
def _space_and_batch(op: Any) -> Signature | None:
    """Return the signature of a dilation: space becomes parts of the batch, or the other way round."""
    blocks = op.inputs[1].array
    if blocks is None or op.inputs[2].array is None:
        return None
    is_forth = op.type == "SpaceToBatchND"
    batch = (op.inputs[0] if is_forth else op.outputs[0]).shape[0]
    rank, parts = len(op.inputs[0].shape), [f"b{i}" for i in range(len(blocks))]
    sizes: dict[Hashable, int] = {"n": batch, **dict(zip(parts, map(int, blocks), strict=True))}
    space = range(1, len(blocks) + 1)
    rest = list(range(len(blocks) + 1, rank))
    plain = ["n", *(f"x{i}" for i in space), *rest]
    merged = [(*parts, "n"), *(f"y{i}" for i in space), *rest]
    whole = frozenset([*parts, *(f"{side}{i}" for i in space for side in "xy")])
    before, after = (plain, merged) if is_forth else (merged, plain)
    return Signature([before, None, None], [after], whole, sizes=sizes)


@TABLE.rule("SpaceToDepth", "DepthToSpace", "ExtractImagePatches")
def _patches(op: Any) -> Signature | None:
    is_last = op.attr("data_format", "NHWC") == "NHWC"
    return Signature(["nhwc"], ["npqf"], frozenset("hwcpqf")) if is_last else None


@TABLE.rule("ImageProjectiveTransformV3", "ImageProjectiveTransformV2")
def _project(op: Any) -> Signature:
    operands = ["nhwc", ["n", "t"], *[None] * (len(op.inputs) - 2)]
    return Signature(operands, ["npqc"], frozenset("hwpqt"))


@TABLE.rule("AdjustContrastv2")
def _adjust_contrast(op: Any) -> Signature | None:
    return leading(op, [3, None], [3])


@TABLE.rule("AdjustHue", "AdjustSaturation", "HSVToRGB", "RGBToHSV")
def _adjust_colours(op: Any) -> Signature:
    return through(op, 0, {len(op.inputs[0].shape) - 1})
