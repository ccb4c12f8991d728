"""Random access to TFRecord files, which are made for sequential reading, and messages about damaged files.

The lengths of the records are found once. A pipeline then opens a file at the record that it needs.
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
from mtf_hetero.data.source import FRAMING_BYTES, CompressedConstant, Source

_HEADER = struct.Struct("<Q")  # the length; 4 bytes of checksum follow it, and 4 more follow the payload
_HEADER_BYTES = 12  # the length and its checksum
_PARALLEL_READS = 4  # each opens its file anew at its record
_UNREADABLE = "cannot be read"
_UNREADABLE_LINE = re.compile(rf"assertion failed: \[(.* {_UNREADABLE}[ :][^\]]*)\]")


class UnreadableError(ValueError):
    """A file of a data set is missing, damaged or cut off."""


@contextlib.contextmanager
def unreadable_as_value_error() -> Iterator[None]:
    """Turn TensorFlow's message about a damaged file in a pipeline, on any worker, into one line.

    Raises:
      UnreadableError: a file is missing, damaged or cut off. The message has the file and the offset.
    """
    try:
        yield
    except tf.errors.InvalidArgumentError as error:
        match = _UNREADABLE_LINE.search(error.message)
        if match is None:
            raise
        raise UnreadableError(match[1]) from error


def assert_readable(readable: tf.Tensor, path: tf.Tensor, offset: tf.Tensor, what: tf.Tensor | str) -> tf.Tensor:
    """Assert that a file is readable, for `unreadable_as_value_error`. TensorFlow's own error names no file.

    Args:
      readable: bool.
      path: of the file, string.
      offset: of the unreadable part, int64.
      what: the message after the offset, string.
    """
    message = [path, f" {_UNREADABLE} from byte ", tf.strings.as_string(offset), ": ", what]
    return tf.debugging.Assert(readable, [tf.strings.join(message)])


def assert_usable(usable: tf.Tensor, path: tf.Tensor | str, what: tf.Tensor | str) -> tf.Tensor:
    """Assert that a file or an example is usable. `unreadable_as_value_error` understands the failure.

    Args:
      usable: bool.
      path: of the file, string, or the name of the example.
      what: the reason and the remedy, string.
    """
    return tf.debugging.Assert(usable, [tf.strings.join([path, f" {_UNREADABLE}: ", what])])


def readable_records(path: tf.Tensor, offset: tf.Tensor, count: int) -> tf.data.Dataset:
    """Return a tf.data.Dataset of up to `count` readable records, (number, record), from a place in a file on.

    With numbers, the dataset ends even if the file cannot be opened.
    """
    return tf.data.Dataset.zip((tf.data.Dataset.range(count), _open_at(path, offset).take(count))).ignore_errors()


def cached(read: Callable[[tf.Tensor], tf.Tensor], most: int) -> Callable[[tf.Tensor], tf.Tensor]:
    """Return a function that reads strings by their keys, with a cache in the pipeline's memory.

    Args:
      read: from keys, int64 [n] in ascending order, to strings [n].
      most: the strings of the keys below this number are cached; 0: none.
    """
    if not most:
        return read
    table = tf.lookup.experimental.MutableHashTable(tf.int64, tf.string, "", checkpoint=False)

    def look_up(keys: tf.Tensor) -> tf.Tensor:
        known = table.lookup(keys)

        def read_and_keep() -> tf.Tensor:
            strings = read(keys)
            kept = tf.where_v2(keys[-1] < most, tf.size(keys), 0)
            with tf.control_dependencies([table.insert(keys[:kept], strings[:kept])]):
                return tf.identity(strings)

        is_known = tf.reduce_all(tf.not_equal(known, ""))
        return tf.cond(is_known, lambda: tf.ensure_shape(known, keys.shape), read_and_keep)

    return look_up


def record_lengths(path: str, expected: int | None = None) -> np.ndarray:
    """Return the lengths of the payloads of all records of a file, in bytes, int64 [records].

    Args:
      path: of the file.
      expected: the required number of records; None: any.

    Raises:
      UnreadableError: the file is missing, damaged or cut off, or has another number of records.
    """
    if not os.path.isfile(path):
        raise UnreadableError(f"{path} is missing; prepare the data set again")
    size = os.path.getsize(path)
    mapped: Any = np.memmap(path, np.uint8, "r") if size else np.zeros([0], np.uint8)
    content = memoryview(mapped)  # unpacks ten times as fast
    begins, lengths = [0], []
    while begins[-1] + FRAMING_BYTES <= size:
        (length,) = _HEADER.unpack_from(content, begins[-1])
        if begins[-1] + length + FRAMING_BYTES > size:
            break
        lengths.append(length)
        begins.append(begins[-1] + length + FRAMING_BYTES)
    whole = _count_whole(mapped, np.array(begins[:-1], np.int64))  # after a wrong length, all is wrong
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
    """Return the number of records before the first whose length does not match its checksum."""
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
    """Return the table of CRC-32C for one byte."""
    table = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        table = np.where(table & 1, (table >> np.uint32(1)) ^ np.uint32(0x82F63B78), table >> np.uint32(1))
    return table


def source_of_records(
    paths: Sequence[str], sizes: Sequence[int], decode: Callable[[tf.Tensor], tuple[tf.Tensor, tf.Tensor]]
) -> Source:
    """Return a source of the records of several TFRecord files, one file after the other.

    TensorFlow checks the checksum of each record that it reads.

    Args:
      paths: the files.
      sizes: number of records in each of them.
      decode: returns (uint8 image, integer label) of a payload, a string tensor.

    Raises:
      UnreadableError: a file is missing, damaged or cut off, or has another number of records.
    """
    lengths = [record_lengths(path, size) for path, size in zip(paths, sizes, strict=True)]
    ends = np.cumsum(sizes)
    bases = np.cumsum([0, *(int((part + FRAMING_BYTES).sum()) for part in lengths[:-1])])
    compressed = CompressedConstant(np.concatenate(lengths).astype(np.int32))

    def reader(kept_bytes: int) -> Callable[[tf.Tensor], tuple[tf.Tensor, tf.Tensor]]:
        begins = tf.cumsum(tf.cast(compressed.tensor(), tf.int64) + FRAMING_BYTES, exclusive=True)

        def example(index: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
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

        return example

    return Source(int(sum(sizes)), reader, _PARALLEL_READS)


def _open_at(paths: tf.Tensor, offsets: tf.Tensor) -> tf.data.Dataset:
    """Return the records from a place in a file on. FixedLengthRecordDataset would read everything before it."""
    variant = tf.raw_ops.TFRecordDatasetV2(
        filenames=paths, compression_type="", buffer_size=tf.constant(0, tf.int64), byte_offsets=offsets
    )
    return tf.data.experimental.from_variant(variant, tf.TensorSpec([], tf.string))
