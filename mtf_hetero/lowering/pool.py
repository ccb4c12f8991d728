"""Pooling and its gradient, mtf's own and ours.

Where a layout splits the height, width or depth, a window can lie on both sides of a boundary. A maximum and a sum are
made of those of the parts, so that the processor that has the window needs nothing but its neighbour's pixels or, for
the gradient of an average, its neighbour's windows, and need not wait for them. The gradients are TensorFlow's own
operations.
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import TypeAlias

from mtf_hetero import layers
from mtf_hetero._compat import mtf, tf
from mtf_hetero._support.ops import zeros
from mtf_hetero.graph.operations import ForwardPool, PoolGradient, gradient_inputs, pool_windows
from mtf_hetero.layers.geometry import Windows, crop_or_pad, overlap
from mtf_hetero.layout import Layout
from mtf_hetero.layout.blocks import Interval, is_empty, slice_box
from mtf_hetero.lowering.backend import Backend, Halo, KindOf, Slice, Slices, has_nothing
from mtf_hetero.lowering.halo import anew, combine, fill
from mtf_hetero.lowering.registry import register

Box = list[Interval]


@dataclasses.dataclass(frozen=True)
class Places:
    """Boxes of the slices of a pool's image, and of its windows' values: (begin, end) per dimension.

    Args:
      pixels_shape: mtf.Shape of the image.
      values_shape: mtf.Shape of the windows' values.
    """

    layout: Layout
    windows: Windows
    pixels_shape: mtf.Shape
    values_shape: mtf.Shape

    def pixels(self, pnum: int) -> Box:
        """Return a processor's pixels, in space alone."""
        return self.of_space(slice_box(self.layout, self.pixels_shape.dims, pnum))

    def values(self, pnum: int) -> Box:
        """Return a processor's windows, in space alone."""
        return self.of_space(slice_box(self.layout, self.values_shape.dims, pnum))

    def of_space(self, box: Box) -> Box:
        """Return the dimensions of space of a box."""
        return box[-len(self.windows.sizes) - 1 : -1]

    def receptive_field(self, pnum: int, windows: Box) -> Box:
        """Return the pixels that some windows see, for a processor's examples and channels."""
        return self._full_box(pnum, self.windows.inside(self.windows.pixels(windows)))

    def seen_by(self, pnum: int) -> Box:
        """Return the pixels that a processor's windows see, for its examples and channels."""
        return self.receptive_field(pnum, self.values(pnum))

    def sees_own(self, pnum: int) -> bool:
        """Return whether a processor's windows see any of its own pixels."""
        return overlap(self.pixels(pnum), self.windows.pixels(self.values(pnum))) is not None

    def reached_windows(self, pixels: Box, pnum: int) -> Box | None:
        """Return a processor's windows that see some of these pixels, in space alone."""
        return overlap(self.windows.covering(pixels), self.values(pnum))

    def reached_pixels(self, windows: Box, pnum: int) -> Box | None:
        """Return a processor's pixels that some of these windows see, in space alone."""
        return overlap(self.windows.pixels(windows), self.pixels(pnum))

    def covering(self, pnum: int) -> Box:
        """Return the windows that lie in a processor's pixels, for its examples and channels."""
        return self._full_box(pnum, self.windows.covering(self.pixels(pnum)))

    def boxes_of_maxima(self) -> list[tuple[Box | None, Box | None]]:
        """Return the windows in each processor's pixels, and all pixels that these see, or (None, None)."""
        covering = [self.covering(pnum) for pnum in range(self.layout.size)]
        return [
            (None, None) if is_empty(box) else (box, self.receptive_field(pnum, self.of_space(box)))
            for pnum, box in enumerate(covering)
        ]

    def _full_box(self, pnum: int, space: Box) -> Box:
        own = slice_box(self.layout, self.pixels_shape.dims, pnum)
        return [*own[: -len(space) - 1], *space, own[-1]]

    def boxes(self, pnum: int) -> Box:
        """Return a processor's pixels and windows, in space alone."""
        return [*self.pixels(pnum), *self.values(pnum)]


@register(layers.PoolOperation, mtf.PoolOperation)
def pool(op: ForwardPool, backend: Backend) -> None:
    """Have each processor pool its slice, and add, or take the maximum with, what its neighbours' pieces give."""
    (x,), (output,), windows = op.inputs, op.outputs, pool_windows(op)
    places = Places(backend.layout, windows, x.shape, output.shape)
    xs, halos = backend.slices(x), backend.halos(x, places.seen_by)
    near = [_of_space(places, halo, pnum, places.reached_windows) for pnum, halo in enumerate(halos)]
    has_own = [not halos[pnum] or places.sees_own(pnum) for pnum in backend.processors]

    def pool_slice(pnum: int, *parts: tf.Tensor) -> tf.Tensor:
        shape, box, own_pixels = places.layout.slice_shape(output.shape, pnum), places.values(pnum), places.pixels(pnum)
        if 0 in shape:
            return zeros(shape, output.dtype)
        if not halos[pnum]:
            return windows.pool(
                crop_or_pad(parts[0], own_pixels, places.of_space(places.receptive_field(pnum, box))), box
            )
        if has_own[pnum]:
            y, parts = anew(windows.partial(parts[0], own_pixels, box)), parts[1:]
        else:
            y = fill(shape, windows.nothing(x.dtype), x.dtype)
        reduction = "MAX" if windows.kind == "max" else "SUM"
        for (pixels, reached), piece in zip(_boxes(near[pnum]), parts, strict=True):
            y = combine(y, box, windows.partial(piece, pixels, reached), reached, reduction)
        return windows.weighted(y, box)

    reads = [_read(backend, output, pnum, xs, has_own[pnum], near[pnum]) for pnum in backend.processors]
    backend.set(output, backend.make(output, pool_slice, reads, _result_key(places, halos)))


