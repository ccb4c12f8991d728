"""The layers' functions: pool, dilate, batch_norm."""

from collections.abc import Callable, Sequence

from mtf_hetero._compat import mtf, tf
from mtf_hetero.layers.geometry import Windows, same_padding
from mtf_hetero.layers.normalization import BatchNormOperation, accumulator_dtype
from mtf_hetero.layers.pooling import PoolOperation


def pool(
    x: mtf.Tensor,
    *,
    kind: str,
    size: int | Sequence[int],
    strides: int | Sequence[int] | None = None,
    padding: str | int = "VALID",
    name: str = "pool",
) -> mtf.Tensor:
    """Return the maximum or the average over windows of an image.

    Args:
      x: mtf.Tensor [batch, height, width, channels] or [batch, depth, height, width, channels]. If `size` is a sequence
        there may be more batch dimensions, or none.
      kind: "max" or "avg".
      size: pixels of a window, for all spatial dimensions or for each.
      strides: from a window to the next, the same; None: the size.
      padding: as in TensorFlow, "VALID" (windows within the image) or "SAME" (an average is over those pixels of a
        window that are within the image); or, as in PyTorch, a number of pixels around the image (an average counts
        them as zeros; the maximum passes over them).
      name: the operation's name.

    Returns:
      mtf.Tensor of the same dimensions, the spatial ones with a value per window.

    Raises:
      ValueError: a kind, size, stride or padding that there is not, or that does not fit the image.

    Example:
      >>> pool(x, kind="avg", size=3, strides=2, padding=1).shape  # x: [batch=2, height=8, width=8, channels=4]
      Shape[batch=2, height=4, width=4, channels=4]
    """
    if kind not in ("max", "avg"):
        raise ValueError(f"pool {name!r}: kind is {kind!r}; it must be 'max' or 'avg'")
    spatial = x.shape.ndims - 2 if isinstance(size, int) else len(size)
    if spatial not in (2, 3) or x.shape.ndims <= spatial:
        raise ValueError(
            f"pool {name!r}: {x.shape.to_string} with size {size} has {max(spatial, 0)} spatial dimensions; give an "
            "image with 2 or 3, then the channels, and a size for each"
        )
    sizes = _per_dim(size, spatial, name, "size")
    steps = sizes if strides is None else _per_dim(strides, spatial, name, "strides")
    extents = tuple(dim.size for dim in x.shape.dims[-spatial - 1 : -1])
    before, counts = _place(extents, sizes, steps, padding, name)
    windows = Windows(kind, extents, sizes, steps, before, counts, counts_padding=padding != "SAME")
    return PoolOperation(x, windows, name).outputs[0]


def _per_dim(value: int | Sequence[int], spatial: int, name: str, parameter: str) -> tuple[int, ...]:
    values = (value,) * spatial if isinstance(value, int) else tuple(value)
    if len(values) != spatial or min(values) < 1:
        raise ValueError(f"pool {name!r}: {parameter} is {value}; give a positive number, or {spatial} of them")
    return values


