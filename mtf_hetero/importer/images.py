"""Emits convolutions and pools, and their gradients, as operations of mtf and mtf_hetero.layers.

The space of both images of an operation has the names of the small one, which has a value for each window. The other
image is renamed; that moves nothing where both names are split alike.
"""

import dataclasses
from collections.abc import Hashable, Mapping
from typing import Any

from mtf_hetero._compat import mtf
from mtf_hetero.importer import windows
from mtf_hetero.importer.emitter import Axes, Dims, Emitter, flat, ordered, with_dims
from mtf_hetero.importer.program import Operation, Value
from mtf_hetero.importer.signature import Signature
from mtf_hetero.layers import (
    GroupedConv2dOperation,
    GroupedConvInputGradient,
    GroupedConvKernelGradient,
    PoolGradientOperation,
    PoolOperation,
)
from mtf_hetero.layers.geometry import Windows, same_padding


class _Images:
    """The dimensions of an operation's images.

    Args:
      emitter: the emitter.
      op: the operation.
      signature: its signature.
      large: the image that windows pass over.
      small: the image with a value for each window.
    """

    def __init__(self, emitter: Emitter, op: Operation, signature: Signature, large: Value, small: Value) -> None:
        self.emitter, self.rank = emitter, len(large.shape) - 2
        self.bound: Mapping[Hashable, Dims] = emitter.bind(op, signature, gathers=False)
        self.batch: Dims = self.bound.get("n") or [emitter.fresh(1)]
        self.large, self.small = [], []
        of_small, of_large = (self._space_of(value) for value in (small, large))
        for one, other, n, m in zip(of_small, of_large, large.shape[1:-1], small.shape[1:-1], strict=True):
            (dim, *_) = one if len(one) == 1 else emitter.single(other, n)
            self.large.append([mtf.Dimension(dim.name, n)])
            self.small.append([mtf.Dimension(dim.name, m)])

    def _space_of(self, value: Value) -> Axes:
        return self.emitter.axes(value)[1:-1]

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


def _convolve(emitter: Emitter, op: Operation, signature: Signature) -> None:
    """Emit a convolution, or a gradient of one, without groups."""
    large, small, kernel = _roles(op)
    images = _Images(emitter, op, signature, large, small)
    rank, strides, padding = images.rank, op.attr("strides"), op.attr("padding")
    channels, filters = images.one("c", kernel.shape[-2]), images.one("f", kernel.shape[-1])
    window = [images.one(letter, n) for letter, n in zip("kij"[-rank:], kernel.shape[:rank], strict=True)]
    axes = {
        large: [images.batch, *images.large, channels],
        small: [images.batch, *images.small, filters],
        kernel: [*window, channels, filters],
    }
    emitter.worked_on(op, flat([*axes[large], *axes[small]]))
    (result,) = op.outputs
    tensors = {value: emitter.laid(value, axes[value]) for value in (large, small, kernel) if value is not result}
    shape = mtf.Shape(flat(axes[result]))
    if result is small:
        way = mtf.Conv2dOperation if rank == 2 else mtf.Conv3dOperation
        made = way(tensors[large], tensors[kernel], strides, padding)
    elif result is large:
        made = mtf.Conv2or3dBackpropInputOperation(
            rank, False, shape, tensors[kernel], tensors[small], strides, padding
        )
    else:
        made = mtf.Conv2or3dBackpropFilterOperation(
            rank, False, tensors[large], shape, tensors[small], strides, padding
        )
    emitter.put(result, made.outputs[0], axes[result])


@dataclasses.dataclass
class _Grouped:
    """A value of a convolution in groups.

    Args:
      axes: its dimensions.
      dims: those of its tensor in the operation, with dimensions of size 1.
    """

    axes: Axes
    dims: Dims

    def taken(self, images: _Images, value: Value) -> mtf.Tensor:
        """Return the tensor for the operation."""
        some = [dim for dim in self.dims if dim in flat(self.axes)]
        return with_dims(ordered(images.emitter.get(value, self.axes), some), self.dims)

    def given(self, tensor: mtf.Tensor) -> mtf.Tensor:
        """Return the tensor of the value, of what the operation gives."""
        return with_dims(tensor, [dim for dim in self.dims if dim in flat(self.axes)])


