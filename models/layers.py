"""The layers of the networks, for images and volumes. Each has its own dimensions, so that a layout can split each.

A layer renames its input to `LAYER/batch`, `LAYER/height`, `LAYER/width` and `LAYER/channels` (a convolution or a pool;
for volumes `LAYER/depth` too) or `LAYER/inputs` (a dense layer). The output has `LAYER/filters` or `LAYER/outputs` as
its last dimension. A rename costs nothing if a layout splits both sides alike. So a layout can split one layer by its
batch and the next by its filters, or only large maps. Batch norm, bias and activation have the dimensions of their
layer. The output of a network has the images' own batch. Variables have the dtype of the images, or float32 if that is
half precision.

Images may have any number of batch dimensions, because one mesh axis at most splits a dimension. Each is renamed.
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import mtf_hetero.layers
from mtf_hetero import mtf, tf
from mtf_hetero.ops.moments import accumulator_dtype

Activation = Callable[[mtf.Tensor], mtf.Tensor]
Normaliser = Callable[..., mtf.Tensor]
Initializer = Callable[[int, int], object]  # returns an initializer from the numbers of a unit's inputs and outputs
IMAGE = ("height", "width")
VOLUME = ("depth", *IMAGE)
GLOROT = mtf.layers.VarianceScalingInitializer(scale=1.0, mode="fan_avg", distribution="uniform")  # of a dense layer


@dataclasses.dataclass(frozen=True, kw_only=True)
class Classifier:
    """The end of a network for images, a part of its configuration.

    Args:
      classes: number of classes.
      dense_rounds: sizes of the parts of the batch that pass the dense layers in turn; None: all at once.
    """

    classes: int = 10
    dense_rounds: tuple[int, ...] | None = None


def check_images(images: mtf.Tensor, spatial: Sequence[str] = IMAGE) -> None:
    """Raise ValueError unless images or volumes are [batch, *spatial, channels] of a floating-point dtype."""
    if images.shape.ndims < len(spatial) + 2 or not images.dtype.is_floating:
        raise ValueError(
            f"{'volumes' if 'depth' in spatial else 'images'} are {images.shape.to_string} of {images.dtype.name}; "
            f"give an mtf.Tensor [batch, {', '.join(spatial)}, channels] of a floating-point dtype"
        )


def he_normal(inputs: int, outputs: int) -> object:
    """Return the initializer of He et al. (2015), for relu."""
    del outputs
    return tf.truncated_normal_initializer(stddev=(2.0 / inputs) ** 0.5)


def glorot_uniform(inputs: int, outputs: int) -> object:
    """Return the initializer of Glorot and Bengio (2010)."""
    limit = (6.0 / (inputs + outputs)) ** 0.5
    return tf.random_uniform_initializer(-limit, limit)


def leaky_relu(x: mtf.Tensor) -> mtf.Tensor:
    """Return x if it is positive, otherwise 0.01 x."""
    return mtf.leaky_relu(x, alpha=0.01)


def normaliser(*, training: bool, per: Sequence[str] = (), **options: Any) -> Normaliser:
    """Return a function that applies batch norm to a tensor.

    Args:
      training: whether to normalise by the batch.
      per: dimensions with separate statistics for each index, without the names of layers.
      **options: of mtf_hetero.layers.batch_norm.
    """

    def normalise(x: mtf.Tensor, *, name: str) -> mtf.Tensor:
        own = {dim.rpartition("/")[2]: dim for dim in x.shape.dimension_names}
        apart = [own.get(dim.rpartition("/")[2], dim) for dim in per]
        return mtf_hetero.layers.batch_norm(x, training=training, per=apart, name=name, **options)

    return normalise


def _variable_dtype(x: mtf.Tensor) -> mtf.VariableDType:
    stored = accumulator_dtype(x.dtype)
    return mtf.VariableDType(stored, stored, x.dtype)


def rename_last(x: mtf.Tensor, *names: str) -> mtf.Tensor:
    """Rename the last dimensions of a tensor."""
    kept, changed = x.shape.dims[: -len(names)], x.shape.dims[-len(names) :]
    return mtf.reshape(x, [*kept, *(mtf.Dimension(name, dim.size) for name, dim in zip(names, changed, strict=True))])


def rename_input(x: mtf.Tensor, name: str, last: str = "channels") -> mtf.Tensor:
    """Rename the dimensions of a layer's input to the layer's names.

    Args:
      x: mtf.Tensor [batch, height, width, channels], or of other dimensions.
      name: the layer's name.
      last: the layer's name of the last dimension; the others keep their old names.

    Returns:
      mtf.Tensor [NAME/batch, NAME/height, NAME/width, NAME/LAST].
    """
    kept = (dim.rpartition("/")[2] for dim in x.shape.dimension_names[:-1])
    return rename_last(x, *(f"{name}/{dim}" for dim in (*kept, last)))


def conv(
    x: mtf.Tensor,
    filters: int,
    *,
    size: int,
    rank: int = 2,
    strides: int = 1,
    name: str,
    padding: str = "SAME",
    use_bias: bool = False,
    initializer: Initializer = he_normal,
    normalise: Normaliser | None = None,
    activation: Activation | None = mtf.relu,
) -> mtf.Tensor:
    """Add a convolution.

    Args:
      x: mtf.Tensor [batch, height, width, channels] or [batch, depth, height, width, channels].
      filters: number of filters.
      size: of the kernel, in each direction.
      rank: 2 for images, 3 for volumes.
      strides: pixels or voxels from one window to the next, in each direction.
      name: the layer's name, which begins the names of its dimensions and variables.
      padding: "SAME" or "VALID".
      use_bias: whether to add a bias per filter.
      initializer: of the kernel.
      normalise: from `normaliser`, or None.
      activation: function of an mtf.Tensor, or None.

    Returns:
      mtf.Tensor [NAME/batch, NAME/height, NAME/width, NAME/filters].

    Raises:
      ValueError: the image is smaller than a kernel that must lie within it.
    """
    x = rename_input(x, name)
    extents, channels = [dim.size for dim in x.shape.dims[-rank - 1 : -1]], x.shape.dims[-1].size
    if padding == "VALID" and min(extents) < size:
        pixels, kernel = (" x ".join(map(str, sizes)) for sizes in (extents, [size] * rank))
        raise ValueError(f"layer {name!r} convolves {pixels} pixels with a {kernel} kernel; give larger images")
    convolve = {2: mtf.layers.conv2d, 3: mtf.layers.conv3d}[rank]
    y = convolve(
        x,
        mtf.Dimension(f"{name}/filters", filters),
        filter_size=(size,) * rank,
        strides=(strides,) * rank,
        padding=padding,
        filter_initializer=initializer(size**rank * channels, size**rank * filters),
        variable_dtype=_variable_dtype(x),
        name=name,
    )
    y = _add_bias(y, name) if use_bias else y
    y = y if normalise is None else normalise(y, name=f"{name}/batch_norm")
    return y if activation is None else activation(y)


def conv3d_transpose(x: mtf.Tensor, filters: int, *, name: str) -> mtf.Tensor:
    """Add a transposed convolution of 2 x 2 x 2 with stride 2 (no bias), which doubles the volume.

    Args:
      x: mtf.Tensor [batch, depth, height, width, channels].
      filters: number of filters.
      name: the layer's name, which begins the names of its dimensions and variables.

    Returns:
      mtf.Tensor [NAME/batch, NAME/depth, NAME/height, NAME/width, NAME/filters].
    """
    x = rename_input(x, name)
    return mtf.layers.conv3d_transpose(
        x,
        mtf.Dimension(f"{name}/filters", filters),
        filter_initializer=he_normal(x.shape.dims[-1].size, filters),  # each voxel is in one window
        variable_dtype=_variable_dtype(x),
        name=name,
    )


def pool(x: mtf.Tensor, *, kind: str, name: str, size: Sequence[int] = (2, 2), **options: Any) -> mtf.Tensor:
    """Pool by mtf_hetero.layers.pool, with its options: [NAME/batch, NAME/height, NAME/width, NAME/channels]."""
    options = {"padding": "SAME", **options}
    return mtf_hetero.layers.pool(rename_input(x, name), kind=kind, size=size, name=name, **options)


def overlapping_max_pool(x: mtf.Tensor, *, name: str) -> mtf.Tensor:
    """Add a max pool of windows of 3 x 3 with stride 2 and padding SAME."""
    return pool(x, kind="max", size=(3, 3), strides=2, name=name)


def dense(
    x: mtf.Tensor,
    units: int,
    *,
    name: str,
    batch_dims: int = 1,
    initializer: mtf.layers.DenseInitializer | None = None,
    bias: float = 0.0,
    activation: Activation | None = None,
) -> mtf.Tensor:
    """Add a dense layer with a bias over all dimensions except the batch.

    It contracts [height, width, channels] without flattening them, so that a layout can split the channels.

    Args:
      x: mtf.Tensor [batch, ...].
      units: number of units.
      name: the layer's name, which begins the names of its dimensions and variables.
      batch_dims: number of dimensions of the batch.
      initializer: of the kernel; None: that of He et al. (2015) before an activation, else that of LeCun et al. (1998).
      bias: initial value of the bias.
      activation: function of an mtf.Tensor, or None.

    Returns:
      mtf.Tensor [NAME/batch, NAME/outputs].
    """
    initializer = initializer or mtf.layers.VarianceScalingInitializer(scale=1.0 if activation is None else 2.0)
    y = _product(x, units, name=name, batch_dims=batch_dims, initializer=initializer)
    y = _add_bias(rename_last(y, f"{name}/outputs"), name, bias)
    return y if activation is None else activation(y)


def _product(
    x: mtf.Tensor, units: int, *, name: str, batch_dims: int, initializer: mtf.layers.DenseInitializer
) -> mtf.Tensor:
    """Return inputs times kernel: mtf.Tensor [NAME/batch, NAME/units]."""
    x = rename_input(x, name, "inputs")
    return mtf.layers.dense(
        x,
        mtf.Dimension(f"{name}/units", units),
        reduced_dims=x.shape.dims[batch_dims:],
        use_bias=False,
        kernel_initializer=initializer,
        variable_dtype=_variable_dtype(x),
        name=name,
    )


def _add_bias(y: mtf.Tensor, name: str, value: float = 0.0) -> mtf.Tensor:
    with tf.variable_scope(name):
        out, dtype = [y.shape.dims[-1]], _variable_dtype(y)
        return y + mtf.get_variable(y.mesh, "bias", out, dtype=dtype, initializer=tf.constant_initializer(value))


def classifier(
    x: mtf.Tensor,
    units: Sequence[int],
    config: Classifier,
    *,
    batch: Sequence[mtf.Dimension],
    drop: Callable[[mtf.Tensor, int], mtf.Tensor] | None = None,
    last: str | None = None,
) -> mtf.Tensor:
    """Add dense layers with relu, dense1, dense2 and so on, and a last one for the classes.

    Args:
      x: mtf.Tensor [batch, ...].
      units: units of the hidden layers.
      config: of the network. Rounds change only the numbers that dropout draws.
      batch: the dimensions of the images' batch.
      drop: returns the next layer's input from a hidden layer's output and number, from 1 on, for dropout; None: no
        dropout.
      last: the last layer's name; None: its number, as for the others.

    Returns:
      Logits, mtf.Tensor [batch, classes].

    Raises:
      ValueError: the sum of the rounds is not the size of the batch.
    """
    last = f"dense{len(units) + 1}" if last is None else last

    def products(x: mtf.Tensor) -> mtf.Tensor:
        for number, count in enumerate(units, 1):
            x = dense(x, count, name=f"dense{number}", batch_dims=len(batch), activation=mtf.relu)
            x = x if drop is None else drop(x, number)
        initializer = mtf.layers.VarianceScalingInitializer()
        return _product(x, config.classes, name=last, batch_dims=len(batch), initializer=initializer)

    if config.dense_rounds is None:
        y = products(x)
    else:
        x = mtf.reshape(x, [*batch, *x.shape.dims[len(batch) :]])
        y = mtf_hetero.layers.in_rounds(x, products, dim=batch[-1], sizes=config.dense_rounds)
    return _add_bias(mtf.reshape(y, [*batch, mtf.Dimension("classes", config.classes)]), last)
