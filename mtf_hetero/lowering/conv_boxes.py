"""The boxes of a convolution's images that a processor has, and needs of its neighbours, and their use.

Of the two images of a convolution, the *large* one is windowed and the *small* one has a value per window: output
position o sees the large image from o * stride - before on, for the length of the kernel; its *taps* count from there.
`graph.operations` says which is which.
"""

import functools
import math
from collections.abc import Sequence
from typing import TypeVar

from mtf_hetero import layers
from mtf_hetero._compat import mtf, windows
from mtf_hetero.graph.operations import KERNEL, LARGE, AnyConvolution, convolution_roles
from mtf_hetero.layers.geometry import overlap, same_padding
from mtf_hetero.layout import Layout
from mtf_hetero.layout.blocks import Interval, slice_box
from mtf_hetero.lowering.registry import require_whole

Box = list[Interval]
T = TypeVar("T")


def _is_transposed(op: mtf.Operation) -> bool:
    """Return whether an operation is a transposed convolution or a gradient of one."""
    return isinstance(op, (mtf.Conv2dTransposeOperation, mtf.Conv3dTransposeOperation)) or (
        isinstance(op, (mtf.Conv2or3dBackpropInputOperation, mtf.Conv2or3dBackpropFilterOperation)) and op._is_transpose
    )


