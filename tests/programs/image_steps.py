"""Steps with images and volumes: networks that a recipe splits."""

import keras
import numpy as np
from import_oracle import STEPS, examples
from steps import L, adam, of_keras, sgd


def network():
    x = inputs = keras.Input((17, 16, 3))
    x = L.ReLU()(L.BatchNormalization()(L.Conv2D(14, 3, padding="same", name="first")(x)))
    x = L.MaxPooling2D(3, strides=2, padding="same", name="largest")(x)
    x = L.Conv2D(7, 3, strides=2, padding="same", activation="relu", name="second")(x)
    y = L.Conv2D(7, 3, padding="same", name="branch")(x)
    x = L.AveragePooling2D(2, name="average")(x + y)
    x = L.Dropout(0.3, seed=3)(L.Flatten()(x))
    return keras.Model(inputs, L.Dense(5)(L.Dense(21, "relu", name="wide")(x)))


def volumes(dtype):
    """Volumes and the classes of their voxels, of each step."""
    rng = np.random.default_rng(0)
    shape = 4, 16, 8, 8
    return [
        (rng.standard_normal((*shape, 2)).astype(dtype), rng.integers(0, 3, shape).astype("int32"))
        for _ in range(STEPS)
    ]


def unet(*, pools):
    """A small 3D U-Net, which makes its volumes smaller by pools or by steps of convolutions."""
    inputs = keras.Input((16, 8, 8, 2))
    skip = x = L.Conv3D(6, 3, padding="same", activation="relu", name="down")(inputs)
    x = L.MaxPooling3D(2)(x) if pools else x
    x = L.Conv3D(8, 3, 1 if pools else 2, padding="same", activation="relu", name="bottom")(x)
    x = L.Conv3DTranspose(6, 2, strides=2, padding="same", name="up")(x)
    x = L.Concatenate()([skip, x])
    x = L.BatchNormalization()(L.Conv3D(6, 3, padding="same", activation="relu", name="last")(x))
    return keras.Model(inputs, L.Conv3D(3, 1, name="classes")(x))


NETWORKS = {
    "network": (of_keras(network, adam(), lambda: examples(17, 16, 3)), 1e-9),
    "unet": (of_keras(lambda: unet(pools=False), adam(), lambda: volumes("float64")), 1e-9),
    "pools": (of_keras(lambda: unet(pools=True), sgd, lambda: volumes("float32"), floatx="float32"), 5e-5),
}


def around(layer):
    """The training step of a network with a layer between two others, whose channels are the layer's."""

    def build():
        x = inputs = keras.Input((9, 7, 3))
        x = layer()(L.Conv2D(14, 1, name="before")(x))
        return keras.Model(inputs, L.Dense(5)(L.GlobalAveragePooling2D()(L.Activation("tanh")(x))))

    return of_keras(build, sgd, lambda: examples(9, 7, 3, count=7))


CONVOLUTIONS = {  # each is of several convolutions
    "multiplied": around(lambda: L.DepthwiseConv2D(3, 2, depth_multiplier=2, name="it")),
    "groups": around(lambda: L.Conv2D(14, 3, groups=7, name="it")),
}
