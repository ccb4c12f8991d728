"""Images and kernels made larger, of operations that mtf has: a split height or width sends a row, or nothing."""

from collections.abc import Sequence

from mtf_hetero._compat import mtf, tf

METHODS = ("nearest", "bilinear")


def upsample(
    x: mtf.Tensor, factors: int | Sequence[int], *, method: str = "nearest", name: str = "upsample"
) -> mtf.Tensor:
    """Make an image larger, as tf.image.resize and Keras's UpSampling layers do.

    Args:
      x: mtf.Tensor [batch, height, width, channels] or [batch, depth, height, width, channels]. If `factors` is a
        sequence there may be more batch dimensions, or none.
      factors: pixels that become of one, for all spatial dimensions or for each.
      method: "nearest" repeats each pixel; "bilinear" interpolates between the centres of pixels, linearly in each
        direction ("trilinear" in three), and repeats those of the edge.
      name: begins the names of dimensions that are there for a while.

    Returns:
      mtf.Tensor of the same dimensions, the spatial ones so many times as large.

    Raises:
      ValueError: another method, or factors that are not positive or do not fit the image.

    Example:
      >>> upsample(x, 2).shape  # x: [batch=2, height=8, width=8, channels=4]
      Shape[batch=2, height=16, width=16, channels=4]
    """
    if method not in METHODS:
        raise ValueError(f"upsample {name!r}: method is {method!r}; it must be one of {', '.join(METHODS)}")
    spatial = x.shape.ndims - 2 if isinstance(factors, int) else len(factors)
    each = (factors,) * spatial if isinstance(factors, int) else tuple(factors)
    if not 1 <= spatial < x.shape.ndims or min(each) < 1:
        raise ValueError(
            f"upsample {name!r}: factors are {factors} for {x.shape.to_string}; give a positive whole number, or one "
            "for each spatial dimension"
        )
    for axis, factor in enumerate(each, x.shape.ndims - spatial - 1):
        if factor > 1:
            x = _upsample(x, axis, factor, method, f"{name}/repeat")
    return x


def _upsample(x: mtf.Tensor, axis: int, factor: int, method: str, name: str) -> mtf.Tensor:
    dims = x.shape.dims
    before, dim, after = dims[:axis], dims[axis], dims[axis + 1 :]
    if method == "nearest":
        spread = mtf.broadcast(x, mtf.Shape([*before, dim, mtf.Dimension(name, factor), *after]))
    else:
        spread = mtf.stack(_between(x, dim, factor), name, axis + 1)
    return mtf.reshape(spread, mtf.Shape([*before, mtf.Dimension(dim.name, dim.size * factor), *after]))


def _between(x: mtf.Tensor, dim: mtf.Dimension, factor: int) -> list[mtf.Tensor]:
    """Return the values for each pixel: between it and the pixel before, then between it and the pixel after."""
    places = mtf.range(x.mesh, dim, tf.int32)
    edges = {1: 0, -1: dim.size - 1}  # {shift to the neighbour: the pixel that has none}
    neighbours = {
        offset: mtf.shift(x, offset, dim, wrap=False) + x * mtf.cast(mtf.equal(places, edge), x.dtype)
        for offset, edge in edges.items()
    }
    values = []
    for number in range(factor):
        position = (number + 0.5) / factor - 0.5
        neighbour = neighbours[1 if position < 0 else -1]
        values.append(x * (1 - abs(position)) + neighbour * abs(position) if position else x)
    return values


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
