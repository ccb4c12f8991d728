"""The layers that the models share. Each owns its dimensions, so that a layout can choose for each of them.

A layer renames what comes in to `LAYER/batch`, `LAYER/height`, `LAYER/width` and `LAYER/channels` (a convolution or a
pool) or `LAYER/inputs` (a dense layer), and gives out `LAYER/filters` or `LAYER/outputs` in place of the last; the
rename costs nothing where a layout treats both sides alike. So a layout can split one layer by its batch, the next by
its filters, and large maps and not small ones. Batch norm, bias and activation lie as their layer does. What a network
gives out has the images' own batch. Variables have the dtype of the images.

Images may have any number of batch dimensions, for a dimension is split over one mesh axis at most; each is renamed.
"""

from collections.abc import Callable, Sequence
from typing import Any

import mtf_hetero.layers
from mtf_hetero import mtf, tf

Activation = Callable[[Any], Any]


def check_images(images: mtf.Tensor) -> None:
    """Raises ValueError unless images are [batch, height, width, channels] of a floating-point dtype."""
    if images.shape.ndims < 4 or not images.dtype.is_floating:
        raise ValueError(
            f"images are {images.shape.to_string} of {images.dtype.name}; "
            "give an mtf.Tensor [batch, height, width, channels] of a floating-point dtype"
        )


def _variable_dtype(x: mtf.Tensor) -> mtf.VariableDType:
    return mtf.VariableDType(x.dtype, x.dtype, x.dtype)


def rename_last(x: mtf.Tensor, *names: str) -> mtf.Tensor:
    """The tensor, with other names for its last dimensions."""
    kept, changed = x.shape.dims[: -len(names)], x.shape.dims[-len(names) :]
    return mtf.reshape(x, [*kept, *(mtf.Dimension(name, dim.size) for name, dim in zip(names, changed, strict=True))])


def entered(x: mtf.Tensor, name: str, *last: str) -> mtf.Tensor:
    """What comes into a layer, with the layer's names.

    Args:
      x: mtf.Tensor [batch, height, width, channels], or of other dimensions.
      name: the layer's name.
      *last: what the layer calls the last dimensions; the others are called what they were before.

    Returns:
      mtf.Tensor [NAME/batch, NAME/height, NAME/width, NAME/LAST].
    """
    kept = (dim.rpartition("/")[2] for dim in x.shape.dimension_names[: -len(last)])
    return rename_last(x, *(f"{name}/{dim}" for dim in (*kept, *last)))


def conv2d(
    x: mtf.Tensor,
    filters: int,
    *,
    size: int,
    strides: int = 1,
    name: str,
    padding: str = "SAME",
    use_bias: bool = False,
    activation: Activation | None = mtf.relu,
) -> mtf.Tensor:
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
      mtf.Tensor [NAME/batch, NAME/height, NAME/width, NAME/filters].

    Raises:
      ValueError: the image is smaller than a kernel that must lie within it.
    """
    x = entered(x, name, "channels")
    height, width, channels = x.shape.dims[-3:]
    if padding == "VALID" and min(height.size, width.size) < size:
        raise ValueError(
            f"layer {name!r} convolves {height.size} x {width.size} pixels with a {size} x {size} kernel; "
            "give larger images"
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
    x: mtf.Tensor,
    filters: int,
    *,
    size: int,
    strides: int = 1,
    name: str,
    training: bool,
    activation: Activation | None = mtf.relu,
) -> mtf.Tensor:
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
      mtf.Tensor, as `conv2d`.

    Raises:
      ValueError: as `conv2d`.
    """
    y = conv2d(x, filters, size=size, strides=strides, name=name, activation=None)
    y = mtf_hetero.layers.batch_norm(y, training=training, name=f"{name}/batch_norm")
    return y if activation is None else activation(y)


def pool2d(x: mtf.Tensor, *, kind: str, name: str) -> mtf.Tensor:
    """The maximum ("max") or the average ("avg") of windows of 2 x 2, of what is left of one at an edge (SAME).

    Returns:
      mtf.Tensor [NAME/batch, NAME/height, NAME/width, NAME/channels].
    """
    x = entered(x, name, "channels")
    return mtf_hetero.layers.pool(x, kind=kind, size=(2, 2), padding="SAME", name=name)


