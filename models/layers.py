"""The layers that the models share. Each owns its dimensions, so that a layout can choose for each of them.

A layer renames the last dimension of what comes in to `LAYER/channels` (a convolution) or `LAYER/inputs` (a dense
layer), and gives out `LAYER/filters` or `LAYER/units`; the rename costs nothing where a layout treats both sides alike.
The batch and the spatial dimensions keep their names through the network. Variables have the dtype of the images.
"""

from collections.abc import Callable
from typing import Any

import mtf_hetero.layers
from mtf_hetero import mtf, tf

Activation = Callable[[Any], Any]


def check_images(images: Any) -> None:
    """Raises ValueError unless images are [batch, height, width, channels] of a floating-point dtype."""
    if images.shape.ndims != 4 or not images.dtype.is_floating:
        raise ValueError(
            f"images are {images.shape.to_string} of {images.dtype.name}; "
            "give an mtf.Tensor [batch, height, width, channels] of a floating-point dtype"
        )


def _variable_dtype(x: Any) -> Any:
    return mtf.VariableDType(x.dtype, x.dtype, x.dtype)


def rename_last(x: Any, name: str) -> Any:
    """The tensor, with another name for its last dimension."""
    return mtf.rename_dimension(x, x.shape.dims[-1].name, name)


def conv2d(
    x: Any,
    filters: int,
    *,
    size: int,
    strides: int = 1,
    name: str,
    padding: str = "SAME",
    use_bias: bool = False,
    activation: Activation | None = mtf.relu,
) -> Any:
    """A convolution.

    Args:
      x: mtf.Tensor [batch, height, width, channels].
      filters: number of filters.
      size: height and width of the kernel.
      strides: pixels from one window to the next, down and across.
      name: the layer's name, which begins the names of its dimensions and variables.
      padding: "SAME" or "VALID".
      use_bias: whether to add a bias per filter.
      activation: function of an mtf.Tensor, or None.

    Returns:
      mtf.Tensor [batch, height, width, NAME/filters].

    Raises:
      ValueError: the image is smaller than a kernel that must lie within it, or mtf cannot take it in such strides.
    """
    x = rename_last(x, f"{name}/channels")
    height, width, channels = x.shape.dims[1:]
    if padding == "VALID" and min(height.size, width.size) < size:
        raise ValueError(
            f"layer {name!r} convolves {height.size} x {width.size} pixels with a {size} x {size} kernel; "
            "give larger images"
        )
    windows = [dim.size - (size - 1 if padding == "VALID" else 0) for dim in (height, width)]
    if any(count % strides for count in windows):
        raise ValueError(
            f"layer {name!r} convolves {height.size} x {width.size} pixels with stride {strides}, which does not "
            f"divide its {windows[0]} x {windows[1]} windows; give images of another height and width"
        )
    out = mtf.Dimension(f"{name}/filters", filters)
    stddev = (2.0 / (size * size * channels.size)) ** 0.5  # He et al. 2015, for relu
    y = mtf.layers.conv2d(
        x,
        out,
        filter_size=(size, size),
        strides=(strides, strides),
        padding=padding,
        filter_initializer=tf.truncated_normal_initializer(stddev=stddev),
        variable_dtype=_variable_dtype(x),
        name=name,
    )
    if use_bias:
        with tf.variable_scope(name):
            y += mtf.get_variable(x.mesh, "bias", [out], dtype=_variable_dtype(x), initializer=tf.zeros_initializer())
    return y if activation is None else activation(y)


def conv2d_batch_norm(
    x: Any,
    filters: int,
    *,
    size: int,
    strides: int = 1,
    name: str,
    training: bool,
    activation: Activation | None = mtf.relu,
) -> Any:
    """A convolution (SAME, no bias) with batch norm before the activation.

    Args:
      x: mtf.Tensor [batch, height, width, channels].
      filters: number of filters.
      size: height and width of the kernel.
      strides: pixels from one window to the next, down and across.
      name: the layer's name, which begins the names of its dimensions and variables.
      training: whether to normalise by the batch.
      activation: function of an mtf.Tensor, or None.

    Returns:
      mtf.Tensor [batch, height, width, NAME/filters].

    Raises:
      ValueError: as `conv2d`.
    """
    y = conv2d(x, filters, size=size, strides=strides, name=name, activation=None)
    y = mtf_hetero.layers.batch_norm(y, training=training, name=f"{name}/batch_norm")
    return y if activation is None else activation(y)


def pool2d(x: Any, pool: Callable[..., Any], *, name: str) -> Any:
    """Pools windows of 2 x 2 with mtf.layers.max_pool2d or avg_pool2d.

    Raises:
      ValueError: a spatial dimension is odd, for which mtf has no gradient.
    """
    height, width = x.shape.dims[1:3]
    if height.size % 2 or width.size % 2:
        raise ValueError(
            f"layer {name!r} pools 2 x 2 windows of {height.size} x {width.size} pixels, which do not divide evenly; "
            "give images of another height and width, or choose another model"
        )
    return pool(x, ksize=(2, 2), name=name)


def dense(x: Any, units: int, *, name: str, activation: Activation | None = None) -> Any:
    """A dense layer over all dimensions but the first, with a bias.

    It contracts [height, width, channels] as they are: flattened, they could not be split along the channels.

    Args:
      x: mtf.Tensor [batch, ...].
      units: number of units.
      name: the layer's name, which begins the names of its dimensions and variables.
      activation: function of an mtf.Tensor, or None.

    Returns:
      mtf.Tensor [batch, NAME/units].
    """
    x = rename_last(x, f"{name}/inputs")
    return mtf.layers.dense(
        x,
        mtf.Dimension(f"{name}/units", units),
        reduced_dims=x.shape.dims[1:],
        activation=activation,
        kernel_initializer=mtf.layers.VarianceScalingInitializer(scale=1.0 if activation is None else 2.0),
        variable_dtype=_variable_dtype(x),
        name=name,
    )


def logits(x: Any, classes: int, *, name: str) -> Any:
    """The last dense layer: mtf.Tensor [batch, classes]."""
    return rename_last(dense(x, classes, name=name), "classes")
