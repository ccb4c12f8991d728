"""Programs on time series, as in keras.io's folder timeseries."""

import keras
import numpy as np

from benchmarks.programs.pieces import integers, normal
from benchmarks.programs.registry import KerasStep, program

L = keras.layers
SOURCE = "keras.io examples/timeseries/{}.py"


@program("timeseries", source=SOURCE.format("timeseries_classification_from_scratch"))
def timeseries_classification_from_scratch() -> KerasStep:
    """Convolutions with batch norms over a series."""
    x = inputs = keras.Input((20, 1))
    for _ in range(3):
        x = L.ReLU()(L.BatchNormalization()(L.Conv1D(14, 3, padding="same")(x)))
    model = keras.Model(inputs, L.Dense(2, "softmax")(L.GlobalAveragePooling1D()(x)))
    model.compile("adam", "sparse_categorical_crossentropy", metrics=["sparse_categorical_accuracy"])
    return KerasStep(model, (normal(20, 1), integers(2)))


@program("timeseries", source=SOURCE.format("timeseries_classification_transformer"))
def timeseries_classification_transformer() -> KerasStep:
    """Return encoders of attention and convolutions of length 1; the pool is over channels."""
    x = inputs = keras.Input((20, 1))
    for _ in range(2):
        y = L.LayerNormalization(epsilon=1e-6)(L.Dropout(0.25)(L.MultiHeadAttention(4, 7, dropout=0.25)(x, x)))
        x = x + y
        y = L.Conv1D(1, 1)(L.Dropout(0.25)(L.Conv1D(4, 1, activation="relu")(x)))
        x = x + L.LayerNormalization(epsilon=1e-6)(y)
    x = L.GlobalAveragePooling1D(data_format="channels_last")(x)
    x = L.Dropout(0.4)(L.Dense(14, "relu")(x))
    model = keras.Model(inputs, L.Dense(2, "softmax")(x))
    model.compile(keras.optimizers.Adam(1e-4), "sparse_categorical_crossentropy", metrics=["accuracy"])
    return KerasStep(model, (normal(20, 1), integers(2)))


@program("timeseries", source=SOURCE.format("timeseries_anomaly_detection"))
def timeseries_anomaly_detection() -> KerasStep:
    """Return an autoencoder of convolutions and transposed convolutions."""
    layers = [
        *(L.Conv1D(14, 7, strides=2, padding="same", activation="relu"), L.Dropout(0.2)),
        L.Conv1D(7, 7, strides=2, padding="same", activation="relu"),
        *(L.Conv1DTranspose(7, 7, strides=2, padding="same", activation="relu"), L.Dropout(0.2)),
        L.Conv1DTranspose(14, 7, strides=2, padding="same", activation="relu"),
        L.Conv1DTranspose(1, 7, padding="same"),
    ]
    model = keras.Sequential([keras.Input((24, 1)), *layers])
    model.compile(keras.optimizers.Adam(0.001), "mse")
    return KerasStep(model, (normal(24, 1), normal(24, 1)))


@program("timeseries", source=SOURCE.format("timeseries_weather_forecasting"))
def timeseries_weather_forecasting() -> KerasStep:
    """Return an LSTM over several measurements."""
    model = keras.Sequential([keras.Input((12, 7)), L.LSTM(14), L.Dense(1)])
    model.compile(keras.optimizers.Adam(0.001), "mse")
    return KerasStep(model, (normal(12, 7), normal(1)))


@program("timeseries", source=SOURCE.format("eeg_signal_classification"))
def eeg_signal_classification() -> KerasStep:
    """Strided convolutions, batch norms and regularized dense layers."""
    x = inputs = keras.Input((32, 1))
    for filters in (7, 14, 14):
        x = L.BatchNormalization()(L.Conv1D(filters, 3, strides=2, padding="same", activation="relu")(x))
    x = L.Dropout(0.2)(L.Flatten()(L.MaxPooling1D(2)(x)))
    for units in (28, 14):
        x = L.Dense(units, "relu", kernel_regularizer=keras.regularizers.L2())(x)
    model = keras.Model(inputs, L.Dense(5, "softmax")(L.Dropout(0.2)(x)))
    metrics = [keras.metrics.CategoricalAccuracy(), keras.metrics.AUC(), keras.metrics.Precision()]
    model.compile(keras.optimizers.Adam(amsgrad=True), keras.losses.CategoricalCrossentropy(), metrics=metrics)
    labels = np.eye(5, dtype=keras.config.floatx())[integers(5)]
    return KerasStep(model, (normal(32, 1), labels))
