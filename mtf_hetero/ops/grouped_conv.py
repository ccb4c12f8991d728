"""Convolutions in groups: each group of channels has filters of its own. With one channel a group they are depthwise.

Images are [..., height, width, groups, channels] and kernels [height, width, groups, channels, filters]: where a layout
splits the groups, each processor convolves its own and nothing is sent.
"""

from collections.abc import Callable, Sequence
from typing import TypedDict, Unpack

from mtf_hetero._compat import mtf, tf, windows
from mtf_hetero._support.ops import reshape
from mtf_hetero.ops import convolve
from mtf_hetero.ops.conv import KERNEL, LARGE, SMALL, Convolution, register_convolution
from mtf_hetero.ops.whole import lower_slices

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
        def apply(x: tf.Tensor, w: tf.Tensor) -> tf.Tensor:
            return self._shaped(convolve.grouped(_flat(x), w, self._strides, self._padding), x, w.shape.as_list()[-1])

        _lower(self, lowering, apply, [self.inputs[0].shape.dims[-1]])

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
            dx = convolve.grouped_input_gradient(flat, w, _flat(dy), self._strides, self._padding)
            return reshape(dx, [*batch, *space, groups, channels])

        _lower(self, lowering, differentiate, [self.inputs[0].shape.dims[-1]])


class GroupedConvKernelGradient(_Gradient):
    """The gradient to the kernel."""

    def lower(self, lowering: mtf.Lowering) -> None:
        window = [dim.size for dim in self.outputs[0].shape.dims[:_SPATIAL]]

        def differentiate(dy: tf.Tensor, x: tf.Tensor) -> tf.Tensor:
            groups, filters = dy.shape.as_list()[-2:]
            shape = [*window, groups, x.shape.as_list()[-1], filters]
            return convolve.grouped_kernel_gradient(_flat(x), shape, _flat(dy), self._strides, self._padding)

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


def _forward(op: GroupedConv2dOperation) -> Convolution:
    (x, kernel), (y,) = op.inputs, op.outputs
    return Convolution(SMALL, x, kernel, y, op._strides, op._padding)


def _input_gradient(op: GroupedConvInputGradient) -> Convolution:
    (dy, kernel), (dx,) = op.inputs, op.outputs
    return Convolution(LARGE, dy, kernel, dx, op._strides, op._padding)


def _kernel_gradient(op: GroupedConvKernelGradient) -> Convolution:
    (dy, x), (d_kernel,) = op.inputs, op.outputs
    return Convolution(KERNEL, x, dy, d_kernel, op._strides, op._padding)


# No layers to recipes: a layout splits their groups, as it splits the channels of operations on elements
register_convolution(GroupedConv2dOperation, roles=_forward)
register_convolution(GroupedConvInputGradient, roles=_input_gradient)
register_convolution(GroupedConvKernelGradient, roles=_kernel_gradient)


def _image(x: mtf.Tensor, name: str, strides: Sequence[int], size: Sequence[int], padding: str) -> None:
    if x.shape.ndims < 3:
        raise ValueError(f"{name}: x is {x.shape.to_string}; give an image [batch, height, width, channels]")
    if len(size) != 2 or len(strides) != 2 or min(*size, *strides) < 1:
        raise ValueError(
            f"{name}: filter_size is {tuple(size)} and strides are {tuple(strides)}; give two positive numbers for each"
        )
    if padding not in ("SAME", "VALID"):
        raise ValueError(f"{name}: padding is {padding!r}; it must be 'SAME' or 'VALID'")
    height, width = x.shape.dims[-3:-1]
    if padding == "VALID" and (height.size < size[0] or width.size < size[1]):
        raise ValueError(
            f"{name}: windows of {size[0]} x {size[1]} do not fit an image of {height.size} x {width.size} pixels; "
            "give larger images, smaller windows or padding='SAME'"
        )


def _windows(size: Sequence[int]) -> list[mtf.Dimension]:
    return [mtf.Dimension(name, count) for name, count in zip(("fh", "fw"), size, strict=True)]


def depthwise_conv2d(
    x: mtf.Tensor,
    *,
    multiplier: int = 1,
    filter_size: Sequence[int] = (3, 3),
    strides: Sequence[int] = (1, 1),
    padding: str = "SAME",
    filter_initializer: object = None,
    variable_dtype: mtf.VariableDType | None = None,
    name: str = "depthwise_conv2d",
) -> mtf.Tensor:
    """Convolves each channel by itself. Where a layout splits the channels, nothing is sent.

    Args:
      x: mtf.Tensor [..., height, width, channels].
      multiplier: filters of each channel.
      filter_size: height and width of a window.
      strides: pixels from one window to the next, down and across.
      padding: "SAME" or "VALID".
      filter_initializer: of the kernel [fh, fw, channels, NAME/multiplier]; None: TensorFlow's default.
      variable_dtype: mtf.VariableDType; None: float32, and activations as x.
      name: of the variable scope, and of the layer's dimensions.

    Returns:
      mtf.Tensor [..., height, width, channels], the channels of x; with a multiplier [..., NAME/filters], of which
      channel c has those from c * multiplier on.

    Raises:
      ValueError: an argument that does not fit the image.
    """
    _image(x, name, strides, filter_size, padding)
    if multiplier < 1:
        raise ValueError(f"{name}: multiplier is {multiplier}; it must be a positive whole number")
    *outer, channels = x.shape.dims
    one, copies = mtf.Dimension(f"{name}/one", 1), mtf.Dimension(f"{name}/multiplier", multiplier)
    window = _windows(filter_size)
    kernel = _variable(x, [*window, channels, copies], filter_initializer, variable_dtype, name)
    kernel = mtf.reshape(kernel, [*window, channels, one, copies])
    image = mtf.reshape(x, [*outer, channels, one])
    y = GroupedConv2dOperation(image, kernel, strides, padding, name).outputs[0]
    last = channels if multiplier == 1 else mtf.Dimension(f"{name}/filters", channels.size * multiplier)
    return mtf.reshape(y, [*y.shape.dims[:-2], last])


