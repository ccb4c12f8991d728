"""Random access to TFRecord files, which are made to be read from end to end.

The lengths of the records are found once, here; a pipeline then opens a file at the one record that it wants.
"""

import functools
import struct
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from mtf_hetero._compat import tf
from mtf_hetero.data.source import CompressedConstant, Source

_HEADER = struct.Struct("<Q")  # the length, which 4 bytes of checksum follow, and 4 more the payload
_FRAMING_BYTES = 16
_PARALLEL_DECODES = 4


def record_lengths(path: str) -> np.ndarray:
    """Lengths of the payloads of all records of a file, in bytes, int64 [records].

    Raises:
      ValueError: the file is cut off, or no TFRecord file.
    """
    if tf.gfile.Stat(path).length == 0:
        return np.zeros([0], np.int64)
    lengths, begin = [], 0
    mapped: Any = np.memmap(path, np.uint8, "r")
    content = memoryview(mapped)  # ten times as fast to unpack from
    while begin + _FRAMING_BYTES <= len(content):
        (length,) = _HEADER.unpack_from(content, begin)
        lengths.append(length)
        begin += length + _FRAMING_BYTES
    if begin != len(content):
        raise ValueError(f"{path} is cut off or damaged behind record {len(lengths)}; prepare the data set anew")
    return np.array(lengths, np.int64)


def source_of_records(paths: Sequence[str], size: int, decode: Callable[[Any], Any]) -> Source:
    """A source of the records of several TFRecord files, one file after the other.

    TensorFlow checks the checksum of each record that it reads. The files are indexed when the source is first used.

    Args:
      paths: the files.
      size: number of records in all of them.
      decode: from a payload, a string tensor, to (uint8 image, integer label).
    """

    @functools.cache
    def index() -> tuple[CompressedConstant, np.ndarray, np.ndarray]:
        lengths = [record_lengths(path) for path in paths]
        found = sum(len(part) for part in lengths)
        if found != size:
            raise ValueError(f"{paths[0]} and the files beside it hold {found} records, not {size}; prepare it anew")
        ends = np.cumsum([len(part) for part in lengths])
        file_bytes = [int((part + _FRAMING_BYTES).sum()) for part in lengths]
        return CompressedConstant(np.concatenate(lengths).astype(np.int32)), ends, np.cumsum([0, *file_bytes[:-1]])

    def read(indices: Any) -> Any:
        lengths, ends, bases = index()
        begins = tf.cumsum(tf.cast(lengths.tensor(), tf.int64) + _FRAMING_BYTES, exclusive=True)

        def record(example: Any) -> Any:
            file = tf.searchsorted(tf.constant(ends), example[None], side="right")
            offset = tf.gather(begins, example[None]) - tf.gather(bases, file)
            return _open_at(tf.gather(tf.constant(list(paths)), file), offset).take(1)

        return indices.flat_map(record).map(decode, num_parallel_calls=_PARALLEL_DECODES)

    return Source(size, read)


def _open_at(paths: Any, offsets: Any) -> Any:
    """The records from a place in a file on; FixedLengthRecordDataset would read all that comes before it."""
    variant = tf.raw_ops.TFRecordDatasetV2(
        filenames=paths, compression_type="", buffer_size=tf.constant(0, tf.int64), byte_offsets=offsets
    )
    return tf.data.experimental.from_variant(variant, tf.TensorSpec([], tf.string))
