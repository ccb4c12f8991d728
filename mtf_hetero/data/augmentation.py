"""Random crops and reflections of the training images, the same ones however the batch is divided."""

import dataclasses
import numbers

import numpy as np

from mtf_hetero._compat import tf


@dataclasses.dataclass(frozen=True)
class Augmentation:
    """What is done to a training image at random; as it stands, the customary treatment of CIFAR-10.

    Args:
      crop: pixels of padding, in the colour of the mean, on each side, out of which an image of the old size is cut.
      flip: whether left and right are exchanged in half of the images.

    Raises:
      ValueError: crop is no number of pixels.
    """

    crop: int = 4
    flip: bool = True

    def __post_init__(self) -> None:
        if not isinstance(self.crop, numbers.Integral) or self.crop < 0:
            raise ValueError(f"crop is {self.crop!r}; it must be a whole number of pixels, 0 for none")

    def draw(self, batch_size: int, seed: int, batch: tf.Tensor) -> tf.Tensor:
        """The decisions on a whole batch; they depend on nothing but the arguments.

        Args:
          batch_size: images in the whole batch.
          seed: of all decisions.
          batch: number of the batch in the stream of training, an int64 scalar.

        Returns:
          int32 [batch, 3]: where the cut begins, row and column in the padded image, and 1 where it is flipped.
        """
        limits = np.array([2 * self.crop + 1, 2 * self.crop + 1, 2 if self.flip else 1], np.float32)
        seeds = tf.stack([tf.constant(seed, tf.int64), batch])
        uniform = tf.random.stateless_uniform([batch_size, len(limits)], seeds)
        return tf.cast(tf.minimum(uniform * limits, limits - 1), tf.int32)

    def apply(self, images: tf.Tensor, decisions: tf.Tensor) -> tf.Tensor:
        """Crops and flips normalised images.

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