def grouped_conv2d(
    x: mtf.Tensor,
    output_dim: mtf.Dimension,
    *,
    groups: int,
    filter_size: Sequence[int] = (3, 3),
    strides: Sequence[int] = (1, 1),
    padding: str = "SAME",
    filter_initializer: object = None,
    variable_dtype: mtf.VariableDType | None = None,
    name: str = "grouped_conv2d",
) -> mtf.Tensor:
    """Convolves each group of neighbouring channels with filters of its own. A layout may split NAME/groups.

    Args:
      x: mtf.Tensor [..., height, width, channels].
      output_dim: the filters of all groups, an mtf.Dimension.
      groups: number of groups, which divides the channels and the filters.
      filter_size: height and width of a window.
      strides: pixels from one window to the next, down and across.
      padding: "SAME" or "VALID".
      filter_initializer: of the kernel [fh, fw, NAME/groups, NAME/channels, NAME/filters], the latter two of one group;
        None: TensorFlow's default.
      variable_dtype: mtf.VariableDType; None: float32, and activations as x.
      name: of the variable scope, and of the layer's dimensions.

    Returns:
      mtf.Tensor [..., height, width, output_dim].

    Raises:
      ValueError: an argument that does not fit the image.
    """
    _image(x, name, strides, filter_size, padding)
    *outer, channels = x.shape.dims
    if groups < 1 or channels.size % groups or output_dim.size % groups:
        raise ValueError(
            f"{name}: groups is {groups} for {channels.size} channels and {output_dim.size} filters; give a number "
            "that divides both"
        )
    dims = [
        mtf.Dimension(f"{name}/groups", groups),
        mtf.Dimension(f"{name}/channels", channels.size // groups),
        mtf.Dimension(f"{name}/filters", output_dim.size // groups),
    ]
    kernel = _variable(x, [*_windows(filter_size), *dims], filter_initializer, variable_dtype, name)
    image = mtf.reshape(x, [*outer, *dims[:2]])
    y = GroupedConv2dOperation(image, kernel, strides, padding, name).outputs[0]
    return mtf.reshape(y, [*y.shape.dims[:-2], output_dim])


class _Windows(TypedDict, total=False):
    """Arguments of `depthwise_conv2d`."""

    multiplier: int
    filter_size: Sequence[int]
    strides: Sequence[int]
    padding: str


def separable_conv2d(
    x: mtf.Tensor,
    output_dim: mtf.Dimension,
    *,
    filter_initializer: object = None,
    variable_dtype: mtf.VariableDType | None = None,
    name: str = "separable_conv2d",
    **options: Unpack[_Windows],
) -> mtf.Tensor:
    """Return a depthwise convolution, NAME/depthwise, and one of single pixels, NAME/pointwise.

    Args:
      x: mtf.Tensor [..., height, width, channels].
      output_dim: the filters, an mtf.Dimension.
      filter_initializer: of both kernels.
      variable_dtype: of both kernels.
      name: of the variable scope, and of the layer's dimensions.
      **options: multiplier, filter_size, strides and padding of the depthwise convolution, as of `depthwise_conv2d`.

    Returns:
      mtf.Tensor [..., height, width, output_dim].

    Raises:
      ValueError: an argument that does not fit the image.
    """
    initializer, dtype = filter_initializer, variable_dtype
    y = depthwise_conv2d(x, filter_initializer=initializer, variable_dtype=dtype, name=f"{name}/depthwise", **options)
    return mtf.layers.conv2d(
        y,
        output_dim,
        filter_size=(1, 1),
        filter_initializer=initializer,
        variable_dtype=dtype,
        name=f"{name}/pointwise",
    )


def _variable(
    x: mtf.Tensor,
    shape: Sequence[mtf.Dimension],
    initializer: object,
    variable_dtype: mtf.VariableDType | None,
    name: str,
) -> mtf.Tensor:
    dtype = mtf.VariableDType(activation_dtype=x.dtype) if variable_dtype is None else variable_dtype
    with tf.variable_scope(name):
        return mtf.get_variable(x.mesh, "kernel", mtf.Shape(list(shape)), initializer=initializer, dtype=dtype)
