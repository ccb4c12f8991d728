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
from mtf_hetero._support.ops import concat, constant, pad, reshape, zeros
from mtf_hetero.ops.halo import opaque

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
        return grouped(x, kernel, strides, padding)
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
        return grouped_input_gradient(shape, kernel, small, strides, padding)
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
        return grouped_kernel_gradient(large, shape, small, strides, padding)
    if _is_small(small.shape.as_list(), shape, strides, device):
        patches = _patches(large, shape[:2], _before(shape[:2], padding), small.shape.as_list()[1:-1])
        return reshape(tf.matmul(patches, reshape(small, [-1, shape[-1]]), transpose_a=True), shape)
    if len(shape) == 4:
        return tf.nn.conv2d_backprop_filter(large, constant(shape), small, strides, padding)
    return tf.raw_ops.Conv3DBackpropFilterV2(
        input=large, filter_sizes=constant(shape), out_backprop=small, strides=strides, padding=padding
    )


def _each(x: tf.Tensor, groups: int) -> list[tf.Tensor]:
    return [x] if groups == 1 else tf.split(x, groups, axis=constant(x.shape.rank - 1))


def _each_kernel(w: tf.Tensor) -> list[tf.Tensor]:
    return tf.unstack(w, axis=2)


def _is_depthwise(kernel: Sequence[int], strides: Sequence[int]) -> bool:
    """Return whether TensorFlow has an operation for it: one channel a group, and one stride."""
    return kernel[-2] == 1 and strides[1] == strides[2]


def grouped(x: tf.Tensor, kernel: tf.Tensor, strides: Sequence[int], padding: str) -> tf.Tensor:
    """Return the convolution in groups of a slice.

    Args:
      x: tf.Tensor [batch, height, width, groups * channels].
      kernel: tf.Tensor [window height, window width, groups, channels, filters].
      strides: [1, down, across, 1].
      padding: "SAME" or "VALID".

    Returns:
      tf.Tensor [batch, height, width, groups * filters].
    """
    shape = kernel.shape.as_list()
    if _is_depthwise(shape, strides):
        return tf.nn.depthwise_conv2d_native(x, reshape(kernel, [*shape[:3], shape[4]]), strides, padding)
    both = zip(_each(x, shape[2]), _each_kernel(kernel), strict=True)
    return concat([tf.nn.conv2d(part, w, strides, padding) for part, w in both], 3)


def grouped_input_gradient(
    shape: Sequence[int], kernel: tf.Tensor, dy: tf.Tensor, strides: Sequence[int], padding: str
) -> tf.Tensor:
    """Return the gradient of `grouped` to an image of `shape`, from dy [batch, height, width, groups * filters]."""
    sizes = kernel.shape.as_list()
    if _is_depthwise(sizes, strides):
        kernel = reshape(kernel, [*sizes[:3], sizes[4]])
        return tf.nn.depthwise_conv2d_native_backprop_input(constant(shape), kernel, dy, strides, padding)
    part = constant([*shape[:3], sizes[3]])
    both = zip(_each(dy, sizes[2]), _each_kernel(kernel), strict=True)
    return concat([tf.nn.conv2d_backprop_input(part, w, d, strides, padding) for d, w in both], 3)


def grouped_kernel_gradient(
    x: tf.Tensor, shape: Sequence[int], dy: tf.Tensor, strides: Sequence[int], padding: str
) -> tf.Tensor:
    """Return the gradient of `grouped` to a kernel of `shape`, from dy [batch, height, width, groups * filters]."""
    if _is_depthwise(shape, strides):
        flat = constant([*shape[:3], shape[4]])
        return reshape(tf.nn.depthwise_conv2d_native_backprop_filter(x, flat, dy, strides, padding), shape)
    one = constant([*shape[:2], *shape[3:]])
    both = zip(_each(x, shape[2]), _each(dy, shape[2]), strict=True)
    return tf.stack([tf.nn.conv2d_backprop_filter(part, one, d, strides, padding) for part, d in both], 2)
