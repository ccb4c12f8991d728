"""Random tensors in slices: each number follows from a key and its place in the tensor, so no device makes the whole.

Number n of a tensor is what the finalizer of SplitMix64 makes of key + n * gamma. TensorFlow's own counter-based
generator draws numbers that follow one another, and of a slice that is split along its last dimension would have to
draw all that lies between; this one draws any of them at the same price, which is by elementwise operations that CPUs
and GPUs have, and by so many bytes a number.

Uniform numbers are the same to the bit on every layout; normal ones to the rounding of a logarithm and a cosine.

Source: Steele, Lea and Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014.
"""

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from mtf_hetero._compat import tf
from mtf_hetero._support.ops import concat, constant, cut, reshape

_GAMMA = 0x9E3779B97F4A7C15  # of SplitMix64: the odd number next to 2**64 over the golden ratio
_MIX = ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB))  # (shift, factor) of its finalizer, and the last shift
_LAST_SHIFT = 31
_BLOCK = 2**18  # numbers that are made at a time, each of which takes 16 bytes until it is done
_MOST_BLOCKS = 32  # of a slice: each one adds operations to the graph
_LONGEST = 2**14  # sequence of counts that is made in one piece: it is a constant, which takes as much as the numbers
_SHORTEST = 2**6  # row of a table of counts
_DIGITS = {tf.float16: 11, tf.bfloat16: 8, tf.float32: 24, tf.float64: 53}  # bits of the significand
_TRUNCATED_AT = 2.0  # standard deviations
_STEP = "_mtf_hetero_step_of_random_numbers"  # a collection of a graph


def follow(step: tf.Tensor) -> None:
    """Have the keys of the default graph follow from the seeds and a step, not from how often they were drawn.

    A training that continues from a checkpoint, or elsewhere, then draws what it would have drawn.

    Args:
      step: scalar tensor, another number at every step.
    """
    tf.get_default_graph().get_collection_ref(_STEP)[:] = [step]


def draw_key(seed: int | None) -> tf.Tensor:
    """Return a key, uint64 [], that is another one at every step.

    Args:
      seed: operation-level seed, or None for keys that differ from run to run.
    """
    step = tf.get_collection(_STEP)
    if step and seed is not None:
        seeds = [number % 2**64 for number in (tf.get_default_graph().seed or 0, seed)]
        (first,) = np.random.SeedSequence(seeds).generate_state(1, np.uint64)
        return split_key(_unsigned(int(first)), tf.cast(step[0], tf.int64))
    key = tf.random.uniform([], tf.int64.min, tf.int64.max, dtype=tf.int64, seed=seed)
    return tf.bitcast(key, tf.uint64)


def split_key(key: tf.Tensor, number: tf.Tensor) -> tf.Tensor:
    """Derive one of many keys from a key.

    Args:
      key: uint64 [].
      number: int64 []; other numbers give other keys.
    """
    x = key + tf.bitcast(number, tf.uint64) * _unsigned(_GAMMA)
    for shift, factor in _MIX:
        x = tf.bitwise.bitwise_xor(x, tf.bitwise.right_shift(x, _unsigned(shift))) * _unsigned(factor)
    return tf.bitwise.bitwise_xor(x, tf.bitwise.right_shift(x, _unsigned(_LAST_SHIFT)))


def is_known(tf_fn: Callable[..., tf.Tensor], dtype: tf.DType) -> bool:
    """Return whether `draw` knows the distribution that a function of tf.random draws from, in this type."""
    return tf_fn in _DRAWN and (dtype in _DIGITS or (tf_fn is tf.random.uniform and dtype == tf.int32))


