"""Classifiers of images."""

import keras
import numpy as np

from benchmarks.programs.registry import BATCH, KerasStep, Made, program

L = keras.layers
CLASSES = 5


def images(size: int = 16, channels: int = 3) -> np.ndarray:
    """Return a batch of images."""
    return np.random.default_rng(0).standard_normal((BATCH, size, size, channels))


def labels(classes: int = CLASSES) -> np.ndarray:
    """Return the classes of a batch."""
    return np.random.default_rng(1).integers(0, classes, BATCH).astype("int32")


@program("vision", source="keras.io examples/vision/mnist_convnet.py")
def mnist_convnet() -> Made:
    """Two convolutions with pooling, and dropout before the classes."""
    model = keras.Sequential(
        [
            keras.Input((12, 12, 1)),
            L.Conv2D(14, 3, activation="relu"),
            L.MaxPooling2D(2),
            L.Conv2D(7, 3, activation="relu"),
            L.MaxPooling2D(2),
            L.Flatten(),
            L.Dropout(0.5),
            L.Dense(CLASSES, activation="softmax"),
        ]
    )
    model.compile(loss="categorical_crossentropy", optimizer="adam", metrics=["accuracy"])
    return KerasStep(model, (images(12, 1), np.eye(CLASSES)[labels()]))
