"""Signatures of convolutions, pools and other operations on images."""

from collections.abc import Hashable
from typing import Any

from mtf_hetero.importer.signature import Signature, Table, leading, through

TABLE = Table()
_SPACE = {2: ("hw", "pq", "ij"), 3: ("dhw", "opq", "kij")}  # of the image, of its windows, of the kernel


def is_plain(op: Any) -> bool:
    """Return whether a 2D convolution, or a gradient of one, is one that mtf has."""
    padding = op.attr("padding") in ("SAME", "VALID")
    dilations = set(op.attr("dilations", [1])) == {1}
    return op.attr("data_format", "NHWC") == "NHWC" and padding and dilations and not _is_grouped(op)


def _is_grouped(op: Any) -> bool:
    image, kernel = _image_and_kernel(op)
    return image[-1] != kernel[-2]


def _image_and_kernel(op: Any) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the shapes of the large image and the kernel."""
    if "BackpropInput" in op.type:
        return op.outputs[0].shape, op.inputs[1].shape
    return op.inputs[0].shape, (op.outputs[0] if "BackpropFilter" in op.type else op.inputs[1]).shape


@TABLE.rule(
    *("Conv2D", "Conv2DBackpropInput", "Conv2DBackpropFilter"),
    *("Conv3D", "Conv3DBackpropInputV2", "Conv3DBackpropFilterV2"),
)
def _convolution(op: Any) -> Signature | None:
    rank = 3 if "3D" in op.type else 2
    if op.attr("data_format", "") not in ("NHWC", "NDHWC"):
        return None
    large, small, window = _SPACE[rank]
    is_grouped = _is_grouped(op)
    image, kernel, made = f"n{large}c", f"{window}{'g' if is_grouped else 'c'}f", f"n{small}f"
    whole = frozenset(window)
    if not (rank == 2 and is_plain(op)):  # by TensorFlow's operation, on whole images
        whole |= frozenset(large + small) | (frozenset("cgf") if is_grouped else frozenset())
    kin = tuple(zip(large, small, strict=True))
    if "BackpropInput" in op.type:
        summed = frozenset() if is_grouped else frozenset("f")
        return Signature([None, kernel, made], [image], whole, summed, kin, shape=0)
    if "BackpropFilter" in op.type:
        summed = frozenset("n") if whole & frozenset(small) else frozenset(f"n{small}")
        return Signature([image, None, made], [kernel], whole, summed, kin, shape=1)
    return Signature([image, kernel], [made], whole, frozenset() if is_grouped else frozenset("c"), kin)


@TABLE.rule("DepthwiseConv2dNative", "DepthwiseConv2dNativeBackpropInput", "DepthwiseConv2dNativeBackpropFilter")
def _depthwise(op: Any) -> Signature | None:
    if op.attr("data_format", "NHWC") != "NHWC":
        return None
    _, kernel_shape = _image_and_kernel(op)
    is_single = kernel_shape[-1] == 1  # then a slice of the channels has the same slice of the filters
    image, kernel, made = "nhwc", "ijcm", "npqc" if is_single else "npqf"
    whole = frozenset("hwpqijm") | (frozenset() if is_single else frozenset("cf"))
    if op.type.endswith("Input"):
        return Signature([None, kernel, made], [image], whole, shape=0)
    if op.type.endswith("Filter"):
        return Signature([image, None, made], [kernel], whole, summed=frozenset("n"), shape=1)
    return Signature([image, kernel], [made], whole)


def _is_over_space(op: Any) -> bool:
    """Return whether a pool leaves examples and channels alone."""
    sizes = op.attr("ksize")
    return op.attr("data_format", "NHWC") in ("NHWC", "NDHWC") and sizes[0] == sizes[-1] == 1


@TABLE.rule("MaxPool", "AvgPool", "MaxPool3D", "AvgPool3D")
def _pool(op: Any) -> Signature | None:
    large, small, _ = _SPACE[len(op.inputs[0].shape) - 2]
    letters = Signature([f"n{large}c"], [f"n{small}c"], frozenset(large + small))
    return letters if _is_over_space(op) else None


@TABLE.rule("MaxPoolGrad", "MaxPool3DGrad", "MaxPoolGradGrad", "MaxPool3DGradGrad")
def _max_pool_gradient(op: Any) -> Signature | None:
    large, small, _ = _SPACE[len(op.inputs[0].shape) - 2]
    of_large, of_small = f"n{large}c", f"n{small}c"
    is_second = op.type.endswith("GradGrad")
    operands = [of_large, of_small, of_large if is_second else of_small]
    result = of_small if is_second else of_large
    return Signature(list(operands), [result], frozenset(large + small)) if _is_over_space(op) else None


@TABLE.rule("AvgPoolGrad", "AvgPool3DGrad")
def _average_pool_gradient(op: Any) -> Signature | None:
    large, small, _ = _SPACE[len(op.inputs[1].shape) - 2]
    letters = Signature([None, f"n{small}c"], [f"n{large}c"], frozenset(large + small), shape=0)
    return letters if _is_over_space(op) else None


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
