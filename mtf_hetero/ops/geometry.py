"""The parts of an image that a processor reads, where a layout splits the images of a convolution or pool.

A processor reads its own slice, and the pieces of its neighbours that its slice of the other image meets.
"""

import dataclasses
import functools
from collections.abc import Sequence
from typing import TypeVar

from mtf_hetero._compat import mtf
from mtf_hetero.layout import Layout
from mtf_hetero.layout.blocks import Box, slice_box
from mtf_hetero.ops.backend import Backend, Slices, has_nothing
from mtf_hetero.ops.traits import Images
from mtf_hetero.ops.windows import Windows, overlap

T = TypeVar("T")


class Geometry:
    """The split images of an operation with windows. Its boxes are of space alone.

    Args:
      windows: of the operation.
      images: its two images.
      source: the one of which a processor needs more than its slice.
      layout: the Layout.
    """

    def __init__(self, windows: Windows, images: Images, source: mtf.Tensor, layout: Layout) -> None:
        self.windows, self.source, self.layout = windows, source, layout
        self.channel_dims = images.channel_dims
        self.rank = len(windows.sizes) + self.channel_dims  # of an image, without the batch
        self._large, self._small = images.large.shape, images.small.shape
        self._reads_small = source is images.small

    @functools.cached_property
    def is_space_whole(self) -> bool:
        """Return whether the layout splits no height, width or depth, so that processors need no halo."""
        dims = [*self.of_space(self._large.dims), *self.of_space(self._small.dims)]
        return all(self.layout.axis_of(dim) is None for dim in dims)

    def of_space(self, box: Sequence[T]) -> list[T]:
        """Return the part of an image's box, or of its dimensions, in space."""
        return list(box[-self.rank : -self.channel_dims])

    def _space(self, shape: mtf.Shape, pnum: int) -> Box:
        return self.of_space(slice_box(self.layout, shape.dims, pnum))

    def large(self, pnum: int) -> Box:
        """Return a processor's part of the large image."""
        return self._space(self._large, pnum)

    def small(self, pnum: int) -> Box:
        """Return a processor's part of the small image."""
        return self._space(self._small, pnum)

    def boxes(self, pnum: int) -> Box:
        """Return a processor's parts of both images."""
        return [*self.large(pnum), *self.small(pnum)]

    def own_slice(self, pnum: int) -> Box:
        """Return a processor's part of the source."""
        return self._space(self.source.shape, pnum)

    def required_box(self, pnum: int) -> Box:
        """Return the box of the source, in all dimensions, that meets a processor's slice of the other image."""
        if self._reads_small:
            return self.in_all_dimensions(self.windows.outputs_touching(self.large(pnum)), pnum)
        return self.in_all_dimensions(self.windows.receptive_field(self.small(pnum)), pnum)

    def in_all_dimensions(self, space: Box, pnum: int) -> Box:
        """Return a box of the source, of a processor's examples and channels."""
        own = slice_box(self.layout, self.source.shape.dims, pnum)
        return [*own[: -self.rank], *space, *own[-self.channel_dims :]]

    def reached(self, box: Box, pnum: int) -> Box | None:
        """Return the part of a processor's slice of the other image that a box of the source meets, or None."""
        if self._reads_small:
            return overlap(self.windows.receptive_field(box), self.large(pnum))
        return overlap(self.windows.outputs_touching(box), self.small(pnum))


@dataclasses.dataclass(frozen=True)
class Reads:
    """The parts of the source that each processor reads: its own part first, then pieces of others.

    Args:
      has_own: whether a processor reads its own slice.
      boxes: where the pieces lie that others send to a processor.
    """

    geometry: Geometry
    has_own: Sequence[bool]
    boxes: Sequence[Sequence[Box]]

    def parts(self, pnum: int) -> list[tuple[Box, Box]]:
        """Return where each part lies, and the box of the other image's slice that it meets."""
        boxes = [*([self.geometry.own_slice(pnum)] if self.has_own[pnum] else []), *self.boxes[pnum]]
        return [(box, reached) for box in boxes if (reached := self.geometry.reached(box, pnum)) is not None]

    def result_key(self, pnum: int) -> object:
        """Return what a processor's result depends on, besides its reads. Pieces of others make it unique."""
        return pnum if self.boxes[pnum] else tuple(self.geometry.boxes(pnum))


def read_parts(op: mtf.Operation, geometry: Geometry, backend: Backend) -> tuple[Reads, list[Slices]]:
    """Return the parts of the source that an operation reads, and their slices on each processor."""
    source = geometry.source
    others = [tensor.shape for tensor in (*op.inputs, *op.outputs) if tensor is not source]
    idle = [has_nothing(backend.layout, pnum, *others) for pnum in backend.processors]

    def required_box(pnum: int) -> Box:
        return [(0, 0)] * source.shape.ndims if idle[pnum] else geometry.required_box(pnum)

    slices = backend.slices(source)
    halos = [[] for _ in slices] if geometry.is_space_whole else backend.halos(source, required_box)
    has_own, boxes, reads = [], [], []
    for pnum, halo in enumerate(halos):
        pieces = [(geometry.of_space(box), piece) for box, piece in halo]
        pieces = [(box, piece) for box, piece in pieces if geometry.reached(box, pnum) is not None]
        is_read = not idle[pnum] and not has_nothing(backend.layout, pnum, source.shape)
        has_own.append(is_read and geometry.reached(geometry.own_slice(pnum), pnum) is not None)
        boxes.append([box for box, _ in pieces])
        reads.append([*([slices[pnum]] if has_own[pnum] else []), *(piece for _, piece in pieces)])
    return Reads(geometry, has_own, boxes), reads
