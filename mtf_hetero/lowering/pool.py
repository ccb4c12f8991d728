"""Pooling and its gradient, mtf's own and ours.

Where a layout splits the height, width or depth, a window can lie on both sides of a boundary. A maximum and a sum are
made of those of the parts, so that the processor that has the window needs nothing but its neighbour's pixels or, for
the gradient of an average, its neighbour's windows, and need not wait for them. The gradients are TensorFlow's own
operations.
"""

import dataclasses

from mtf_hetero import layers
from mtf_hetero._compat import mtf, tf
from mtf_hetero._support.ops import zeros
from mtf_hetero.blocks import Interval, is_empty
from mtf_hetero.layers.geometry import Windows, crop_or_pad, overlap
from mtf_hetero.lowering.halo import alike, anew, combine, filled, halos
from mtf_hetero.lowering.registry import register, set_output
from mtf_hetero.lowering.windows import fetch, slice_box

Box = list[Interval]


def _of_mtf(op: mtf.Operation, x: mtf.Tensor, y: mtf.Tensor) -> Windows:
    """The windows of mtf's own pools: as far apart as they are large, and within the image."""
    rank = len(op._ksize) + 1
    extents, counts = ([dim.size for dim in t.shape.dims[-rank:-1]] for t in (x, y))
    size = tuple(op._ksize)
    return Windows(op._pool_fn_string[:3].lower(), tuple(extents), size, size, (0,) * len(size), tuple(counts))


@dataclasses.dataclass(frozen=True)
class _Places:
    """Where the slices of a pool's image and of its windows' values lie, by (begin, end) per dimension.

    Args:
      op: the mtf.Operation.
      lowering: the Lowering.
      windows: its windows.
      pixels_shape: mtf.Shape of the image.
      values_shape: mtf.Shape of the windows' values.
    """

    op: mtf.Operation
    lowering: mtf.Lowering
    windows: Windows
    pixels_shape: mtf.Shape
    values_shape: mtf.Shape

    def pixels(self, pnum: int) -> Box:
        """A processor's pixels; of space alone."""
        return self.of_space(slice_box(self.op, self.lowering, self.pixels_shape, pnum))

    def values(self, pnum: int) -> Box:
        """A processor's windows; of space alone."""
        return self.of_space(slice_box(self.op, self.lowering, self.values_shape, pnum))

    def of_space(self, box: Box) -> Box:
        """The part of a box that is of space."""
        return box[-len(self.windows.sizes) - 1 : -1]

    def seen(self, pnum: int, windows: Box) -> Box:
        """What some windows see of the image, for a processor's examples and channels."""
        return self._whole(pnum, self.windows.inside(self.windows.pixels(windows)))

    def covering(self, pnum: int) -> Box:
        """The windows that lie in a processor's pixels, for its examples and channels; there may be none."""
        return self._whole(pnum, self.windows.covering(self.pixels(pnum)))

    def _whole(self, pnum: int, space: Box) -> Box:
        held = slice_box(self.op, self.lowering, self.pixels_shape, pnum)
        return [*held[: -len(space) - 1], *space, held[-1]]

    def boxes(self, pnum: int) -> Box:
        """A processor's pixels and windows; of space alone."""
        return [*self.pixels(pnum), *self.values(pnum)]


def _lower_pool(op: mtf.Operation, lowering: mtf.Lowering, windows: Windows) -> None:
    """Each processor pools its slice, and adds, or takes the maximum with, what its neighbours' pieces give."""
    mesh_impl, (x,), (output,) = lowering.mesh_impl(op), op.inputs, op.outputs
    places = _Places(op, lowering, windows, x.shape, output.shape)
    pieces = halos(op, lowering, x, lambda pnum: places.seen(pnum, places.values(pnum)))
    reduction = "MAX" if windows.kind == "max" else "SUM"

    def pool(slice_: tf.Tensor, pnum: int) -> tf.Tensor:
        shape, output_box, held = mesh_impl.slice_shape(output.shape, pnum), places.values(pnum), places.pixels(pnum)
        if 0 in shape:
            return zeros(shape, output.dtype)
        if not pieces[pnum]:
            return windows.pool(crop_or_pad(slice_, held, places.of_space(places.seen(pnum, output_box))), output_box)
        if overlap(held, windows.pixels(output_box)) is None:
            y = filled(shape, windows.nothing(x.dtype), x.dtype)
        else:
            y = anew(windows.partial(slice_, held, output_box))
        for box, piece in pieces[pnum]:
            reached = overlap(windows.covering(places.of_space(box)), output_box)
            if reached is not None:
                y = combine(y, output_box, windows.partial(piece, places.of_space(box), reached), reached, reduction)
        return windows.weighted(y, output_box)

    processors = alike(op, lowering, pieces, places.boxes)
    set_output(op, lowering, mesh_impl.slicewise(pool, lowering.tensors[x], processors))


