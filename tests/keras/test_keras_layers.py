"""Layers of Keras other than convolutions: each gives what Keras gives, on one device and on uneven layouts."""

from typing import Any

import keras
import numpy as np
import pytest
from keras import layers
from keras_oracle import check, floatx
from tiers import parametrize

from mtf_hetero import tf

IMAGE, SIGNAL, VOLUME, ROW = (9, 7, 6), (11, 6), (5, 7, 6, 4), (13,)


def normalization(**options):
    layer = layers.Normalization(**options)
    layer.adapt(np.random.default_rng(0).standard_normal((50, *IMAGE)) * 3 + 1)
    return layer


ONE = {
    "max pool": (IMAGE, lambda: layers.MaxPooling2D(3, strides=2, padding="same")),
    "average pool": (IMAGE, lambda: layers.AveragePooling2D((3, 2), strides=1, padding="same")),
    "average pool valid": (IMAGE, lambda: layers.AveragePooling2D(2)),
    "max pool 1d": (SIGNAL, lambda: layers.MaxPooling1D(3)),
    "average pool 1d": (SIGNAL, lambda: layers.AveragePooling1D(3, strides=2, padding="same")),
    "max pool 3d": (VOLUME, lambda: layers.MaxPooling3D(2)),
    "average pool 3d": (VOLUME, lambda: layers.AveragePooling3D(2, padding="same")),
    "global average": (IMAGE, lambda: layers.GlobalAveragePooling2D()),
    "global average kept": (IMAGE, lambda: layers.GlobalAveragePooling2D(keepdims=True)),
    "global max": (IMAGE, lambda: layers.GlobalMaxPooling2D(keepdims=True)),
    "global 1d": (SIGNAL, lambda: layers.GlobalAveragePooling1D()),
    "global 3d": (VOLUME, lambda: layers.GlobalMaxPooling3D()),
    "padding": (IMAGE, lambda: layers.ZeroPadding2D(((1, 2), (0, 3)))),
    "padding 1d": (SIGNAL, lambda: layers.ZeroPadding1D((1, 2))),
    "cropping": (IMAGE, lambda: layers.Cropping2D(((1, 2), (0, 3)))),
    "cropping 3d": (VOLUME, lambda: layers.Cropping3D(1)),
    "upsampling": (IMAGE, lambda: layers.UpSampling2D((2, 3))),
    "bilinear": (IMAGE, lambda: layers.UpSampling2D(2, interpolation="bilinear")),
    "upsampling 1d": (SIGNAL, lambda: layers.UpSampling1D(3)),
    "upsampling 3d": (VOLUME, lambda: layers.UpSampling3D(2)),
    "flatten": (IMAGE, lambda: layers.Flatten()),
    "reshape": (IMAGE, lambda: layers.Reshape((-1, 6))),
    "reshape back": (SIGNAL, lambda: layers.Reshape((11, 2, 3))),
    "permute": (IMAGE, lambda: layers.Permute((2, 3, 1))),
    "repeat": (ROW, lambda: layers.RepeatVector(5)),
    "dense": (ROW, lambda: layers.Dense(7, activation="relu")),
    "dense of a sequence": (SIGNAL, lambda: layers.Dense(7, activation="softmax")),
    "einsum dense": (SIGNAL, lambda: layers.EinsumDense("abc,cde->abde", (11, 4, 7), bias_axes="de")),
    "einsum dots": (IMAGE, lambda: layers.EinsumDense("...x,xy->...y", 7, bias_axes="y", activation="relu")),
    "batch norm": (IMAGE, lambda: layers.BatchNormalization(momentum=0.8)),
    "batch norm bare": (SIGNAL, lambda: layers.BatchNormalization(scale=False, center=False)),
    "batch norm of rows": (SIGNAL, lambda: layers.BatchNormalization(axis=1, epsilon=0.1)),
    "layer norm": (SIGNAL, lambda: layers.LayerNormalization(epsilon=1e-5)),
    "layer norm axes": (IMAGE, lambda: layers.LayerNormalization(axis=(2, 3), center=False)),
    "group norm": (IMAGE, lambda: layers.GroupNormalization(groups=3)),
    "instance norm": (SIGNAL, lambda: layers.GroupNormalization(groups=-1)),
    "rms norm": (SIGNAL, lambda: layers.RMSNormalization()),
    "rescaling": (IMAGE, lambda: layers.Rescaling(1 / 127.5, offset=-1)),
    "rescaling by channel": (IMAGE, lambda: layers.Rescaling([1.0, 2.0, 3.0, 4.0, 5.0, 6.0], offset=0.5)),
    "normalization": (IMAGE, normalization),
    "normalization inverted": (IMAGE, lambda: normalization(invert=True)),
    "relu": (ROW, lambda: layers.ReLU()),
    "relu with limits": (ROW, lambda: layers.ReLU(max_value=1.0, negative_slope=0.1, threshold=0.2)),
    "leaky relu": (ROW, lambda: layers.LeakyReLU(0.3)),
    "elu": (ROW, lambda: layers.ELU(0.7)),
    "prelu": (IMAGE, lambda: layers.PReLU(shared_axes=(1, 2))),
    "prelu of each": (SIGNAL, lambda: layers.PReLU()),
    "softmax": (IMAGE, lambda: layers.Softmax(axis=1)),
    "activation layer": (ROW, lambda: layers.Dense(7, activation=layers.LeakyReLU(0.2))),
}
FIRST = {"max pool", "flatten", "dense", "einsum dense", "batch norm", "layer norm", "prelu", "normalization"}
NOT_DOUBLE = ("max pool 3d", "average pool 3d", "bilinear")  # TensorFlow has none, or computes in float32
ACTIVATIONS = (
    *("celu", "elu", "exponential", "gelu", "hard_shrink", "hard_sigmoid", "hard_silu", "hard_swish", "hard_tanh"),
    *("leaky_relu", "linear", "log_sigmoid", "log_softmax", "mish", "relu", "relu6", "selu", "sigmoid", "silu"),
    *("soft_shrink", "softmax", "softplus", "softsign", "swish", "tanh", "tanh_shrink"),
)


