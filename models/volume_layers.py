"""The layers of the networks for volumes. Each owns its dimensions, the spatial ones among them.

A layer renames what comes in to `LAYER/batch`, `LAYER/depth`, `LAYER/height`, `LAYER/width` and `LAYER/channels` and
gives out `LAYER/filters`, so that a layout can split the volume in one layer and not in the next; the rename costs
nothing where a layout treats both sides alike. There may be any number of dimensions of the batch; each is renamed.
Variables have the dtype of the volumes.
"""

from collections.abc import Callable, Sequence
from typing import Any

import mtf_hetero.layers
from mtf_hetero import mtf, tf
from mtf_hetero.models import layers

Initializer = Callable[[int, int], Any]  # from the numbers of inputs and outputs of a unit
SPATIAL = ("depth", "height", "width")
ALL = "all"  # every stage of a network


def check_volumes(volumes: mtf.Tensor) -> None:
    """Raises ValueError unless volumes are [batch, depth, height, width, channels] of a floating-point dtype."""
    if volumes.shape.ndims < 5 or not volumes.dtype.is_floating:
        raise ValueError(
            f"volumes are {volumes.shape.to_string} of {volumes.dtype.name}; "
            "give an mtf.Tensor [batch, depth, height, width, channels] of a floating-point dtype"
        )


def extents(x: mtf.Tensor) -> tuple[int, ...]:
    """Depth, height and width."""
    return tuple(dim.size for dim in x.shape.dims[-4:-1])


def glorot_uniform(inputs: int, outputs: int) -> Any:
    """The initial values of Glorot and Bengio (2010)."""
    limit = (6.0 / (inputs + outputs)) ** 0.5
    return tf.random_uniform_initializer(-limit, limit)


def he_normal(inputs: int, outputs: int) -> Any:
    """The initial values of He et al. (2015), for relu."""
    del outputs
    return tf.truncated_normal_initializer(stddev=(2.0 / inputs) ** 0.5)


def leaky_relu(x: mtf.Tensor) -> mtf.Tensor:
    """x where it is positive, otherwise 0.01 x."""
    return mtf.leaky_relu(x, alpha=0.01)


def entered(x: mtf.Tensor, name: str, last: str = "channels") -> mtf.Tensor:
    """What comes into a layer, with the layer's names: [NAME/batch, NAME/depth, NAME/height, NAME/width, NAME/LAST]."""
    return layers.entered(x, name, *SPATIAL, last)


def normaliser(*, training: bool, momentum: float, per: Sequence[str]) -> Callable[..., mtf.Tensor]:
    """Batch norm, of an mtf.Tensor and under a name; its dimensions `per` are those that the volumes call so."""

    def normalise(x: mtf.Tensor, *, name: str) -> mtf.Tensor:
        own = {dim.rpartition("/")[2]: dim for dim in x.shape.dimension_names}
        apart = [own.get(dim.rpartition("/")[2], dim) for dim in per]
        return mtf_hetero.layers.batch_norm(x, training=training, momentum=momentum, per=apart, name=name)

    return normalise


def stages_to_recompute(named: Sequence[str], stages: Sequence[str]) -> frozenset[str]:
    """Those of a network's stages that are named; ALL names each of them.

    Raises:
      ValueError: there is no such stage.
    """
    for name in named:
        if name != ALL and name not in stages:
            raise ValueError(f"recompute names {name!r}; it must be {ALL} or some of the stages {', '.join(stages)}")
    return frozenset(stages if ALL in named else named)


def recomputed(stage: Callable[..., Any], *inputs: mtf.Tensor) -> mtf.Tensor:
    """stage(*inputs), of which only the inputs are kept for the backward pass; that computes the rest once more.

    Each value is computed twice alike, so that the gradients are the same; a batch norm's averages move once. It is
    mtf.recompute_grad, but for what makes the second time wait for the backward pass: there a sum over all processors,
    times 1e-30, is added to each input, here each processor waits for its own slice of the gradient, and adds nothing.

    Args:
      stage: from mtf.Tensors to one mtf.Tensor; it draws no random numbers.
      *inputs: mtf.Tensors.
    """
    return mtf.custom_gradient(stage, _gradient_of_recomputed, list(inputs))


def _gradient_of_recomputed(
    explicit_inputs: list[mtf.Tensor],
    all_inputs: list[mtf.Tensor],
    forward_operations: list[mtf.Tensor],
    outputs: list[mtf.Tensor],
    output_grads: list[mtf.Tensor],
) -> list[mtf.Tensor]:
    again = {x: mtf_hetero.layers.AfterOperation(x, output_grads[0]).outputs[0] for x in explicit_inputs}
    repeated = [op for op in forward_operations if not isinstance(op, mtf.Assign)]
    operations, copies = outputs[0].graph.clone_operations(repeated, again)
    sources = [again.get(x, x) for x in all_inputs]
    gradients = mtf.gradients([copies[y] for y in outputs], sources, grad_ys=output_grads, operations=operations)
    return [
        mtf.zeros_like(x) if gradient is None else gradient for x, gradient in zip(all_inputs, gradients, strict=True)
    ]


