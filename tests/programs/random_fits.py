"""Random Keras trainings: a model, what it is compiled with, its data and the options of fit, all from one seed."""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import keras
import numpy as np

from mtf_hetero import tf

COUNT, CLASSES = 17, 5  # examples, of which the last batch has fewer; classes
_K = keras.layers
_ACTIVATIONS = ("relu", "elu", "gelu", "silu", "tanh", "sigmoid", "softplus", "leaky_relu", "mish", "selu", None)


class RandomFit:
    """A training of a seed; `make()` returns the compiled model, the same each time.

    Args:
      seed: of all choices.

    Attributes:
      kind: of the inputs.
      data: the arguments of fit.
      options: its keywords.
    """

    def __init__(self, seed: int) -> None:
        self._seed = seed
        rng = np.random.default_rng([seed, 1])
        self.kind = str(rng.choice(["images", "series", "tokens", "table", "two"]))
        self._targets = str(rng.choice(["classes", "one hot", "numbers", "yes or no"]))
        inputs = _inputs(self.kind, rng)
        x = inputs if self.kind == "two" else next(iter(inputs.values()))
        y = _targets(self._targets, rng)
        self.options: dict[str, Any] = {"batch_size": int(rng.integers(4, 10)), "epochs": int(rng.integers(1, 4))}
        self.data: tuple[Any, ...] = (x, y)
        weights = rng.uniform(0.5, 2.0, COUNT)
        match rng.integers(6):
            case 0:
                self.data = (tf.data.Dataset.from_tensor_slices((x, y, weights)).batch(self.options.pop("batch_size")),)
            case 1:
                self.options["sample_weight"] = weights
            case 2 if self._targets == "classes":
                self.options["class_weight"] = {number: 0.5 + number for number in range(CLASSES)}
            case 3:
                self.options["validation_split"] = 0.3
            case 4:
                self.options["validation_data"] = (x, y)
                self.options["validation_freq"] = int(rng.integers(1, 3))
            case 5:
                self.data = (tf.data.Dataset.from_tensor_slices((x, y)).batch(self.options.pop("batch_size")).repeat(),)
                self.options["steps_per_epoch"] = int(rng.integers(2, 6))
        if "validation_split" in self.options:
            self.options.pop("sample_weight", None)

    def make(self) -> Any:
        """Build and compile the model."""
        rng = np.random.default_rng([self._seed, 2])
        model = _model(self.kind, self._targets, rng)
        loss = _loss(self._targets, rng)
        optimizer = _optimizer(np.random.default_rng([self._seed, 4]))
        weighted = _metrics(self._targets, rng)
        options = {"metrics": _metrics(self._targets, rng)}
        if rng.random() < 0.3 and ("sample_weight" in self.options or "class_weight" in self.options):
            options["weighted_metrics"] = weighted
        if rng.random() < 0.1:
            options["steps_per_execution"] = 2
        if rng.random() < 0.1:
            options["jit_compile"] = False
        model.compile(optimizer, loss, **options)
        return model

    def callbacks(self) -> list[Any]:
        """New callbacks."""
        rng = np.random.default_rng([self._seed, 3])
        optimizer = _optimizer(np.random.default_rng([self._seed, 4]))
        made = [lambda: keras.callbacks.EarlyStopping(monitor="loss", patience=0, restore_best_weights=True)]
        if optimizer.use_ema:
            made.append(lambda: keras.callbacks.SwapEMAWeights(swap_on_epoch=True))
        rate = getattr(optimizer, "inner_optimizer", optimizer)._learning_rate
        if not isinstance(rate, keras.optimizers.schedules.LearningRateSchedule):
            made.append(lambda: keras.callbacks.ReduceLROnPlateau(monitor="loss", patience=0, min_delta=10.0))
            made.append(lambda: keras.callbacks.LearningRateScheduler(lambda epoch, rate: float(rate) * 0.7))
        return [make() for make in made if rng.random() < 0.2]


