"""Models with masks, LoRA and quantized layers: `mtf_hetero.keras.build` makes of them what Keras computes."""

import keras
import numpy as np
from keras_oracle import check, inferred
from tiers import parametrize

from mtf_hetero.keras import build


def on_ids(layer, lora=False):
    inputs = keras.Input((4,), dtype="int32")
    x = layer(inputs)
    if lora:
        layer.enable_lora(2)
    return keras.Model(inputs, keras.layers.Dense(5)(keras.layers.GlobalAveragePooling1D()(x)))


def on_images(layer, change):
    inputs = keras.Input((6, 6, 3))
    x = layer(inputs)
    change(layer)
    return keras.Model(inputs, keras.layers.Dense(5)(keras.layers.Flatten()(x)))


def recurrent():
    inputs = keras.Input((4, 3))
    x = keras.layers.Masking(name="masking")(inputs)
    return keras.Model(inputs, keras.layers.Dense(5)(keras.layers.LSTM(3)(x)))


def lora(layer):
    return on_images(layer, lambda made: made.enable_lora(2))


MODELS = {  # and what ids are smaller than
    "mask_zero": (lambda: on_ids(keras.layers.Embedding(7, 3, mask_zero=True)), 7),
    "Masking": (recurrent, None),
    "LoRA of Dense": (lambda: lora(keras.layers.Dense(4)), None),
    "LoRA of Conv2D": (lambda: lora(keras.layers.Conv2D(4, 3)), None),
    "LoRA of Embedding": (lambda: on_ids(keras.layers.Embedding(7, 3), lora=True), 7),
}


@parametrize("name", MODELS, first=["mask_zero", "LoRA of Dense"])
def test_it_computes_what_keras_computes(name):
    make, below = MODELS[name]
    check(make(), training=True, below=below, tolerance=1e-4)


def test_a_quantized_layer_infers():
    model = on_images(keras.layers.Dense(4), lambda made: made.quantize("int8"))
    images = np.random.default_rng(1).standard_normal((5, 6, 6, 3)).astype(np.float32)
    np.testing.assert_allclose(inferred(build(model), images), np.asarray(model(images)), rtol=1e-5, atol=1e-6)
