"""Convolutions of Keras: each layer gives what Keras gives, on one device and on uneven layouts."""

import keras
from keras import layers
from keras_oracle import check
from tiers import parametrize

IMAGE, SIGNAL, VOLUME = (9, 7, 6), (11, 6), (5, 7, 6, 4)
CASES = {
    "conv2d": (IMAGE, lambda: layers.Conv2D(7, 3, padding="same", activation="relu")),
    "strides": (IMAGE, lambda: layers.Conv2D(7, (3, 2), strides=2)),
    "dilated": (IMAGE, lambda: layers.Conv2D(7, 3, dilation_rate=2, padding="same", use_bias=False)),
    "groups": (IMAGE, lambda: layers.Conv2D(9, 3, groups=3, strides=2, padding="same")),
    "depthwise": (IMAGE, lambda: layers.DepthwiseConv2D(3, padding="same")),
    "depthwise multiplier": (IMAGE, lambda: layers.DepthwiseConv2D(3, depth_multiplier=2, strides=2)),
    "depthwise dilated": (IMAGE, lambda: layers.DepthwiseConv2D(3, dilation_rate=2, activation="silu")),
    "separable": (IMAGE, lambda: layers.SeparableConv2D(7, 3, padding="same", depth_multiplier=2)),
    "transposed": (IMAGE, lambda: layers.Conv2DTranspose(7, 3, strides=2, padding="same")),
    "transposed valid": (IMAGE, lambda: layers.Conv2DTranspose(7, (4, 3), strides=2)),
    "transposed small window": (IMAGE, lambda: layers.Conv2DTranspose(7, 2, strides=3)),
    "conv1d": (SIGNAL, lambda: layers.Conv1D(7, 3, strides=2, padding="same", activation="tanh")),
    "causal": (SIGNAL, lambda: layers.Conv1D(7, 3, dilation_rate=2, padding="causal")),
    "groups 1d": (SIGNAL, lambda: layers.Conv1D(6, 3, groups=2)),
    "depthwise 1d": (SIGNAL, lambda: layers.DepthwiseConv1D(3, strides=2, padding="same")),
    "separable 1d": (SIGNAL, lambda: layers.SeparableConv1D(7, 3)),
    "transposed 1d": (SIGNAL, lambda: layers.Conv1DTranspose(7, 3, strides=2)),
    "conv3d": (VOLUME, lambda: layers.Conv3D(7, 3, strides=(1, 2, 1), padding="same")),
    "transposed 3d": (VOLUME, lambda: layers.Conv3DTranspose(5, 3, strides=2)),
}
FIRST = ("conv2d", "transposed valid")


def make_model(shape, layer):
    inputs = keras.Input(shape)
    return keras.Model(inputs, layer(inputs))


@parametrize("case", CASES, first=FIRST)
def test_forward_gradients_and_steps(case):
    shape, layer = CASES[case]
    check(make_model(shape, layer()))
