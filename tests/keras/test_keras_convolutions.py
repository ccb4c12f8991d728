"""Convolutions of Keras that are several of mtf's, or none: each gives what Keras gives, on uneven layouts too."""

import keras
from keras import layers
from keras_oracle import check
from tiers import parametrize

IMAGE, SIGNAL, VOLUME = (9, 7, 6), (11, 6), (5, 7, 6, 4)
CASES = {
    "dilated": (IMAGE, lambda: layers.Conv2D(7, 3, dilation_rate=2, padding="same", use_bias=False)),
    "groups": (IMAGE, lambda: layers.Conv2D(9, 3, groups=3, strides=2, padding="same")),
    "depthwise multiplier": (IMAGE, lambda: layers.DepthwiseConv2D(3, depth_multiplier=2, strides=2)),
    "transposed valid": (IMAGE, lambda: layers.Conv2DTranspose(7, (4, 3), strides=2)),
    "transposed small window": (IMAGE, lambda: layers.Conv2DTranspose(7, 2, strides=3)),
    "causal": (SIGNAL, lambda: layers.Conv1D(7, 3, dilation_rate=2, padding="causal")),
    "conv3d": (VOLUME, lambda: layers.Conv3D(7, 3, strides=(1, 2, 1), padding="same")),
}
FIRST = ["transposed valid"]


def make_model(shape, layer):
    inputs = keras.Input(shape)
    return keras.Model(inputs, layer(inputs))


@parametrize("case", CASES, first=FIRST)
def test_forward_gradients_and_steps(case):
    shape, layer = CASES[case]
    check(make_model(shape, layer()))
