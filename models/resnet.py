"""ResNet (He, Zhang, Ren and Sun 2016) of 18, 34 and 50 layers, with batch norm.

A block adds two branches: its input, convolved by 1 x 1 where the shape changes, and that input after two convolutions
of 3 x 3 (basic block) or of 1 x 1, 3 x 3 and 1 x 1 with four times the filters (bottleneck). A bottleneck has its
stride in the 3 x 3 convolution, as later implementations do, and padding is TensorFlow's SAME. No convolution has a
bias.

The stem is the paper's for images of 224 pixels, a 7 x 7 convolution and a 3 x 3 pool both of stride 2, or, for images
of 32, a 3 x 3 convolution of stride 1.
"""

import dataclasses
from typing import Any

from mtf_hetero import mtf
from mtf_hetero.models import layers

_EXPANSION = 4  # of the filters, by a bottleneck


@dataclasses.dataclass(frozen=True)
class Config:
    """A stem, stages of blocks that each halve the image but the first, and a dense layer over the average pixel.

    Args:
      blocks: number of blocks per stage.
      filters: filters of the stem and of the stages.
      bottleneck: whether the blocks are bottlenecks.
      stem: "imagenet" or "cifar".
      classes: number of classes.
      dense_rounds: sizes of the parts of the batch that pass the dense layer in turn; None: all at once.

    Raises:
      ValueError: a stem of another name, or not one number of filters for each stage.
    """

    blocks: tuple[int, ...]
    filters: tuple[int, ...] = (64, 64, 128, 256, 512)
    bottleneck: bool = False
    stem: str = "cifar"
    classes: int = 10
    dense_rounds: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        if self.stem not in ("imagenet", "cifar"):
            raise ValueError(f"stem is {self.stem!r}; it must be 'imagenet' or 'cifar'")
        if len(self.filters) != len(self.blocks) + 1:
            raise ValueError(
                f"filters are {self.filters} and blocks {self.blocks}; give filters for the stem and for each stage"
            )


RESNET18 = Config((2, 2, 2, 2))
RESNET34 = Config((3, 4, 6, 3))
RESNET50 = Config((3, 4, 6, 3), bottleneck=True)


def _block(x: mtf.Tensor, filters: int, stride: int, *, bottleneck: bool, name: str, training: bool) -> mtf.Tensor:
    """A block; x is [batch, height, width, channels], and the result has the names of the last convolution."""
    plan = [(3, stride, filters), (3, 1, filters)]
    if bottleneck:
        plan = [(1, 1, filters), (3, stride, filters), (1, 1, _EXPANSION * filters)]
    shortcut, out = x, plan[-1][-1]
    for number, (size, step, width) in enumerate(plan, 1):
        activation = mtf.relu if number < len(plan) else None
        x = layers.conv2d_batch_norm(
            x, width, size=size, strides=step, name=f"{name}/conv{number}", training=training, activation=activation
        )
    if stride != 1 or shortcut.shape.dims[-1].size != out:
        shortcut = layers.conv2d_batch_norm(
            shortcut, out, size=1, strides=stride, name=f"{name}/shortcut", training=training, activation=None
        )
    x = layers.rename_last(x, f"{name}/filters")
    return mtf.relu(x + mtf.reshape(shortcut, x.shape))


def build(images: mtf.Tensor, config: Config, *, training: bool = False) -> mtf.Tensor:
    """Builds a network of this family.

    Args:
      images: mtf.Tensor [batch, height, width, channels].
      config: its layers.
      training: whether to normalise by the batch.

    Returns:
      Logits, an mtf.Tensor [batch, classes].

    Raises:
      ValueError: images that the network cannot take.
    """
    layers.check_images(images)
    if config.stem == "imagenet":
        x = layers.conv2d_batch_norm(images, config.filters[0], size=7, strides=2, name="stem", training=training)
        x = layers.overlapping_max_pool(x, name="stem/pool")
    else:
        x = layers.conv2d_batch_norm(images, config.filters[0], size=3, name="stem", training=training)
    for stage, (count, filters) in enumerate(zip(config.blocks, config.filters[1:], strict=True), 1):
        for number in range(1, count + 1):
            stride = 2 if stage > 1 and number == 1 else 1
            name = f"stage{stage}/block{number}"
            x = _block(x, filters, stride, bottleneck=config.bottleneck, name=name, training=training)
    *examples, _, _, channels = x.shape.dims
    x = mtf.reduce_mean(x, output_shape=[*examples, channels])
    batch = images.shape.dims[:-3]
    return layers.classifier(x, (), config.classes, batch=batch, rounds=config.dense_rounds, last="dense")


def build_resnet18(images: mtf.Tensor, *, training: bool = False, **config: Any) -> mtf.Tensor:
    """2 basic blocks in each of 4 stages; `config` changes `RESNET18`."""
    return build(images, dataclasses.replace(RESNET18, **config), training=training)


def build_resnet34(images: mtf.Tensor, *, training: bool = False, **config: Any) -> mtf.Tensor:
    """3, 4, 6 and 3 basic blocks; `config` changes `RESNET34`."""
    return build(images, dataclasses.replace(RESNET34, **config), training=training)


def build_resnet50(images: mtf.Tensor, *, training: bool = False, **config: Any) -> mtf.Tensor:
    """3, 4, 6 and 3 bottlenecks; `config` changes `RESNET50`."""
    return build(images, dataclasses.replace(RESNET50, **config), training=training)
