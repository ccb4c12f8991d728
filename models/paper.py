"""The two networks of Moreno-Alvarez et al. (Neurocomputing 441, 2021): stages of convolutions, two dense layers."""

import dataclasses
from typing import Any

from mtf_hetero import mtf
from mtf_hetero.models import layers


@dataclasses.dataclass(frozen=True)
class Config:
    """Stages of convolutions (SAME, stride 1, relu, no bias), each with a pool after it, and a dense part.

    Args:
      stages: per stage, per convolution, (height and width of the kernel, number of filters).
      pool: "max" or "avg", of 2 x 2 windows at the end of each stage.
      units: units of the hidden dense layer.
      classes: number of classes.
      dense_rounds: sizes of the parts of the batch that pass the dense layers in turn; None: all at once.
    """

    stages: tuple[tuple[tuple[int, int], ...], ...]
    pool: str
    units: int
    classes: int = 10
    dense_rounds: tuple[int, ...] | None = None


MNIST = Config(stages=(((7, 60), (5, 120), (3, 240)),), pool="avg", units=128)
CIFAR = Config(
    stages=tuple(((3, filters), (3, filters)) for filters in (60, 120, 240, 480)),
    pool="max",
    units=256,
)


def build(images: mtf.Tensor, config: Config) -> mtf.Tensor:
    """Builds a network of this family.

    Args:
      images: mtf.Tensor [batch, height, width, channels].
      config: its layers.

    Returns:
      Logits, an mtf.Tensor [batch, classes].

    Raises:
      ValueError: images that are none.
    """
    layers.check_images(images)
    x = images
    conv = 0
    for number, stage in enumerate(config.stages, 1):
        for size, filters in stage:
            conv += 1
            x = layers.conv2d(x, filters, size=size, name=f"conv{conv}")
        x = layers.pool2d(x, kind=config.pool, name=f"pool{number}")
    batch = images.shape.dims[:-3]
    return layers.classifier(x, (config.units,), config.classes, batch=batch, rounds=config.dense_rounds)


def build_mnist(images: mtf.Tensor, **config: Any) -> mtf.Tensor:
    """The network for MNIST, 28 x 28 x 1: 7x7x60, 5x5x120, 3x3x240, average pool, 128, 10; `config` changes `MNIST`."""
    return build(images, dataclasses.replace(MNIST, **config))


def build_cifar(images: mtf.Tensor, **config: Any) -> mtf.Tensor:
    """The network for CIFAR-10, 32 x 32 x 3: 2 x (60, 120, 240, 480), max pools, 256, 10; `config` changes `CIFAR`."""
    return build(images, dataclasses.replace(CIFAR, **config))
