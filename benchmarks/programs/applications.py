"""Models of keras.applications, each trained whole on the smallest images that it accepts."""

import functools
from typing import Any

import keras
import numpy as np

from benchmarks.programs.registry import BATCH, KerasStep, Made, program

MODELS = (
    *("VGG16", "VGG19", "ResNet50", "ResNet101", "ResNet152", "ResNet50V2", "ResNet101V2", "ResNet152V2"),
    *("MobileNet", "MobileNetV2", "MobileNetV3Small", "MobileNetV3Large", "DenseNet121", "DenseNet169", "DenseNet201"),
    *("InceptionV3", "InceptionResNetV2", "Xception", "NASNetMobile", "NASNetLarge"),
    *(f"EfficientNetB{size}" for size in range(8)),
    *(f"EfficientNetV2{size}" for size in ("B0", "B1", "B2", "B3", "S", "M", "L")),
    *(f"ConvNeXt{size}" for size in ("Tiny", "Small", "Base", "Large", "XLarge")),
)
_LEAST = {"InceptionV3": 75, "InceptionResNetV2": 75, "Xception": 71}  # pixels; of the others 32
_CLASSES = 5


def _train(name: str, **options: Any) -> Made:
    """Make a step of stochastic gradient descent of a model with random weights."""
    size = _LEAST.get(name, 32)
    make = getattr(keras.applications, name)
    shape = size, size, 3
    model = make(weights=None, classes=_CLASSES, input_shape=shape, classifier_activation=None, **options)
    rng = np.random.default_rng(0)
    images = rng.standard_normal((BATCH, *shape))
    if any(isinstance(layer, (keras.layers.Rescaling, keras.layers.Normalization)) for layer in model.layers):
        images = 128 + 64 * images
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.SGD(2.0**-10, momentum=0.875), loss, metrics=["accuracy"])
    return KerasStep(model, (images, rng.integers(0, _CLASSES, BATCH).astype("int32")))


for _name in MODELS:
    _make = functools.partial(_train, _name)
    _make.__name__ = _name  # pyright: ignore[reportAttributeAccessIssue]
    program("applications", source=f"keras.applications.{_name}")(_make)
