"""Source: labelled images that are read by index, with TensorFlow's own operations only.

Such a pipeline runs in any TensorFlow process, also on another host, and reads only the requested images.
"""

import dataclasses
import zlib
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from mtf_hetero._compat import tf

TRAIN = "train"
TEST = "test"
FRAMING_BYTES = 16  # of a record in a TFRecord file: its length and two checksums


@dataclasses.dataclass(frozen=True, eq=False)
class Source:
    """One part, "train" or "test", of a data set.

    Args:
      size: number of images.
      reader: makes a function, in the default graph, from an int64 index to (uint8 image [height, width, channels],
        integer label), given the bytes of images that it may keep.
      parallel: images read at the same time; None: one.
      keeps: whether the reader itself keeps images; if not, all may be kept as one tensor.
      names: of the images' files; none: no files.
    """

    size: int
    reader: "Callable[[int], Callable[[tf.Tensor], tuple[tf.Tensor, tf.Tensor]]]"
    parallel: int | None = None
    keeps: bool = False
    names: Sequence[str] = ()

    def read(self, indices: "tf.data.Dataset", kept_bytes: int = 0) -> "tf.data.Dataset":
        """Return a tf.data.Dataset of (image, label) for one of indices, in the same order."""
        return indices.map(self.reader(kept_bytes), num_parallel_calls=self.parallel)


class CompressedConstant:
    """An array for graphs, where it needs only its compressed size in memory and in files."""

    def __init__(self, array: np.ndarray) -> None:
        self._shape, self._dtype = array.shape, array.dtype.name
        self._data = zlib.compress(np.ascontiguousarray(array).tobytes())

    def bytes(self) -> "tf.Tensor":
        """Return the bytes of the array as a string of the default graph."""
        from mtf_hetero._compat import tf  # here, so that programs can check their flags before it is loaded

        return tf.io.decode_compressed(self._data, "ZLIB")

    def tensor(self) -> "tf.Tensor":
        """Return the array as a tensor of the default graph."""
        from mtf_hetero._compat import tf

        return tf.reshape(tf.io.decode_raw(self.bytes(), tf.as_dtype(self._dtype)), self._shape)

    def lookup(self) -> "Callable[[tf.Tensor], tf.Tensor]":
        """Return a function from an index to an element, in the default graph."""
        from mtf_hetero._compat import tf

        array = self.tensor()
        return lambda index: tf.gather(array, index)


class CompressedStrings:
    """Strings for graphs, such as the paths of many files."""

    def __init__(self, strings: Sequence[bytes]) -> None:
        lengths = np.array([len(string) for string in strings], np.int32)
        self._content = CompressedConstant(np.frombuffer(b"".join(strings), np.uint8))
        self._lengths = CompressedConstant(lengths)

    def lookup(self) -> "Callable[[tf.Tensor], tf.Tensor]":
        """Return a function from an index to a string, both scalars of the default graph."""
        from mtf_hetero._compat import tf

        content, lengths = self._content.bytes(), self._lengths.tensor()
        begins = tf.cumsum(tf.cast(lengths, tf.int64), exclusive=True)

        def string(index: "tf.Tensor") -> "tf.Tensor":
            return tf.strings.substr(content, tf.gather(begins, index), tf.cast(tf.gather(lengths, index), tf.int64))

        return string


def source_of_arrays(images: np.ndarray, labels: np.ndarray) -> Source:
    """Return a source that is part of the graph.

    Args:
      images: uint8 [examples, height, width, channels].
      labels: integers [examples].
    """
    compressed = CompressedConstant(images), CompressedConstant(labels)

    def reader(kept_bytes: int) -> "Callable[[tf.Tensor], tuple[tf.Tensor, tf.Tensor]]":
        image_of, label_of = (constant.lookup() for constant in compressed)
        return lambda index: (image_of(index), label_of(index))

    return Source(len(images), reader)
