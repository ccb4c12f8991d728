"""ResNet (He, Zhang, Ren and Sun 2016) of 18, 34 and 50 layers, with batch norm.

A block adds two branches. One is its input, convolved by 1 x 1 if the shape changes. The other has two convolutions of
3 x 3 (basic block), or of 1 x 1, 3 x 3 and 1 x 1 with four times the filters (bottleneck). A bottleneck has its stride
in the 3 x 3 convolution, as in later implementations, and padding is TensorFlow's SAME. No convolution has a bias.

The stem is the paper's for images of 224 pixels, a 7 x 7 convolution and a 3 x 3 pool both of stride 2, or, for images
of 32, a 3 x 3 convolution of stride 1.
"""

import dataclasses

from mtf_hetero import mtf
from mtf_hetero.models import layers

_EXPANSION = 4  # factor of a bottleneck's filters


@dataclasses.dataclass(frozen=True)
class Config(layers.Classifier):
    """A stem, stages of blocks, and a dense layer over the average pixel. Each stage except the first halves the image.

    Args:
      blocks: number of blocks per stage.
      filters: filters of the stem and of the stages.
      bottleneck: whether the blocks are bottlenecks.
      stem: "imagenet" or "cifar".

    Raises:
      ValueError: the stem is unknown, or a stage lacks its number of filters.
    """

    blocks: tuple[int, ...]
    filters: tuple[int, ...] = (64, 64, 128, 256, 512)
    bottleneck: bool = False
    stem: str = "cifar"

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


def _block(
    x: mtf.Tensor, filters: int, stride: int, *, bottleneck: bool, name: str, normalise: layers.Normaliser
) -> mtf.Tensor:
    """Add a block to x, [batch, height, width, channels]. The result has the names of the last convolution."""
    plan = [(3, stride, filters), (3, 1, filters)]
    if bottleneck:
        plan = [(1, 1, filters), (3, stride, filters), (1, 1, _EXPANSION * filters)]
    shortcut, out = x, plan[-1][-1]
    for number, (size, step, width) in enumerate(plan, 1):
        own, activation = f"{name}/conv{number}", mtf.relu if number < len(plan) else None
        x = layers.conv(x, width, size=size, strides=step, name=own, normalise=normalise, activation=activation)
    if stride != 1 or shortcut.shape.dims[-1].size != out:
        own = f"{name}/shortcut"
        shortcut = layers.conv(shortcut, out, size=1, strides=stride, name=own, normalise=normalise, activation=None)
    x = layers.rename_last(x, f"{name}/filters")
    return mtf.relu(x + mtf.reshape(shortcut, x.shape))


def build(images: mtf.Tensor, config: Config, *, training: bool = False) -> mtf.Tensor:
    """Return logits [batch, classes] of images [batch, height, width, channels]."""
    layers.check_images(images)
    normalise = layers.normaliser(training=training)
    if config.stem == "imagenet":
        x = layers.conv(images, config.filters[0], size=7, strides=2, name="stem", normalise=normalise)
        x = layers.overlapping_max_pool(x, name="stem/pool")
    else:
        x = layers.conv(images, config.filters[0], size=3, name="stem", normalise=normalise)
    for stage, (count, filters) in enumerate(zip(config.blocks, config.filters[1:], strict=True), 1):
        for number in range(1, count + 1):
            stride = 2 if stage > 1 and number == 1 else 1
            name = f"stage{stage}/block{number}"
            x = _block(x, filters, stride, bottleneck=config.bottleneck, name=name, normalise=normalise)
    *examples, _, _, channels = x.shape.dims
    x = mtf.reduce_mean(x, output_shape=[*examples, channels])
    batch = images.shape.dims[:-3]
    return layers.classifier(x, (), config, batch=batch, last="dense")
