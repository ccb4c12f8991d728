"""Random crops and reflections of training examples. They do not depend on the split of the batch."""

import dataclasses
import numbers

import numpy as np

from mtf_hetero._compat import tf


@dataclasses.dataclass(frozen=True)
class Augmentation:
    """Random changes of a training image; the defaults are customary for CIFAR-10.

    Args:
      crop: pixels of padding on each side, in the colour of the mean; an image of the old size is cut from it.
      flip: whether half of the images are mirrored left to right.

    Raises:
      ValueError: crop is no number of pixels.
    """

    crop: int = 4
    flip: bool = True

    def __post_init__(self) -> None:
        if not isinstance(self.crop, numbers.Integral) or self.crop < 0:
            raise ValueError(f"crop is {self.crop!r}; it must be a whole number of pixels, 0 for none")

    def draw(self, batch_size: int, seed: int, batch: tf.Tensor) -> tf.Tensor:
        """Draw the decisions for a complete batch, which depend on the arguments only.

        Args:
          batch_size: images in the complete batch.
          seed: of all decisions.
          batch: number of the batch in the stream of training, an int64 scalar.

        Returns:
          int32 [batch, 3]: first row and column of the cut in the padded image, and 1 if the image is flipped.
        """
        limits = np.array([2 * self.crop + 1, 2 * self.crop + 1, 2 if self.flip else 1], np.float32)
        seeds = tf.stack([tf.constant(seed, tf.int64), batch])
        uniform = tf.random.stateless_uniform([batch_size, len(limits)], seeds)
        return tf.cast(tf.minimum(uniform * limits, limits - 1), tf.int32)

    def apply(self, images: tf.Tensor, decisions: tf.Tensor) -> tf.Tensor:
        """Crop and flip normalised images.

        Args:
          images: float32 [batch, height, width, channels].
          decisions: of `draw`, int32 [batch, 3].

        Returns:
          A tensor of the same shape.
        """
        _, height, width, _ = images.shape.as_list()
        margin = [self.crop, self.crop]
        images = tf.pad(images, [[0, 0], margin, margin, [0, 0]])
        rows = decisions[:, :1] + tf.range(height)
        columns = tf.where_v2(decisions[:, 2:] > 0, tf.range(width - 1, -1, -1)[None], tf.range(width)[None])
        images = tf.gather(images, rows, axis=1, batch_dims=1)
        return tf.gather(images, decisions[:, 1:2] + columns, axis=2, batch_dims=1)


@dataclasses.dataclass(frozen=True)
class Turns:
    """Random reflections of a volume, and the exchange of its height and width if they are equal."""

    is_square: bool

    def draw(self, batch_size: int, seed: int, batch: tf.Tensor) -> tf.Tensor:
        """Draw turns [batch, 4]: mirrored along depth, height, width; height and width exchanged."""
        seeds = tf.stack([tf.constant(seed, tf.int64), -1 - batch])  # seeds from 0 up order the volumes
        return tf.random.stateless_uniform([batch_size, 4], seeds, 0, 2, tf.int32) * [1, 1, 1, int(self.is_square)]
