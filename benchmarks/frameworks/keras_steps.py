"""The models whose training step is measured, with examples; and a callback that looks at no weights."""

from collections.abc import Callable
from typing import Any

import keras
import numpy as np

import mtf_hetero.keras
from benchmarks.cases.keras_fit import DEVICES_OF

CLASSES = 10
TRANSFORMERS = {"Transformer": 64, "Transformer of 128": 128}  # and their units
SEQUENCES = (*TRANSFORMERS, "LSTM", "MLP")  # all others are functions of keras.applications
_HEADS, _LENGTH, _VOCABULARY = 4, 32, 1000
_FEATURES, _UNITS = 16, 64  # of the LSTM
_HIDDEN = 256  # units of each layer of the MLP, and numbers of an example


def make(network: str, examples: int, pixels: int, layers: int, seed: int) -> tuple[Any, np.ndarray, np.ndarray]:
    """Make a compiled model, and its examples: inputs and classes.

    Args:
      network: one of SEQUENCES, or a function of keras.applications. (An example of the MLP is no sequence.)
      examples: their number.
      pixels: height and width of the images of keras.applications.
      layers: of a Transformer, and of the MLP.
      seed: of weights and examples.
    """
    keras.utils.set_random_seed(seed)
    rng = np.random.default_rng(seed)
    optimizer: Any = keras.optimizers.Adam(1e-3)
    if network in TRANSFORMERS:
        model = _transformer(layers, TRANSFORMERS[network])
        x = rng.integers(0, _VOCABULARY, (examples, _LENGTH)).astype("int32")
    elif network == "MLP":
        model, x = _mlp(layers), rng.standard_normal((examples, _HIDDEN)).astype("float32")
    elif network == "LSTM":
        model, x = _lstm(), rng.standard_normal((examples, _LENGTH, _FEATURES)).astype("float32")
    else:
        model = _classifier(getattr(keras.applications, network), pixels)
        x = rng.standard_normal((examples, pixels, pixels, 3)).astype("float32")
        optimizer = keras.optimizers.SGD(1e-3, momentum=0.9)
    model.compile(optimizer, keras.losses.SparseCategoricalCrossentropy(from_logits=True), jit_compile=False)
    return model, x, rng.integers(0, CLASSES, examples)


def fit(model: Any, way: str, *data: Any, **options: Any) -> Any:
    """Train a model by one of the ways of DEVICES_OF."""
    devices = DEVICES_OF[way]
    if devices is None:
        return model.fit(*data, **options)
    return mtf_hetero.keras.fit(model, *data, devices=devices, layout="batch", **options)


def _classifier(make_base: Callable[..., Any], pixels: int) -> Any:
    base = make_base(weights=None, include_top=False, input_shape=(pixels, pixels, 3), pooling="avg")
    for layer in base.layers:
        if hasattr(layer, "rate"):
            layer.rate = 0.0  # ways are compared by their losses
    return keras.Model(base.inputs, keras.layers.Dense(CLASSES, name="head")(base.outputs[0]))


def _mlp(layers: int) -> Any:
    x = inputs = keras.layers.Input((_HIDDEN,))
    for _ in range(layers):
        x = keras.layers.Dense(_HIDDEN, activation="relu")(x)
    return keras.Model(inputs, keras.layers.Dense(CLASSES, name="head")(x))


def _transformer(layers: int, width: int) -> Any:
    """Return an encoder of post-norm layers, and the mean over its positions."""
    inputs = keras.layers.Input((_LENGTH,), dtype="int32")
    x = keras.layers.Embedding(_VOCABULARY, width)(inputs)
    for _ in range(layers):
        attended = keras.layers.MultiHeadAttention(_HEADS, width // _HEADS)(x, x)
        x = keras.layers.LayerNormalization()(keras.layers.Add()([x, attended]))
        hidden = keras.layers.Dense(4 * width, activation="relu")(x)
        x = keras.layers.LayerNormalization()(keras.layers.Add()([x, keras.layers.Dense(width)(hidden)]))
    pooled = keras.layers.GlobalAveragePooling1D()(x)
    return keras.Model(inputs, keras.layers.Dense(CLASSES, name="head")(pooled))


def _lstm() -> Any:
    inputs = keras.layers.Input((_LENGTH, _FEATURES))
    return keras.Model(inputs, keras.layers.Dense(CLASSES, name="head")(keras.layers.LSTM(_UNITS)(inputs)))
