"""Random access to TFRecord files, which are made to be read from end to end, and what is said of damaged ones.

The lengths of the records are found once, here; a pipeline then opens a file at the one record that it wants.
"""

import contextlib
import functools
import os
import re
import struct
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from mtf_hetero._compat import tf
from mtf_hetero.data.source import CompressedConstant, Source

_HEADER = struct.Struct("<Q")  # the length, which 4 bytes of checksum follow, and 4 more the payload
_HEADER_BYTES = 12
_FRAMING_BYTES = 16
_PARALLEL_READS = 4
_UNREADABLE = "cannot be read"
_UNREADABLE_LINE = re.compile(rf"assertion failed: \[(.* {_UNREADABLE}[ :][^\]]*)\]")


class UnreadableError(ValueError):
    """A file of a data set is missing, damaged or cut off."""


@contextlib.contextmanager
def unreadable_as_value_error() -> Iterator[None]:
    """Makes one line of what TensorFlow says where a pipeline, on whichever worker, comes to a damaged file.

    Raises:
      UnreadableError: a file is missing, damaged or cut off; with the file and the offset.
    """
    try:
        yield
    except tf.errors.InvalidArgumentError as error:
        match = _UNREADABLE_LINE.search(error.message)
        if match is None:
            raise
        raise UnreadableError(match[1]) from error


def assert_readable(readable: tf.Tensor, path: tf.Tensor, offset: tf.Tensor, what: tf.Tensor) -> tf.Tensor:
    """An assertion whose failure `unreadable_as_value_error` understands; an error of TensorFlow's names no file.

    Args:
      readable: bool.
      path: of the file, string.
      offset: of what could not be read, int64.
      what: what is said of it behind the offset, string.
    """
    message = [path, f" {_UNREADABLE} from byte ", tf.strings.as_string(offset), ": ", what]
    return tf.debugging.Assert(readable, [tf.strings.join(message)])


def assert_usable(usable: tf.Tensor, path: tf.Tensor | str, what: tf.Tensor | str) -> tf.Tensor:
    """An assertion of a whole file, or of an example, whose failure `unreadable_as_value_error` understands.

    Args:
      usable: bool.
      path: of the file, string, or what names the example.
      what: the reason and the remedy, string.
    """
    return tf.debugging.Assert(usable, [tf.strings.join([path, f" {_UNREADABLE}: ", what])])


def readable_records(path: tf.Tensor, offset: tf.Tensor, count: int) -> tf.data.Dataset:
    """A tf.data.Dataset of (number, record) from a place in a file on, of those up to `count` that can be read.

    Numbered, the records end even if the file cannot be opened.
    """
    return tf.data.Dataset.zip((tf.data.Dataset.range(count), _open_at(path, offset).take(count))).ignore_errors()


def record_lengths(path: str, expected: int | None = None) -> np.ndarray:
    """Lengths of the payloads of all records of a file, in bytes, int64 [records].

    Args:
      path: of the file.
      expected: how many records it must have; None: any number.

    Raises:
      UnreadableError: the file is missing, damaged or cut off, or has another number of records.
    """
    if not os.path.isfile(path):
        raise UnreadableError(f"{path} is missing; prepare the data set again")
    size = os.path.getsize(path)
    mapped: Any = np.memmap(path, np.uint8, "r") if size else np.zeros([0], np.uint8)
    content = memoryview(mapped)  # ten times as fast to unpack from
    begins, lengths = [0], []
    while begins[-1] + _FRAMING_BYTES <= size:
        (length,) = _HEADER.unpack_from(content, begins[-1])
        if begins[-1] + length + _FRAMING_BYTES > size:
            break
        lengths.append(length)
        begins.append(begins[-1] + length + _FRAMING_BYTES)
    whole = _count_whole(mapped, np.array(begins[:-1], np.int64))  # behind a false length, all that follows is false
    if begins[whole] != size:
        said = f"{path} is cut off or damaged in record {whole + 1:,}"
        said += "" if expected is None else f" of {expected:,}"
        raise UnreadableError(f"{said}, which begins at byte {begins[whole]:,}; prepare the data set again")
    if expected not in (None, len(lengths)):
        raise UnreadableError(
            f"{path} holds {len(lengths):,} records, but {expected:,} were prepared; prepare the data set again"
        )
    return np.array(lengths, np.int64)


