"""Signatures of convolutions, pools and dilations: operations on windows of images."""

from collections.abc import Hashable, Mapping, Sequence
from typing import Any

from mtf_hetero._support import facts
from mtf_hetero.importer.program import Operation
from mtf_hetero.importer.signature import Signature, Table, elements

TABLE = Table()
_KIN_OF_CHANNELS = [("x", "c")]  # the kernel has a name of its own for the channels of the image
_SPACE = {2: ("hw", "pq", "IJ"), 3: ("dhw", "opq", "KIJ")}  # of the image, of its windows, of the kernel


def is_plain(op: Operation) -> bool:
    """Return whether mtf or mtf_hetero has an operation for a convolution, a pool, or a gradient of one."""
    if op.type.endswith("GradGrad") or ("Conv3D" in op.type and group_count(op) > 1):
        return False
    alone = [*op.attr("dilations", []), *_outer(op, "strides"), *_outer(op, "ksize")]
    return op.attr("padding") in ("SAME", "VALID") and set(alone) <= {1}


def _outer(op: Operation, name: str) -> list[int]:
    """Return the sizes of windows, or the steps, along the batch and the channels."""
    sizes = op.attr(name, [])
    return [sizes[0], sizes[-1]] if sizes else []


def group_count(op: Operation) -> int:
    """Return the number of groups of a convolution, or of a gradient of one."""
    image, kernel = _image_and_kernel(op)
    return image[-1] // kernel[-2]


def _image_and_kernel(op: Operation) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the shapes of the large image and the kernel."""
    if "BackpropInput" in op.type:
        return op.outputs[0].shape, op.inputs[1].shape
    return op.inputs[0].shape, (op.outputs[0] if "BackpropFilter" in op.type else op.inputs[1]).shape


def _of_convolution(
    op: Operation,
    channels: tuple[Hashable, Sequence[Hashable], Hashable],
    sizes: Mapping[Any, int],
    *,
    splits_space: bool,
) -> Signature:
    """Return the signature of a convolution, or of a gradient of one.

    Args:
      op: the operation.
      channels: the last letters of the image, of the kernel (two) and of the result.
      sizes: of letters in tuples.
      splits_space: whether space is split; then windows of one pixel, one after the other, leave a dimension as it is.
    """
    large, small, window = _SPACE[len(op.attr("strides")) - 2]
    if splits_space:
        shape, steps = _image_and_kernel(op)[1], op.attr("strides")[1:-1]
        spaces = zip(large, small, shape[: len(steps)], steps, strict=True)
        small = "".join(a if size == step == 1 else b for a, b, size, step in spaces)
    else:
        large, small = large.upper(), small.upper()
    of_image, of_kernel, of_result = channels
    image, kernel, made = ["n", *large, of_image], [*window, *of_kernel], ["n", *small, of_result]
    kin = tuple((a, b) for a, b in [*zip(large, small, strict=True), *_KIN_OF_CHANNELS] if a != b and a in image)
    if "BackpropInput" in op.type:
        return Signature([None, kernel, made], [image], kin, sizes, shape=0)
    if "BackpropFilter" in op.type:
        return Signature([image, None, made], [kernel], kin, sizes, shape=1)
    return Signature([image, kernel], [made], kin, sizes)


@TABLE.rule(*facts.CONVOLUTIONS)
def _convolution(op: Operation) -> Signature:
    plain, groups = is_plain(op), group_count(op)
    if groups == 1:
        return _of_convolution(op, ("x" if plain else "c", "cf", "f"), {}, splits_space=plain)
    *_, channels, filters = _image_and_kernel(op)[1]
    g, c, f = "gcf" if plain else "GCF"  # TensorFlow convolves all groups at once
    sizes = {g: groups, c: channels, f: filters // groups}
    return _of_convolution(op, ((g, c), (c, (g, f)), (g, f)), sizes, splits_space=plain)


@TABLE.rule(*facts.DEPTHWISE_CONVOLUTIONS)
def _depthwise(op: Operation) -> Signature:
    plain, (*_, channels, multiplier) = is_plain(op), _image_and_kernel(op)[1]
    if multiplier == 1:  # then a slice of the channels has the same slice of the filters
        return _of_convolution(op, ("c", ("c", None), "c"), {}, splits_space=plain)
    c, m = "cm" if plain else "CM"
    return _of_convolution(op, (c, (c, m), (c, m)), {c: channels, m: multiplier}, splits_space=plain)


POOLS = {  # operands and results: L a large image, s a small one, - a shape
    "Ls": ("MaxPool", "AvgPool", "MaxPool3D", "AvgPool3D"),
    "LssL": ("MaxPoolGrad", "MaxPool3DGrad"),
    "LsLs": ("MaxPoolGradGrad", "MaxPool3DGradGrad"),
    "-sL": ("AvgPoolGrad", "AvgPool3DGrad"),
}
_SIDES = {kind: sides for sides, kinds in POOLS.items() for kind in kinds}


@TABLE.rule(*_SIDES)
def _pool(op: Operation) -> Signature | None:
    sizes = op.attr("ksize")
    if not sizes[0] == sizes[-1] == 1:  # over examples or channels
        return None
    large, small, _ = _SPACE[len(sizes) - 2]
    large, small = (large, small) if is_plain(op) else (large.upper(), small.upper())
    letters = {"L": f"n{large}c", "s": f"n{small}c", "-": None}
    *operands, result = _SIDES[op.type]
    kin = tuple(zip(large, small, strict=True))
    return Signature([letters[x] for x in operands], [letters[result] or ""], kin, shape=0 if "-" in operands else None)


@TABLE.rule("SpaceToBatchND", "BatchToSpaceND")
def _space_and_batch(op: Operation) -> Signature:
    """Return the signature of a dilation: space becomes parts of the batch, or the other way round."""
    blocks = list(map(int, elements(op.inputs[1])))
    elements(op.inputs[2])
    is_forth = op.type == "SpaceToBatchND"
    parts, space = [f"B{i}" for i in range(len(blocks))], range(1, len(blocks) + 1)
    rest = range(len(blocks) + 1, len(op.inputs[0].shape))
    batch = (op.inputs[0] if is_forth else op.outputs[0]).shape[0]
    sizes: dict[Hashable, int] = {"n": batch, **dict(zip(parts, blocks, strict=True))}
    plain = ["n", *(f"X{i}" for i in space), *rest]
    merged = [(*parts, "n"), *(f"Y{i}" for i in space), *rest]
    before, after = (plain, merged) if is_forth else (merged, plain)
    return Signature([before, None, None], [after], sizes=sizes)
