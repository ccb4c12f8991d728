"""The convolution of one slice, and its two gradients.

They are TensorFlow's own, but for images of a few pixels on a CPU: oneDNN vectorises over the width of an image and
drops to a quarter of its speed on 2 x 2 pixels, where a matrix product over patches does not. Shapes are
[batch, height, width, channels] or [batch, depth, height, width, channels] for images and [height, width, channels,
filters] or [depth, ...] for kernels; [height, width, groups, channels, filters] for those in groups, of images whose
channels are those of all groups.
"""

from collections.abc import Sequence

from mtf_hetero._compat import mtf, tf, windows
from mtf_hetero._support.alike import is_cpu
from mtf_hetero._support.ops import constant, pad, reshape, zeros
from mtf_hetero.layers import grouped_conv
from mtf_hetero.lowering.halo import opaque

SMALL_PIXELS = 9  # up to 3 x 3 the product is 1.4 to 2.8 times as fast, from 4 x 4 on no longer clearly so


def _is_small(small: Sequence[int], kernel: Sequence[int], strides: Sequence[int], device: str) -> bool:
    """Return whether to convolve by a matrix product: `small` is the shape of the image with a value per window."""
    pixels = mtf.list_product(small[1:-1])
    return is_cpu(device) and len(kernel) == 4 and set(strides) == {1} and 0 < pixels <= SMALL_PIXELS


def _is_empty(*shapes: Sequence[int]) -> bool:
    """Return whether an operand or the result has no elements, which some operations of TensorFlow refuse."""
    return any(0 in shape for shape in shapes)


def _patches(x: tf.Tensor, size: Sequence[int], before: Sequence[int], count: Sequence[int]) -> tf.Tensor:
    """Extract all windows of an image: [batch * height * width, window height * window width * channels].

    Args:
      x: the image.
      size: height and width of a window.
      before: rows and columns of zeros before the image.
      count: number of windows, down and across.
    """
    batch, height, width, channels = x.shape.as_list()
    after = [n + k - 1 - b - m for n, k, b, m in zip(count, size, before, (height, width), strict=True)]
    x = pad(x, [[0, 0], [before[0], after[0]], [before[1], after[1]], [0, 0]])
    one = [1, 1, 1, 1]
    patches = tf.image.extract_patches(x, [1, *size, 1], one, one, "VALID")
    return reshape(patches, [batch * count[0] * count[1], size[0] * size[1] * channels])


def _before(size: Sequence[int], padding: str) -> list[int]:
    return [(k - 1) // 2 if padding == "SAME" else 0 for k in size]


def _small_shape(large: Sequence[int], kernel: Sequence[int], strides: Sequence[int], padding: str) -> list[int]:
    """Return the shape of the image with a value per window."""
    groups = kernel[-3] if len(kernel) > len(large) else 1
    space = [
        windows(n, k, s, padding) for n, k, s in zip(large[1:-1], kernel[: len(large) - 2], strides[1:-1], strict=True)
    ]
    return [large[0], *space, groups * kernel[-1]]


def forward(x: tf.Tensor, kernel: tf.Tensor, strides: Sequence[int], padding: str, device: str) -> tf.Tensor:
    """Convolve."""
    if _is_empty(x.shape.as_list(), kernel.shape.as_list()):
        return zeros(_small_shape(x.shape.as_list(), kernel.shape.as_list(), strides, padding), x.dtype)
    if kernel.shape.rank > x.shape.rank:
        return grouped_conv.forward(x, kernel, strides, padding)
    size = kernel.shape.as_list()
    count = [n if padding == "SAME" else n - k + 1 for n, k in zip(x.shape.as_list()[1:-1], size, strict=False)]
    out = [x.shape.as_list()[0], *count, size[-1]]
    if _is_small(out, size, strides, device):
        patches = _patches(x, size[:2], _before(size[:2], padding), count)
        return reshape(tf.matmul(patches, reshape(kernel, [-1, size[-1]])), out)
    if len(size) == 4:
        return tf.nn.conv2d(x, kernel, strides, padding)
    # TensorFlow 2.21's remapper merges a tf.pad, a 3D convolution and a leaky relu, and loses the relu
    return tf.nn.conv3d(opaque(x), kernel, strides, padding)


def input_gradient(
    shape: Sequence[int], kernel: tf.Tensor, small: tf.Tensor, strides: Sequence[int], padding: str, device: str
) -> tf.Tensor:
    """Return the gradient to an image of `shape`, which is also the transposed convolution."""
    if _is_empty(shape, kernel.shape.as_list(), small.shape.as_list()):
        return zeros(shape, small.dtype)
    if kernel.shape.rank > len(shape):
        return grouped_conv.input_gradient(shape, kernel, small, strides, padding)
    size = kernel.shape.as_list()
    if _is_small(small.shape.as_list(), size, strides, device) and mtf.list_product(shape[1:-1]) <= SMALL_PIXELS:
        before = [k - 1 - b for k, b in zip(size, _before(size[:2], padding), strict=False)]
        patches = _patches(small, size[:2], before, shape[1:-1])
        flipped = tf.transpose(tf.reverse(kernel, constant([0, 1])), constant([0, 1, 3, 2]))
        return reshape(tf.matmul(patches, reshape(flipped, [-1, size[2]])), shape)
    if len(shape) == 4:
        return tf.nn.conv2d_backprop_input(constant(shape), kernel, small, strides, padding)
    return tf.raw_ops.Conv3DBackpropInputV2(
        input_sizes=constant(shape), filter=kernel, out_backprop=small, strides=strides, padding=padding
    )


def kernel_gradient(
    large: tf.Tensor, shape: Sequence[int], small: tf.Tensor, strides: Sequence[int], padding: str, device: str
) -> tf.Tensor:
    """Return the gradient to a kernel of `shape`."""
    if _is_empty(shape, large.shape.as_list(), small.shape.as_list()):
        return zeros(shape, large.dtype)
    if len(shape) > large.shape.rank:
        return grouped_conv.kernel_gradient(large, shape, small, strides, padding)
    if _is_small(small.shape.as_list(), shape, strides, device):
        patches = _patches(large, shape[:2], _before(shape[:2], padding), small.shape.as_list()[1:-1])
        return reshape(tf.matmul(patches, reshape(small, [-1, shape[-1]]), transpose_a=True), shape)
    if len(shape) == 4:
        return tf.nn.conv2d_backprop_filter(large, constant(shape), small, strides, padding)
    return tf.raw_ops.Conv3DBackpropFilterV2(
        input=large, filter_sizes=constant(shape), out_backprop=small, strides=strides, padding=padding
    )
