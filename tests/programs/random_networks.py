"""Random Keras networks of small layers of many kinds."""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import keras

_K = keras.layers
_ACTIVATIONS = ("relu", "elu", "gelu", "silu", "tanh", "sigmoid", "softplus", "leaky_relu", "mish", "selu", None)


def make_one(makers: Sequence[Callable[[], Any]], rng: Any) -> Any:
    """Call one of some functions."""
    return makers[rng.integers(len(makers))]()


def network(kind: str, units: int, activation: str | None, rng: Any) -> Any:
    """A model for a kind of inputs: images, series, tokens, table, or two of them.

    Args:
      kind: of the inputs.
      units: of the last layer.
      activation: of the last layer.
      rng: makes all choices.
    """
    if kind == "two":
        images, table = keras.Input((6, 7, 3), name="images"), keras.Input((7,), name="table")
        parts = [_flat(_images(images, rng), rng), _table(table, rng)]
        width = parts[0].shape[-1]
        parts[1] = _K.Dense(width)(parts[1])
        join = [_K.Add, _K.Concatenate, _K.Multiply, _K.Average, _K.Maximum, _K.Subtract, functools.partial(_K.Dot, 1)]
        x = join[rng.integers(len(join))]()(parts)
        inputs = {"images": images, "table": table}
    elif kind == "images":
        inputs = keras.Input((6, 7, 3))
        x = _flat(_images(inputs, rng), rng)
    elif kind == "series":
        inputs = keras.Input((6, 4))
        x = _flat(_series(inputs, rng), rng)
    elif kind == "tokens":
        inputs = keras.Input((6,), dtype="int32")
        embedded = _K.Embedding(9, 6, mask_zero=bool(rng.random() < 0.5))(inputs)
        x = _flat(_series(embedded, rng), rng)
    else:
        inputs = keras.Input((7,))
        x = _table(inputs, rng)
    return keras.Model(inputs, _K.Dense(units, activation=activation)(x))


def _weights(rng: Any) -> dict[str, Any]:
    """Options of a layer with a kernel."""
    options: dict[str, Any] = {"use_bias": bool(rng.random() < 0.8)}
    options["activation"] = _ACTIVATIONS[rng.integers(len(_ACTIVATIONS))]
    if rng.random() < 0.2:
        options["kernel_regularizer"] = [
            keras.regularizers.L2(0.01),
            keras.regularizers.L1L2(0.01, 0.01),
        ][rng.integers(2)]
    if rng.random() < 0.1:
        options["activity_regularizer"] = keras.regularizers.L2(0.01)
    if rng.random() < 0.15:
        options["kernel_constraint"] = [
            keras.constraints.MaxNorm(0.8),
            keras.constraints.UnitNorm(),
            keras.constraints.NonNeg(),
        ][rng.integers(3)]
    return options


def _renamed(options: dict[str, Any], prefix: str) -> dict[str, Any]:
    """The options of a layer that names its kernel otherwise."""
    return {name.replace("kernel", prefix): value for name, value in options.items()}


def _normalized(x: Any, rng: Any) -> Any:
    makers = [
        _K.BatchNormalization,
        functools.partial(_K.BatchNormalization, momentum=0.7, scale=False),
        _K.LayerNormalization,
        functools.partial(_K.LayerNormalization, axis=[1, -1]) if len(x.shape) > 2 else _K.LayerNormalization,
        functools.partial(_K.GroupNormalization, groups=-1),
        _K.UnitNormalization,
        _K.RMSNormalization,
        _K.PReLU,
        functools.partial(_K.Dropout, 0.3),
        functools.partial(_K.GaussianNoise, 0.2),
        functools.partial(_K.GaussianDropout, 0.2),
        functools.partial(_K.AlphaDropout, 0.2),
        functools.partial(_K.Rescaling, 0.7, 0.1),
        functools.partial(_K.ActivityRegularization, 0.01, 0.01),
    ]
    return makers[rng.integers(len(makers))]()(x)


def _images(x: Any, rng: Any) -> Any:
    for _ in range(rng.integers(1, 4)):
        x = make_one([functools.partial(make, x, rng) for make in (_convolved, _convolved, _resized)], rng)
        x = _normalized(x, rng) if rng.random() < 0.5 else x
    return x


def _convolved(x: Any, rng: Any) -> Any:
    filters, size, options = int(rng.integers(4, 9)), tuple(map(int, rng.integers(1, 4, 2))), _weights(rng)
    is_small = min(x.shape[1:3]) < 4
    padding, strides = ("same", 1) if is_small else (str(rng.choice(["same", "valid"])), int(rng.integers(1, 3)))
    by_channel = {**_renamed(options, "depthwise"), "depth_multiplier": 2}
    in_steps = _renamed(options, "pointwise")
    makers = [
        lambda: _K.Conv2D(filters, size, strides, padding, **options)(x),
        lambda: _K.Conv2D(filters, size, padding="same", dilation_rate=2, **options)(x),
        lambda: _K.DepthwiseConv2D(size, strides, padding, **by_channel)(x),
        lambda: _K.SeparableConv2D(filters, 3, padding="same", **in_steps)(x),
        lambda: _K.Conv2DTranspose(filters, 3, 2 if x.shape[1] < 8 else 1, "same", **options)(x),
        lambda: _K.Add()([x, _normalized(_K.Conv2D(x.shape[-1], 3, padding="same", **options)(x), rng)]),
    ]
    return make_one(makers, rng)