def draw(
    tf_fn: Callable[..., tf.Tensor],
    kwargs: Mapping[str, Any],
    key: tf.Tensor,
    shape: Sequence[int],
    begin: Sequence[int],
    size: Sequence[int],
) -> tf.Tensor:
    """Return the box [begin, begin + size) of a tensor of random numbers, on the current device.

    Args:
      tf_fn: tf.random.uniform, tf.random.normal or tf.random.truncated_normal.
      kwargs: keyword arguments of tf_fn: dtype and the limits, or the mean and the standard deviation.
      key: uint64 []. The same one gives the same tensor.
      shape: of the whole.
      begin: of the box.
      size: of the box.
    """
    kwargs = dict(kwargs)
    dtype = tf.as_dtype(kwargs.pop("dtype", tf.float32))
    # TensorFlow does not know that this is zero: it would add up all sequences of counts beforehand, and keep the sum
    zero = tf.bitwise.bitwise_and(key, _unsigned(0))
    axis, blocks = _blocks(size)
    boxes = [(_with_value(begin, axis, begin[axis] + first), _with_value(size, axis, n)) for first, n in blocks if size]
    tables = [_Table(shape, *box) for box in boxes or [([], [])]]
    rows = {table.row: _counts(*table.row) + key for table in tables}  # made once, though blocks wait for each other
    pieces: list[tf.Tensor] = []
    for table in tables:
        with tf.control_dependencies(pieces[-1:]):  # one after another: they take memory
            pieces.append(_DRAWN[tf_fn](table.bits(rows[table.row], zero), dtype, **kwargs))
    return concat(pieces, axis)


def _with_value(values: Sequence[int], axis: int, value: int) -> list[int]:
    return [value if i == axis else old for i, old in enumerate(values)]


