"""The table of models: what `--model` may name."""

import dataclasses
import functools
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from mtf_hetero import mtf
from mtf_hetero.models import alexnet, cosmoflow, lenet, marques, paper, resnet, unet3d, vgg
from mtf_hetero.models.train.tasks import Classification, Regression, Segmentation, Task


@dataclasses.dataclass(frozen=True)
class Model:
    """A CNN.

    Args:
      build: from an mtf.Tensor of images [batch, height, width, channels] or volumes [batch, depth, height, width,
        channels], `training` (False unless given) and keyword arguments that change the network (those in the config of
        its task among them), to outputs [batch, ...] as the task has them. It names no mesh and no layout.
      image_shape: (height, width, channels) of the images that the network was made for, or (depth, height, width,
        channels); others may do.
      classes: number of classes, or of targets, that the network was made for.
      parameters: number of trainable parameters for these.
      task: what the network predicts for each example.
      recomputes: whether `build` takes `recompute`, the stages that the backward pass computes again.
    """

    build: Callable[..., mtf.Tensor]
    image_shape: tuple[int, ...]
    classes: int
    parameters: int
    task: type[Task] = Classification
    recomputes: bool = False

    @property
    def takes_volumes(self) -> bool:
        """Whether it takes volumes rather than images."""
        return len(self.image_shape) == 4


def _same_in_training(build: Callable[..., mtf.Tensor]) -> Callable[..., mtf.Tensor]:
    """A builder that takes `training`, for a network without dropout and batch norm."""

    @functools.wraps(build)
    def built(images: mtf.Tensor, *, training: bool = False, **config: Any) -> mtf.Tensor:
        del training
        return build(images, **config)

    return built


def _cosmoflow(
    build: Callable[..., mtf.Tensor], parameters: int, edge: int = 128, channels: int = 4, targets: int = 4
) -> Model:
    return Model(build, (edge, edge, edge, channels), targets, parameters, Regression, recomputes=True)


def _unet3d(build: Callable[..., mtf.Tensor], parameters: int) -> Model:
    return Model(build, (64, 64, 64, 1), 3, parameters, Segmentation, recomputes=True)


_CIFAR = ((32, 32, 3), 10)

MODELS: Mapping[str, Model] = MappingProxyType(
    {
        "alexnet": Model(alexnet.build, *_CIFAR, 35_855_178),
        "cosmoflow": _cosmoflow(cosmoflow.build, 9_437_636),
        "cosmoflow_bn": _cosmoflow(functools.partial(cosmoflow.build, batch_norm=True), 9_439_652),
        "cosmoflow_small": _cosmoflow(cosmoflow.build_small, 47_515, edge=64, channels=1, targets=3),
        "lenet": Model(_same_in_training(lenet.build), (28, 28, 1), 10, 61_706),
        "marques": Model(marques.build, *_CIFAR, 19_749_510),
        "paper_cifar": Model(_same_in_training(paper.build_cifar), *_CIFAR, 4_610_766),
        "paper_mnist": Model(_same_in_training(paper.build_mnist), (28, 28, 1), 10, 6_464_678),
        "resnet18": Model(resnet.build_resnet18, *_CIFAR, 11_173_962),
        "resnet34": Model(resnet.build_resnet34, *_CIFAR, 21_282_122),
        "resnet50": Model(resnet.build_resnet50, *_CIFAR, 23_520_842),
        "unet3d": _unet3d(unet3d.build, 19_070_560),
        "unet3d_small": _unet3d(unet3d.build_small, 98_928),
        "vgg11": Model(vgg.build_vgg11, *_CIFAR, 28_144_010),
        "vgg13": Model(vgg.build_vgg13, *_CIFAR, 28_328_522),
        "vgg16": Model(vgg.build_vgg16, *_CIFAR, 33_638_218),
        "vgg19": Model(vgg.build_vgg19, *_CIFAR, 38_947_914),
    }
)