def _resized(x: Any, rng: Any) -> Any:
    if min(x.shape[1:3]) < 3 or x.shape[1] > 8:
        return _K.SpatialDropout2D(0.3)(x)
    makers = [
        lambda: _K.MaxPooling2D(2, int(rng.integers(1, 3)), "same")(x),
        lambda: _K.AveragePooling2D(2, int(rng.integers(1, 3)), "same")(x),
        lambda: _K.UpSampling2D(2, interpolation=str(rng.choice(["nearest", "bilinear"])))(x),
        lambda: _K.ZeroPadding2D(((1, 0), (0, 2)))(x),
        lambda: _K.Cropping2D(((1, 0), (0, 1)))(x),
        lambda: _K.Permute((2, 1, 3))(x),
    ]
    return make_one(makers, rng)


def _series(x: Any, rng: Any) -> Any:
    for _ in range(rng.integers(1, 4)):
        x = make_one([functools.partial(make, x, rng) for make in (_recurrent, _mixed)], rng)
        x = _normalized(x, rng) if rng.random() < 0.5 else x
    return x


def _recurrent(x: Any, rng: Any) -> Any:
    units, kept = int(rng.integers(4, 9)), _weights(rng)
    del kept["activation"]
    backwards, mode = bool(rng.random() < 0.2), str(rng.choice(["sum", "concat", "mul", "ave"]))
    series = {"return_sequences": True}
    makers = [
        lambda: _K.LSTM(units, go_backwards=backwards, **series, **kept)(x),
        lambda: _K.GRU(units, go_backwards=backwards, **series, **kept)(x),
        lambda: _K.SimpleRNN(units, **series, **kept)(x),
        lambda: _K.Bidirectional(_K.LSTM(units, **series), merge_mode=mode)(x),
        lambda: _K.Bidirectional(_K.GRU(units, reset_after=False, **series), merge_mode=mode)(x),
    ]
    return make_one(makers, rng)


def _mixed(x: Any, rng: Any) -> Any:
    units, options, is_causal = int(rng.integers(4, 9)), _weights(rng), bool(rng.random() < 0.5)
    # a key's bias has no gradient but what is rounded
    heads = _K.MultiHeadAttention(2, 3, use_bias=False, dropout=float(rng.choice([0.0, 0.2])))
    makers = [
        lambda: _K.Conv1D(units, 3, padding="causal" if is_causal else "same", **options)(x),
        lambda: _K.LayerNormalization()(_K.Add()([x, heads(x, x, use_causal_mask=is_causal)])),
        lambda: _K.GroupQueryAttention(3, 4, 2, use_bias=False)(x, x),
        lambda: _K.Dense(units, **options)(x),
        lambda: _K.TimeDistributed(_K.Dense(units, **options))(x),
        lambda: _K.EinsumDense("abc,cd->abd", (6, units), activation=options["activation"])(x),
    ]
    return make_one(makers, rng)


def _flat(x: Any, rng: Any) -> Any:
    if len(x.shape) == 4:
        makers = [
            lambda: _K.Flatten()(x),
            lambda: _K.GlobalAveragePooling2D()(x),
            lambda: _K.GlobalMaxPooling2D()(x),
            lambda: _K.Reshape((-1,))(x),
        ]
    else:
        makers = [
            lambda: _K.LSTM(5)(x),
            lambda: _K.GRU(5)(x),
            lambda: _K.GlobalAveragePooling1D()(x),
            lambda: _K.GlobalMaxPooling1D()(x),
            lambda: keras.ops.mean(x, axis=1) + keras.ops.max(x, axis=1),
        ]
    return make_one(makers, rng)


def _table(x: Any, rng: Any) -> Any:
    for _ in range(rng.integers(1, 4)):
        units, options = int(rng.integers(4, 12)), _weights(rng)
        makers = [
            lambda x=x, units=units, options=options: _K.Dense(units, **options)(x),
            lambda x=x: _K.Multiply()([x, _K.Dense(x.shape[-1], activation="sigmoid")(x)]),
            lambda x=x: keras.ops.concatenate([x, keras.ops.square(x)[:, ::2]], axis=-1),
            lambda x=x, units=units: _K.SpectralNormalization(_K.Dense(units))(x),
        ]
        x = make_one(makers, rng)
        x = _normalized(x, rng) if rng.random() < 0.5 else x
    return x
