"""Pooling and its gradient, mtf's own and ours.

Where a layout splits the height, width or depth, a window can lie on both sides of a boundary. A maximum and a sum are
made of those of the parts, so that the processor that has the window needs nothing but its neighbour's pixels or, for
the gradient of an average, its neighbour's windows, and need not wait for them. The gradients are TensorFlow's own
operations.
"""

import dataclasses
from typing import Any

from mtf_hetero import layers
from mtf_hetero._compat import mtf, tf
from mtf_hetero._support.ops import zeros
from mtf_hetero.blocks import Interval, box_of, is_empty
from mtf_hetero.layers.geometry import Windows, crop_or_pad, overlap
from mtf_hetero.layout import Layout
from mtf_hetero.lowering.halo import alike, anew, combine, filled, halos
from mtf_hetero.lowering.registry import register, set_output
from mtf_hetero.lowering.windows import fetch

Box = list[Interval]


def windows_of(op: mtf.Operation) -> Windows:
    """The windows of a pool or of its gradient; those of mtf's own are as far apart as they are large, and inside."""
    if isinstance(op, (layers.PoolOperation, layers.PoolGradientOperation)):
        return op.windows
    x, y = (*op.inputs, *op.outputs)[:2]
    rank = len(op._ksize) + 1
    extents, counts = ([dim.size for dim in t.shape.dims[-rank:-1]] for t in (x, y))
    size = tuple(op._ksize)
    return Windows(op._pool_fn_string[:3].lower(), tuple(extents), size, size, (0,) * len(size), tuple(counts))


def gradient_inputs(op: mtf.Operation) -> tuple[mtf.Tensor, Any, Any]:
    """dy, x and y of a pool's gradient; x and y are None where the gradient does not need them."""
    if isinstance(op, mtf.PoolBackPropOperation):
        x, y, dy = op.inputs
        return dy, x, y
    dy, *x_and_y = op.inputs
    return (dy, *x_and_y) if x_and_y else (dy, None, None)


@dataclasses.dataclass(frozen=True)
class Places:
    """Where the slices of a pool's image and of its windows' values lie, by (begin, end) per dimension.

    Args:
      layout: the Layout.
      windows: its windows.
      pixels_shape: mtf.Shape of the image.
      values_shape: mtf.Shape of the windows' values.
    """

    layout: Layout
    windows: Windows
    pixels_shape: mtf.Shape
    values_shape: mtf.Shape

    def pixels(self, pnum: int) -> Box:
        """A processor's pixels; of space alone."""
        return self.of_space(box_of(self.layout, self.pixels_shape.dims, pnum))

    def values(self, pnum: int) -> Box:
        """A processor's windows; of space alone."""
        return self.of_space(box_of(self.layout, self.values_shape.dims, pnum))

    def of_space(self, box: Box) -> Box:
        """The part of a box that is of space."""
        return box[-len(self.windows.sizes) - 1 : -1]

    def seen(self, pnum: int, windows: Box) -> Box:
        """What some windows see of the image, for a processor's examples and channels."""
        return self._whole(pnum, self.windows.inside(self.windows.pixels(windows)))

    def seen_by(self, pnum: int) -> Box:
        """What a processor's windows see of the image, for its examples and channels."""
        return self.seen(pnum, self.values(pnum))

    def sees_own(self, pnum: int) -> bool:
        """Whether a processor's windows see any of its own pixels."""
        return overlap(self.pixels(pnum), self.windows.pixels(self.values(pnum))) is not None

    def reached_windows(self, pixels: Box, pnum: int) -> Box | None:
        """Those of a processor's windows that see some of these pixels; of space alone."""
        return overlap(self.windows.covering(pixels), self.values(pnum))

    def reached_pixels(self, windows: Box, pnum: int) -> Box | None:
        """Those of a processor's pixels that some of these windows see; of space alone."""
        return overlap(self.windows.pixels(windows), self.pixels(pnum))

    def covering(self, pnum: int) -> Box:
        """The windows that lie in a processor's pixels, for its examples and channels; there may be none."""
        return self._whole(pnum, self.windows.covering(self.pixels(pnum)))

    def boxes_of_maxima(self) -> list[tuple[Box | None, Box | None]]:
        """All windows in each processor's pixels, and all pixels that they see; None of those that have none."""
        covering = [self.covering(pnum) for pnum in range(self.layout.size)]
        return [
            (None, None) if is_empty(box) else (box, self.seen(pnum, self.of_space(box)))
            for pnum, box in enumerate(covering)
        ]

    def _whole(self, pnum: int, space: Box) -> Box:
        held = box_of(self.layout, self.pixels_shape.dims, pnum)
        return [*held[: -len(space) - 1], *space, held[-1]]

    def boxes(self, pnum: int) -> Box:
        """A processor's pixels and windows; of space alone."""
        return [*self.pixels(pnum), *self.values(pnum)]


