"""The CNN of Marques, Falcao and Alexandre 2018, which they trained over unequal CPUs and GPUs on CIFAR-10.

Two convolutions of 5 x 5, with 500 and 1500 kernels, need nearly all of the time. The paper does not describe the rest.
We chose SAME, stride 1, biases, relu and a 2 x 2 max pool after each, and one dense layer for the classes.
"""

import dataclasses

from mtf_hetero import mtf
from mtf_hetero.models import layers


@dataclasses.dataclass(frozen=True)
class Config(layers.Classifier):
    """Convolutions of 5 x 5 with a pool after each, and a dense layer."""

    filters: tuple[int, ...] = (500, 1500)


def build(images: mtf.Tensor, config: Config, *, training: bool = False) -> mtf.Tensor:
    """Return logits [batch, classes] of images [batch, height, width, channels], 32 x 32 x 3 in the original."""
    del training
    layers.check_images(images)
    x = images
    for number, filters in enumerate(config.filters, 1):
        x = layers.conv(x, filters, size=5, name=f"conv{number}", use_bias=True)
        x = layers.pool(x, kind="max", name=f"pool{number}")
    return layers.classifier(x, (), config, batch=images.shape.dims[:-3])
