"""Ranges of slices are those of NumPy, for every begin, end and step, and those of TensorFlow, for all masks."""

import itertools

import numpy as np
import tiers

from mtf_hetero._support.slicing import MASKS, Range, list_ranges


def numbers(found):
    return [found.begin + i * found.step for i in range(found.size)]


def test_every_slice_of_an_axis_has_numpys_elements():
    ends = [None, *range(-7, 8)]
    for extent, begin, end, step in itertools.product((0, 1, 5), ends, ends, (1, 2, 3, -1, -2, -7)):
        masks = {"begin_mask": int(begin is None), "end_mask": int(end is None)}
        (found,) = list_ranges([extent], ([begin or 0], [end or 0], [step]), masks)
        expected = np.arange(extent)[slice(begin, end, step)].tolist()
        assert numbers(found) == expected, (extent, begin, end, step)
        assert found.is_full == (expected == list(range(extent)))
        assert 0 <= found.begin <= extent


def test_axes_without_a_part_are_full():
    assert list_ranges([3, 4], ([], [], [])) == [Range(0, 3, 1, 3), Range(0, 4, 1, 4)]


@tiers.parametrize("count", [1, 2, 3], first=[1])
def test_masks_are_read_as_tensorflow_reads_them(count):
    from mtf_hetero import tf  # the other tests do without

    x = np.arange(12).reshape(4, 3)
    compared = 0
    for begin, end in [(0, 2), (-1, -4)]:
        for bits in itertools.product(range(2**count), repeat=len(MASKS)):
            masks, corners = dict(zip(MASKS, bits, strict=True)), [[number] * count for number in (begin, end, 1)]
            if count == 3 and len(set(bits)) < 4:
                continue
            names = zip(("begin", "end", "strides"), corners, strict=True)
            try:
                expected = tf.raw_ops.StridedSlice(input=x, **dict(names), **masks).numpy()
            except tf.errors.InvalidArgumentError:  # two ellipses, or a number beside the tensor
                continue
            ranges = list_ranges(x.shape, corners, masks)
            taken = x[np.ix_(*(numbers(each) for each in ranges if not each.is_new))]
            np.testing.assert_array_equal(taken.reshape([each.size for each in ranges if each.is_kept]), expected)
            compared += 1
    assert compared
