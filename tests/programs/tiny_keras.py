"""A small Keras model for the binaries."""

import keras
import numpy as np
from keras import layers


def tiny(path, *, classes=10, end="softmax", channels=1):
    """A file of a small Keras model, with batch norm and a frozen layer; its weights.

    Its activation is smooth: where ReLU's sums are almost zero, rounding decides whether a gradient passes.
    """
    keras.utils.set_random_seed(1)
    images = keras.Input((28, 28, channels))
    x = layers.Conv2D(5, 5, strides=3, use_bias=False, name="frozen", trainable=False)(images)
    x = layers.BatchNormalization(name="norm")(x)
    x = layers.Conv2D(7, 3, activation="softplus", name="conv")(x)
    x = layers.Dense(classes, activation=end, name="head")(layers.Flatten()(x))
    model = keras.Model(images, x, name="tiny")
    model.save(path)
    return {variable.path: np.asarray(variable) for variable in model.variables}
