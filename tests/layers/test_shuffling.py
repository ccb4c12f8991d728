"""Pixels out of channels and back: as TensorFlow does it, and the same on every layout."""

import numpy as np
import pytest
from oracle import check, one_device
from shuffling import LAYOUTS, B, C, H, W, program
from tiers import parametrize

from mtf_hetero import layers, mtf, tf


def test_it_is_tensorflow_s():
    (first, *_) = one_device(lambda feed: {**program(feed), "image": feed("image", [B, H, W, C])}).steps
    with tf.Graph().as_default(), tf.Session() as session:
        large = tf.nn.depth_to_space(tf.constant(first["image"][0]), 2)
        back = tf.nn.space_to_depth(large, 2)
        (found,), (image,) = first["large"], first["image"]
        np.testing.assert_array_equal(found, session.run(large))
        np.testing.assert_array_equal(image, session.run(back))


@parametrize("layout", LAYOUTS, first=[LAYOUTS[0], LAYOUTS[2]])
def test_it_is_the_same_on_every_layout(layout):
    check(program, layout)


def image():
    return mtf.ones(mtf.Mesh(mtf.Graph(), "mesh"), mtf.Shape([B, H, W, C]))


@pytest.mark.parametrize(
    ("layer", "sizes", "message"),
    [
        (layers.depth_to_space, 5, "'depth_to_space': 12 channels make no blocks of 25 pixels; give a multiple of 25"),
        (
            layers.depth_to_space,
            0,
            "'depth_to_space': sizes are 0 for .*; give a positive whole number, or one for each",
        ),
        (layers.depth_to_space, (1, 2, 2, 2), r"sizes are \(1, 2, 2, 2\) for"),
        (layers.space_to_depth, (5, 2), "'space_to_depth': dimension 'w' of size 7 has no blocks of 2 pixels; give"),
    ],
)
def test_what_cannot_be(layer, sizes, message):
    with pytest.raises(ValueError, match=message):
        layer(image(), sizes)
