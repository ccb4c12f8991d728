"""The oracle of mtf_hetero.keras.fit: `model.fit` itself, on a model of the same weights.

Logs of all epochs, weights, moving averages and all that the optimizer keeps are compared, in float64.
"""

from collections.abc import Callable, Sequence
from typing import Any

import keras
import numpy as np
from import_oracle import DEVICES
from keras_oracle import floatx

import mtf_hetero.keras
from mtf_hetero import tf

ONE = {"devices": "cpu:0"}
BATCH = {"devices": DEVICES, "layout": "batch", "list_speed": [4, 2, 1]}
FILTERS = {**BATCH, "layout": "filters"}
PLACES = (BATCH, FILTERS)  # layouts decide, not the number of devices: few tests need one device as well
SEED = 3


def images(count: int = 17, size: int = 6, classes: int = 5, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Images and their classes; the last batch of eight has one."""
    rng = np.random.default_rng(seed)
    return rng.standard_normal((count, size, size, 3)), rng.integers(0, classes, count)


class Noise(keras.layers.Layer):
    """Adds random numbers of TensorFlow, whose operation keeps a state of its own."""

    def call(self, x: Any, training: bool = False) -> Any:
        return x + tf.random.normal(tf.shape(x), dtype=x.dtype) if training else x


def network(dropout: float = 0.0) -> Any:
    """A small convolutional network with batch norm."""
    x = inputs = keras.Input((6, 6, 3))
    x = keras.layers.Conv2D(7, 3, padding="same", use_bias=False)(x)
    x = keras.layers.ReLU()(keras.layers.BatchNormalization()(x))
    x = keras.layers.Dropout(dropout, seed=5)(x) if dropout else x
    x = keras.layers.GlobalAveragePooling2D()(x)
    return keras.Model(inputs, keras.layers.Dense(5, activation="softmax")(x))


def make_model(make: Callable[[], Any]) -> Any:
    """A compiled model, of the same weights each time."""
    keras.backend.clear_session()
    keras.utils.set_random_seed(SEED)
    return make()


def check(
    make: Callable[[], Any],
    *data: Any,
    places: Sequence[dict[str, Any]] = PLACES,
    callbacks: Callable[[], list[Any]] = list,
    tolerance: float = 1e-9,
    again: bool = False,
    **options: Any,
) -> list[Any]:
    """Asserts that fit gives what model.fit gives, on uneven layouts.

    Args:
      make: makes and compiles a model.
      *data: as of model.fit.
      places: what fit is given of devices and layouts.
      callbacks: makes callbacks, new ones for each model.
      tolerance: of numbers, relative and absolute.
      again: whether each model is trained twice.
      **options: of both.

    Returns:
      The models that fit trained.
    """
    options = {"epochs": 2, "batch_size": 8, "shuffle": False, "verbose": 0, **options}
    with floatx(tf.float64):
        reference = make_model(make)
        expected = [reference.fit(*data, callbacks=callbacks(), **options).history for _ in range(1 + again)]
        models = []
        for place in places:
            model = make_model(make)
            for history in expected:
                found = mtf_hetero.keras.fit(model, *data, callbacks=callbacks(), **options, **place).history
                same(found, history, tolerance)
            same(state(model), state(reference), tolerance)
            models.append(model)
    return models


def state(model: Any) -> dict[str, np.ndarray]:
    """All numbers that a model has."""
    variables = [*model.variables, *model.optimizer.variables]
    return {f"{number} {v.path}": np.asarray(v) for number, v in enumerate(variables)}


def same(found: dict[str, Any], expected: dict[str, Any], tolerance: float) -> None:
    """Asserts that two dicts of numbers are the same."""
    assert list(found) == list(expected)
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, rtol=tolerance, atol=tolerance, err_msg=name)
