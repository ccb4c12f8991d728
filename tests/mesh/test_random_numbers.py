"""Random tensors in slices: each slice is that of the whole, and the whole is as random as it is said to be."""

import numpy as np
import pytest
import scipy.stats

from mtf_hetero import tf
from mtf_hetero.mesh import random_numbers

SHAPE = [7, 50, 9, 33]
BOXES = [
    ([2, 3, 4, 5], [3, 7, 5, 11]),  # in every dimension
    ([0, 0, 0, 1], [7, 50, 9, 32]),  # in the last
    ([6, 0, 0, 0], [1, 50, 9, 33]),  # in the first
    ([1, 1, 0, 0], [1, 1, 9, 33]),
    ([6, 49, 8, 32], [1, 1, 1, 1]),  # the last number
    ([0, 0, 3, 0], [7, 50, 0, 33]),  # none
    ([7, 0, 0, 0], [0, 50, 9, 33]),
]


def draw(tf_fn, shape=SHAPE, boxes=(), key=12345, **kwargs):
    """The whole tensor, and boxes of it that are drawn without it."""
    with tf.Graph().as_default(), tf.Session() as session:
        key = tf.constant(key, tf.uint64)
        every = [([0] * len(shape), shape), *boxes]
        whole, *parts = session.run([random_numbers.draw(tf_fn, kwargs, key, shape, *box) for box in every])
        return whole, parts


@pytest.mark.parametrize(
    ("tf_fn", "kwargs", "rounding"),
    [
        (tf.random.uniform, {}, 0),
        (tf.random.uniform, {"dtype": tf.float64, "minval": -1.0, "maxval": 3.0}, 0),
        (tf.random.uniform, {"dtype": tf.bfloat16}, 0),
        (tf.random.uniform, {"dtype": tf.int32, "minval": -5, "maxval": 7}, 0),
        (tf.random.normal, {"mean": 2.0}, 1e-6),
        (tf.random.normal, {"dtype": tf.float64}, 1e-14),
        (tf.random.truncated_normal, {"stddev": 0.1}, 1e-6),
    ],
)
def test_slices_are_those_of_the_whole(tf_fn, kwargs, rounding):
    whole, parts = draw(tf_fn, boxes=BOXES, **kwargs)
    for (begin, size), part in zip(BOXES, parts, strict=True):
        expected = whole[tuple(slice(b, b + s) for b, s in zip(begin, size, strict=True))]
        difference = np.abs(part.astype(np.float64) - expected.astype(np.float64))
        assert part.shape == expected.shape and difference.max(initial=0) <= rounding, (begin, size)


@pytest.mark.parametrize("length", [16_384, 16_411, 20_000, 300_007, 1_000_003])
def test_a_long_row_is_that_of_the_definition(length):
    """Counts up to the longest sequence, longer ones, and primes."""
    begin, size, key = 77, length - 100, 12345
    row, (part,) = draw(tf.random.uniform, [length], [([begin], [size])], key=key)
    x = np.uint64(key) + np.arange(length, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        x = (x ^ (x >> np.uint64(shift))) * np.uint64(factor)
    np.testing.assert_array_equal(row, (x >> np.uint64(40)).astype(np.float32) * np.float32(2**-24))
    np.testing.assert_array_equal(part, row[begin : begin + size])


def test_blocks_one_after_another_are_the_whole():
    rows, columns = 700, 1000  # three blocks; each row alone is one
    whole, (row, column) = draw(tf.random.uniform, [rows, columns], [([611, 0], [1, columns]), ([0, 999], [rows, 1])])
    np.testing.assert_array_equal(whole[611:612], row)
    np.testing.assert_array_equal(whole[:, 999:], column)
    assert len(np.unique(whole)) > 0.97 * whole.size  # of 2**24 that there are


@pytest.mark.parametrize(
    ("tf_fn", "kwargs", "distribution"),
    [
        (tf.random.uniform, {}, scipy.stats.uniform()),
        (tf.random.uniform, {"dtype": tf.float64, "minval": -1.0, "maxval": 3.0}, scipy.stats.uniform(-1, 4)),
        (tf.random.normal, {}, scipy.stats.norm()),
        (tf.random.normal, {"dtype": tf.float64, "mean": 1.0, "stddev": 3.0}, scipy.stats.norm(1, 3)),
        (tf.random.truncated_normal, {}, scipy.stats.truncnorm(-2, 2)),
    ],
)
def test_distributions(tf_fn, kwargs, distribution):
    """By Kolmogorov and Smirnov; neither neighbours nor what comes of neighbouring keys depend on each other."""
    whole, _ = draw(tf_fn, [400, 500], **kwargs)
    assert scipy.stats.kstest(whole.ravel()[::2].astype(np.float64), distribution.cdf).pvalue > 0.001
    other, _ = draw(tf_fn, [400, 500], key=12346, **kwargs)
    most = 5 / np.sqrt(whole.size)  # five standard deviations
    for one, two in [(whole[1:], whole[:-1]), (whole[:, 1:], whole[:, :-1]), (whole[1:, 1:], whole[:-1, :-1])]:
        assert abs(np.corrcoef(one.ravel(), two.ravel())[0, 1]) < most
    assert abs(np.corrcoef(whole.ravel(), other.ravel())[0, 1]) < most
    assert np.abs(np.corrcoef(whole[:50]) - np.eye(50)).max() < 5 / np.sqrt(500)  # rows among each other


def test_whole_numbers_are_all_as_frequent():
    whole, _ = draw(tf.random.uniform, [300, 400], dtype=tf.int32, minval=-5, maxval=7)
    values, counts = np.unique(whole, return_counts=True)
    assert values.tolist() == list(range(-5, 7))
    assert scipy.stats.chisquare(counts).pvalue > 0.001


def test_numbers_stay_below_their_limit():
    for dtype in (tf.float16, tf.bfloat16, tf.float32, tf.float64):
        whole, _ = draw(tf.random.uniform, [100, 1000], dtype=dtype)
        assert whole.min() >= 0 and whole.max() < 1, dtype


def test_a_key_differs_at_every_step():
    with tf.Graph().as_default(), tf.Session() as session:
        key = random_numbers.draw_key(7)
        keys = [session.run(key) for _ in range(3)]
    assert len(set(keys)) == 3
    with tf.Graph().as_default(), tf.Session() as session:
        assert [session.run(key) for key in [random_numbers.draw_key(7)] * 3] == keys
