"""Windows of an image and the pixels that they read: plain intervals, and boxes cut to fit them."""

import dataclasses
import math
from collections.abc import Sequence

from mtf_hetero._compat import tf
from mtf_hetero._support.ops import cut, pad, reshape

Interval = tuple[int, int]


@dataclasses.dataclass(frozen=True)
class Windows:
    """The windows of a pool, per spatial dimension.

    Args:
      kind: "max" or "avg".
      extents: pixels of the image.
      sizes: pixels of a window.
      strides: from a window to the next.
      before: by how much the first window begins before the image.
      counts: number of windows.
      counts_padding: whether an average is over all of a window, and not over its part within the image.
    """

    kind: str
    extents: tuple[int, ...]
    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    before: tuple[int, ...]
    counts: tuple[int, ...]
    counts_padding: bool = True

    def pixels(self, windows: Sequence[Interval]) -> list[Interval]:
        """Return the pixels that an interval of windows sees, also beyond the image."""
        return [
            (begin * s - before, (end - 1) * s - before + k) if begin < end else (0, 0)
            for (begin, end), s, before, k in zip(windows, self.strides, self.before, self.sizes, strict=True)
        ]

    def inside(self, pixels: Sequence[Interval]) -> list[Interval]:
        """Return the part within the image."""
        return [(max(begin, 0), min(end, n)) for (begin, end), n in zip(pixels, self.extents, strict=True)]

    def covering(self, pixels: Sequence[Interval]) -> list[Interval]:
        """Return the windows that lie, in part at least, in an interval of pixels; there may be none."""
        return [
            (max(-(-(begin + before - k + 1) // s), 0), min((end - 1 + before) // s + 1, count))
            if begin < end
            else (0, 0)
            for (begin, end), s, before, k, count in zip(
                pixels, self.strides, self.before, self.sizes, self.counts, strict=True
            )
        ]

    @property
    def all(self) -> list[Interval]:
        """Return all windows."""
        return [(0, count) for count in self.counts]

    def pool(self, x: tf.Tensor, windows: Sequence[Interval]) -> tf.Tensor:
        """Pools some windows.

        Args:
          x: tf.Tensor [..., spatial dimensions, channels], the part of the image that these windows see.
          windows: (begin, end) per spatial dimension.

        Returns:
          tf.Tensor [..., spatial dimensions, channels] with a value per window.
        """
        y = self._pooled(*self._padded(x, windows))
        return y if self._native_padding(windows) == "SAME" else self.weighted(y, windows)

    def _pooled(self, x: tf.Tensor, padding: str) -> tf.Tensor:
        arguments = {"ksize": [1, *self.sizes, 1], "strides": [1, *self.strides, 1], "padding": padding}
        flat = _flat(x, len(self.sizes))
        if self.kind == "max":
            y = (tf.nn.max_pool2d if len(self.sizes) == 2 else tf.nn.max_pool3d)(flat, **arguments)
        else:
            y = (tf.nn.avg_pool2d if len(self.sizes) == 2 else tf.nn.avg_pool3d)(flat, **arguments)
        return reshape(y, [*x.shape.as_list()[: -len(self.sizes) - 1], *y.shape.as_list()[1:]])

    def nothing(self, dtype: tf.DType) -> float:
        """Return the value of a pixel beyond the image, which windows ignore."""
        return dtype.min if self.kind == "max" else 0

    def partial(self, x: tf.Tensor, box: Sequence[Interval], windows: Sequence[Interval]) -> tf.Tensor:
        """Return what a box of the image adds to some windows: their sums over it, or maxima.

        An average is over all of a window; `weighted` makes of the sum of all contributions what `pool` gives.

        Args:
          x: tf.Tensor [..., spatial dimensions, channels].
          box: (begin, end) of its spatial dimensions, of which some at least lie in the windows.
          windows: (begin, end) per spatial dimension.
        """
        return self._pooled(crop_or_pad(x, box, self.pixels(windows), self.nothing(x.dtype)), "VALID")

    def weighted(self, values: tf.Tensor, windows: Sequence[Interval]) -> tf.Tensor:
        """Averages over whole windows, zeros beyond the image among them, to those that are asked for.

        Args:
          values: tf.Tensor [..., spatial dimensions, channels].
          windows: (begin, end) per spatial dimension.

        Example:
          Three windows of three pixels over three: a sum is divided by 3, and so is too small at the edges.

            pixels     . 0 1 2 .
            windows    x x x          two pixels within the image: weight 3 / 2
                         x x x        weight 1
                           x x x      weight 3 / 2
        """
        if self.kind == "max" or self.counts_padding or not any(map(any, self._reach(windows))):
            return values
        for i, (begin, end) in enumerate(windows):
            starts = [o * self.strides[i] - self.before[i] for o in range(begin, end)]
            inside = [min(b + self.sizes[i], self.extents[i]) - max(b, 0) for b in starts]
            shape = [len(inside) if axis == i else 1 for axis in range(len(windows))]
            weights = tf.constant([self.sizes[i] / n for n in inside], values.dtype)
            values *= tf.reshape(weights, [*shape, 1])
        return values

    def gradient(
        self, dy: tf.Tensor, windows: Sequence[Interval], x: tf.Tensor | None = None, y: tf.Tensor | None = None
    ) -> tuple[list[Interval], tf.Tensor]:
        """Return the gradient to the pixels that some windows see, those beyond the image among them or not.

        Args:
          dy: tf.Tensor [..., spatial dimensions, channels], the gradient to the windows' values.
          windows: (begin, end) per spatial dimension.
          x: the part of the image that they see, where the maximum is taken.
          y: the windows' values, where the maximum is taken.

        Returns:
          (begin, end) per spatial dimension of these pixels, and the gradient.
        """
        rank, padding, flat = len(self.sizes), self._native_padding(windows), _flat(dy, len(self.sizes))
        pixels = self.inside(self.pixels(windows)) if padding == "SAME" else self.pixels(windows)
        windowed = {"ksize": [1, *self.sizes, 1], "strides": [1, *self.strides, 1], "padding": padding}
        if self.kind == "max":
            assert x is not None and y is not None
            native = tf.raw_ops.MaxPoolGrad if rank == 2 else tf.raw_ops.MaxPool3DGrad
            padded = _flat(self._padded(x, windows)[0], rank)
            dx = native(orig_input=padded, orig_output=_flat(y, rank), grad=flat, **windowed)
        else:
            native = tf.raw_ops.AvgPoolGrad if rank == 2 else tf.raw_ops.AvgPool3DGrad
            flat = flat if padding == "SAME" else self.weighted(flat, windows)
            batch, *_, channels = flat.shape.as_list()
            shape = [batch, *(end - begin for begin, end in pixels), channels]
            dx = native(orig_input_shape=shape, grad=flat, **windowed)
        return pixels, reshape(dx, [*dy.shape.as_list()[: -rank - 1], *dx.shape.as_list()[1:]])

    def _reach(self, windows: Sequence[Interval]) -> list[Interval]:
        """Count the pixels by which some windows reach beyond the image, before and after it."""
        return [(max(-b, 0), max(e - n, 0)) for (b, e), n in zip(self.pixels(windows), self.extents, strict=True)]

    def _native_padding(self, windows: Sequence[Interval]) -> str:
        """Return TensorFlow's padding: "SAME" for all windows of an image where it means these, or "VALID"."""
        ours_to_count = self.kind == "avg" and self.counts_padding
        is_native = list(windows) == self.all and any(map(any, self._reach(windows))) and not ours_to_count
        same = [same_padding(n, k, s) for n, k, s in zip(self.extents, self.sizes, self.strides, strict=True)]
        return "SAME" if is_native and same == list(zip(self.before, self.counts, strict=True)) else "VALID"

    def _padded(self, x: tf.Tensor, windows: Sequence[Interval]) -> tuple[tf.Tensor, str]:
        """Return the pixels that windows see, with those beyond the image unless TensorFlow adds them; its padding."""
        padding, reach = self._native_padding(windows), self._reach(windows)
        if padding == "VALID" and any(map(any, reach)):
            outer = [(0, 0)] * (x.shape.rank - len(reach) - 1)
            x = pad(x, [*outer, *reach, (0, 0)], self.nothing(x.dtype))
        return x, padding


def _flat(x: tf.Tensor, spatial: int) -> tf.Tensor:
    """[..., spatial dimensions, channels] to [batch, spatial dimensions, channels]."""
    shape = x.shape.as_list()
    return reshape(x, [math.prod(shape[: -spatial - 1]), *shape[-spatial - 1 :]])


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


def overlap(one: Sequence[Interval], other: Sequence[Interval]) -> list[Interval] | None:
    """Return the box that two boxes share, if there is one."""
    both = [(max(a[0], b[0]), min(a[1], b[1])) for a, b in zip(one, other, strict=True)]
    return both if all(begin < end for begin, end in both) else None
