"""Convolutions: plain, in groups, depthwise, separable and transposed, of one to three dimensions of space."""

from collections.abc import Sequence
from typing import Any

from mtf_hetero._compat import mtf
from mtf_hetero.keras import dims as naming
from mtf_hetero.keras._keras import keras
from mtf_hetero.keras.activations import activate
from mtf_hetero.keras.call import Call
from mtf_hetero.keras.registry import register
from mtf_hetero.layers import GroupedConv2dOperation, dilate

_WINDOW = {2: ("fh", "fw"), 3: ("fd", "fh", "fw")}
_CONVOLVE = {2: mtf.Conv2dOperation, 3: mtf.Conv3dOperation}
_TRANSPOSE = {2: mtf.Conv2dTransposeOperation, 3: mtf.Conv3dTransposeOperation}


class _Space:
    """The layer's windows. One dimension of space is given a second, of one pixel.

    Args:
      call: of the layer.
    """

    def __init__(self, call: Call) -> None:
        layer = call.layer
        self.rank: int = layer.rank
        lead = 2 - self.rank if self.rank < 2 else 0
        self._call, self._added = call, lead
        self.size = (1,) * lead + tuple(layer.kernel_size)
        self.strides = (1,) * lead + tuple(layer.strides)
        self.rates = (1,) * lead + tuple(layer.dilation_rate)
        self.padding: str = layer.padding.upper()

    def enter(self, x: mtf.Tensor) -> mtf.Tensor:
        """The image [batch, ..., channels] with the layer's names, of two dimensions of space at least."""
        x = naming.spatial(x, self._call.name, self.rank)
        if self.padding == "CAUSAL":
            before = (self.size[-1] - 1) * self.rates[-1]
            x = mtf.pad(x, [before, 0], x.shape.dims[-2].name)
        for _ in range(self._added):
            x = mtf.reshape(x, [x.shape.dims[0], self._call.dim("one", 1), *x.shape.dims[1:]])
        return x

    def leave(self, y: mtf.Tensor) -> mtf.Tensor:
        """The result, without the dimension that was given to it."""
        dims = y.shape.dims
        return mtf.reshape(y, [dims[0], *dims[1 + self._added :]])

    def window(self) -> list[mtf.Dimension]:
        """The dimensions of a window."""
        return [mtf.Dimension(name, size) for name, size in zip(_WINDOW[len(self.size)], self.size, strict=True)]

    def steps(self) -> list[int]:
        """The strides as mtf has them."""
        return [1, *self.strides, 1]

    def stock_padding(self) -> str:
        """The padding as TensorFlow has it."""
        return "VALID" if self.padding == "CAUSAL" else self.padding


def _dilated(kernel: mtf.Tensor, rates: Sequence[int]) -> mtf.Tensor:
    return kernel if set(rates) == {1} else dilate(kernel, [*rates, *[1] * (kernel.shape.ndims - 2 - len(rates))])


def _finished(call: Call, y: mtf.Tensor) -> mtf.Tensor:
    """With the bias of each filter, and the activation."""
    layer = call.layer
    if layer.use_bias:
        y += call.variable(layer.bias, y.shape.dims[-1:])
    return activate(call, layer.activation, y)


@register(keras.layers.Conv1D, keras.layers.Conv2D, keras.layers.Conv3D)
def _convolution(call: Call, x: mtf.Tensor) -> mtf.Tensor:
    space = _Space(call)
    x = space.enter(x)
    if call.layer.groups > 1:
        return _finished(call, space.leave(_grouped(call, space, x)))
    filters = call.dim("filters", call.layer.filters)
    kernel = call.variable(call.layer.kernel, [*space.window(), x.shape.dims[-1], filters])
    convolve = _CONVOLVE[len(space.size)]
    y = convolve(x, _dilated(kernel, space.rates), space.steps(), space.stock_padding(), name=call.name).outputs[0]
    return _finished(call, space.leave(y))


