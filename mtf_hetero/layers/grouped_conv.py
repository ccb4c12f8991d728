"""Convolutions in groups: each group of channels has filters of its own. With one channel a group they are depthwise.

Images are [..., height, width, groups, channels] and kernels [height, width, groups, channels, filters]: where a layout
splits the groups, each processor convolves its own and nothing is sent.
"""

from collections.abc import Callable, Sequence

from mtf_hetero._compat import mtf, tf, windows
from mtf_hetero._support.ops import concat, constant, reshape
from mtf_hetero.layers.whole import lower_slices

_SPATIAL = 2  # height and width
_RANK = 4  # of an image, without the batch


class GroupedConv2dOperation(mtf.Operation):
    """A convolution in groups.

    Args:
      x: mtf.Tensor [..., height, width, groups, channels].
      kernel: mtf.Tensor [window height, window width, groups, channels, filters].
      strides: pixels from one window to the next, down and across.
      padding: "SAME" or "VALID".
    """

    def __init__(self, x: mtf.Tensor, kernel: mtf.Tensor, strides: Sequence[int], padding: str, name: str) -> None:
        super().__init__([x, kernel], name=name)
        self._strides, self._padding = [1, *strides, 1], padding
        dims, (*window, groups, _, filters) = x.shape.dims, kernel.shape.dims
        space = [
            mtf.Dimension(dim.name, windows(dim.size, k.size, stride, padding))
            for dim, k, stride in zip(dims[-_RANK:-_SPATIAL], window, strides, strict=True)
        ]
        self._outputs = [mtf.Tensor(self, mtf.Shape([*dims[:-_RANK], *space, groups, filters]), x.dtype)]
        self.kernel = kernel

    def gradient(self, grad_ys: Sequence[mtf.Tensor]) -> list[mtf.Tensor]:
        (x, kernel), (dy,), steps = self.inputs, grad_ys, self._strides[1:-1]
        ways = ((GroupedConvInputGradient, kernel, x), (GroupedConvKernelGradient, x, kernel))
        return [
            way(dy, other, of.shape, steps, self._padding, f"{self.name}/{way.__name__}").outputs[0]
            for way, other, of in ways
        ]

    def lower(self, lowering: mtf.Lowering) -> None:
        def convolve(x: tf.Tensor, w: tf.Tensor) -> tf.Tensor:
            return self._shaped(forward(_flat(x), w, self._strides, self._padding), x, w.shape.as_list()[-1])

        _lower(self, lowering, convolve, [self.inputs[0].shape.dims[-1]])

    def _shaped(self, y: tf.Tensor, x: tf.Tensor, filters: int) -> tf.Tensor:
        *batch, _, _, groups, _ = x.shape.as_list()
        return reshape(y, [*batch, *y.shape.as_list()[1:-1], groups, filters])


class _Gradient(mtf.Operation):
    """A gradient of a GroupedConv2dOperation.

    Args:
      dy: mtf.Tensor of the shape of its output.
      other: mtf.Tensor, the one of its inputs to which the gradient is not.
      shape: mtf.Shape of the one to which it is.
      strides: pixels from one window to the next, down and across.
      padding: "SAME" or "VALID".
    """

    def __init__(
        self, dy: mtf.Tensor, other: mtf.Tensor, shape: mtf.Shape, strides: Sequence[int], padding: str, name: str
    ) -> None:
        super().__init__([dy, other], name=name)
        self._strides, self._padding = [1, *strides, 1], padding
        self._outputs = [mtf.Tensor(self, shape, dy.dtype)]
        self.kernel = other if isinstance(self, GroupedConvInputGradient) else self._outputs[0]


class GroupedConvInputGradient(_Gradient):
    """The gradient to the image."""

    def lower(self, lowering: mtf.Lowering) -> None:
        shape = self.outputs[0].shape

        def differentiate(dy: tf.Tensor, w: tf.Tensor) -> tf.Tensor:
            *batch, _, _, groups, _ = dy.shape.as_list()
            space = [dim.size for dim in shape.dims[-_RANK:-_SPATIAL]]
            channels = w.shape.as_list()[-2]
            flat = [mtf.list_product(batch), *space, groups * channels]
            dx = input_gradient(flat, w, _flat(dy), self._strides, self._padding)
            return reshape(dx, [*batch, *space, groups, channels])

        _lower(self, lowering, differentiate, [self.inputs[0].shape.dims[-1]])