def _place(
    extents: Sequence[int], sizes: Sequence[int], strides: Sequence[int], padding: str | int, name: str
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the padding before the image, and number of windows, per dimension."""
    if padding == "SAME":
        placements = [same_padding(n, k, s) for n, k, s in zip(extents, sizes, strides, strict=True)]
        return tuple(before for before, _ in placements), tuple(count for _, count in placements)
    around = 0 if padding == "VALID" else padding
    if not isinstance(around, int) or not 0 <= around <= min(sizes) // 2:
        raise ValueError(
            f"pool {name!r}: padding is {padding!r}; it must be 'SAME', 'VALID' or a number of pixels up to half the "
            f"window, {min(sizes) // 2}"
        )
    counts = tuple((n + 2 * around - k) // s + 1 for n, k, s in zip(extents, sizes, strides, strict=True))
    if min(counts) < 1:
        raise ValueError(
            f"pool {name!r}: windows of {' x '.join(map(str, sizes))} do not fit an image of "
            f"{' x '.join(map(str, extents))} pixels; give larger images or smaller windows"
        )
    return (around,) * len(sizes), counts


def dilate(kernel: mtf.Tensor, rates: int | Sequence[int]) -> mtf.Tensor:
    """Return a kernel with zeros between its values: a convolution with it is dilated, which mtf's convolutions lack.

    It costs the multiply-adds of a dense kernel of that size.

    Args:
      kernel: mtf.Tensor [height, width, channels, filters] or [depth, height, width, channels, filters].
      rates: pixels from one value of the kernel to the next, in all directions or in each.

    Returns:
      mtf.Tensor of the same dimensions, a window of n becoming one of (n - 1) rate + 1.

    Raises:
      ValueError: a rate that is not positive, or not one for each direction.

    Example:
      >>> dilate(kernel, 2).shape  # kernel: [height=3, width=1, channels=4, filters=8]
      Shape[height=5, width=1, channels=4, filters=8]
    """
    spatial = kernel.shape.ndims - 2
    steps = (rates,) * spatial if isinstance(rates, int) else tuple(rates)
    if len(steps) != spatial or min(steps) < 1:
        raise ValueError(f"rates are {rates}; give a positive number, or one for each of {spatial} dimensions")
    for axis, rate in enumerate(steps):
        if rate == 1:
            continue
        before, dim, after = kernel.shape.dims[:axis], kernel.shape.dims[axis], kernel.shape.dims[axis + 1 :]
        gap = mtf.Dimension(f"{dim.name}/gap", 1)
        kernel = mtf.pad(mtf.reshape(kernel, mtf.Shape([*before, dim, gap, *after])), [0, rate - 1], gap.name)
        spread = mtf.Dimension(dim.name, dim.size * rate)
        kernel = mtf.slice(
            mtf.reshape(kernel, mtf.Shape([*before, spread, *after])), 0, (dim.size - 1) * rate + 1, dim.name
        )
    return kernel


class _Update(mtf.Assign):
    """Moves a moving average."""


def batch_norm(
    x: mtf.Tensor,
    *,
    training: bool,
    momentum: float = 0.9,
    epsilon: float = 1e-5,
    per: Sequence[str] = (),
    name: str | None = None,
) -> mtf.Tensor:
    """Batch normalisation (Ioffe and Szegedy 2015) over all dimensions but the last, and those of `per`.

    In training a channel's moments are those of the whole batch, whoever holds which part of it, and moving averages
    of them are made ready to be updated: run `batch_norm_updates` with each step. Otherwise the moving averages take
    the moments' place. Sums are made in float32, of float64 in float64.

    A group of less than the batch is said by dimensions, not by processors, so that it is the same on every layout:
    each index of the dimensions `per` has moments of its own. With a batch in two dimensions, [groups, batch, ...],
    `per=["groups"]` takes the moments of each group's examples, wherever their parts lie; with a depth in two,
    [groups, batch, blocks, depth, ...], `per=["groups", "blocks"]` those of each group's block. A layout that splits
    just these dimensions sends the moving averages, and no moments.

    Args:
      x: mtf.Tensor [..., channels].
      training: whether to normalise by the batch.
      momentum: what a moving average keeps of itself in a step; the rest is the batch's mean, or its variance
        sum (x - mean)^2 / N.
      epsilon: added to the variance.
      per: names of dimensions of x, not the last, each index of which is normalised by itself. The moving averages take
        the mean over the groups, of their means and of their variances.
      name: variable scope of `scale`, `offset`, `moving_mean` and `moving_variance`, each [channels], which layers of
        one name share. None: "batch_norm", and a number where that is taken.

    Returns:
      mtf.Tensor of the shape of x.

    Raises:
      ValueError: x has no dimension but the last, is no floating-point tensor, the momentum is not in [0, 1], or `per`
        names no dimension of x that there is, or all of them.
    """
    if x.shape.ndims < 2 or not x.dtype.is_floating:
        raise ValueError(
            f"batch norm {name!r}: x is {x.shape.to_string} of {x.dtype.name}; give a floating-point tensor "
            "[batch, ..., channels]"
        )
    if not 0 <= momentum <= 1:
        raise ValueError(f"batch norm {name!r}: momentum is {momentum}; it must be from 0 to 1")
    names = x.shape.dimension_names[:-1]
    if not set(per) <= set(names) or set(per) == set(names):
        raise ValueError(f"batch norm {name!r}: per is {list(per)}; name some, not all, of {', '.join(names)}")
    dtype = accumulator_dtype(x.dtype)

    def variable(name: str, initializer: Callable[[], object], trainable: bool) -> mtf.Tensor:
        shape = mtf.Shape(x.shape.dims[-1:])
        return mtf.get_variable(x.mesh, name, shape, dtype=dtype, initializer=initializer(), trainable=trainable)

    with tf.variable_scope(name, default_name="batch_norm") as scope:
        scale = variable("scale", tf.ones_initializer, True)
        offset = variable("offset", tf.zeros_initializer, True)
        moving_mean = variable("moving_mean", tf.zeros_initializer, False)
        moving_variance = variable("moving_variance", tf.ones_initializer, False)
    if not training:
        factor = scale * mtf.rsqrt(moving_variance + epsilon)
        return mtf.cast(mtf.cast(x, dtype) * factor + (offset - moving_mean * factor), x.dtype)
    groups = mtf.Shape([dim for dim in x.shape.dims[:-1] if dim.name in per] + scale.shape.dims)
    scale, offset = (mtf.broadcast(t, groups) if per else t for t in (scale, offset))
    y, mean, variance = BatchNormOperation(x, scale, offset, epsilon=epsilon, name=scope.name).outputs
    for moving, new in ((moving_mean, mean), (moving_variance, variance)):
        new = mtf.reduce_mean(new, output_shape=moving.shape) if per else new
        average = moving * momentum + mtf.stop_gradient(new) * (1 - momentum)
        assert isinstance(moving.operation, mtf.Variable)
        update_average(moving.operation, average, name=f"{scope.name}/update")
    return y


def update_average(variable: mtf.Variable, value: mtf.Tensor, *, name: str) -> mtf.Operation:
    """Return an operation, of those that `batch_norm_updates` finds, that sets a moving average.

    Args:
      variable: the moving average, an mtf.Variable.
      value: what it is set to.
      name: the operation's name.
    """
    return _Update([variable], [value], name=name)


def batch_norm_updates(graph: mtf.Graph) -> list[mtf.Operation]:
    """Return the mtf operations that move the moving averages of a graph; of several for one variable, the first.

    Run their lowered operations with each training step, as those of an optimizer.
    """
    updates: dict[mtf.Variable, mtf.Operation] = {}
    for op in graph.operations:
        if isinstance(op, _Update):
            updates.setdefault(op.variables[0], op)
    return list(updates.values())
