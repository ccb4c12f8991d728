"""The CNN of Marques, Falcao and Alexandre 2018, which they trained over unequal CPUs and GPUs on CIFAR-10.

Two convolutions of 5 x 5, with 500 and 1500 kernels: nearly all of the time goes into them. The rest we have no account
of and choose: SAME, stride 1, biases, relu and a 2 x 2 max pool after each, and one dense layer to the classes.
"""

import dataclasses
from typing import Any

from mtf_hetero import mtf
from mtf_hetero.models import layers


@dataclasses.dataclass(frozen=True)
class Config:
    """Convolutions of 5 x 5 with a pool after each, and a dense layer.

    Args:
      filters: filters of the convolutions.
      classes: number of classes.
      dense_rounds: sizes of the parts of the batch that pass the dense layer in turn; None: all at once.
    """

    filters: tuple[int, ...] = (500, 1500)
    classes: int = 10
    dense_rounds: tuple[int, ...] | None = None


def build(images: mtf.Tensor, *, training: bool = False, **config: Any) -> mtf.Tensor:
    """Builds the network.

    Args:
      images: mtf.Tensor [batch, height, width, channels], 32 x 32 x 3 in the original.
      training: the network is the same in training.
      **config: fields of `Config`.

    Returns:
      Logits, an mtf.Tensor [batch, classes].

    Raises:
      ValueError: images that the network cannot take.
    """
    del training
    layers.check_images(images)
    c = Config(**config)
    x = images
    for number, filters in enumerate(c.filters, 1):
        x = layers.conv2d(x, filters, size=5, name=f"conv{number}", use_bias=True)
        x = layers.pool2d(x, kind="max", name=f"pool{number}")
    return layers.classifier(x, (), c.classes, batch=images.shape.dims[:-3], rounds=c.dense_rounds)
