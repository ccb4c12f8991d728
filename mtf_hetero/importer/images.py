"""Emits convolutions and pools, and their gradients, as operations of mtf and mtf_hetero.layers.

The space of both images of an operation has the names of the small one, which has a value for each window. The other
image is renamed; that moves nothing where both names are split alike.
"""

import dataclasses
from collections.abc import Callable, Hashable, Mapping
from typing import Any, TypeAlias

from mtf_hetero._compat import mtf
from mtf_hetero._support import facts
from mtf_hetero.importer import windows
from mtf_hetero.importer.emitter import Axes, Dims, Emitter, flat, ordered, with_dims
from mtf_hetero.importer.program import Operation, Value
from mtf_hetero.importer.signature import Signature
from mtf_hetero.importer.windows import POOLS
from mtf_hetero.layers import (
    GroupedConv2dOperation,
    GroupedConvInputGradient,
    GroupedConvKernelGradient,
    PoolGradientOperation,
    PoolOperation,
)
from mtf_hetero.ops.pooling import PoolWindows
from mtf_hetero.ops.windows import same_padding


class _Images:
    """The dimensions of an operation's images: windows pass over the large one, and each gives a value of the small."""

    def __init__(self, emitter: Emitter, op: Operation, signature: Signature, large: Value, small: Value) -> None:
        self.emitter, self.rank = emitter, len(large.shape) - 2
        self.bound: Mapping[Hashable, Dims] = emitter.bind(op, signature, gathers=False)
        self.batch: Dims = self.bound.get("n") or [emitter.fresh(1)]
        self.large, self.small = [], []
        of_small, of_large = (emitter.axes(value)[1:-1] for value in (small, large))
        for one, other, n, m in zip(of_small, of_large, large.shape[1:-1], small.shape[1:-1], strict=True):
            (dim, *_) = one if len(one) == 1 else emitter.single(other, n)
            self.large.append([mtf.Dimension(dim.name, n)])
            self.small.append([mtf.Dimension(dim.name, m)])

    def one(self, letter: Hashable, size: int) -> Dims:
        """Return the only dimension of a letter."""
        return self.emitter.single(self.bound.get(letter), size)


def _roles(op: Operation) -> tuple[Value, Value, Value]:
    """Return the large image, the small image and the kernel of a convolution, or of a gradient of one."""
    if "BackpropInput" in op.type:
        return op.outputs[0], op.inputs[2], op.inputs[1]
    if "BackpropFilter" in op.type:
        return op.inputs[0], op.inputs[2], op.outputs[0]
    return op.inputs[0], op.outputs[0], op.inputs[1]


@dataclasses.dataclass
class _Part:
    """A value of a convolution: its axes, and the dimensions of its tensor in the operation, some of size 1."""

    axes: Axes
    dims: Dims

    def taken(self, images: _Images, value: Value) -> mtf.Tensor:
        """Return the tensor for the operation."""
        some = [dim for dim in self.dims if dim in flat(self.axes)]
        return with_dims(ordered(images.emitter.get(value, self.axes), some), self.dims)

    def given(self, tensor: mtf.Tensor) -> mtf.Tensor:
        """Return the tensor of the value, of what the operation gives."""
        return with_dims(tensor, [dim for dim in self.dims if dim in flat(self.axes)])


def _convolve(emitter: Emitter, op: Operation, signature: Signature) -> None:
    """Emit a convolution, or a gradient of one. Depthwise, each channel is a group."""
    large, small, kernel = _roles(op)
    images = _Images(emitter, op, signature, large, small)
    window = [images.one(letter, n) for letter, n in zip("KIJ"[-images.rank :], kernel.shape, strict=False)]
    groups: Dims = []
    if op.type.startswith("Depthwise"):
        groups, inner, outer = images.one("c", kernel.shape[2]), [emitter.fresh(1)], images.one("m", kernel.shape[3])
        multiplier = outer if kernel.shape[3] > 1 else []
        channels, filters, of_kernel = groups, [*groups, *multiplier], [groups, multiplier]
    elif windows.group_count(op) > 1:
        groups, inner, outer = (images.one(letter, signature.sizes[letter]) for letter in "gcf")
        channels, filters = [*groups, *inner], [*groups, *outer]
        of_kernel = [inner, filters]
    else:
        channels, filters = inner, outer = images.one("c", kernel.shape[-2]), images.one("f", kernel.shape[-1])
        of_kernel = [channels, filters]
    parts = {
        large: _Part([images.batch, *images.large, channels], flat([images.batch, *images.large, groups, inner])),
        small: _Part([images.batch, *images.small, filters], flat([images.batch, *images.small, groups, outer])),
        kernel: _Part([*window, *of_kernel], flat([*window, groups, inner, outer])),
    }
    emitter.worked_on(op, flat([*parts[large].axes, *parts[small].axes]))
    (result,) = op.outputs
    tensors = {value: parts[value].taken(images, value) for value in (large, small, kernel) if value is not result}
    made = (_grouped if groups else _plain)(
        op, tensors.get(large), tensors.get(small), tensors.get(kernel), parts[result]
    )
    emitter.put(result, parts[result].given(made.outputs[0]), parts[result].axes)


