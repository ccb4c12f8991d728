"""VGG (Simonyan and Zisserman 2015) for images of 32 x 32 pixels: configurations A, B, D and E.

The convolutions are the paper's. Five pools leave one pixel of 32 x 32, so that the dense head begins at 512 inputs
where the paper's, for 224 x 224, begins at 25,088. Its units are the paper's 4096 and 4096 unless `head` says others.
"""

import dataclasses
from typing import Any

from mtf_hetero import mtf
from mtf_hetero.models import layers

_FILTERS = (64, 128, 256, 512, 512)


def _stages(*depths: int) -> tuple[tuple[int, ...], ...]:
    return tuple((filters,) * depth for filters, depth in zip(_FILTERS, depths, strict=True))


@dataclasses.dataclass(frozen=True)
class Config:
    """Stages of convolutions of 3 x 3, each with a 2 x 2 pool after it, and a dense head.

    Args:
      stages: per stage, per convolution, its filters.
      head: units of the hidden dense layers.
      batch_norm: whether each convolution has batch norm in place of a bias.
      dropout: share of the inputs of each dense layer but the first that is dropped in training.
      classes: number of classes.
      dense_rounds: sizes of the parts of the batch that pass the dense layers in turn; None: all at once.
    """

    stages: tuple[tuple[int, ...], ...]
    head: tuple[int, ...] = (4096, 4096)
    batch_norm: bool = False
    dropout: float = 0.5
    classes: int = 10
    dense_rounds: tuple[int, ...] | None = None


VGG11 = Config(_stages(1, 1, 2, 2, 2))
VGG13 = Config(_stages(2, 2, 2, 2, 2))
VGG16 = Config(_stages(2, 2, 3, 3, 3))
VGG19 = Config(_stages(2, 2, 4, 4, 4))


def build(images: mtf.Tensor, config: Config, *, training: bool = False) -> mtf.Tensor:
    """Builds a network of this family.

    Args:
      images: mtf.Tensor [batch, height, width, channels], 32 x 32 x 3 in the registry.
      config: its layers.
      training: whether to drop, and to normalise by the batch.

    Returns:
      Logits, an mtf.Tensor [batch, classes].

    Raises:
      ValueError: images that the network cannot take.
    """
    layers.check_images(images)
    x = images
    for stage, convolutions in enumerate(config.stages, 1):
        for number, filters in enumerate(convolutions, 1):
            name = f"conv{stage}_{number}"
            if config.batch_norm:
                x = layers.conv2d_batch_norm(x, filters, size=3, name=name, training=training)
            else:
                x = layers.conv2d(x, filters, size=3, name=name, use_bias=True)
        x = layers.pool2d(x, kind="max", name=f"pool{stage}")

    def drop(y: mtf.Tensor, number: int) -> mtf.Tensor:
        return mtf.dropout(y, is_training=training, rate=config.dropout, name=f"dropout{number}")

    batch = images.shape.dims[:-3]
    return layers.classifier(x, config.head, config.classes, batch=batch, drop=drop, rounds=config.dense_rounds)


def build_vgg11(images: mtf.Tensor, *, training: bool = False, **config: Any) -> mtf.Tensor:
    """Configuration A, 8 convolutions; `config` changes `VGG11`."""
    return build(images, dataclasses.replace(VGG11, **config), training=training)


def build_vgg13(images: mtf.Tensor, *, training: bool = False, **config: Any) -> mtf.Tensor:
    """Configuration B, 10 convolutions; `config` changes `VGG13`."""
    return build(images, dataclasses.replace(VGG13, **config), training=training)


def build_vgg16(images: mtf.Tensor, *, training: bool = False, **config: Any) -> mtf.Tensor:
    """Configuration D, 13 convolutions; `config` changes `VGG16`."""
    return build(images, dataclasses.replace(VGG16, **config), training=training)


def build_vgg19(images: mtf.Tensor, *, training: bool = False, **config: Any) -> mtf.Tensor:
    """Configuration E, 16 convolutions; `config` changes `VGG19`."""
    return build(images, dataclasses.replace(VGG19, **config), training=training)
