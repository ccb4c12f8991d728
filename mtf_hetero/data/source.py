"""Source: labelled images that are read one by one, by index, with TensorFlow's own operations alone.

A pipeline made of them runs wherever TensorFlow does, in another process or on another host too, and reads nothing but
the images that it is asked for.
"""

import dataclasses
import zlib
from collections.abc import Callable, Mapping, Sequence
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
      read_often: the same of images that are read several times: it keeps them as it sees fit; None: whoever reads
        them may keep them all in memory.
      names: of the images' files; none where they have none.
    """

    size: int
    read: "Callable[[tf.data.Dataset], tf.data.Dataset]"
    read_often: "Callable[[tf.data.Dataset], tf.data.Dataset] | None" = None
    names: Sequence[str] = ()


@dataclasses.dataclass(frozen=True, eq=False)
class Found:
    """The images of a user's own data set.

    Args:
      image_shape: (height, width, channels).
      class_names: of all classes.
      sources: {"train": ..., "test": ...}.
      digest: of the images, by which a change is noticed.
      notes: lines for the user.
    """

    image_shape: tuple[int, int, int]
    class_names: tuple[str, ...]
    sources: Mapping[str, Source]
    digest: str
    notes: tuple[str, ...] = ()


class CompressedConstant:
    """An array to be made part of graphs, where it takes, and in each file of them, the room of its compression only.

    Args:
      array: of numbers.
    """

    def __init__(self, array: np.ndarray) -> None:
        self._shape, self._dtype = array.shape, array.dtype.name
        self._data = zlib.compress(np.ascontiguousarray(array).tobytes())

    def bytes(self) -> "tf.Tensor":
        """The bytes of the array as a string of the default graph."""
        from mtf_hetero._compat import tf  # here, so that programs can check their flags before it is loaded

        return tf.io.decode_compressed(self._data, "ZLIB")

    def tensor(self) -> "tf.Tensor":
        """The array as a tensor of the default graph."""
        from mtf_hetero._compat import tf

        return tf.reshape(tf.io.decode_raw(self.bytes(), tf.as_dtype(self._dtype)), self._shape)


class CompressedStrings:
    """Strings to be made part of graphs, such as the paths of many files.

    Args:
      strings: of bytes.
    """

    def __init__(self, strings: Sequence[bytes]) -> None:
        lengths = np.array([len(string) for string in strings], np.int32)
        self._content = CompressedConstant(np.frombuffer(b"".join(strings), np.uint8))
        self._lengths = CompressedConstant(lengths)

    def lookup(self) -> "Callable[[tf.Tensor], tf.Tensor]":
        """A function from an index to a string, both scalars of the default graph."""
        from mtf_hetero._compat import tf

        content, lengths = self._content.bytes(), self._lengths.tensor()
        begins = tf.cumsum(tf.cast(lengths, tf.int64), exclusive=True)

        def string(index: "tf.Tensor") -> "tf.Tensor":
            return tf.strings.substr(content, tf.gather(begins, index), tf.cast(tf.gather(lengths, index), tf.int64))

        return string


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
