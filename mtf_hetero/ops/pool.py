"""Pools over windows that may overlap, lie apart or reach beyond the image, mtf's own pools, and their gradients.

Where a layout splits the height, width or depth, a window can lie on both sides of a boundary. A maximum and a sum are
made of those of the parts, so that the processor that has the window needs nothing but its neighbour's pixels or, for
the gradient of an average, its neighbour's windows, and need not wait for them. The gradients are TensorFlow's own
operations. `pooling` has the functions of slices.
"""

from collections.abc import Sequence
from typing import TypeAlias

from mtf_hetero._compat import mtf, tf
from mtf_hetero._support.ops import zeros
from mtf_hetero.layout.blocks import Box, is_empty
from mtf_hetero.ops.backend import Backend
from mtf_hetero.ops.geometry import Geometry, read_parts
from mtf_hetero.ops.halo import anew, combine, fill
from mtf_hetero.ops.pooling import PoolWindows
from mtf_hetero.ops.registry import register
from mtf_hetero.ops.traits import Images, Traits
from mtf_hetero.ops.whole import lower_slices
from mtf_hetero.ops.windows import crop_or_pad, same_padding


class PoolOperation(mtf.Operation):
    """A pool over any windows.

    Args:
      x: mtf.Tensor [..., spatial dimensions, channels].
    """

    def __init__(self, x: mtf.Tensor, windows: PoolWindows, name: str) -> None:
        super().__init__([x], name=name)
        self.windows = windows
        dims = x.shape.dims
        rank = len(windows.sizes) + 1
        spatial = [mtf.Dimension(d.name, n) for d, n in zip(dims[-rank:-1], windows.counts, strict=True)]
        self._outputs = [mtf.Tensor(self, mtf.Shape([*dims[:-rank], *spatial, dims[-1]]), x.dtype)]

    def gradient(self, grad_ys: Sequence[mtf.Tensor]) -> list[mtf.Tensor]:
        (x,), (y,), (dy,) = self.inputs, self.outputs, grad_ys
        inputs = [dy, x, y] if self.windows.kind == "max" else [dy]
        return PoolGradientOperation(self.windows, x.shape, inputs, f"{self.name}/gradient").outputs

    def lower(self, lowering: mtf.Lowering) -> None:
        windows, dims = self.windows, self.inputs[0].shape.dims
        space = dims[-len(windows.sizes) - 1 : -1]
        lower_slices(self, lowering, lambda x: windows.pool(x, windows.all), whole_dims=space)


class PoolGradientOperation(mtf.Operation):
    """The gradient to a pool's input. Its inputs are dy and, where the maximum is taken, x and y.

    Args:
      shape: mtf.Shape of the pool's input.
      inputs: dy, or dy, x and y.
    """

    def __init__(self, windows: PoolWindows, shape: mtf.Shape, inputs: Sequence[mtf.Tensor], name: str) -> None:
        super().__init__(list(inputs), name=name)
        self.windows = windows
        self._outputs = [mtf.Tensor(self, shape, inputs[0].dtype)]

    def lower(self, lowering: mtf.Lowering) -> None:
        windows, dims = self.windows, self.outputs[0].shape.dims
        image = [(0, n) for n in windows.extents]

        def differentiate(dy: tf.Tensor, x: tf.Tensor | None = None, y: tf.Tensor | None = None) -> tf.Tensor:
            x = None if x is None else crop_or_pad(x, image, windows.inside(windows.receptive_field(windows.all)))
            pixels, part = windows.gradient(dy, windows.all, x, y)
            return crop_or_pad(part, pixels, image)

        lower_slices(self, lowering, differentiate, whole_dims=dims[-len(windows.sizes) - 1 : -1])


ForwardPool: TypeAlias = PoolOperation | mtf.PoolOperation
PoolGradient: TypeAlias = PoolGradientOperation | mtf.PoolBackPropOperation


def _windows(op: ForwardPool | PoolGradient) -> PoolWindows:
    """Return the windows of a pool; those of mtf's own are as far apart as they are large, and inside."""
    if isinstance(op, (PoolOperation, PoolGradientOperation)):
        return op.windows
    x, y = (*op.inputs, *op.outputs)[:2]
    rank = len(op._ksize) + 1
    extents, counts = (tuple(dim.size for dim in t.shape.dims[-rank:-1]) for t in (x, y))
    size = tuple(op._ksize)
    return PoolWindows(extents, size, size, (0,) * len(size), counts, op._pool_fn_string[:3].lower())


def _gradient_inputs(op: PoolGradient) -> list[mtf.Tensor]:
    """Return dy, and x and y where the gradient needs them."""
    if isinstance(op, mtf.PoolBackPropOperation):
        x, y, dy = op.inputs
        return [dy, x, y]
    return op.inputs