def _grouped(call: Call, space: _Space, x: mtf.Tensor) -> mtf.Tensor:
    if len(space.size) > 2:
        raise NotImplementedError(
            f"layer {call.layer.name!r} is a {type(call.layer).__name__} with groups={call.layer.groups}, which "
            "mtf_hetero.keras does not support in three dimensions; use groups=1"
        )
    groups, filters, channels = call.layer.groups, call.layer.filters, x.shape.dims[-1].size
    own = [call.dim("groups", groups), call.dim("of_group", channels // groups)]
    kernel = call.variable(
        call.layer.kernel,
        [*space.window(), *own, call.dim("filters_of_group", filters // groups)],
        split=[*space.size, channels // groups, groups, filters // groups],
        axes=[0, 1, 3, 2, 4],
    )
    image = mtf.reshape(x, [*x.shape.dims[:-1], *own])
    y = _in_groups(call, space, image, kernel)
    return mtf.reshape(y, [*y.shape.dims[:-2], call.dim("filters", filters)])


def _in_groups(call: Call, space: _Space, image: mtf.Tensor, kernel: mtf.Tensor) -> mtf.Tensor:
    kernel = _dilated(kernel, space.rates)
    return GroupedConv2dOperation(image, kernel, space.strides, space.stock_padding(), call.name).outputs[0]


def _depthwise(call: Call, space: _Space, x: mtf.Tensor, variable: Any) -> mtf.Tensor:
    """Each channel by itself: [..., NAME/channels], or [..., NAME/multiplied] with several filters of each."""
    *others, channels = x.shape.dims
    count = call.layer.depth_multiplier
    one, copies = call.dim("of_channel", 1), call.dim("multiplier", count)
    kernel = call.variable(variable, [*space.window(), channels, copies])
    kernel = mtf.reshape(kernel, [*space.window(), channels, one, copies])
    y = _in_groups(call, space, mtf.reshape(x, [*others, channels, one]), kernel)
    last = channels if count == 1 else call.dim("multiplied", channels.size * count)
    return mtf.reshape(y, [*y.shape.dims[:-2], last])


@register(keras.layers.DepthwiseConv1D, keras.layers.DepthwiseConv2D)
def _depthwise_convolution(call: Call, x: mtf.Tensor) -> mtf.Tensor:
    space = _Space(call)
    return _finished(call, space.leave(_depthwise(call, space, space.enter(x), call.layer.kernel)))


@register(keras.layers.SeparableConv1D, keras.layers.SeparableConv2D)
def _separable_convolution(call: Call, x: mtf.Tensor) -> mtf.Tensor:
    space = _Space(call)
    y = _depthwise(call, space, space.enter(x), call.layer.depthwise_kernel)
    pixel = [mtf.Dimension(name, 1) for name in _WINDOW[2]]
    last = y.shape.dims[-1]
    kernel = call.variable(call.layer.pointwise_kernel, [*pixel, last, call.dim("filters", call.layer.filters)])
    y = mtf.Conv2dOperation(y, kernel, [1, 1, 1, 1], "VALID", name=f"{call.name}/pointwise").outputs[0]
    return _finished(call, space.leave(y))


@register(keras.layers.Conv1DTranspose, keras.layers.Conv2DTranspose, keras.layers.Conv3DTranspose)
def _transposed_convolution(call: Call, x: mtf.Tensor) -> mtf.Tensor:
    layer = call.layer
    if layer.output_padding is not None:
        raise NotImplementedError(
            f"layer {layer.name!r} has output_padding={layer.output_padding}, which mtf_hetero.keras does not support; "
            "remove it"
        )
    space = _Space(call)
    x = space.enter(x)
    filters = call.dim("filters", layer.filters)
    kernel = call.variable(layer.kernel, [*space.window(), filters, x.shape.dims[-1]])
    kernel = _dilated(kernel, space.rates)
    cuts = []
    if space.padding == "VALID":
        x, cuts = _around(x, [dim.size for dim in kernel.shape.dims[:-2]], space.strides)
    transpose = _TRANSPOSE[len(space.size)]
    y = transpose(x, kernel, space.steps(), "SAME", name=call.name).outputs[0]
    for name, begin, size in cuts:
        y = mtf.slice(y, begin, size, name)
    return _finished(call, space.leave(y))


def _around(
    x: mtf.Tensor, window: Sequence[int], strides: Sequence[int]
) -> tuple[mtf.Tensor, list[tuple[str, int, int]]]:
    """For all that windows reach: the image with pixels around it, and what to cut out of SAME's result.

    mtf has transposed convolutions whose result is a whole multiple of the image.
    """
    cuts = []
    for dim, size, stride in zip(x.shape.dims[1:-1], window, strides, strict=True):
        beyond = max(size - stride, 0)
        before = -(-(beyond // 2) // stride)
        after = -(-(beyond - beyond // 2) // stride)
        if beyond:
            x = mtf.pad(x, [before, after], dim.name)
            cuts.append((dim.name, before * stride - beyond // 2, dim.size * stride + beyond))
    return x, cuts
