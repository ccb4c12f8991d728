"""Upsampling as TensorFlow does it; `lowering/test_operations` has it on every layout."""

import numpy as np
import pytest
from oracle import one_device

from mtf_hetero import layers, mtf, tf

B, H, W, C = (mtf.Dimension(*dim) for dim in [("b", 4), ("h", 5), ("w", 7), ("c", 3)])


@pytest.mark.parametrize(("method", "factors"), [("nearest", (1, 4)), ("bilinear", (2, 2)), ("bilinear", (3, 1))])
def test_it_is_tensorflow_s(method, factors):
    def build(feed):
        image = feed("image", [B, H, W, C])
        return {"image": image, "large": layers.upsample(image, factors, method=method)}

    first = one_device(build, exports=False).slices
    size = [H.size * factors[0], W.size * factors[1]]
    with tf.Graph().as_default(), tf.Session() as session:
        expected = session.run(tf.compat.v2.image.resize(first["image"][0], size, method))
    np.testing.assert_allclose(first["large"][0], expected, rtol=0, atol=1e-5)