def overlapping_max_pool(x: mtf.Tensor, *, name: str) -> mtf.Tensor:
    """The maxima of windows of 3 x 3, two pixels from one to the next (SAME).

    Returns:
      mtf.Tensor [NAME/batch, NAME/height, NAME/width, NAME/channels].
    """
    x = entered(x, name, "channels")
    return mtf_hetero.layers.pool(x, kind="max", size=3, strides=2, padding="SAME", name=name)


def dense(
    x: mtf.Tensor, units: int, *, name: str, batch_dims: int = 1, activation: Activation | None = None
) -> mtf.Tensor:
    """A dense layer over all dimensions but those of the batch, with a bias.

    It contracts [height, width, channels] as they are: flattened, they could not be split along the channels.

    Args:
      x: mtf.Tensor [batch, ...].
      units: number of units.
      name: the layer's name, which begins the names of its dimensions and variables.
      batch_dims: number of dimensions of the batch.
      activation: function of an mtf.Tensor, or None.

    Returns:
      mtf.Tensor [NAME/batch, NAME/outputs].
    """
    scale = 1.0 if activation is None else 2.0
    y = rename_last(_product(x, units, name=name, batch_dims=batch_dims, scale=scale), f"{name}/outputs")
    y = _add_bias(y, name)
    return y if activation is None else activation(y)


def _product(x: mtf.Tensor, units: int, *, name: str, batch_dims: int, scale: float) -> mtf.Tensor:
    """Inputs times kernel: mtf.Tensor [NAME/batch, NAME/units]."""
    x = entered(x, name, "inputs")
    return mtf.layers.dense(
        x,
        mtf.Dimension(f"{name}/units", units),
        reduced_dims=x.shape.dims[batch_dims:],
        use_bias=False,
        kernel_initializer=mtf.layers.VarianceScalingInitializer(scale=scale),
        variable_dtype=_variable_dtype(x),
        name=name,
    )


def _add_bias(y: mtf.Tensor, name: str) -> mtf.Tensor:
    with tf.variable_scope(name):
        out, dtype = [y.shape.dims[-1]], _variable_dtype(y)
        return y + mtf.get_variable(y.mesh, "bias", out, dtype=dtype, initializer=tf.zeros_initializer())


def classifier(
    x: mtf.Tensor,
    units: Sequence[int],
    classes: int,
    *,
    batch: Sequence[mtf.Dimension],
    drop: Callable[[mtf.Tensor, int], mtf.Tensor] | None = None,
    rounds: Sequence[int] | None = None,
    last: str | None = None,
) -> mtf.Tensor:
    """Dense layers with relu, dense1, dense2 and so on, and one to the classes.

    Args:
      x: mtf.Tensor [batch, ...].
      units: units of the hidden layers.
      classes: number of classes.
      batch: the dimensions of the batch, those of the images.
      drop: from the output of a hidden layer and its number, from 1 on, to what the next layer gets, for dropout; None:
        the output itself.
      rounds: sizes of the parts of the batch's last dimension that pass the layers one after another; None: all at
        once. The result is the same, but that dropout draws other numbers.
      last: the last layer's name; None: its number, as of the others.

    Returns:
      Logits, mtf.Tensor [batch, classes].

    Raises:
      ValueError: the rounds do not add up to the batch.
    """
    last = f"dense{len(units) + 1}" if last is None else last

    def products(x: mtf.Tensor) -> mtf.Tensor:
        for number, count in enumerate(units, 1):
            x = dense(x, count, name=f"dense{number}", batch_dims=len(batch), activation=mtf.relu)
            x = x if drop is None else drop(x, number)
        return _product(x, classes, name=last, batch_dims=len(batch), scale=1.0)

    if rounds is None:
        y = products(x)
    else:
        x = mtf.reshape(x, [*batch, *x.shape.dims[len(batch) :]])
        y = mtf_hetero.layers.in_rounds(x, products, dim=batch[-1], sizes=rounds)
    return _add_bias(mtf.reshape(y, [*batch, mtf.Dimension("classes", classes)]), last)