def make_model(shape, layer):
    inputs = keras.Input(shape)
    return keras.Model(inputs, layer(inputs))


@parametrize("case", [case for case in ONE if case in (*FIRST, *NOT_DOUBLE) or "batch norm" in case], first=FIRST)
def test_forward_gradients_and_steps(case):
    shape, layer = ONE[case]
    check(make_model(shape, layer()), training=False)


def test_in_training():
    shape, layer = ONE["batch norm"]
    check(make_model(shape, layer()), training=True)


@pytest.mark.full
def test_all_activations():
    inputs = keras.Input((4, 6))
    check(keras.Model(inputs, [layers.Activation(name)(inputs) for name in ACTIVATIONS]))


@parametrize("case", [case for case in ONE if case not in NOT_DOUBLE], first=["rescaling"])
def test_in_double_precision(case):
    with floatx(tf.float64):
        shape, layer = ONE[case]
        check(make_model(shape, layer()), training=True, dtype=tf.float64, tolerance=1e-9)


def test_a_frozen_batch_norm_infers():
    model = make_model(IMAGE, layers.BatchNormalization(trainable=False))
    builder = check(model, training=True)
    assert len(builder.variables) == 4


@parametrize("causal", [False, True], first=[False])
def test_attention(causal):
    x, y = keras.Input((7, 6)), keras.Input((7 if causal else 5, 8))
    attention = layers.MultiHeadAttention(num_heads=4, key_dim=5, value_dim=3, output_shape=9)
    check(keras.Model([x, y], attention(x, y, use_causal_mask=causal)))


@pytest.mark.full
def test_self_attention_without_bias():
    x = keras.Input((7, 6))
    check(keras.Model(x, layers.MultiHeadAttention(num_heads=3, key_dim=4, use_bias=False)(x, x)))


def test_embedding():
    x = keras.Input((7,), dtype="int32")
    check(keras.Model(x, layers.Dense(4)(layers.Embedding(11, 6)(x))), below=11)


def test_merging():
    x, y, z = keras.Input(IMAGE), keras.Input(IMAGE), keras.Input((1, 1, 6))
    kinds = (layers.Add, layers.Multiply, layers.Average, layers.Maximum, layers.Minimum)
    outputs = [kind()([x, y]) for kind in kinds]
    outputs += [layers.Subtract()([y, x]), layers.Multiply()([x, z]), layers.Add()([z, x, y])]
    outputs += [layers.Concatenate()([x, y, x]), layers.Concatenate(axis=1)([y, x])]
    check(keras.Model([x, y, z], outputs))


@pytest.mark.full
def test_operations():
    ops: Any = keras.ops
    x: Any = keras.Input((6, 8))
    y: Any = keras.Input((6, 8))
    outputs = [
        2.0 * x - y / 3.0,
        1.0 - x,
        x * y,
        x**2,
        ops.exp(x) / (1.0 + ops.exp(x)),
        ops.mean(x, axis=-1),
        ops.mean(x, axis=(1, 2), keepdims=True),
        ops.max(x, axis=1),
        ops.sum(y, axis=-1, keepdims=True) + x,
        ops.reshape(x, (-1, 3, 16)),
        ops.transpose(x, (0, 2, 1)),
        x[:, 0],
        x[:, 1:4, ..., -1],
        ops.concatenate([x, y], axis=1),
        ops.expand_dims(x, 1),
        ops.matmul(x, ops.transpose(y, (0, 2, 1))),
        ops.relu(x) + ops.gelu(y),
        ops.sqrt(ops.abs(x) + 1.0),
        x + np.arange(8.0, dtype="float32"),
    ]
    check(keras.Model([x, y], outputs))


def test_mixed_precision():
    half = {"dtype": "mixed_bfloat16"}
    x = keras.Input(IMAGE)
    y = layers.BatchNormalization(**half)(layers.Conv2D(7, 3, activation="tanh", **half)(inputs=x))
    y = layers.Dense(4, **half)(layers.Flatten(**half)(y))
    model = keras.Model(x, layers.Activation("linear", dtype="float32")(y))
    check(model, training=True, tolerance=0.05)  # bfloat16 has three digits


def test_a_dense_layer_takes_a_flattened_image_as_it_is():
    model = keras.Sequential(
        [
            keras.Input(IMAGE),
            layers.Conv2D(5, 3),
            layers.Flatten(),
            layers.Activation("relu"),
            layers.Dense(7, name="head"),
        ]
    )
    builder = check(model)
    assert builder.variables["head/kernel"].shape == (7, 5, 5, 7)