def _count_whole(content: np.ndarray, begins: np.ndarray) -> int:
    """Of records that begin there, how many come before the first whose length is not what its checksum says."""
    headers = content[begins[:, None] + np.arange(_HEADER_BYTES)]
    crc = np.full(len(begins), 0xFFFFFFFF, np.uint32)
    for byte in headers[:, : _HEADER.size].T:
        crc = _crc_table()[(crc ^ byte) & 0xFF] ^ (crc >> np.uint32(8))
    crc = ~crc
    masked = ((crc >> np.uint32(15)) | (crc << np.uint32(17))) + np.uint32(0xA282EAD8)
    stored = np.ascontiguousarray(headers[:, _HEADER.size :]).view("<u4")[:, 0]
    return int(np.argmin(np.append(masked == stored, False)))


@functools.cache
def _crc_table() -> np.ndarray:
    """Of CRC-32C, for one byte."""
    table = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        table = np.where(table & 1, (table >> np.uint32(1)) ^ np.uint32(0x82F63B78), table >> np.uint32(1))
    return table


def source_of_records(paths: Sequence[str], sizes: Sequence[int], decode: Callable[[tf.Tensor], Any]) -> Source:
    """A source of the records of several TFRecord files, one file after the other.

    TensorFlow checks the checksum of each record that it reads.

    Args:
      paths: the files.
      sizes: number of records in each of them.
      decode: from a payload, a string tensor, to (uint8 image, integer label).

    Raises:
      UnreadableError: a file is missing, damaged or cut off, or has another number of records.
    """
    lengths = [record_lengths(path, size) for path, size in zip(paths, sizes, strict=True)]
    ends = np.cumsum(sizes)
    bases = np.cumsum([0, *(int((part + _FRAMING_BYTES).sum()) for part in lengths[:-1])])
    compressed = CompressedConstant(np.concatenate(lengths).astype(np.int32))

    def read(indices: tf.data.Dataset) -> tf.data.Dataset:
        begins = tf.cumsum(tf.cast(compressed.tensor(), tf.int64) + _FRAMING_BYTES, exclusive=True)

        def example(index: tf.Tensor) -> Any:
            file = tf.searchsorted(tf.constant(ends), index[None], side="right")[0]
            path, offset = tf.gather(tf.constant(list(paths)), file), tf.gather(begins, index) - tf.gather(bases, file)
            unreadable = tf.data.Dataset.from_tensors((tf.constant(-1, tf.int64), ""))
            records = readable_records(path, offset, 1).concatenate(unreadable).take(1)
            number, stored = records.get_single_element()
            first = tf.gather(tf.constant(ends - np.array(sizes)), file)
            record, count = (tf.strings.as_string(x) for x in (index - first + 1, tf.gather(tf.constant(sizes), file)))
            problem = tf.strings.join(
                ["record ", record, " of ", count, " is missing, damaged or cut off; prepare the data set again"]
            )
            with tf.control_dependencies([assert_readable(tf.equal(number, 0), path, offset, problem)]):
                return decode(tf.identity(stored))

        return indices.map(example, num_parallel_calls=_PARALLEL_READS)

    return Source(int(sum(sizes)), read)


def _open_at(paths: tf.Tensor, offsets: tf.Tensor) -> Any:
    """The records from a place in a file on; FixedLengthRecordDataset would read all that comes before it."""
    variant = tf.raw_ops.TFRecordDatasetV2(
        filenames=paths, compression_type="", buffer_size=tf.constant(0, tf.int64), byte_offsets=offsets
    )
    return tf.data.experimental.from_variant(variant, tf.TensorSpec([], tf.string))
