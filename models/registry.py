"""The table of models for `--model`."""

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType, ModuleType
from typing import TYPE_CHECKING, NoReturn

import numpy as np

from mtf_hetero import mtf
from mtf_hetero.cli.train.tasks import Classification, Regression, Segmentation, Task
from mtf_hetero.models import alexnet, cosmoflow, lenet, marques, paper, resnet, unet3d, vgg

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

    from mtf_hetero.keras.first_step import FirstStep
    from mtf_hetero.keras.twin import Twin

SUFFIX, PREFIX = ".keras", "keras:"  # in names of Keras models


def is_keras(name: str) -> bool:
    """Return whether a name is of a Keras model: my.keras, or keras:ResNet50."""
    return name.startswith(PREFIX) or name.endswith(SUFFIX)


def _no_twin(**_: object) -> NoReturn:
    raise ValueError("this network has no Keras twin; give its Model a twin")


@dataclasses.dataclass(frozen=True)
class Model:
    """A CNN.

    Args:
      build: returns outputs [batch, ...] of the task from an mtf.Tensor of images [batch, height, width, channels] or
        volumes [batch, depth, height, width, channels]. Arguments are `training` (False by default) and keywords that
        change the network, such as the config of its task. It names no mesh and no layout.
      image_shape: (height, width, channels) or (depth, height, width, channels) of the usual images; others may fit.
      classes: the usual number of classes or targets.
      parameters: number of trainable parameters for these.
      task: the network's prediction for each example.
      recomputes: whether `build` has the argument `recompute`, the stages that the backward pass computes again.
      in_rounds: whether `build` has `dense_rounds`, the parts of the batch that pass the dense layers in turn.
      in_stages: whether `build` has `is_staged`, with which the batch has another name in each stage.
      twin: makes its `mtf_hetero.keras.twin.Twin`, from `image_shape`, `dtype` and the arguments of `build`.
      fit: makes the network for images of a shape, and so many classes or targets; None as one of these: the usual.
        None: `build` fits any.
      initial: returns {variable: array}, the initial values; None: `build` has them.
      normalises: whether the network itself normalises stored images.
      notes: lines for the user who trains it.
      check: returns what makes the hooks that compare a training's first step with Keras, given --verify, the number of
        steps, and whether to print the result. None: the network is mtf's own.
    """

    build: Callable[..., mtf.Tensor]
    image_shape: tuple[int, ...]
    classes: int
    parameters: int
    task: type[Task] = Classification
    recomputes: bool = False
    in_rounds: bool = False
    in_stages: bool = False
    twin: "Callable[..., Twin]" = _no_twin
    fit: Callable[[Sequence[int] | None, int | None], "Model"] | None = None
    initial: Callable[[], Mapping[str, np.ndarray]] | None = None
    normalises: bool = False
    notes: tuple[str, ...] = ()
    check: "Callable[..., FirstStep] | None" = None

    def fitted(self, image_shape: Sequence[int] | None = None, count: int | None = None) -> "Model":
        """Return the network for these images, and so many classes or targets; None: the usual.

        Raises:
          ValueError: the network cannot have them.
        """
        return self if self.fit is None else self.fit(image_shape, count)

    @property
    def takes_volumes(self) -> bool:
        """True if its examples are volumes, not images."""
        return len(self.image_shape) == 4


def _build(
    build: Callable[..., mtf.Tensor],
    base: "DataclassInstance",
    images: mtf.Tensor,
    *,
    training: bool = False,
    **config: object,
) -> mtf.Tensor:
    """Build a module's network with a changed `base`."""
    return build(images, dataclasses.replace(base, **config), training=training)


def _twin(
    kind: str,
    base: "DataclassInstance",
    made_for: Sequence[int],
    *,
    image_shape: Sequence[int] | None = None,
    dtype: str = "float32",
    **config: object,
) -> "Twin":
    """Return the maker of a network's Keras twin: a function of mtf_hetero.keras.twins, with a changed `base`."""
    from mtf_hetero.keras import twins  # imports Keras

    return getattr(twins, kind)(dataclasses.replace(base, **config), tuple(image_shape or made_for), dtype)


def _model(
    module: ModuleType,
    base: "DataclassInstance",
    parameters: int,
    image_shape: tuple[int, ...] = (32, 32, 3),
    outputs: int = 10,
    task: type[Task] = Classification,
) -> Model:
    """Return a module's network with a configuration; the options of a Model follow from its images."""
    is_of_volumes = len(image_shape) == 4
    return Model(
        functools.partial(_build, module.build, base),
        image_shape,
        outputs,
        parameters,
        task,
        recomputes=is_of_volumes,
        in_rounds=not is_of_volumes,
        twin=functools.partial(_twin, module.__name__.rpartition(".")[2], base, image_shape),
    )


_DIGIT, _UNIVERSE, _SCAN = (28, 28, 1), (128, 128, 128, 4), (64, 64, 64, 1)
_COSMOFLOW_BN = dataclasses.replace(cosmoflow.COSMOFLOW, batch_norm=True)

MODELS: Mapping[str, Model] = MappingProxyType(
    {
        "alexnet": _model(alexnet, alexnet.Config(), 35_855_178),
        "cosmoflow": _model(cosmoflow, cosmoflow.COSMOFLOW, 9_437_636, _UNIVERSE, 4, Regression),
        "cosmoflow_bn": _model(cosmoflow, _COSMOFLOW_BN, 9_439_652, _UNIVERSE, 4, Regression),
        "cosmoflow_small": _model(cosmoflow, cosmoflow.SMALL, 47_515, _SCAN, 3, Regression),
        "lenet": _model(lenet, lenet.Config(), 61_706, _DIGIT),
        "marques": _model(marques, marques.Config(), 19_749_510),
        "paper_cifar": _model(paper, paper.CIFAR, 4_610_766),
        "paper_mnist": _model(paper, paper.MNIST, 6_464_678, _DIGIT),
        "resnet18": _model(resnet, resnet.RESNET18, 11_173_962),
        "resnet34": _model(resnet, resnet.RESNET34, 21_282_122),
        "resnet50": _model(resnet, resnet.RESNET50, 23_520_842),
        "unet3d": _model(unet3d, unet3d.UNET3D, 19_070_560, _SCAN, 3, Segmentation),
        "unet3d_small": _model(unet3d, unet3d.SMALL, 98_928, _SCAN, 3, Segmentation),
        "vgg11": _model(vgg, vgg.VGG11, 28_144_010),
        "vgg13": _model(vgg, vgg.VGG13, 28_328_522),
        "vgg16": _model(vgg, vgg.VGG16, 33_638_218),
        "vgg19": _model(vgg, vgg.VGG19, 38_947_914),
    }
)