def _inputs(kind: str, rng: Any) -> dict[str, np.ndarray]:
    arrays = {
        "images": rng.standard_normal((COUNT, 6, 7, 3)),
        "series": rng.standard_normal((COUNT, 6, 4)),
        "tokens": rng.integers(0, 9, (COUNT, 6)),
        "table": rng.standard_normal((COUNT, 7)),
    }
    return {name: arrays[name] for name in (("images", "table") if kind == "two" else (kind,))}


def _targets(targets: str, rng: Any) -> np.ndarray:
    classes = rng.integers(0, CLASSES, COUNT)
    match targets:
        case "classes":
            return classes if rng.random() < 0.5 else classes[:, None]
        case "one hot":
            return np.eye(CLASSES)[classes]
        case "numbers":
            return rng.standard_normal((COUNT, 3))
    return rng.integers(0, 2, (COUNT, 1)).astype(float)


def _loss(targets: str, rng: Any) -> Any:
    L = keras.losses
    reduction = {"reduction": str(rng.choice(["sum_over_batch_size", "sum", "mean_with_sample_weight"]))}
    makers = {
        "classes": [
            lambda: "sparse_categorical_crossentropy",
            lambda: L.SparseCategoricalCrossentropy(**reduction),
            lambda: L.SparseCategoricalCrossentropy(ignore_class=1),
        ],
        "one hot": [
            lambda: L.CategoricalCrossentropy(label_smoothing=0.1, **reduction),
            lambda: L.CategoricalFocalCrossentropy(),
            lambda: "kl_divergence",
            lambda: "categorical_hinge",
            lambda: L.Dice(),
            lambda: L.Tversky(),
        ],
        "numbers": [
            lambda: "mse",
            lambda: L.MeanAbsoluteError(**reduction),
            lambda: L.Huber(0.5, **reduction),
            lambda: "log_cosh",
            lambda: L.CosineSimilarity(axis=-1),
            lambda: "mean_squared_logarithmic_error",
            lambda: "mape",
        ],
        "yes or no": [
            lambda: "binary_crossentropy",
            lambda: L.BinaryCrossentropy(label_smoothing=0.2, **reduction),
            lambda: L.BinaryFocalCrossentropy(gamma=1.5, apply_class_balancing=True),
            lambda: "hinge",
            lambda: "squared_hinge",
            lambda: "poisson",
        ],
    }[targets]
    return makers[rng.integers(len(makers))]()


def _metrics(targets: str, rng: Any) -> list[Any]:
    M = keras.metrics
    makers = {
        "classes": [
            lambda: "accuracy",
            lambda: M.SparseCategoricalCrossentropy(),
        ],
        "one hot": [
            lambda: "accuracy",
            lambda: M.F1Score(average="macro"),
            lambda: M.AUC(num_thresholds=20, multi_label=True, num_labels=CLASSES),
            lambda: M.OneHotMeanIoU(CLASSES),
            lambda: M.Precision(class_id=1),
        ],
        "numbers": [
            lambda: "mae",
            lambda: M.R2Score(),
            lambda: M.RootMeanSquaredError(),
            lambda: M.CosineSimilarity(),
            lambda: M.PearsonCorrelation(),
        ],
        "yes or no": [
            lambda: "accuracy",
            lambda: M.AUC(num_thresholds=30, curve="PR"),
            lambda: M.Recall(thresholds=[0.3, 0.6]),
            lambda: M.PrecisionAtRecall(0.5, num_thresholds=20),
            lambda: M.TruePositives(),
            lambda: M.F1Score(threshold=0.4),
        ],
    }[targets]
    return [make() for make in makers if rng.random() < 0.3]


