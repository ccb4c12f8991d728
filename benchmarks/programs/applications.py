"""Models of keras.applications, each trained whole on small images.

Members of families with a configuration have all kinds of blocks and all widths, and fewer blocks of a kind.
"""

import functools
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from keras.src.applications import convnext, densenet, efficientnet, efficientnet_v2, nasnet, resnet

from benchmarks.programs.registry import BATCH, KerasStep, Made, keras, program

WHOLE = (
    *("VGG16", "VGG19", "MobileNet", "MobileNetV2", "MobileNetV3Small", "MobileNetV3Large"),
    *("InceptionV3", "InceptionResNetV2", "Xception"),
)
# Pixels; of the others 32. On the smallest images of the Inception networks, 75 pixels, the last batch norms see one
# pixel per example, and TensorFlow differs from itself by 1e-4.
_PIXELS = {"InceptionV3": 139, "InceptionResNetV2": 139, "Xception": 71}
_CLASSES = 5
_WIDTHS = (64, 128, 256, 512)  # of the stages of a residual network


def _residual(version: int, blocks: tuple[int, ...], **options: Any) -> Any:
    """Make a residual network with so many blocks in its stages."""
    stack = resnet.stack_residual_blocks_v1 if version == 1 else resnet.stack_residual_blocks_v2
    single = 0 if version == 1 else len(blocks) - 1  # the stage whose images stay as large

    def stages(x: Any) -> Any:
        for number, (width, count) in enumerate(zip(_WIDTHS, blocks, strict=True)):
            strides = {"stride1": 1} if number == single else {}
            x = stack(x, width, count, name=f"conv{number + 2}", **strides)
        return x

    return resnet.ResNet(stages, version == 2, True, **options)


def _shortened() -> Mapping[str, Callable[..., Any]]:
    """Return {name of a model: what makes it with fewer blocks}."""
    found: dict[str, Callable[..., Any]] = {}
    for name, blocks in {"50": (1, 1, 1, 1), "101": (1, 1, 2, 1), "152": (1, 2, 2, 1)}.items():
        found[f"ResNet{name}"] = functools.partial(_residual, 1, blocks)
        found[f"ResNet{name}V2"] = functools.partial(_residual, 2, tuple(count + 1 for count in blocks))
    for name, blocks in {"121": (1, 2, 2, 1), "169": (1, 2, 3, 2), "201": (1, 2, 4, 2)}.items():
        found[f"DenseNet{name}"] = functools.partial(densenet.DenseNet, blocks)
    mobile = {"penultimate_filters": 1056, "stem_block_filters": 32, "skip_reduction": False}
    found["NASNetMobile"] = functools.partial(nasnet.NASNet, num_blocks=1, **mobile)
    found["NASNetLarge"] = functools.partial(nasnet.NASNet, num_blocks=1)
    for number, width in enumerate((1.0, 1.0, 1.1, 1.2, 1.4, 1.6, 1.8, 2.0)):
        found[f"EfficientNetB{number}"] = functools.partial(efficientnet.EfficientNet, width, 0.5, 224)
    for name, width in {"B0": 1.0, "B1": 1.0, "B2": 1.1, "B3": 1.2, "S": 1.0, "M": 1.0, "L": 1.0}.items():
        blocks = efficientnet_v2.DEFAULT_BLOCKS_ARGS[f"efficientnetv2-{name.lower()}"]
        options = {"depth_coefficient": 0.12, "default_size": 224, "blocks_args": blocks}
        found[f"EfficientNetV2{name}"] = functools.partial(efficientnet_v2.EfficientNetV2, width, **options)
    for name, config in convnext.MODEL_CONFIGS.items():
        name = {"xlarge": "XLarge"}.get(name, name.capitalize())
        found[f"ConvNeXt{name}"] = functools.partial(convnext.ConvNeXt, (1, 1, 2, 1), config["projection_dims"])
    return found


def _train(name: str, make: Callable[..., Any]) -> Made:
    """Make a step of stochastic gradient descent of a model with random weights."""
    shape = (_PIXELS.get(name, 32),) * 2 + (3,)
    model = make(weights=None, classes=_CLASSES, input_shape=shape, classifier_activation=None)
    rng = np.random.default_rng(0)
    images = rng.standard_normal((BATCH, *shape))
    if any(isinstance(layer, (keras.layers.Rescaling, keras.layers.Normalization)) for layer in model.layers):
        images = 128 + 64 * images
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.SGD(2.0**-10, momentum=0.875), loss, metrics=["accuracy"])
    return KerasStep(model, (images, rng.integers(0, _CLASSES, BATCH).astype("int32")))


def _register(name: str, make: Callable[..., Any], note: str) -> None:
    step = functools.partial(_train, name, make)
    step.__name__ = name  # pyright: ignore[reportAttributeAccessIssue]
    program("applications", source=f"keras.applications.{name}{note}")(step)


for _name in WHOLE:
    _register(_name, getattr(keras.applications, _name), "")
for _name, _make in _shortened().items():
    _register(_name, _make, ", fewer blocks")
