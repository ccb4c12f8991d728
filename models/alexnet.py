"""AlexNet for images of 32 x 32 pixels.

The layers of Krizhevsky, Sutskever and Hinton 2012 with the filters of Krizhevsky's single-tower version ("One weird
trick for parallelizing convolutional neural networks", arXiv 1404.5997), which has no local response normalisation:
64, 192, 384, 256, 256. It is the version whose convolutions and dense layers are parallelised in different ways. The
first kernels for images of 224 pixels, 11 x 11 with stride 4 and 5 x 5, are too large for 32 pixels: all are 3 x 3 with
stride 1. The overlapping pools (section 3.4 of 2012) and the dense layers with dropout are unchanged.
"""

import dataclasses

from mtf_hetero import mtf
from mtf_hetero.models import layers


@dataclasses.dataclass(frozen=True)
class Config(layers.Classifier):
    """Convolutions of 3 x 3 with biases, some with a pool after them, then dense layers with dropout before each one.

    Args:
      filters: filters of the convolutions.
      pooled: numbers of the convolutions, from 1 on, after which 3 x 3 windows are pooled with stride 2.
      units: units of the hidden dense layers.
      dropout: share of the inputs of a hidden dense layer that is dropped in training.
    """

    filters: tuple[int, ...] = (64, 192, 384, 256, 256)
    pooled: tuple[int, ...] = (1, 2, 5)
    units: tuple[int, ...] = (4096, 4096)
    dropout: float = 0.5


def build(images: mtf.Tensor, config: Config, *, training: bool = False) -> mtf.Tensor:
    """Return logits [batch, classes] of images [batch, height, width, channels], 32 x 32 x 3 in the registry."""
    layers.check_images(images)
    x = images
    for number, filters in enumerate(config.filters, 1):
        x = layers.conv(x, filters, size=3, name=f"conv{number}", use_bias=True)
        if number in config.pooled:
            x = layers.overlapping_max_pool(x, name=f"pool{number}")

    def drop(y: mtf.Tensor, number: int) -> mtf.Tensor:
        """Drop inputs of the hidden layers, and not of the last one."""
        if number == len(config.units):
            return y
        return mtf.dropout(y, is_training=training, rate=config.dropout, name=f"dropout{number + 1}")

    batch = images.shape.dims[:-3]
    return layers.classifier(drop(x, 0), config.units, config, batch=batch, drop=drop)
