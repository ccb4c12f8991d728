"""The table of models: what `--model` may name."""

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from mtf_hetero import mtf
from mtf_hetero.models import alexnet, cosmoflow, lenet, marques, paper, resnet, unet3d, vgg
from mtf_hetero.models.train.tasks import Classification, Regression, Segmentation, Task

SUFFIX, PREFIX = ".keras", "keras:"  # of names of Keras models


def is_keras(name: str) -> bool:
    """Whether a name is of a Keras model: my.keras, or keras:ResNet50."""
    return name.startswith(PREFIX) or name.endswith(SUFFIX)


def _no_twin(**_: Any) -> Any:
    raise ValueError("this network has no Keras twin; give its Model a twin")


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
      in_rounds: whether `build` takes `dense_rounds`, the parts of the batch that pass the dense layers in turn.
      twin: makes its `mtf_hetero.keras.twin.Twin`, by `image_shape`, `dtype` and what `build` takes.
      fit: makes the network for images of a shape, and so many classes or targets, or for what it was made for where
        these are None; None: `build` takes any.
      initial: gives {variable: array} of those that training starts from; None: they start as `build` has them.
      normalises: whether it normalises its images itself: it takes them as they are stored.
      notes: lines for whoever trains it.
    """

    build: Callable[..., mtf.Tensor]
    image_shape: tuple[int, ...]
    classes: int
    parameters: int
    task: type[Task] = Classification
    recomputes: bool = False
    in_rounds: bool = False
    twin: Callable[..., Any] = _no_twin
    fit: Callable[[Sequence[int] | None, int | None], "Model"] | None = None
    initial: Callable[[], Mapping[str, Any]] | None = None
    normalises: bool = False
    notes: tuple[str, ...] = ()

    def fitted(self, image_shape: Sequence[int] | None = None, count: int | None = None) -> "Model":
        """The network for these images, and so many classes or targets; None: for what it was made for.

        Raises:
          ValueError: it is made for others.
        """
        return self if self.fit is None else self.fit(image_shape, count)

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


def _twin(
    kind: str, base: Any, made_for: Sequence[int], *, image_shape: Any = None, dtype: str = "float32", **config: Any
) -> Any:
    """The Keras twin of a network: a function of mtf_hetero.keras.twins, whose configuration is `base` with changes."""
    from mtf_hetero.keras import twins  # which imports Keras

    return getattr(twins, kind)(dataclasses.replace(base, **config), tuple(image_shape or made_for), dtype)


def _images(
    module: Any, build: Callable[..., mtf.Tensor], base: Any, parameters: int, edge: int = 32, channels: int = 3
) -> Model:
    """A network for images of a module, with a configuration."""
    shape = (edge, edge, channels)
    twin = functools.partial(_twin, module.__name__.rpartition(".")[2], base, shape)
    return Model(build, shape, 10, parameters, in_rounds=True, twin=twin)


def _cosmoflow(
    build: Callable[..., mtf.Tensor], base: Any, parameters: int, edge: int = 128, channels: int = 4, targets: int = 4
) -> Model:
    shape = (edge, edge, edge, channels)
    twin = functools.partial(_twin, "cosmoflow", base, shape)
    return Model(build, shape, targets, parameters, Regression, recomputes=True, twin=twin)


def _unet3d(build: Callable[..., mtf.Tensor], base: Any, parameters: int) -> Model:
    shape = (64, 64, 64, 1)
    twin = functools.partial(_twin, "unet3d", base, shape)
    return Model(build, shape, 3, parameters, Segmentation, recomputes=True, twin=twin)


_COSMOFLOW_BN = dataclasses.replace(cosmoflow.COSMOFLOW, batch_norm=True)

MODELS: Mapping[str, Model] = MappingProxyType(
    {
        "alexnet": _images(alexnet, alexnet.build, alexnet.Config(), 35_855_178),
        "cosmoflow": _cosmoflow(cosmoflow.build, cosmoflow.COSMOFLOW, 9_437_636),
        "cosmoflow_bn": _cosmoflow(functools.partial(cosmoflow.build, batch_norm=True), _COSMOFLOW_BN, 9_439_652),
        "cosmoflow_small": _cosmoflow(cosmoflow.build_small, cosmoflow.SMALL, 47_515, edge=64, channels=1, targets=3),
        "lenet": _images(lenet, _same_in_training(lenet.build), lenet.Config(), 61_706, 28, 1),
        "marques": _images(marques, marques.build, marques.Config(), 19_749_510),
        "paper_cifar": _images(paper, _same_in_training(paper.build_cifar), paper.CIFAR, 4_610_766),
        "paper_mnist": _images(paper, _same_in_training(paper.build_mnist), paper.MNIST, 6_464_678, 28, 1),
        "resnet18": _images(resnet, resnet.build_resnet18, resnet.RESNET18, 11_173_962),
        "resnet34": _images(resnet, resnet.build_resnet34, resnet.RESNET34, 21_282_122),
        "resnet50": _images(resnet, resnet.build_resnet50, resnet.RESNET50, 23_520_842),
        "unet3d": _unet3d(unet3d.build, unet3d.UNET3D, 19_070_560),
        "unet3d_small": _unet3d(unet3d.build_small, unet3d.SMALL, 98_928),
        "vgg11": _images(vgg, vgg.build_vgg11, vgg.VGG11, 28_144_010),
        "vgg13": _images(vgg, vgg.build_vgg13, vgg.VGG13, 28_328_522),
        "vgg16": _images(vgg, vgg.build_vgg16, vgg.VGG16, 33_638_218),
        "vgg19": _images(vgg, vgg.build_vgg19, vgg.VGG19, 38_947_914),
    }
)
