"""AlexNet for images of 32 x 32 pixels.

The layers of Krizhevsky, Sutskever and Hinton 2012 with the filters of Krizhevsky's single-tower version ("One weird
trick for parallelizing convolutional neural networks", arXiv 1404.5997), which has no local response normalisation:
64, 192, 384, 256, 256. It is the version whose convolutions and dense layers are parallelised in different ways. The
first kernels, 11 x 11 with stride 4 and 5 x 5 for images of 224 pixels, would leave nothing of 32: all are 3 x 3 with
stride 1. The overlapping pools (section 3.4 of 2012) and the dense layers with dropout are as they were.
"""

import dataclasses
from typing import Any

from mtf_hetero import mtf
from mtf_hetero.models import layers


@dataclasses.dataclass(frozen=True)
class Config:
    """Convolutions of 3 x 3 with biases, some with a pool after them, then dense layers with dropout before each.

    Args:
      filters: filters of the convolutions.
      pooled: numbers of the convolutions, from 1 on, after which 3 x 3 windows are pooled with stride 2.
      units: units of the hidden dense layers.
      dropout: share of the inputs of a hidden dense layer that is dropped in training.
      classes: number of classes.
      dense_rounds: sizes of the parts of the batch that pass the dense layers in turn; None: all at once.
    """

    filters: tuple[int, ...] = (64, 192, 384, 256, 256)
    pooled: tuple[int, ...] = (1, 2, 5)
    units: tuple[int, ...] = (4096, 4096)
    dropout: float = 0.5
    classes: int = 10
    dense_rounds: tuple[int, ...] | None = None


def build(images: mtf.Tensor, *, training: bool = False, **config: Any) -> mtf.Tensor:
    """Builds the network.

    Args:
      images: mtf.Tensor [batch, height, width, channels], 32 x 32 x 3 in the registry.
      training: whether to drop.
      **config: fields of `Config`.

    Returns:
      Logits, an mtf.Tensor [batch, classes].

    Raises:
      ValueError: images that the network cannot take.
    """
    layers.check_images(images)
    c = Config(**config)
    x = images
    for number, filters in enumerate(c.filters, 1):
        x = layers.conv2d(x, filters, size=3, name=f"conv{number}", use_bias=True)
        if number in c.pooled:
            x = layers.overlapping_max_pool(x, name=f"pool{number}")

    def drop(y: mtf.Tensor, number: int) -> mtf.Tensor:
        """Before the hidden layers, and not before the last."""
        if number == len(c.units):
            return y
        return mtf.dropout(y, is_training=training, rate=c.dropout, name=f"dropout{number + 1}")

    x = drop(x, 0)
    return layers.classifier(x, c.units, c.classes, batch=images.shape.dims[:-3], drop=drop, rounds=c.dense_rounds)
