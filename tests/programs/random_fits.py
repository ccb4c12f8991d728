"""Random Keras trainings: a model, what it is compiled with, its data and the options of fit, all from one seed."""

import functools
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
from random_networks import make_one, network

from mtf_hetero import tf

COUNT, CLASSES = 17, 5  # examples, of which the last batch has fewer; classes
_OUTPUTS = {  # units and activation of the last layer, by what the targets are
    "classes": (CLASSES, "softmax"),
    "one hot": (CLASSES, "softmax"),
    "numbers": (3, None),
    "yes or no": (1, "sigmoid"),
}


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
        self._targets = str(rng.choice(list(_OUTPUTS)))
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

    def make(self) -> Any:
        """Build and compile the model."""
        rng = np.random.default_rng([self._seed, 2])
        model = network(self.kind, *_OUTPUTS[self._targets], rng)
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
        "classes": [lambda: "sparse_categorical_crossentropy", lambda: L.SparseCategoricalCrossentropy(**reduction)],
        "one hot": [lambda: L.CategoricalCrossentropy(label_smoothing=0.1, **reduction), lambda: "kl_divergence"],
        "numbers": [lambda: "mse", lambda: L.MeanAbsoluteError(**reduction), lambda: L.Huber(0.5, **reduction)],
        "yes or no": [
            lambda: "binary_crossentropy",
            lambda: L.BinaryCrossentropy(label_smoothing=0.2, **reduction),
            lambda: "hinge",
        ],
    }[targets]
    return make_one(makers, rng)


def _metrics(targets: str, rng: Any) -> list[Any]:
    M = keras.metrics
    makers = {
        "classes": [lambda: "accuracy", lambda: M.SparseCategoricalCrossentropy()],
        "one hot": [
            lambda: "accuracy",
            lambda: M.F1Score(average="macro"),
            lambda: M.AUC(num_thresholds=20, multi_label=True, num_labels=CLASSES),
        ],
        "numbers": [lambda: "mae", lambda: M.R2Score()],
        "yes or no": [
            lambda: "accuracy",
            lambda: M.AUC(num_thresholds=30, curve="PR"),
            lambda: M.PrecisionAtRecall(0.5, num_thresholds=20),
        ],
    }[targets]
    return [make() for make in makers if rng.random() < 0.3]


def _optimizer(rng: Any) -> Any:
    optimizers = keras.optimizers
    rates = [
        0.01,
        lambda: optimizers.schedules.ExponentialDecay(0.01, 2, 0.8, staircase=bool(rng.random() < 0.5)),
        lambda: optimizers.schedules.CosineDecay(0.01, 5, warmup_target=0.02, warmup_steps=2),
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
        functools.partial(optimizers.SGD, momentum=0.8, nesterov=True),
        optimizers.Adam,
        functools.partial(optimizers.Adam, amsgrad=True),
        optimizers.RMSprop,
        functools.partial(optimizers.RMSprop, centered=True, momentum=0.5),
        optimizers.Adafactor,
        optimizers.Muon,
    ]
    optimizer = makers[rng.integers(len(makers))](**options)
    return optimizers.LossScaleOptimizer(optimizer) if rng.random() < 0.05 else optimizer