def _convolve_groups(emitter: Emitter, op: Operation, signature: Signature) -> None:
    """Emit a convolution in groups, or a gradient of one. Depthwise, each channel is a group."""
    large, small, kernel = _roles(op)
    images = _Images(emitter, op, signature, large, small)
    window = [images.one(letter, n) for letter, n in zip("ij", kernel.shape, strict=False)]
    if op.type.startswith("Depthwise"):
        groups, one = images.one("c", kernel.shape[2]), [emitter.fresh(1)]
        several = images.one("m", kernel.shape[3])
        multiplier = several if kernel.shape[3] > 1 else []
        last = groups, one, several
        channels, filters, of_kernel = groups, [*groups, *multiplier], [groups, multiplier]
    else:
        sizes = signature.sizes
        last = groups, inner, outer = [images.one(letter, sizes[letter]) for letter in "gcf"]
        channels, filters = [*groups, *inner], [*groups, *outer]
        of_kernel = [inner, filters]
    groups, inner, outer = last
    parts = {
        large: _Grouped([images.batch, *images.large, channels], flat([images.batch, *images.large, groups, inner])),
        small: _Grouped([images.batch, *images.small, filters], flat([images.batch, *images.small, groups, outer])),
        kernel: _Grouped([*window, *of_kernel], flat([*window, groups, inner, outer])),
    }
    emitter.worked_on(op, flat([*parts[large].axes, *parts[small].axes]))
    (result,) = op.outputs
    tensors = {value: parts[value].taken(images, value) for value in (large, small, kernel) if value is not result}
    more = op.attr("strides")[1:-1], op.attr("padding"), op.type
    if result is small:
        made = GroupedConv2dOperation(tensors[large], tensors[kernel], *more)
    elif result is large:
        made = GroupedConvInputGradient(tensors[small], tensors[kernel], mtf.Shape(parts[large].dims), *more)
    else:
        made = GroupedConvKernelGradient(tensors[small], tensors[large], mtf.Shape(parts[kernel].dims), *more)
    emitter.put(result, parts[result].given(made.outputs[0]), parts[result].axes)


def _convolve_in_any_groups(emitter: Emitter, op: Operation, signature: Signature) -> None:
    (_convolve if windows.groups_of(op) == 1 else _convolve_groups)(emitter, op, signature)


# --- pools


def _windows(op: Operation, large: Value, small: Value) -> Windows:
    """Return the windows of a pool, or of a gradient of one."""
    extents, counts = large.shape[1:-1], small.shape[1:-1]
    sizes, strides = (tuple(op.attr(name)[1:-1]) for name in ("ksize", "strides"))
    is_same = op.attr("padding") == "SAME"
    before = [same_padding(n, k, s)[0] if is_same else 0 for n, k, s in zip(extents, sizes, strides, strict=True)]
    kind = "max" if op.type.startswith("Max") else "avg"
    return Windows(kind, extents, sizes, strides, tuple(before), counts, counts_padding=False)


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


RULES: dict[str, Any] = {
    **dict.fromkeys(("Conv2D", "Conv2DBackpropInput", "Conv2DBackpropFilter"), _convolve_in_any_groups),
    **dict.fromkeys(("Conv3D", "Conv3DBackpropInputV2", "Conv3DBackpropFilterV2"), _convolve),
    **dict.fromkeys(
        [f"DepthwiseConv2dNative{way}" for way in ("", "BackpropInput", "BackpropFilter")], _convolve_groups
    ),
    **dict.fromkeys(("MaxPool", "AvgPool", "MaxPool3D", "AvgPool3D"), _pool),
    **dict.fromkeys(("MaxPoolGrad", "MaxPool3DGrad", "AvgPoolGrad", "AvgPool3DGrad"), _pool_gradient),
}
