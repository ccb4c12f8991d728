"""Pixels out of channels and back: as TensorFlow does it, and the same on every layout."""

import numpy as np
import pytest
from oracle import ONCE, check, one_device
from shuffling import LAYOUTS, B, C, H, W, program
from tiers import few

from mtf_hetero import tf


def test_it_is_tensorflow_s():
    (first, *_) = one_device(lambda feed: {**program(feed), "image": feed("image", [B, H, W, C])}).steps
    with tf.Graph().as_default(), tf.Session() as session:
        large = tf.nn.depth_to_space(tf.constant(first["image"][0]), 2)
        back = tf.nn.space_to_depth(large, 2)
        (found,), (image,) = first["large"], first["image"]
        np.testing.assert_array_equal(found, session.run(large))
        np.testing.assert_array_equal(image, session.run(back))


@pytest.mark.parametrize(("count", "options"), [(2, ONCE), pytest.param(5, {}, marks=pytest.mark.full)])
def test_it_is_the_same_on_every_layout(count, options):
    check(program, *few(LAYOUTS, count), **options)
