"""The table of models: what `--model` may name."""

import dataclasses
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from models import lenet, paper


@dataclasses.dataclass(frozen=True)
class Model:
    """A CNN.

    Args:
      build: from an mtf.Tensor of images [batch, height, width, channels], and keyword arguments that change the
        network (`classes` among them), to logits [batch, classes]. It names no mesh and no layout.
      image_shape: (height, width, channels) of the images that the network was made for; others may do.
      classes: number of classes that the network was made for.
      parameters: number of trainable parameters for these.
    """

    build: Callable[..., Any]
    image_shape: tuple[int, int, int]
    classes: int
    parameters: int


MODELS: Mapping[str, Model] = MappingProxyType(
    {
        "lenet": Model(lenet.build, (28, 28, 1), 10, 61_706),
        "paper_cifar": Model(paper.build_cifar, (32, 32, 3), 10, 4_610_766),
        "paper_mnist": Model(paper.build_mnist, (28, 28, 1), 10, 6_464_678),
    }
)
