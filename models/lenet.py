"""LeNet-5 (LeCun, Bottou, Bengio and Haffner 1998), with relu and max pooling: small, for tests and first steps."""

import dataclasses
from typing import Any

from mtf_hetero import mtf
from mtf_hetero.models import layers


@dataclasses.dataclass(frozen=True)
class Config:
    """Two convolutions of 5 x 5 with biases and a pool after each, then dense layers.

    Args:
      filters: filters of the first convolution (SAME) and of the second (VALID).
      units: units of the hidden dense layers.
      classes: number of classes.
      dense_rounds: sizes of the parts of the batch that pass the dense layers in turn; None: all at once.
    """

    filters: tuple[int, int] = (6, 16)
    units: tuple[int, ...] = (120, 84)
    classes: int = 10
    dense_rounds: tuple[int, ...] | None = None


def build(images: mtf.Tensor, **config: Any) -> mtf.Tensor:
    """Builds the network.

    Args:
      images: mtf.Tensor [batch, height, width, channels], 28 x 28 x 1 in the original.
      **config: fields of `Config`.

    Returns:
      Logits, an mtf.Tensor [batch, classes].

    Raises:
      ValueError: images that the network cannot take.
    """
    layers.check_images(images)
    c = Config(**config)
    x = layers.conv2d(images, c.filters[0], size=5, name="conv1", use_bias=True)
    x = layers.pool2d(x, kind="max", name="pool1")
    x = layers.conv2d(x, c.filters[1], size=5, name="conv2", padding="VALID", use_bias=True)
    x = layers.pool2d(x, kind="max", name="pool2")
    return layers.classifier(x, c.units, c.classes, batch=images.shape.dims[:-3], rounds=c.dense_rounds)
