"""LeNet-5 (LeCun, Bottou, Bengio and Haffner 1998), with relu and max pooling: small, for tests and first steps."""

import dataclasses

from mtf_hetero import mtf
from mtf_hetero.models import layers


@dataclasses.dataclass(frozen=True)
class Config(layers.Classifier):
    """Two convolutions of 5 x 5 with biases and a pool after each, then dense layers.

    Args:
      filters: filters of the first convolution (SAME) and of the second (VALID).
      units: units of the hidden dense layers.
    """

    filters: tuple[int, int] = (6, 16)
    units: tuple[int, ...] = (120, 84)


def build(images: mtf.Tensor, config: Config, *, training: bool = False) -> mtf.Tensor:
    """Return logits [batch, classes] of images [batch, height, width, channels], 28 x 28 x 1 in the original."""
    del training
    layers.check_images(images)
    x = layers.conv(images, config.filters[0], size=5, name="conv1", use_bias=True)
    x = layers.pool(x, kind="max", name="pool1")
    x = layers.conv(x, config.filters[1], size=5, name="conv2", padding="VALID", use_bias=True)
    x = layers.pool(x, kind="max", name="pool2")
    return layers.classifier(x, config.units, config, batch=images.shape.dims[:-3])
