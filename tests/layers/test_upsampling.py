"""Upsampling: as TensorFlow does it, and the same on every layout."""

import numpy as np
import pytest
from oracle import ONCE, check, one_device
from tiers import parametrize
from upsampling import B, C, H, W, program

from mtf_hetero import Layout, layers, mtf, tf

LAYOUTS = [
    Layout("x:3", "h:x", {"x": [5, 2, 1]}),
    Layout("x:3;y:2", "w:x;b:y", {"x": [1, 5, 2], "y": [3, 1]}),
    Layout("x:2;y:2", "c:x;h:y", {"x": [1, 2], "y": [1, 3]}),
]


def test_it_is_tensorflow_s():
    (first, *_) = one_device(lambda feed: {**program(feed), "image": feed("image", [B, H, W, C])}).steps
    with tf.Graph().as_default(), tf.Session() as session:
        for method in ("nearest", "bilinear"):
            for factors in ((2, 2), (3, 1), (1, 4)):
                size = [H.size * factors[0], W.size * factors[1]]
                expected = session.run(tf.compat.v2.image.resize(first["image"][0], size, method))
                (found,) = first[f"{method} {factors if factors[0] != factors[1] else 2}"]
                np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5)


@parametrize("layout", LAYOUTS, first=[LAYOUTS[2]])
def test_it_is_the_same_on_every_layout(layout):
    check(program, layout, **ONCE)


@pytest.mark.parametrize(
    ("factors", "method", "message"),
    [
        (2, "cubic", "method is 'cubic'; it must be one of nearest, bilinear"),
        (0, "nearest", "factors are 0 for"),
        ((2, -1), "nearest", r"factors are \(2, -1\) for"),
        ((2, 2, 2, 2), "nearest", "give a positive whole number, or one for each spatial dimension"),
    ],
)
def test_what_cannot_be(factors, method, message):
    mesh = mtf.Mesh(mtf.Graph(), "mesh")
    with pytest.raises(ValueError, match=message):
        layers.upsample(mtf.ones(mesh, mtf.Shape([B, H, W, C])), factors, method=method)