def _lower_average_gradient(op: mtf.Operation, lowering: mtf.Lowering, windows: Windows, dy: mtf.Tensor) -> None:
    """Each processor spreads its own windows' gradient, and adds what its neighbours' windows give to its pixels."""
    mesh_impl, output = lowering.mesh_impl(op), op.outputs[0]
    places = _Places(op, lowering, windows, output.shape, dy.shape)
    pieces = halos(op, lowering, dy, places.covering)

    def differentiate(slice_: tf.Tensor, pnum: int) -> tf.Tensor:
        shape, output_box, values = mesh_impl.slice_shape(output.shape, pnum), places.pixels(pnum), places.values(pnum)
        if 0 in shape or overlap(windows.pixels(values), output_box) is None:
            dx = filled(shape, 0, output.dtype)
        else:
            seen, dx = windows.gradient(anew(slice_) if pieces[pnum] else slice_, values)
            dx = crop_or_pad(dx, seen, output_box)
        for box, piece in pieces[pnum]:
            seen, part = windows.gradient(piece, places.of_space(box))
            reached = overlap(seen, output_box)
            if reached is not None:
                dx = combine(dx, output_box, crop_or_pad(part, seen, reached), reached)
        return dx

    processors = alike(op, lowering, pieces, places.boxes)
    set_output(op, lowering, mesh_impl.slicewise(differentiate, lowering.tensors[dy], processors))


def _lower_maximum_gradient(
    op: mtf.Operation, lowering: mtf.Lowering, windows: Windows, dy: mtf.Tensor, x: mtf.Tensor, y: mtf.Tensor
) -> None:
    """Each processor fetches all windows that lie in its pixels, and all that they see, to find the maxima."""
    mesh_impl, output = lowering.mesh_impl(op), op.outputs[0]
    places = _Places(op, lowering, windows, x.shape, y.shape)

    def covering(pnum: int) -> Box | None:
        box = places.covering(pnum)
        return None if is_empty(box) else box

    def seen(pnum: int) -> Box | None:
        box = covering(pnum)
        return box and places.seen(pnum, places.of_space(box))

    def differentiate(pnum: int, *parts: tf.Tensor) -> tf.Tensor:
        box = covering(pnum)
        if box is None:  # only pixels that no window sees
            return zeros(mesh_impl.slice_shape(output.shape, pnum), output.dtype)
        dy, x, y = parts
        held, dx = windows.gradient(dy, places.of_space(box), x, y)
        return crop_or_pad(dx, held, places.pixels(pnum))

    parts = [fetch(op, lowering, t, box) for t, box in ((dy, covering), (x, seen), (y, covering))]
    slices = [mesh_impl.LaidOutTensor(part) for part in parts]
    processors = mesh_impl.processors(output.shape, lambda pnum: tuple(places.boxes(pnum)))
    set_output(op, lowering, mesh_impl.slicewise(differentiate, processors, *slices))


def _lower_gradient(
    op: mtf.Operation, lowering: mtf.Lowering, windows: Windows, dy: mtf.Tensor, x: mtf.Tensor, y: mtf.Tensor
) -> None:
    if windows.kind == "max":
        _lower_maximum_gradient(op, lowering, windows, dy, x, y)
    else:
        _lower_average_gradient(op, lowering, windows, dy)


@register(layers.PoolOperation)
def lower_pool(op: mtf.Operation, lowering: mtf.Lowering) -> None:
    """As `_lower_pool`."""
    _lower_pool(op, lowering, op.windows)


@register(mtf.PoolOperation)
def lower_mtf_pool(op: mtf.Operation, lowering: mtf.Lowering) -> None:
    """As `_lower_pool`."""
    _lower_pool(op, lowering, _of_mtf(op, op.inputs[0], op.outputs[0]))


@register(layers.PoolGradientOperation)
def lower_pool_gradient(op: mtf.Operation, lowering: mtf.Lowering) -> None:
    """TensorFlow's own operation, on parts of the image."""
    dy, *x_and_y = op.inputs
    _lower_gradient(op, lowering, op.windows, dy, *(x_and_y or (None, None)))


@register(mtf.PoolBackPropOperation)
def lower_mtf_pool_gradient(op: mtf.Operation, lowering: mtf.Lowering) -> None:
    """As `lower_pool_gradient`."""
    x, y, dy = op.inputs
    _lower_gradient(op, lowering, _of_mtf(op, x, y), dy, x, y)