def _variable_dtype(x: mtf.Tensor) -> mtf.VariableDType:
    return mtf.VariableDType(x.dtype, x.dtype, x.dtype)


def conv3d(
    x: mtf.Tensor,
    filters: int,
    *,
    size: int,
    strides: int = 1,
    name: str,
    initializer: Initializer = he_normal,
    normalise: Callable[..., Any] | None = None,
    activation: Callable[[mtf.Tensor], mtf.Tensor] | None = None,
) -> mtf.Tensor:
    """A convolution (SAME, no bias).

    Args:
      x: mtf.Tensor [batch, depth, height, width, channels].
      filters: number of filters.
      size: depth, height and width of the kernel.
      strides: voxels from one window to the next, in each direction.
      name: the layer's name, which begins the names of its dimensions and variables.
      initializer: of the kernel.
      normalise: as `normaliser` makes it, or None.
      activation: function of an mtf.Tensor, or None.

    Returns:
      mtf.Tensor [NAME/batch, NAME/depth, NAME/height, NAME/width, NAME/filters].
    """
    x = entered(x, name)
    window = size**3
    y = mtf.layers.conv3d(
        x,
        mtf.Dimension(f"{name}/filters", filters),
        filter_size=(size,) * 3,
        strides=(strides,) * 3,
        filter_initializer=initializer(window * x.shape.dims[-1].size, window * filters),
        variable_dtype=_variable_dtype(x),
        name=name,
    )
    y = y if normalise is None else normalise(y, name=f"{name}/batch_norm")
    return y if activation is None else activation(y)


def conv3d_transpose(x: mtf.Tensor, filters: int, *, name: str, initializer: Initializer = he_normal) -> mtf.Tensor:
    """A transposed convolution of 2 x 2 x 2 with stride 2 (no bias), which doubles the volume.

    Args:
      x: mtf.Tensor [batch, depth, height, width, channels].
      filters: number of filters.
      name: the layer's name, which begins the names of its dimensions and variables.
      initializer: of the kernel.

    Returns:
      mtf.Tensor [NAME/batch, NAME/depth, NAME/height, NAME/width, NAME/filters].
    """
    x = entered(x, name)
    return mtf.layers.conv3d_transpose(
        x,
        mtf.Dimension(f"{name}/filters", filters),
        filter_initializer=initializer(x.shape.dims[-1].size, filters),  # a voxel is in one window
        variable_dtype=_variable_dtype(x),
        name=name,
    )


def pool3d(x: mtf.Tensor, *, kind: str, size: int, strides: int, padding: str | int = "VALID", name: str) -> mtf.Tensor:
    """Pools as mtf_hetero.layers.pool does: [NAME/batch, NAME/depth, NAME/height, NAME/width, NAME/channels]."""
    x = entered(x, name)
    return mtf_hetero.layers.pool(x, kind=kind, size=(size,) * 3, strides=strides, padding=padding, name=name)


def dense(
    x: mtf.Tensor,
    units: int,
    *,
    batch_dims: int,
    name: str,
    initializer: Initializer = glorot_uniform,
    bias: float = 0.0,
    activation: Callable[[mtf.Tensor], mtf.Tensor] | None = None,
) -> mtf.Tensor:
    """A dense layer with a bias, of volumes or of vectors. Its examples have a name of their own too.

    Args:
      x: mtf.Tensor [batch, depth, height, width, channels] or [batch, inputs].
      units: number of units.
      batch_dims: number of dimensions of the batch.
      name: the layer's name, which begins the names of its dimensions and variables.
      initializer: of the kernel.
      bias: initial value of the bias.
      activation: function of an mtf.Tensor, or None.

    Returns:
      mtf.Tensor [NAME/batch, NAME/outputs].
    """
    x = layers.entered(x, name, "inputs")
    batch, reduced = x.shape.dims[:batch_dims], x.shape.dims[batch_dims:]
    out, outputs = (mtf.Dimension(f"{name}/{suffix}", units) for suffix in ("units", "outputs"))
    inputs = mtf.Shape(reduced).size
    with tf.variable_scope(name):

        def variable(variable_name: str, shape: Sequence[mtf.Dimension], initializer: Any) -> mtf.Tensor:
            return mtf.get_variable(
                x.mesh, variable_name, mtf.Shape(shape), initializer=initializer, dtype=_variable_dtype(x)
            )

        kernel = variable("kernel", [*reduced, out], initializer(inputs, units))
        offset = variable("bias", [outputs], tf.constant_initializer(bias))
    y = mtf.einsum([x, kernel], output_shape=mtf.Shape([*batch, out]))
    y = mtf.reshape(y, mtf.Shape([*batch, outputs])) + offset
    return y if activation is None else activation(y)
