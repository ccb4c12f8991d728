"""The networks for volumes: each takes a network's own configuration, and the shape of the volumes."""

from collections.abc import Sequence
from typing import Any

from mtf_hetero.keras._keras import keras
from mtf_hetero.keras.twin import Twin
from mtf_hetero.keras.twins.layers import Layers


def cosmoflow(config: Any, image_shape: Sequence[int], dtype: str) -> Twin:
    """models.cosmoflow."""
    k = Layers(image_shape, name="cosmoflow", dtype=dtype)
    x, pools = k.inputs, config.pools(image_shape[:-1])
    norm = config.momentum if config.batch_norm else None
    for number, filters in enumerate(config.filters, 1):
        strides = 2 if number == config.strided else 1
        x = k.conv(x, filters, size=3, strides=strides, name=f"conv{number}", norm=norm, activation="leaky_relu")
        if number <= pools:
            x = k.pool(x, kind="avg", size=3, strides=2, around=1, name=f"pool{number}")
    if config.averaged:
        x = k.mean(x, name="averaged")
        x = k.batch_norm(x, name="averaged/batch_norm", momentum=config.momentum)
    for number, units in enumerate([*config.head, config.outputs], 1):
        x = k.drop(x, config.dropout, name=f"dropout{number}")
        activation = "leaky_relu" if number <= len(config.head) else None
        x = k.dense(x, units, name=f"dense{number}", activation=activation)
    return k.twin(x)


def unet3d(config: Any, image_shape: Sequence[int], dtype: str) -> Twin:
    """models.unet3d."""
    k = Layers(image_shape, name="unet3d", dtype=dtype)
    norm = config.momentum if config.batch_norm else None

    def twice(x: keras.KerasTensor, name: str, filters: Sequence[int]) -> keras.KerasTensor:
        for number, count in enumerate(filters, 1):
            x = k.conv(x, count, size=3, name=f"{name}/conv{number}", norm=norm)
        return x

    x, skips = k.inputs, []
    for level, filters in enumerate(config.down, 1):
        x = twice(x, f"down{level}", filters)
        skips.append(x)
        x = k.pool(x, kind="max", name=f"pool{level}")
    x = twice(x, "bottom", config.bottom)
    for level, filters in reversed(list(enumerate(config.up, 1))):
        x = k.conv_transpose(x, name=f"transpose{level}")
        x = twice(k.beside(x, skips.pop(), name=f"up{level}/both"), f"up{level}", filters)
    return k.twin(k.conv(x, config.classes, size=1, name="head", activation=None))
