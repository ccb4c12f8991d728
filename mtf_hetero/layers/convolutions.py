"""Layers of convolutions in groups, with arguments as mtf.layers.conv2d has them."""

from collections.abc import Sequence
from typing import TypedDict, Unpack

from mtf_hetero._compat import mtf, tf
from mtf_hetero.layers.grouped_conv import GroupedConv2dOperation


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
