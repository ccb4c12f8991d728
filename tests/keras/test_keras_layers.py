"""Layers within `mtf_hetero.keras.build`: each gives what Keras gives, on one device and on uneven layouts."""

import keras
import numpy as np
import pytest
from keras import layers
from keras_oracle import check, floatx, inferred
from tiers import parametrize

from mtf_hetero import tf
from mtf_hetero.keras import build

IMAGE, SIGNAL, VOLUME = (9, 7, 6), (11, 6), (7, 5, 6, 2)
CASES = {  # a graph's own dimensions, such as height, are neither merged nor split into factors by a layer's reshapes
    "einsum dense": (SIGNAL, lambda: layers.EinsumDense("abc,cde->abde", (11, 4, 7), bias_axes="de")),
    "reshape": (IMAGE, lambda: layers.Reshape((-1, 6))),
    "reshape back": (SIGNAL, lambda: layers.Reshape((11, 2, 3))),
    "odd extents": (IMAGE, lambda: layers.Conv2D(7, 3, strides=2, padding="same")),
    "uneven strides": (IMAGE, lambda: layers.Conv2D(7, (3, 2), strides=(2, 3))),
    "one dimension": (SIGNAL, lambda: layers.Conv1D(7, 3, strides=2, padding="same")),
    "volumes": (VOLUME, lambda: layers.Conv3D(7, 3, strides=2, padding="same")),
    "padded pool": (IMAGE, lambda: layers.AveragePooling2D(3, strides=2, padding="same")),
    "windows apart": (IMAGE, lambda: layers.MaxPooling2D(2, strides=3, padding="same")),
    # convolutions that are several of mtf's, or none
    "dilated": (IMAGE, lambda: layers.Conv2D(7, 3, dilation_rate=2, padding="same", use_bias=False)),
    "groups": (IMAGE, lambda: layers.Conv2D(9, 3, groups=3, strides=2, padding="same")),
    "depthwise multiplier": (IMAGE, lambda: layers.DepthwiseConv2D(3, depth_multiplier=2, strides=2)),
    "transposed valid": (IMAGE, lambda: layers.Conv2DTranspose(7, (4, 3), strides=2)),
    "transposed small window": (IMAGE, lambda: layers.Conv2DTranspose(7, 2, strides=3)),
    "transposed same": (IMAGE, lambda: layers.Conv2DTranspose(7, 3, strides=2, padding="same")),
    "transposed volumes": (VOLUME, lambda: layers.Conv3DTranspose(7, 2, strides=2)),
    "dilated volumes": (VOLUME, lambda: layers.Conv3D(7, 2, dilation_rate=2)),
    "causal": (SIGNAL, lambda: layers.Conv1D(7, 3, dilation_rate=2, padding="causal")),
    "group norm": (IMAGE, lambda: layers.GroupNormalization(2)),
    "norm of all axes": (IMAGE, lambda: layers.LayerNormalization(axis=[1, 2, 3])),
    "batch norm": (IMAGE, lambda: layers.BatchNormalization(momentum=0.8)),
}


def make_model(shape, layer):
    inputs = keras.Input(shape)
    return keras.Model(inputs, layer(inputs))


@parametrize("case", CASES, first=["transposed valid"])
def test_forward_gradients_and_steps(case):
    shape, layer = CASES[case]
    with floatx(tf.float64):
        check(make_model(shape, layer()), training=True, dtype=tf.float64, tolerance=1e-9)


def test_a_frozen_batch_norm_infers():
    model = make_model(IMAGE, layers.BatchNormalization(trainable=False))
    builder = check(model, training=True)
    weights = {name.rpartition("/")[2] for name in builder.variables}
    assert weights == {"gamma", "beta", "moving_mean", "moving_variance"}


@pytest.mark.full
def test_embedding():
    """Several shapes of ids, a layer that is called twice, and a frozen one."""
    one, two = keras.Input((4,), dtype="int32"), keras.Input((3, 2), dtype="int32")
    words = layers.Embedding(11, 5, name="words")
    outputs = [words(one), words(two), layers.Embedding(13, 3, trainable=False)(two), layers.Embedding(11, 1)(one)]
    check(keras.Model([one, two], outputs), below=11, training=True)


def test_mixed_precision():
    half = {"dtype": "mixed_bfloat16"}
    x = keras.Input(IMAGE)
    y = layers.BatchNormalization(**half)(layers.Conv2D(7, 3, activation="tanh", **half)(inputs=x))
    y = layers.Dense(4, **half)(layers.Flatten(**half)(y))
    model = keras.Model(x, layers.Activation("linear", dtype="float32")(y))
    check(model, training=True, tolerance=0.05)  # bfloat16 has three digits


def test_a_dense_layer_takes_a_flattened_image_as_it_is():
    x = inputs = keras.Input(IMAGE)
    x = layers.Activation("relu")(layers.Flatten()(layers.Conv2D(5, 3)(x)))
    builder = check(keras.Model(inputs, layers.Dense(7, name="head")(x)))
    assert builder.variables["head/kernel"].shape == (7, 5, 5, 7)


def on_images(layer, change):
    inputs = keras.Input((6, 6, 3))
    x = layer(inputs)
    change(layer)
    return keras.Model(inputs, layers.Dense(5)(layers.Flatten()(x)))


@pytest.mark.full
def test_a_layer_with_lora():
    check(on_images(layers.Dense(4), lambda made: made.enable_lora(2)), training=True, tolerance=1e-4)


def test_a_quantized_layer_infers():
    model = on_images(layers.Dense(4), lambda made: made.quantize("int8"))
    images = np.random.default_rng(1).standard_normal((5, 6, 6, 3)).astype(np.float32)
    np.testing.assert_allclose(inferred(build(model), images), np.asarray(model(images)), rtol=1e-5, atol=1e-6)
