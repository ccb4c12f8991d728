"""Which boxes of a convolution's images a processor has, needs of its neighbours, and what it does with them.

Of the two images of a convolution, the *large* one is windowed and the *small* one has a value per window: output
position o sees the large image from o * stride - before on, for the length of the kernel; its *taps* count from there.
A convolution goes from large to small, its input gradient and the transposed convolution from small to large, the
gradient of the kernel from both to the kernel.
"""

import math
from collections.abc import Sequence

from mtf_hetero import layers
from mtf_hetero._compat import mtf, windows
from mtf_hetero.blocks import Interval, box_of
from mtf_hetero.layers.geometry import overlap, same_padding
from mtf_hetero.layout import Layout
from mtf_hetero.lowering.registry import check_whole

Box = list[Interval]
SMALL, LARGE, KERNEL = "small", "large", "kernel"  # what an operation makes
_TO_SMALL = (mtf.Conv2dOperation, mtf.Conv3dOperation, layers.GroupedConv2dOperation)
_TO_LARGE = (mtf.Conv2dTransposeOperation, mtf.Conv3dTransposeOperation, layers.GroupedConvInputGradient)
CONVOLUTIONS = (
    *_TO_SMALL,
    *_TO_LARGE,
    mtf.Conv2or3dBackpropInputOperation,
    mtf.Conv2or3dBackpropFilterOperation,
    layers.GroupedConvKernelGradient,
)


def roles_of(op: mtf.Operation) -> tuple[str, mtf.Tensor, mtf.Tensor]:
    """What a convolution, transposed or not, or a gradient of one makes, and of which of its two inputs.

    Returns:
      SMALL, LARGE or KERNEL; the image of which a processor needs more than it has; and the kernel or, for the kernel's
      gradient, the small image.
    """
    first, second = op.inputs
    if isinstance(op, mtf.Conv2or3dBackpropFilterOperation):
        return (KERNEL, second, first) if op._is_transpose else (KERNEL, first, second)
    if isinstance(op, layers.GroupedConvKernelGradient):
        return KERNEL, second, first
    if isinstance(op, mtf.Conv2or3dBackpropInputOperation):
        return (SMALL if op._is_transpose else LARGE), first, second
    return (SMALL if isinstance(op, _TO_SMALL) else LARGE), first, second