Given: TypeAlias = Any  # mtf.Tensors, of which one is None: the one that the operation makes


def _plain(op: Operation, large: Given, small: Given, kernel: Given, result: _Part) -> mtf.Operation:
    rank, more, shape = len(op.outputs[0].shape) - 2, (op.attr("strides"), op.attr("padding")), mtf.Shape(result.dims)
    if small is None:
        return (mtf.Conv2dOperation if rank == 2 else mtf.Conv3dOperation)(large, kernel, *more)
    if large is None:
        return mtf.Conv2or3dBackpropInputOperation(rank, False, shape, kernel, small, *more)
    return mtf.Conv2or3dBackpropFilterOperation(rank, False, large, shape, small, *more)


def _grouped(op: Operation, large: Given, small: Given, kernel: Given, result: _Part) -> mtf.Operation:
    more, shape = (op.attr("strides")[1:-1], op.attr("padding"), op.type), mtf.Shape(result.dims)
    if small is None:
        return GroupedConv2dOperation(large, kernel, *more)
    if large is None:
        return GroupedConvInputGradient(small, kernel, shape, *more)
    return GroupedConvKernelGradient(small, large, shape, *more)


# --- pools


def _windows(op: Operation, large: Value, small: Value) -> PoolWindows:
    """Return the windows of a pool, or of a gradient of one."""
    extents, counts = large.shape[1:-1], small.shape[1:-1]
    sizes, strides = (tuple(op.attr(name)[1:-1]) for name in ("ksize", "strides"))
    is_same = op.attr("padding") == "SAME"
    before = [same_padding(n, k, s)[0] if is_same else 0 for n, k, s in zip(extents, sizes, strides, strict=True)]
    kind = "max" if op.type.startswith("Max") else "avg"
    return PoolWindows(extents, sizes, strides, tuple(before), counts, kind, counts_padding=False)


def _pool_axes(images: _Images, channels: int) -> tuple[Axes, Axes]:
    last = images.one("c", channels)
    return [images.batch, *images.large, last], [images.batch, *images.small, last]


def _pool(emitter: Emitter, op: Operation, signature: Signature) -> None:
    (x,), (y,) = op.inputs, op.outputs
    images = _Images(emitter, op, signature, x, y)
    large, small = _pool_axes(images, x.shape[-1])
    emitter.worked_on(op, flat([*large, *small]))
    made = PoolOperation(emitter.laid(x, large), _windows(op, x, y), op.type)
    emitter.put(y, made.outputs[0], small)


def _pool_gradient(emitter: Emitter, op: Operation, signature: Signature) -> None:
    *others, dy = op.inputs
    (dx,) = op.outputs
    images = _Images(emitter, op, signature, dx, dy)
    large, small = _pool_axes(images, dx.shape[-1])
    emitter.worked_on(op, flat([*large, *small]))
    inputs = [emitter.laid(dy, small)]
    if op.type.startswith("Max"):
        x, y = others
        inputs += [emitter.laid(x, large), emitter.laid(y, small)]
    made = PoolGradientOperation(_windows(op, dx, dy), mtf.Shape(flat(large)), inputs, op.type)
    emitter.put(dx, made.outputs[0], large)


RULES: dict[str, Callable[[Emitter, Operation, Signature], None]] = {
    **dict.fromkeys(facts.CONVOLUTIONS | facts.DEPTHWISE_CONVOLUTIONS, _convolve),
    **dict.fromkeys(POOLS["Ls"], _pool),
    **dict.fromkeys(POOLS["LssL"] + POOLS["-sL"], _pool_gradient),
}
