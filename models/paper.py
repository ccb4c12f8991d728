"""The two networks of Moreno-Alvarez et al. (Neurocomputing 441, 2021): stages of convolutions, two dense layers."""

import dataclasses

from mtf_hetero import mtf
from mtf_hetero.models import layers


@dataclasses.dataclass(frozen=True)
class Config(layers.Classifier):
    """Stages of convolutions (SAME, stride 1, relu, no bias), each with a pool after it, and a dense part.

    Args:
      stages: per stage, per convolution, (height and width of the kernel, number of filters).
      pool: "max" or "avg", of 2 x 2 windows at the end of each stage.
      units: units of the hidden dense layer.
    """

    stages: tuple[tuple[tuple[int, int], ...], ...]
    pool: str
    units: int


MNIST = Config(stages=(((7, 60), (5, 120), (3, 240)),), pool="avg", units=128)
CIFAR = Config(
    stages=tuple(((3, filters), (3, filters)) for filters in (60, 120, 240, 480)),
    pool="max",
    units=256,
)


def build(images: mtf.Tensor, config: Config, *, training: bool = False) -> mtf.Tensor:
    """Return logits [batch, classes] of images [batch, height, width, channels]."""
    del training
    layers.check_images(images)
    x = images
    conv = 0
    for number, stage in enumerate(config.stages, 1):
        for size, filters in stage:
            conv += 1
            x = layers.conv(x, filters, size=size, name=f"conv{conv}")
        x = layers.pool(x, kind=config.pool, name=f"pool{number}")
    batch = images.shape.dims[:-3]
    return layers.classifier(x, (config.units,), config, batch=batch)