def _lower_pool(op: mtf.Operation, lowering: mtf.Lowering, windows: Windows) -> None:
    """Each processor pools its slice, and adds, or takes the maximum with, what its neighbours' pieces give."""
    mesh_impl, (x,), (output,) = lowering.mesh_impl(op), op.inputs, op.outputs
    places = Places(mesh_impl.layout, windows, x.shape, output.shape)
    pieces = halos(op, lowering, x, places.seen_by)
    reduction = "MAX" if windows.kind == "max" else "SUM"

    def pool(slice_: tf.Tensor, pnum: int) -> tf.Tensor:
        shape, output_box, held = mesh_impl.slice_shape(output.shape, pnum), places.values(pnum), places.pixels(pnum)
        if 0 in shape:
            return zeros(shape, output.dtype)
        if not pieces[pnum]:
            return windows.pool(crop_or_pad(slice_, held, places.of_space(places.seen(pnum, output_box))), output_box)
        if not places.sees_own(pnum):
            y = filled(shape, windows.nothing(x.dtype), x.dtype)
        else:
            y = anew(windows.partial(slice_, held, output_box))
        for box, piece in pieces[pnum]:
            reached = places.reached_windows(places.of_space(box), pnum)
            if reached is not None:
                y = combine(y, output_box, windows.partial(piece, places.of_space(box), reached), reached, reduction)
        return windows.weighted(y, output_box)

    processors = alike(op, lowering, pieces, places.boxes)
    set_output(op, lowering, mesh_impl.slicewise(pool, lowering.tensors[x], processors))


def _lower_average_gradient(op: mtf.Operation, lowering: mtf.Lowering, windows: Windows, dy: mtf.Tensor) -> None:
    """Each processor spreads its own windows' gradient, and adds what its neighbours' windows give to its pixels."""
    mesh_impl, output = lowering.mesh_impl(op), op.outputs[0]
    places = Places(mesh_impl.layout, windows, output.shape, dy.shape)
    pieces = halos(op, lowering, dy, places.covering)

    def differentiate(slice_: tf.Tensor, pnum: int) -> tf.Tensor:
        shape, output_box, values = mesh_impl.slice_shape(output.shape, pnum), places.pixels(pnum), places.values(pnum)
        if 0 in shape or not places.sees_own(pnum):
            dx = filled(shape, 0, output.dtype)
        else:
            seen, dx = windows.gradient(anew(slice_) if pieces[pnum] else slice_, values)
            dx = crop_or_pad(dx, seen, output_box)
        for box, piece in pieces[pnum]:
            seen, part = windows.gradient(piece, places.of_space(box))
            reached = places.reached_pixels(places.of_space(box), pnum)
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
    places = Places(mesh_impl.layout, windows, x.shape, y.shape)
    covering, seen = zip(*places.boxes_of_maxima(), strict=True)

    def differentiate(pnum: int, *parts: tf.Tensor) -> tf.Tensor:
        box = covering[pnum]
        if box is None:  # only pixels that no window sees
            return zeros(mesh_impl.slice_shape(output.shape, pnum), output.dtype)
        dy, x, y = parts
        held, dx = windows.gradient(dy, places.of_space(box), x, y)
        return crop_or_pad(dx, held, places.pixels(pnum))

    parts = [fetch(op, lowering, t, boxes) for t, boxes in ((dy, covering), (x, seen), (y, covering))]
    slices = [mesh_impl.LaidOutTensor(part) for part in parts]
    processors = mesh_impl.processors(output.shape, lambda pnum: tuple(places.boxes(pnum)))
    set_output(op, lowering, mesh_impl.slicewise(differentiate, processors, *slices))


@register(layers.PoolOperation, mtf.PoolOperation)
def lower_pool(op: mtf.Operation, lowering: mtf.Lowering) -> None:
    """As `_lower_pool`."""
    _lower_pool(op, lowering, windows_of(op))


@register(layers.PoolGradientOperation, mtf.PoolBackPropOperation)
def lower_pool_gradient(op: mtf.Operation, lowering: mtf.Lowering) -> None:
    """TensorFlow's own operation, on parts of the image."""
    windows, (dy, x, y) = windows_of(op), gradient_inputs(op)
    if windows.kind == "max":
        _lower_maximum_gradient(op, lowering, windows, dy, x, y)
    else:
        _lower_average_gradient(op, lowering, windows, dy)