def _optimizer(rng: Any) -> Any:
    optimizers = keras.optimizers
    rates = [
        0.01,
        lambda: optimizers.schedules.ExponentialDecay(0.01, 2, 0.8, staircase=bool(rng.random() < 0.5)),
        lambda: optimizers.schedules.CosineDecay(0.01, 5, warmup_target=0.02, warmup_steps=2),
        lambda: optimizers.schedules.PiecewiseConstantDecay([2, 4], [0.02, 0.01, 0.005]),
        lambda: optimizers.schedules.CosineDecayRestarts(0.01, 2),
        lambda: optimizers.schedules.PolynomialDecay(0.02, 4, cycle=True),
        lambda: optimizers.schedules.InverseTimeDecay(0.02, 1, 0.5),
    ]
    rate = rates[max(0, rng.integers(-4, len(rates)))]
    options: dict[str, Any] = {"learning_rate": rate() if callable(rate) else rate}
    if rng.random() < 0.3:
        name = str(rng.choice(["clipnorm", "clipvalue", "global_clipnorm"]))
        options[name] = float(rng.uniform(0.05, 0.5))
    if rng.random() < 0.25:
        options["weight_decay"] = 0.01
    if rng.random() < 0.2:
        options |= {"use_ema": True, "ema_momentum": 0.9, "ema_overwrite_frequency": [None, 2][rng.integers(2)]}
    if rng.random() < 0.2:
        options["gradient_accumulation_steps"] = int(rng.integers(2, 4))
    makers: list[Callable[..., Any]] = [
        optimizers.SGD,
        functools.partial(optimizers.SGD, momentum=0.9),
        functools.partial(optimizers.SGD, momentum=0.8, nesterov=True),
        optimizers.Adam,
        functools.partial(optimizers.Adam, amsgrad=True),
        optimizers.AdamW,
        optimizers.Adamax,
        optimizers.Nadam,
        optimizers.RMSprop,
        functools.partial(optimizers.RMSprop, centered=True, momentum=0.5),
        optimizers.Adagrad,
        optimizers.Adadelta,
        functools.partial(optimizers.Ftrl, l1_regularization_strength=0.01, l2_shrinkage_regularization_strength=0.01),
        optimizers.Lamb,
        optimizers.Adafactor,
        optimizers.Muon,
    ]
    optimizer = makers[rng.integers(len(makers))](**options)
    return optimizers.LossScaleOptimizer(optimizer) if rng.random() < 0.05 else optimizer


def _model(kind: str, targets: str, rng: Any) -> Any:
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
    units, activation = {
        "classes": (CLASSES, "softmax"),
        "one hot": (CLASSES, "softmax"),
        "numbers": (3, None),
        "yes or no": (1, "sigmoid"),
    }[targets]
    return keras.Model(inputs, _K.Dense(units, activation=activation)(x))


def _weights(rng: Any) -> dict[str, Any]:
    """Options of a layer with a kernel."""
    options: dict[str, Any] = {"use_bias": bool(rng.random() < 0.8)}
    options["activation"] = _ACTIVATIONS[rng.integers(len(_ACTIVATIONS))]
    if rng.random() < 0.2:
        options["kernel_regularizer"] = [
            keras.regularizers.L2(0.01),
            keras.regularizers.L1L2(0.01, 0.01),
            keras.regularizers.OrthogonalRegularizer(0.01),
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


def _any(makers: Sequence[Callable[[], Any]], rng: Any) -> Any:
    return makers[rng.integers(len(makers))]()


def _images(x: Any, rng: Any) -> Any:
    for _ in range(rng.integers(1, 4)):
        x = _any([functools.partial(make, x, rng) for make in (_convolved, _convolved, _resized)], rng)
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
    return _any(makers, rng)


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
    return _any(makers, rng)


def _series(x: Any, rng: Any) -> Any:
    for _ in range(rng.integers(1, 4)):
        x = _any([functools.partial(make, x, rng) for make in (_recurrent, _mixed)], rng)
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
    return _any(makers, rng)


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
    return _any(makers, rng)


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
    return _any(makers, rng)


def _table(x: Any, rng: Any) -> Any:
    for _ in range(rng.integers(1, 4)):
        units, options = int(rng.integers(4, 12)), _weights(rng)
        makers = [
            lambda x=x, units=units, options=options: _K.Dense(units, **options)(x),
            lambda x=x: _K.Multiply()([x, _K.Dense(x.shape[-1], activation="sigmoid")(x)]),
            lambda x=x: keras.ops.concatenate([x, keras.ops.square(x)[:, ::2]], axis=-1),
            lambda x=x, units=units: _K.SpectralNormalization(_K.Dense(units))(x),
        ]
        x = _any(makers, rng)
        x = _normalized(x, rng) if rng.random() < 0.5 else x
    return x