def _blocks(size: Sequence[int]) -> tuple[int, list[tuple[int, int]]]:
    """Return a dimension, and its parts, (begin, length), that are drawn one after another.

    It is the first that is long enough: of a block of whole rows the numbers follow each other.
    """
    if not size or math.prod(size) <= _BLOCK:
        return 0, [(0, size[0] if size else 1)]
    count = min(-(-math.prod(size) // _BLOCK), _MOST_BLOCKS, max(size))
    axis = next(axis for axis, length in enumerate(size) if length >= count)
    length = -(-size[axis] // count)
    return axis, [(first, min(length, size[axis] - first)) for first in range(0, size[axis], length)]


def _merged(shape: Sequence[int], begin: Sequence[int], size: Sequence[int]) -> list[tuple[int, int, int]]:
    """(stride, begin, size) of each dimension, those left out that are only the one before, repeated.

    Example:
      >>> _merged([4, 6], [2, 0], [2, 6])  # two whole rows: 12 numbers from number 12 on
      [(1, 12, 12)]
      >>> _merged([4, 6], [2, 1], [2, 3])
      [(6, 2, 2), (1, 1, 3)]
    """
    strides = [math.prod(shape[i + 1 :]) for i in range(len(shape))]
    merged: list[tuple[int, int, int]] = []
    for stride, b, s, extent in zip(strides, begin, size, shape, strict=True):
        if merged and s == extent:
            _, before, count = merged.pop()
            merged.append((stride, before * extent, count * extent))
        else:
            merged.append((stride, b, s))
    return merged


@functools.lru_cache
def _width(length: int) -> int:
    """Count the columns of a table that holds so many numbers: of those that leave no rest the most, if any."""
    if length <= _LONGEST:
        return max(length, 1)
    return next((width for width in range(_LONGEST, _SHORTEST, -1) if length % width == 0), _LONGEST)


def _unsigned(value: int) -> tf.Tensor:
    return constant(value % 2**64, tf.uint64)


def _counts(stride: int, places: range) -> tf.Tensor:
    """Return the numbers that the places of a dimension add to the key: uint64 [places]."""
    counts = tf.range(places.start, places.stop, places.step, dtype=tf.int64)
    return tf.bitcast(counts, tf.uint64) * _unsigned(stride * _GAMMA)


class _Table:
    """The places of the numbers of a box, as an outer sum of short sequences.

    Args:
      shape: of the whole.
      begin: of the box.
      size: of the box.
    """

    def __init__(self, shape: Sequence[int], begin: Sequence[int], size: Sequence[int]) -> None:
        self._size = size
        self._sizes: list[int] = []
        self._padded: list[int] = []
        levels: list[tuple[int, range]] = []  # stride and places
        for stride, b, s in _merged(shape, begin, size):
            width = _width(s)
            rows = -(-s // width)
            if rows > 1:
                levels += [(stride, range(b, b + s, width)), (stride, range(width))]  # the latter is every block's
            else:
                levels.append((stride, range(b, b + s)))
            self._padded.append(rows * width)
            self._sizes.append(s)
        *self._levels, self.row = levels or [(1, range(1))]

    def bits(self, row: tf.Tensor, zero: tf.Tensor) -> tf.Tensor:
        """Random bits, uint64 of the box's size. The finalizer's last step leaves the upper half alone: it is not done.

        Args:
          row: uint64, the key and the counts of `row`.
          zero: uint64 [].
        """
        x = row
        for stride, places in reversed(self._levels):
            x = reshape(_counts(stride, places) + zero, [len(places), *[1] * x.shape.rank]) + x
        for shift, factor in _MIX:
            x = tf.bitwise.bitwise_xor(x, tf.bitwise.right_shift(x, _unsigned(shift))) * _unsigned(factor)
        if self._padded != self._sizes:
            x = cut(reshape(x, self._padded), [0] * len(self._sizes), self._sizes)
        return reshape(x, self._size)


def _upper(bits: tf.Tensor, count: int, dtype: tf.DType) -> tf.Tensor:
    """Return the upper bits as a number in [0, 1) that the type can hold."""
    wide = tf.float64 if dtype == tf.float64 else tf.float32
    integers = tf.cast(tf.bitcast(tf.bitwise.right_shift(bits, _unsigned(64 - count)), tf.int64), wide)
    return integers * constant(2.0**-count, wide)


def _uniform(bits: tf.Tensor, dtype: tf.DType, minval: float = 0, maxval: float | None = None) -> tf.Tensor:
    if dtype == tf.int32:
        if maxval is None:
            raise ValueError("random_uniform of int32 needs maxval")
        low, high = (tf.cast(value, tf.int64) for value in (minval, maxval))
        scaled = tf.bitwise.right_shift(bits, _unsigned(32)) * tf.bitcast(high - low, tf.uint64)
        return tf.cast(tf.bitcast(tf.bitwise.right_shift(scaled, _unsigned(32)), tf.int64) + low, tf.int32)
    u = tf.cast(_upper(bits, _DIGITS[dtype], dtype), dtype)
    low, high = (tf.cast(value, dtype) for value in (minval, 1 if maxval is None else maxval))
    return u * (high - low) + low


def _normal(bits: tf.Tensor, dtype: tf.DType, mean: float = 0.0, stddev: float = 1.0) -> tf.Tensor:
    """Box and Muller's, of the upper half and the lower."""
    bits = tf.bitwise.bitwise_xor(bits, tf.bitwise.right_shift(bits, _unsigned(_LAST_SHIFT)))
    wide = tf.float64 if dtype == tf.float64 else tf.float32
    one = constant(2.0**-32, wide)
    radius = tf.sqrt(-2.0 * tf.math.log(_upper(bits, 32, dtype) + one))
    turn = tf.cast(tf.bitcast(tf.bitwise.bitwise_and(bits, _unsigned(2**32 - 1)), tf.int64), wide) * one
    x = radius * tf.cos(turn * (2 * math.pi))
    return tf.cast(x, dtype) * tf.cast(stddev, dtype) + tf.cast(mean, dtype)


def _truncated_normal(bits: tf.Tensor, dtype: tf.DType, mean: float = 0.0, stddev: float = 1.0) -> tf.Tensor:
    """Return the inverse of the distribution, between the two ends."""
    wide = tf.float64 if dtype == tf.float64 else tf.float32
    low = 0.5 * math.erfc(_TRUNCATED_AT / math.sqrt(2))
    x = tf.math.ndtri(_upper(bits, _DIGITS[wide], wide) * (1 - 2 * low) + low)
    return tf.cast(x, dtype) * tf.cast(stddev, dtype) + tf.cast(mean, dtype)


_DRAWN = {
    tf.random.uniform: _uniform,
    tf.random.normal: _normal,
    tf.random.truncated_normal: _truncated_normal,
}
