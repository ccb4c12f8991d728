"""Windows of an image and the pixels that they read: plain intervals, and boxes cut to fit them.

Of the two images of a convolution or pool, the *large* one is windowed and the *small* one has a value for each window.
Position o of the small image sees the large one from o * stride - before on, for the size of a window; its *taps* count
from there.
"""

import dataclasses
from collections.abc import Sequence

from mtf_hetero._compat import tf
from mtf_hetero._support.ops import cut, pad
from mtf_hetero.layout.blocks import Box, Interval


@dataclasses.dataclass(frozen=True)
class Windows:
    """The windows of a convolution or a pool, per dimension of space.

    Args:
      extents: pixels of the large image.
      sizes: pixels of a window.
      strides: from a window to the next.
      before: by how much the first window begins before the image.
      counts: number of windows.

    Example:
      Windows of 3 pixels, stride 2, padding "SAME", 8 pixels: `before` is 0, and the last window reaches beyond the
      image.

        large image   0 1 2 3 4 5 6 7 .
        value 0       x x x                receptive_field([(0, 1)]) is [(0, 3)]
        value 1           x x x            outputs_touching([(4, 6)]) is [(1, 3)]
        value 2               x x x        taps([(4, 6)], [(1, 2)]) is [(2, 3)]: of pixels 4 and 5 it sees one
        value 3                   x x x
    """

    extents: tuple[int, ...]
    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    before: tuple[int, ...]
    counts: tuple[int, ...]

    @property
    def all(self) -> Box:
        """Return all windows."""
        return [(0, count) for count in self.counts]

    def receptive_field(self, small: Sequence[Interval], taps: Sequence[Interval] | None = None) -> Box:
        """Return the pixels that a box of the small image sees, with some of the taps, also beyond the large image."""
        taps = [(0, k) for k in self.sizes] if taps is None else taps
        return [
            (begin * s - before + first, (end - 1) * s - before + last) if begin < end else (0, 0)
            for (begin, end), s, before, (first, last) in zip(small, self.strides, self.before, taps, strict=True)
        ]

    def outputs_touching(self, large: Sequence[Interval]) -> Box:
        """Return the windows that lie, in part at least, in a box of the large image; there may be none."""
        return [
            (max(-(-(begin + before - k + 1) // s), 0), min((end - 1 + before) // s + 1, count))
            if begin < end
            else (0, 0)
            for (begin, end), s, before, k, count in zip(
                large, self.strides, self.before, self.sizes, self.counts, strict=True
            )
        ]

    def inside(self, pixels: Sequence[Interval]) -> Box:
        """Return the part of a box that is within the large image."""
        return [(max(begin, 0), min(end, n)) for (begin, end), n in zip(pixels, self.extents, strict=True)]

    def taps(self, large: Sequence[Interval], small: Sequence[Interval]) -> Box:
        """Return the taps through which a box of the small image sees a box of the large one."""
        ranges = zip(large, self.receptive_field(small, [(0, 1)] * len(small)), self.sizes, strict=True)
        return [(max(b - last + 1, 0), min(e - first, k)) for (b, e), (first, last), k in ranges]

    def padding(self, large: Sequence[Interval], small: Sequence[Interval], taps: Sequence[Interval]) -> str | None:
        """Return the padding by which TensorFlow relates two boxes, or None."""
        required, valid, same = [], [], []
        for (b, e), (o, end), (first, _), (j, last), s in zip(
            large, small, self.receptive_field(small, taps), taps, self.strides, strict=True
        ):
            k = last - j
            required.append((b - first, end - o))
            valid.append((0, (e - b - k) // s + 1))
            # Eigen's 3D convolution begins elsewhere where pixels are left over
            same.append(same_padding(e - b, k, s) if (end - o - 1) * s + k >= e - b else None)
        return "VALID" if required == valid else "SAME" if required == same else None


def same_padding(extent: int, size: int, stride: int) -> tuple[int, int]:
    """Return the padding before the image, and number of windows, of TensorFlow's "SAME".

    Example:
      >>> same_padding(7, 3, 2), same_padding(8, 3, 2)  # the second has one pixel too few, which comes after the image
      ((1, 4), (0, 4))
    """
    count = -(-extent // stride)
    return max((count - 1) * stride + size - extent, 0) // 2, count


def crop_or_pad(x: tf.Tensor, source: Sequence[Interval], target: Sequence[Interval], missing: float = 0) -> tf.Tensor:
    """Return a box of an image, cropped or padded out of another box, which overlaps it.

    Args:
      x: tf.Tensor [..., spatial dimensions, channels].
      source: (begin, end) of its spatial dimensions.
      target: (begin, end) of those of the result.
      missing: the value of pixels that are not held.

    Example:
      Rows 0 to 6 as rows 4 to 8: three rows are kept, and two are `missing`.

        source   0 1 2 3 4 5 6
        target           4 5 6 . .
    """
    both = list(zip(source, target, strict=True))
    others = x.shape.rank - len(both) - 1
    if any(w[0] > h[0] or w[1] < h[1] for h, w in both):
        begins = [0] * others + [max(w[0] - h[0], 0) for h, w in both] + [0]
        sizes = [min(h[1], w[1]) - max(h[0], w[0]) for h, w in both]
        x = cut(x, begins, [*x.shape.as_list()[:others], *sizes, x.shape.as_list()[-1]])
    around = [(max(h[0] - w[0], 0), max(w[1] - h[1], 0)) for h, w in both]
    return pad(x, [*[(0, 0)] * others, *around, (0, 0)], missing)


def overlap(one: Sequence[Interval], other: Sequence[Interval]) -> Box | None:
    """Return the box that two boxes share, if there is one."""
    both = [(max(a[0], b[0]), min(a[1], b[1])) for a, b in zip(one, other, strict=True)]
    return both if all(begin < end for begin, end in both) else None