class Geometry:
    """Kernel sizes, strides and padding of a convolution between two images. Its boxes are in space alone.

    Example:
      A kernel of 3, stride 2, padding "SAME", 8 pixels: `before` is 0, and the last window reaches beyond the image.

        large image   0 1 2 3 4 5 6 7 .
        value 0       x x x                receptive_field([(0, 1)]) is [(0, 3)]
        value 1           x x x            outputs_touching([(4, 6)]) is [(1, 3)]
        value 2               x x x        taps([(4, 6)], [(1, 2)]) is [(2, 3)]: of pixels 4 and 5 it sees one
        value 3                   x x x
    """

    def __init__(self, op: AnyConvolution, layout: Layout) -> None:
        roles = convolution_roles(op)
        self.makes, self.image, self.other, self.output = roles
        self._large, self._small, self._kernel = (x.shape for x in (roles.large, roles.small, roles.kernel))
        self.rank = self._kernel.ndims - 1  # of an image, without the batch
        spatial = len(op._strides) - 2
        self.channel_dims = self.rank - spatial
        require_whole(op, layout, self._kernel.dims[:spatial], "the window of a convolution")
        self.sizes = [dim.size for dim in self._kernel.dims[:spatial]]
        self.strides = list(op._strides)
        self._op, self.layout = op, layout
        self._check_counts()
        self.before = [0] * spatial
        if op._padding == "SAME":
            extents = [dim.size for dim in self._large.dims[-self.rank : -self.channel_dims]]
            self.before = [same_padding(n, k, s)[0] for n, k, s in zip(extents, self.sizes, self._steps, strict=True)]

    def _check_counts(self) -> None:
        """Raise ValueError unless each window that TensorFlow would see has a value."""
        spatial = slice(-self.rank, -self.channel_dims)
        large, small = self._large.dims[spatial], self._small.dims[spatial]
        for pixels, values, size, stride in zip(large, small, self.sizes, self._steps, strict=True):
            count = windows(pixels.size, size, stride, self._op._padding)
            if count != values.size or count < 1:
                raise ValueError(
                    f"{type(self._op).__name__} {self._op.name!r}: {pixels.size} pixels of dimension {pixels.name!r} "
                    f"make {max(count, 0)} windows of size {size} and stride {stride} with padding "
                    f"{self._op._padding!r}, but the output has {values.size}; change the size, the stride or "
                    "the padding"
                )

    @property
    def _steps(self) -> list[int]:
        return self.strides[1:-1]

    @property
    def summed_dims(self) -> list[mtf.Dimension]:
        """Return the dimensions that are summed over: channels, or batch and space."""
        return self._small.dims[: -self.channel_dims] if self.makes == KERNEL else self.image.shape.dims[-1:]

    @functools.cached_property
    def is_space_whole(self) -> bool:
        """Return whether the layout splits no height, width or depth, so that processors need no halo."""
        dims = [*self.of_space(self._large.dims), *self.of_space(self._small.dims)]
        return all(self.layout.axis_of(dim) is None for dim in dims)

    @property
    def counter(self) -> tuple[str, str]:
        """Return the names under which mtf counts the operation: of the convolution, and of the step."""
        op, is_gradient = (
            self._op,
            isinstance(self._op, (mtf.Conv2or3dBackpropInputOperation, layers.GroupedConvInputGradient)),
        )
        step = "backprop_filter" if self.makes == KERNEL else "backprop_input" if is_gradient else "forward"
        return f"conv{len(self.sizes)}d{'_trans' if _is_transposed(op) else ''}", step

    @property
    def computation(self) -> mtf.Shape:
        """Return the dimensions along which mtf counts products: of the kernel, and of the image that it gives."""
        image = self._large if _is_transposed(self._op) else self._small
        return mtf.Shape(list(dict.fromkeys([*self._kernel.dims, *image.dims])))

    def output_slice(self, pnum: int) -> list[int]:
        """Return the shape of a processor's slice of the output."""
        return self.layout.slice_shape(self.output.shape, pnum)

    def _space(self, shape: mtf.Shape, pnum: int) -> Box:
        return self.of_space(slice_box(self.layout, shape.dims, pnum))

    def flat(self, shape: Sequence[int]) -> list[int]:
        """Flatten the shape of an image to [batch, height, width, channels], or with a depth."""
        space, channels = shape[-self.rank : -self.channel_dims], shape[-self.channel_dims :]
        return [math.prod(shape[: -self.rank]), *space, math.prod(channels)]

    def of_space(self, box: Sequence[T]) -> list[T]:
        """Return the part of an image's box, or of its dimensions, in space."""
        return list(box[-self.rank : -self.channel_dims])

    def large(self, pnum: int) -> Box:
        """Return a processor's part of the large image."""
        return self._space(self._large, pnum)

    def small(self, pnum: int) -> Box:
        """Return a processor's part of the small image."""
        return self._space(self._small, pnum)

    def own_slice(self, pnum: int) -> Box:
        """Return a processor's part of the image of which it needs more."""
        return self._space(self.image.shape, pnum)

    def required_box(self, pnum: int) -> Box:
        """Return the box of the image, in all dimensions, that meets a processor's slice of the other image."""
        if 0 in self.layout.slice_shape(self._kernel, pnum):
            return [(0, 0)] * self.image.shape.ndims
        own = slice_box(self.layout, self.image.shape.dims, pnum)
        window = (
            self.outputs_touching(self.large(pnum)) if self.makes == LARGE else self.receptive_field(self.small(pnum))
        )
        return [*own[: -self.rank], *window, *own[-self.channel_dims :]]

    def reached(self, box: Box, pnum: int) -> Box | None:
        """Return the part of a processor's slice of the other image that a box of the image meets, or None."""
        if self.makes == LARGE:
            return overlap(self.receptive_field(box), self.large(pnum))
        return overlap(self.outputs_touching(box), self.small(pnum))

    def receptive_field(self, small: Box, taps: Box | None = None) -> Box:
        """Return the box of the large image that a box of the small one sees, with some of the taps."""
        taps = [(0, k) for k in self.sizes] if taps is None else taps
        return [
            (begin * s - before + first, (end - 1) * s - before + last) if begin < end else (0, 0)
            for (begin, end), s, before, (first, last) in zip(small, self._steps, self.before, taps, strict=True)
        ]

    def outputs_touching(self, large: Box) -> Box:
        """Return the box of the small image whose values see a box of the large one; it may be empty."""
        return [
            (-(-(begin + before - k + 1) // s), (end - 1 + before) // s + 1) if begin < end else (0, 0)
            for (begin, end), s, before, k in zip(large, self._steps, self.before, self.sizes, strict=True)
        ]

    def taps(self, large: Box, small: Box) -> Box:
        """Return the taps through which a box of the small image sees a box of the large one."""
        ranges = zip(large, self.receptive_field(small, [(0, 1)] * len(small)), self.sizes, strict=True)
        return [(max(b - last + 1, 0), min(e - first, k)) for (b, e), (first, last), k in ranges]

    def padding(self, large: Box, small: Box, taps: Box) -> str | None:
        """Return the padding by which TensorFlow relates two boxes, or None."""
        required, valid, same = [], [], []
        for (b, e), (o, end), (first, _), (j, last), s in zip(
            large, small, self.receptive_field(small, taps), taps, self._steps, strict=True
        ):
            k = last - j
            required.append((b - first, end - o))
            valid.append((0, (e - b - k) // s + 1))
            # Eigen's 3D convolution begins elsewhere where pixels are left over
            same.append(same_padding(e - b, k, s) if (end - o - 1) * s + k >= e - b else None)
        return "VALID" if required == valid else "SAME" if required == same else None

    def boxes(self, pnum: int) -> Box:
        """Return a processor's parts of both images."""
        return [*self.large(pnum), *self.small(pnum)]