class Geometry:
    """Kernel sizes, strides and padding of a convolution between a large and a small image. Boxes are of space alone.

    Args:
      op: the mtf.Operation.
      layout: the Layout.
    """

    def __init__(self, op: mtf.Operation, layout: Layout) -> None:
        self.makes, self.image, other = roles_of(op)
        output = op.outputs[0].shape
        self._large = output if self.makes == LARGE else self.image.shape
        self._small = {SMALL: output, LARGE: self.image.shape, KERNEL: other.shape}[self.makes]
        self._kernel = output if self.makes == KERNEL else other.shape
        self.rank = self._kernel.ndims - 1  # of an image, without the batch
        spatial = len(op._strides) - 2
        self.channel_dims = self.rank - spatial
        check_whole(op, layout, self._kernel.dims[:spatial], "the window of a convolution")
        self.sizes = [dim.size for dim in self._kernel.dims[:spatial]]
        self.strides = list(op._strides)
        self._op, self._layout = op, layout
        self._check_counts()
        self.before = [0] * spatial
        if op._padding == "SAME":
            extents = [dim.size for dim in self._large.dims[-self.rank : -self.channel_dims]]
            self.before = [same_padding(n, k, s)[0] for n, k, s in zip(extents, self.sizes, self._steps, strict=True)]

    def _check_counts(self) -> None:
        """Raises unless each window that TensorFlow would see has a value: none is left out in silence."""
        spatial = slice(-self.rank, -self.channel_dims)
        large, small = self._large.dims[spatial], self._small.dims[spatial]
        for whole, values, size, stride in zip(large, small, self.sizes, self._steps, strict=True):
            count = windows(whole.size, size, stride, self._op._padding)
            if count != values.size or count < 1:
                raise ValueError(
                    f"{type(self._op).__name__} {self._op.name!r}: {whole.size} pixels of dimension {whole.name!r} "
                    f"make {max(count, 0)} windows of size {size} and stride {stride} with padding "
                    f"{self._op._padding!r}, but the output has {values.size}; change the size, the stride or "
                    "the padding"
                )

    @property
    def _steps(self) -> list[int]:
        return self.strides[1:-1]

    @property
    def summed_dims(self) -> list[mtf.Dimension]:
        """The dimensions that are summed over: the channels of the image, or the batch and space of both images."""
        return self._small.dims[: -self.channel_dims] if self.makes == KERNEL else self.image.shape.dims[-1:]

    @property
    def is_space_whole(self) -> bool:
        """Whether the layout splits no image's height, width or depth, so that no processor needs what others have."""
        dims = [*self.of_space(self._large.dims), *self.of_space(self._small.dims)]
        return all(self._layout.axis_of(dim) is None for dim in dims)

    def _space(self, shape: mtf.Shape, pnum: int) -> Box:
        return self.of_space(box_of(self._layout, shape.dims, pnum))

    def flat(self, shape: Sequence[int]) -> list[int]:
        """The shape [..., height, width, channels] of an image as [batch, height, width, channels], of all channels."""
        space, channels = shape[-self.rank : -self.channel_dims], shape[-self.channel_dims :]
        return [math.prod(shape[: -self.rank]), *space, math.prod(channels)]

    def of_space(self, box: Sequence) -> list:
        """The part of an image's box, or of its dimensions, that is of space."""
        return list(box[-self.rank : -self.channel_dims])

    def large(self, pnum: int) -> Box:
        """A processor's part of the large image."""
        return self._space(self._large, pnum)

    def small(self, pnum: int) -> Box:
        """A processor's part of the small image."""
        return self._space(self._small, pnum)

    def held(self, pnum: int) -> Box:
        """A processor's part of the image of which it needs more."""
        return self._space(self.image.shape, pnum)

    def needed(self, pnum: int) -> Box:
        """The box of the image, of all its dimensions, that a processor's slice of the other one takes part in."""
        if 0 in self._layout.slice_shape(self._kernel, pnum):
            return [(0, 0)] * self.image.shape.ndims
        held = box_of(self._layout, self.image.shape.dims, pnum)
        window = self.seeing(self.large(pnum)) if self.makes == LARGE else self.seen(self.small(pnum))
        return [*held[: -self.rank], *window, *held[-self.channel_dims :]]

    def reached(self, box: Box, pnum: int) -> Box | None:
        """The part of a processor's slice of the other image that a box of the image takes part in, if there is one."""
        if self.makes == LARGE:
            return overlap(self.seen(box), self.large(pnum))
        return overlap(self.seeing(box), self.small(pnum))

    def seen(self, small: Box, taps: Box | None = None) -> Box:
        """What a box of the small image sees of the large one, with some of the taps; an empty box, nothing."""
        taps = [(0, k) for k in self.sizes] if taps is None else taps
        return [
            (begin * s - before + first, (end - 1) * s - before + last) if begin < end else (0, 0)
            for (begin, end), s, before, (first, last) in zip(small, self._steps, self.before, taps, strict=True)
        ]

    def seeing(self, large: Box) -> Box:
        """Which values of the small image see a box of the large one; there may be none."""
        return [
            (-(-(begin + before - k + 1) // s), (end - 1 + before) // s + 1) if begin < end else (0, 0)
            for (begin, end), s, before, k in zip(large, self._steps, self.before, self.sizes, strict=True)
        ]

    def taps(self, large: Box, small: Box) -> Box:
        """The taps through which a box of the small image sees a box of the large one."""
        ranges = zip(large, self.seen(small, [(0, 1)] * len(small)), self.sizes, strict=True)
        return [(max(b - last + 1, 0), min(e - first, k)) for (b, e), (first, last), k in ranges]

    def padding(self, large: Box, small: Box, taps: Box) -> str | None:
        """The padding by which TensorFlow relates two boxes; None: by none."""
        asked, valid, same = [], [], []
        for (b, e), (o, end), (first, _), (j, last), s in zip(
            large, small, self.seen(small, taps), taps, self._steps, strict=True
        ):
            k = last - j
            asked.append((b - first, end - o))
            valid.append((0, (e - b - k) // s + 1))
            # Eigen's 3D convolution begins elsewhere where pixels are left over
            same.append(same_padding(e - b, k, s) if (end - o - 1) * s + k >= e - b else None)
        return "VALID" if asked == valid else "SAME" if asked == same else None

    def boxes(self, pnum: int) -> Box:
        """A processor's parts of both images."""
        return [*self.large(pnum), *self.small(pnum)]
