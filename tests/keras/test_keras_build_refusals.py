"""Refusals by name: models that `mtf_hetero.keras.build` does not take."""

import keras
import pytest

import mtf_hetero.keras


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


class Own(keras.Model):
    """Calls its layers itself."""

    def __init__(self):
        super().__init__()
        self.dense = keras.layers.Dense(5)

    def call(self, x):
        return self.dense(x)


def lora(layer):
    return on_images(layer, lambda made: made.enable_lora(2))


REFUSED = {
    "mask_zero": (lambda: on_ids(keras.layers.Embedding(7, 3, mask_zero=True, name="e")), "'e' has mask_zero=True"),
    "Masking": (recurrent, "layer 'masking' is a Masking"),
    "LoRA of Dense": (lambda: lora(keras.layers.Dense(4, name="d")), r"layer 'd' has LoRA \(enable_lora\)"),
    "LoRA of Conv2D": (lambda: lora(keras.layers.Conv2D(4, 3, name="c")), "layer 'c' has LoRA"),
    "LoRA of Embedding": (lambda: on_ids(keras.layers.Embedding(7, 3, name="e"), lora=True), "layer 'e' has LoRA"),
    "int8": (
        lambda: on_images(keras.layers.Dense(4, name="d"), lambda made: made.quantize("int8")),
        r"layer 'd' is quantized \(int8\)",
    ),
    "subclassed": (Own, "is a Own, whose own code calls its layers; .* train it with model.fit"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_the_user_wrote_is_named(name):
    make, message = REFUSED[name]
    with pytest.raises(NotImplementedError, match=message) as caught:
        mtf_hetero.keras.build(make())
    assert len(str(caught.value).splitlines()) == 1