def _images(op: ForwardPool) -> Images:
    (x,), (y,) = op.inputs, op.outputs
    return Images(x, y, _windows(op).sizes)


def _gradient_images(op: PoolGradient) -> Images:
    return Images(op.outputs[0], _gradient_inputs(op)[0], _windows(op).sizes)


@register(PoolOperation, mtf.PoolOperation, traits=Traits(images=_images))
def pool_slices(op: ForwardPool, backend: Backend) -> None:
    """Have each processor pool its slice, and add, or take the maximum with, what its neighbours' pieces give."""
    (x,), (output,), windows = op.inputs, op.outputs, _windows(op)
    geometry = Geometry(windows, _images(op), x, backend.layout)
    reads, parts = read_parts(op, geometry, backend)

    def pool_slice(pnum: int, *xs: tf.Tensor) -> tf.Tensor:
        shape, box = backend.layout.slice_shape(output.shape, pnum), geometry.small(pnum)
        if 0 in shape:
            return zeros(shape, output.dtype)
        if not reads.boxes[pnum]:
            seen = windows.inside(windows.receptive_field(box))
            return windows.pool(crop_or_pad(xs[0], geometry.large(pnum), seen), box)
        y = None if reads.has_own[pnum] else fill(shape, windows.nothing(x.dtype), x.dtype)
        reduction = "MAX" if windows.kind == "max" else "SUM"
        for (pixels, reached), part in zip(reads.parts(pnum), xs, strict=True):
            if y is None:
                y = anew(windows.partial(part, pixels, box))
            else:
                y = combine(y, box, windows.partial(part, pixels, reached), reached, reduction)
        assert y is not None
        return windows.weighted(y, box)

    backend.set(output, backend.make(output, pool_slice, parts, reads.result_key))


@register(PoolGradientOperation, mtf.PoolBackPropOperation, traits=Traits(images=_gradient_images))
def pool_gradient(op: PoolGradient, backend: Backend) -> None:
    """Apply TensorFlow's own operation to parts of the image."""
    if _windows(op).kind == "max":
        _maximum_gradient(op, backend)
    else:
        _average_gradient(op, backend)


def _average_gradient(op: PoolGradient, backend: Backend) -> None:
    """Have each processor spread its own windows' gradient, and add what its neighbours' windows give to its pixels."""
    (output,), windows, images = op.outputs, _windows(op), _gradient_images(op)
    geometry = Geometry(windows, images, images.small, backend.layout)
    reads, parts = read_parts(op, geometry, backend)

    def differentiate(pnum: int, *dys: tf.Tensor) -> tf.Tensor:
        box, shape = geometry.large(pnum), backend.layout.slice_shape(output.shape, pnum)
        dx = None if reads.has_own[pnum] else fill(shape, 0, output.dtype)
        for (values, reached), part in zip(reads.parts(pnum), dys, strict=True):
            dy = anew(part) if dx is None and reads.boxes[pnum] else part  # others' parts are added in place
            pixels, to_pixels = windows.gradient(dy, values)
            if dx is None:
                dx = crop_or_pad(to_pixels, pixels, box)
            else:
                dx = combine(dx, box, crop_or_pad(to_pixels, pixels, reached), reached)
        assert dx is not None
        return dx

    backend.set(output, backend.make(output, differentiate, parts, reads.result_key))


def _maximum_gradient(op: PoolGradient, backend: Backend) -> None:
    """Have each processor fetch all windows that lie in its pixels, and all that they see, to find the maxima."""
    (output,), windows, images = op.outputs, _windows(op), _gradient_images(op)
    dy, x, y = _gradient_inputs(op)
    geometry = Geometry(windows, images, images.small, backend.layout)
    covering: list[Box | None] = []
    visible: list[Box | None] = []
    for pnum in backend.processors:
        box = geometry.required_box(pnum)
        seen = windows.inside(windows.receptive_field(geometry.of_space(box)))
        covering.append(None if is_empty(box) else box)
        visible.append(None if is_empty(box) else geometry.in_all_dimensions(seen, pnum))

    def differentiate(pnum: int, *parts: tf.Tensor) -> tf.Tensor:
        box = covering[pnum]
        if box is None:  # only pixels that no window sees
            return zeros(backend.layout.slice_shape(output.shape, pnum), output.dtype)
        dy, x, y = parts
        pixels, dx = windows.gradient(dy, geometry.of_space(box), x, y)
        return crop_or_pad(dx, pixels, geometry.large(pnum))

    parts = [backend.fetch(t, boxes) for t, boxes in ((dy, covering), (x, visible), (y, covering))]
    reads = [[part for part in own if part is not None] for own in zip(*parts, strict=True)]
    backend.set(output, backend.make(output, differentiate, reads, lambda pnum: tuple(geometry.boxes(pnum))))


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
    windows = PoolWindows(extents, sizes, steps, before, counts, kind, counts_padding=padding != "SAME")
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