@register(layers.PoolGradientOperation, mtf.PoolBackPropOperation)
def pool_gradient(op: PoolGradient, backend: Backend) -> None:
    """Apply TensorFlow's own operation to parts of the image."""
    windows, (dy, x, y) = pool_windows(op), gradient_inputs(op)
    if windows.kind == "max":
        assert x is not None
        assert y is not None
        _maximum_gradient(op, backend, windows, dy, x, y)
    else:
        _average_gradient(op, backend, windows, dy)


def _average_gradient(op: mtf.Operation, backend: Backend, windows: Windows, dy: mtf.Tensor) -> None:
    """Have each processor spread its own windows' gradient, and add what its neighbours' windows give to its pixels."""
    (output,) = op.outputs
    places = Places(backend.layout, windows, output.shape, dy.shape)
    dys, halos = backend.slices(dy), backend.halos(dy, places.covering)
    near = [_of_space(places, halo, pnum, places.reached_pixels) for pnum, halo in enumerate(halos)]
    has_own = [places.sees_own(pnum) for pnum in backend.processors]

    def differentiate(pnum: int, *parts: tf.Tensor) -> tf.Tensor:
        box = places.pixels(pnum)
        if has_own[pnum] and parts:
            pixels, dx = windows.gradient(anew(parts[0]) if near[pnum] else parts[0], places.values(pnum))
            dx, parts = crop_or_pad(dx, pixels, box), parts[1:]
        else:
            dx = fill(places.layout.slice_shape(output.shape, pnum), 0, output.dtype)
        for (values, reached), piece in zip(_boxes(near[pnum]), parts, strict=True):
            pixels, part = windows.gradient(piece, values)
            dx = combine(dx, box, crop_or_pad(part, pixels, reached), reached)
        return dx

    reads = [_read(backend, output, pnum, dys, has_own[pnum], near[pnum]) for pnum in backend.processors]
    backend.set(output, backend.make(output, differentiate, reads, _result_key(places, halos)))


def _maximum_gradient(
    op: mtf.Operation, backend: Backend, windows: Windows, dy: mtf.Tensor, x: mtf.Tensor, y: mtf.Tensor
) -> None:
    """Have each processor fetch all windows that lie in its pixels, and all that they see, to find the maxima."""
    (output,) = op.outputs
    places = Places(backend.layout, windows, x.shape, y.shape)
    covering, visible = zip(*places.boxes_of_maxima(), strict=True)

    def differentiate(pnum: int, *parts: tf.Tensor) -> tf.Tensor:
        box = covering[pnum]
        if box is None:  # only pixels that no window sees
            return zeros(places.layout.slice_shape(output.shape, pnum), output.dtype)
        dy, x, y = parts
        pixels, dx = windows.gradient(dy, places.of_space(box), x, y)
        return crop_or_pad(dx, pixels, places.pixels(pnum))

    parts = [backend.fetch(t, boxes) for t, boxes in ((dy, covering), (x, visible), (y, covering))]
    reads = [[part for part in own if part is not None] for own in zip(*parts, strict=True)]
    backend.set(output, backend.make(output, differentiate, reads, lambda pnum: tuple(places.boxes(pnum))))


# Pieces of others: where a piece lies, where it counts in the own slice, and it
_Near: TypeAlias = list[tuple[Box, Box, Slice]]


def _of_space(places: Places, halo: Halo, pnum: int, reached: Callable[[Box, int], Box | None]) -> _Near:
    """Return the pieces that count in a processor's slice, with boxes in space."""
    pieces = [(places.of_space(box), piece) for box, piece in halo]
    return [(box, counts, piece) for box, piece in pieces if (counts := reached(box, pnum)) is not None]


def _boxes(near: _Near) -> list[tuple[Box, Box]]:
    return [(box, counts) for box, counts, _ in near]


def _read(backend: Backend, output: mtf.Tensor, pnum: int, own: Slices, has_own: bool, near: _Near) -> Slices:
    """Return all that a processor reads, its own slice first; nothing if its slice of the output is empty."""
    if has_nothing(backend.layout, pnum, output.shape):
        return []
    return [*([own[pnum]] if has_own else []), *(piece for _, _, piece in near)]


def _result_key(places: Places, halos: Sequence[Halo]) -> KindOf:
    """Map a processor to what its result depends on, besides its reads. Pieces from others make it unique."""
    return lambda pnum: pnum if halos[pnum] else tuple(places.boxes(pnum))