class GroupedConvKernelGradient(_Gradient):
    """The gradient to the kernel."""

    def lower(self, lowering: mtf.Lowering) -> None:
        window = [dim.size for dim in self.outputs[0].shape.dims[:_SPATIAL]]

        def differentiate(dy: tf.Tensor, x: tf.Tensor) -> tf.Tensor:
            groups, filters = dy.shape.as_list()[-2:]
            shape = [*window, groups, x.shape.as_list()[-1], filters]
            return kernel_gradient(_flat(x), shape, _flat(dy), self._strides, self._padding)

        _lower(self, lowering, differentiate, self.inputs[0].shape.dims[:-_RANK])


def _flat(x: tf.Tensor) -> tf.Tensor:
    """[..., height, width, groups, channels] to [batch, height, width, groups * channels]."""
    *batch, height, width, groups, channels = x.shape.as_list()
    return reshape(x, [mtf.list_product(batch), height, width, groups * channels])


def _lower(
    op: GroupedConv2dOperation | _Gradient,
    lowering: mtf.Lowering,
    function: Callable[..., tf.Tensor],
    summed: Sequence[mtf.Dimension],
) -> None:
    """Lower for a mesh of mtf's own: space must be whole, and a dimension that is summed over may be split."""
    places = {True: slice(_SPATIAL), False: slice(-_RANK, -_SPATIAL)}  # of space in a kernel, and in an image
    space = [dim for t in (*op.inputs, *op.outputs) for dim in t.shape.dims[places[t is op.kernel]]]
    lower_slices(op, lowering, function, whole_dims=space, summed=summed)


def _each(x: tf.Tensor, groups: int) -> list[tf.Tensor]:
    return [x] if groups == 1 else tf.split(x, groups, axis=constant(x.shape.rank - 1))


def _each_kernel(w: tf.Tensor) -> list[tf.Tensor]:
    return tf.unstack(w, axis=_SPATIAL)


def _is_depthwise(kernel: Sequence[int], strides: Sequence[int]) -> bool:
    """Return whether TensorFlow has an operation for it: one channel a group, and one stride."""
    return kernel[-2] == 1 and strides[1] == strides[2]


def forward(x: tf.Tensor, kernel: tf.Tensor, strides: Sequence[int], padding: str) -> tf.Tensor:
    """Return the convolution of a slice.

    Args:
      x: tf.Tensor [batch, height, width, groups * channels].
      kernel: tf.Tensor [window height, window width, groups, channels, filters].
      strides: [1, down, across, 1].
      padding: "SAME" or "VALID".

    Returns:
      tf.Tensor [batch, height, width, groups * filters].
    """
    shape = kernel.shape.as_list()
    if _is_depthwise(shape, strides):
        return tf.nn.depthwise_conv2d_native(x, reshape(kernel, [*shape[:3], shape[4]]), strides, padding)
    both = zip(_each(x, shape[2]), _each_kernel(kernel), strict=True)
    return concat([tf.nn.conv2d(part, w, strides, padding) for part, w in both], 3)


def input_gradient(
    shape: Sequence[int], kernel: tf.Tensor, dy: tf.Tensor, strides: Sequence[int], padding: str
) -> tf.Tensor:
    """Return the gradient to an image of `shape`, from dy [batch, height, width, groups * filters]."""
    sizes = kernel.shape.as_list()
    if _is_depthwise(sizes, strides):
        kernel = reshape(kernel, [*sizes[:3], sizes[4]])
        return tf.nn.depthwise_conv2d_native_backprop_input(constant(shape), kernel, dy, strides, padding)
    part = constant([*shape[:3], sizes[3]])
    both = zip(_each(dy, sizes[2]), _each_kernel(kernel), strict=True)
    return concat([tf.nn.conv2d_backprop_input(part, w, d, strides, padding) for d, w in both], 3)


def kernel_gradient(
    x: tf.Tensor, shape: Sequence[int], dy: tf.Tensor, strides: Sequence[int], padding: str
) -> tf.Tensor:
    """Return the gradient to a kernel of `shape`, from dy [batch, height, width, groups * filters]."""
    if _is_depthwise(shape, strides):
        flat = constant([*shape[:3], shape[4]])
        return reshape(tf.nn.depthwise_conv2d_native_backprop_filter(x, flat, dy, strides, padding), shape)
    one = constant([*shape[:2], *shape[3:]])
    both = zip(_each(x, shape[2]), _each(dy, shape[2]), strict=True)
    return tf.stack([tf.nn.conv2d_backprop_filter(part, one, d, strides, padding) for part, d in both], _SPATIAL)
