"""Pools of slices: the values of some windows, what parts of an image add to them, and gradients."""

import dataclasses
import math
from collections.abc import Sequence

from mtf_hetero._compat import tf
from mtf_hetero._support.ops import pad, reshape
from mtf_hetero.layout.blocks import Box, Interval
from mtf_hetero.ops.windows import Windows, crop_or_pad, same_padding


@dataclasses.dataclass(frozen=True)
class PoolWindows(Windows):
    """The windows of a pool.

    Args:
      kind: "max" or "avg".
      counts_padding: whether an average is over all of a window, and not over its part within the image.
    """

    kind: str
    counts_padding: bool = True

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
        return self._pooled(crop_or_pad(x, box, self.receptive_field(windows), self.nothing(x.dtype)), "VALID")

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
    ) -> tuple[Box, tf.Tensor]:
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
        pixels = self.inside(self.receptive_field(windows)) if padding == "SAME" else self.receptive_field(windows)
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

    def _reach(self, windows: Sequence[Interval]) -> Box:
        """Count the pixels by which some windows reach beyond the image, before and after it."""
        return [
            (max(-b, 0), max(e - n, 0)) for (b, e), n in zip(self.receptive_field(windows), self.extents, strict=True)
        ]

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
