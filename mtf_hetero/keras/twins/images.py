"""The networks for images: each takes a network's own configuration, and the shape of the images."""

from collections.abc import Sequence
from typing import Any

from mtf_hetero.keras._keras import keras
from mtf_hetero.keras.twin import Twin
from mtf_hetero.keras.twins.layers import Layers

_MOMENTUM = 0.9  # of mtf_hetero.layers.batch_norm
_EXPANSION = 4  # of the filters, by a bottleneck


def lenet(config: Any, image_shape: Sequence[int], dtype: str) -> Twin:
    """models.lenet."""
    k = Layers(image_shape, name="lenet", dtype=dtype)
    x = k.conv(k.inputs, config.filters[0], size=5, name="conv1", use_bias=True)
    x = k.pool(x, kind="max", name="pool1")
    x = k.conv(x, config.filters[1], size=5, name="conv2", padding="valid", use_bias=True)
    x = k.pool(x, kind="max", name="pool2")
    return k.twin(k.classifier(x, config.units, config.classes))


def paper(config: Any, image_shape: Sequence[int], dtype: str) -> Twin:
    """models.paper."""
    k = Layers(image_shape, name="paper", dtype=dtype)
    x, conv = k.inputs, 0
    for number, stage in enumerate(config.stages, 1):
        for size, filters in stage:
            conv += 1
            x = k.conv(x, filters, size=size, name=f"conv{conv}")
        x = k.pool(x, kind=config.pool, name=f"pool{number}")
    return k.twin(k.classifier(x, (config.units,), config.classes))


def alexnet(config: Any, image_shape: Sequence[int], dtype: str) -> Twin:
    """models.alexnet."""
    k = Layers(image_shape, name="alexnet", dtype=dtype)
    x = k.inputs
    for number, filters in enumerate(config.filters, 1):
        x = k.conv(x, filters, size=3, name=f"conv{number}", use_bias=True)
        if number in config.pooled:
            x = k.pool(x, kind="max", size=3, name=f"pool{number}")
    rates = [config.dropout] * len(config.units)
    if rates:
        x = k.drop(x, rates.pop(), name="dropout0")  # before each hidden layer, and not before the last
    return k.twin(k.classifier(x, config.units, config.classes, dropout=[*rates, 0.0]))


def marques(config: Any, image_shape: Sequence[int], dtype: str) -> Twin:
    """models.marques."""
    k = Layers(image_shape, name="marques", dtype=dtype)
    x = k.inputs
    for number, filters in enumerate(config.filters, 1):
        x = k.conv(x, filters, size=5, name=f"conv{number}", use_bias=True)
        x = k.pool(x, kind="max", name=f"pool{number}")
    return k.twin(k.classifier(x, (), config.classes))


def vgg(config: Any, image_shape: Sequence[int], dtype: str) -> Twin:
    """models.vgg."""
    k = Layers(image_shape, name="vgg", dtype=dtype)
    x = k.inputs
    norm = _MOMENTUM if config.batch_norm else None
    for stage, convolutions in enumerate(config.stages, 1):
        for number, filters in enumerate(convolutions, 1):
            x = k.conv(x, filters, size=3, name=f"conv{stage}_{number}", use_bias=not config.batch_norm, norm=norm)
        x = k.pool(x, kind="max", name=f"pool{stage}")
    return k.twin(k.classifier(x, config.head, config.classes, dropout=[config.dropout] * len(config.head)))


def resnet(config: Any, image_shape: Sequence[int], dtype: str) -> Twin:
    """models.resnet."""
    k = Layers(image_shape, name="resnet", dtype=dtype)
    if config.stem == "imagenet":
        x = k.conv(k.inputs, config.filters[0], size=7, strides=2, name="stem", norm=_MOMENTUM)
        x = k.pool(x, kind="max", size=3, name="stem/pool")
    else:
        x = k.conv(k.inputs, config.filters[0], size=3, name="stem", norm=_MOMENTUM)
    for stage, (count, filters) in enumerate(zip(config.blocks, config.filters[1:], strict=True), 1):
        for number in range(1, count + 1):
            strides = 2 if stage > 1 and number == 1 else 1
            x = _block(k, x, filters, strides, bottleneck=config.bottleneck, name=f"stage{stage}/block{number}")
    return k.twin(k.classifier(k.mean(x, name="mean"), (), config.classes, last="dense"))


def _block(
    k: Layers, x: keras.KerasTensor, filters: int, strides: int, *, bottleneck: bool, name: str
) -> keras.KerasTensor:
    plan = [(3, strides, filters), (3, 1, filters)]
    if bottleneck:
        plan = [(1, 1, filters), (3, strides, filters), (1, 1, _EXPANSION * filters)]
    shortcut, out = x, plan[-1][-1]
    for number, (size, step, width) in enumerate(plan, 1):
        activation = "relu" if number < len(plan) else None
        own = f"{name}/conv{number}"
        x = k.conv(x, width, size=size, strides=step, name=own, norm=_MOMENTUM, activation=activation)
    if strides > 1 or shortcut.shape[-1] != out:
        own = f"{name}/shortcut"
        shortcut = k.conv(shortcut, out, size=1, strides=strides, name=own, norm=_MOMENTUM, activation=None)
    return k.activate(k.add(x, shortcut, name=f"{name}/add"), "relu", name)
