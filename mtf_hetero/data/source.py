"""Source: labelled images that are read one by one, by index, with TensorFlow's own operations alone.

A pipeline made of them runs wherever TensorFlow does, in another process or on another host too, and reads nothing but
the images that it is asked for.
"""

import dataclasses
import zlib
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from mtf_hetero._compat import tf

TRAIN = "train"
TEST = "test"


@dataclasses.dataclass(frozen=True, eq=False)
class Source:
    """One part, "train" or "test", of a data set.

    Args:
      size: number of images.
      read: from a tf.data.Dataset of int64 indices to one of (uint8 image [height, width, channels], integer label),
        in the same order.
    """

    size: int
    read: "Callable[[tf.data.Dataset], tf.data.Dataset]"


class CompressedConstant:
    """An array to be made part of graphs, where it takes, and in each file of them, the room of its compression only.

    Args:
      array: of numbers.
    """

    def __init__(self, array: np.ndarray) -> None:
        self._shape, self._dtype = array.shape, array.dtype.name
        self._data = zlib.compress(np.ascontiguousarray(array).tobytes())

    def tensor(self) -> "tf.Tensor":
        """The array as a tensor of the default graph."""
        from mtf_hetero._compat import tf  # here, so that programs can check their flags before it is loaded

        content = tf.io.decode_compressed(self._data, "ZLIB")
        return tf.reshape(tf.io.decode_raw(content, tf.as_dtype(self._dtype)), self._shape)


def source_of_arrays(images: np.ndarray, labels: np.ndarray) -> Source:
    """A source that is part of the graph.

    Args:
      images: uint8 [examples, height, width, channels].
      labels: integers [examples].
    """
    compressed = CompressedConstant(images), CompressedConstant(labels)

    def read(indices: "tf.data.Dataset") -> "tf.data.Dataset":
        from mtf_hetero._compat import tf

        all_images, all_labels = (constant.tensor() for constant in compressed)
        return indices.map(lambda index: (tf.gather(all_images, index), tf.gather(all_labels, index)))

    return Source(len(images), read)
