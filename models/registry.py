"""The table of models: what `--model` may name."""

import dataclasses
import functools
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from models import alexnet, lenet, marques, paper, resnet, vgg


@dataclasses.dataclass(frozen=True)
class Model:
    """A CNN.

    Args:
      build: from an mtf.Tensor of images [batch, height, width, channels], `training` (False unless given) and keyword
        arguments that change the network (`classes` among them), to logits [batch, classes]. It names no mesh and no
        layout.
      image_shape: (height, width, channels) of the images that the network was made for; others may do.
      classes: number of classes that the network was made for.
      parameters: number of trainable parameters for these.
    """

    build: Callable[..., Any]
    image_shape: tuple[int, int, int]
    classes: int
    parameters: int


def _same_in_training(build: Callable[..., Any]) -> Callable[..., Any]:
    """A builder that takes `training`, for a network without dropout and batch norm."""

    @functools.wraps(build)
    def built(images: Any, *, training: bool = False, **config: Any) -> Any:
        del training
        return build(images, **config)

    return built


_CIFAR = ((32, 32, 3), 10)

MODELS: Mapping[str, Model] = MappingProxyType(
    {
        "alexnet": Model(alexnet.build, *_CIFAR, 35_855_178),
        "lenet": Model(_same_in_training(lenet.build), (28, 28, 1), 10, 61_706),
        "marques": Model(marques.build, *_CIFAR, 19_749_510),
        "paper_cifar": Model(_same_in_training(paper.build_cifar), *_CIFAR, 4_610_766),
        "paper_mnist": Model(_same_in_training(paper.build_mnist), (28, 28, 1), 10, 6_464_678),
        "resnet18": Model(resnet.build_resnet18, *_CIFAR, 11_173_962),
        "resnet34": Model(resnet.build_resnet34, *_CIFAR, 21_282_122),
        "resnet50": Model(resnet.build_resnet50, *_CIFAR, 23_520_842),
        "vgg11": Model(vgg.build_vgg11, *_CIFAR, 28_144_010),
        "vgg13": Model(vgg.build_vgg13, *_CIFAR, 28_328_522),
        "vgg16": Model(vgg.build_vgg16, *_CIFAR, 33_638_218),
        "vgg19": Model(vgg.build_vgg19, *_CIFAR, 38_947_914),
    }
)
