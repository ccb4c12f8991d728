"""VGG (Simonyan and Zisserman 2015) for images of 32 x 32 pixels: configurations A, B, D and E.

The convolutions are the paper's. Five pools leave one pixel of 32 x 32, so that the dense head has 512 inputs. The
paper's head, for 224 x 224, has 25,088. Its default units are the paper's, 4096 and 4096.
"""

import dataclasses

from mtf_hetero import mtf
from mtf_hetero.models import layers

_FILTERS = (64, 128, 256, 512, 512)


def _stages(*depths: int) -> tuple[tuple[int, ...], ...]:
    return tuple((filters,) * depth for filters, depth in zip(_FILTERS, depths, strict=True))


@dataclasses.dataclass(frozen=True)
class Config(layers.Classifier):
    """Stages of convolutions of 3 x 3, each with a 2 x 2 pool after it, and a dense head.

    Args:
      stages: filters of each convolution in each stage.
      head: units of the hidden dense layers.
      batch_norm: whether each convolution has batch norm in place of a bias.
      dropout: share of the inputs of each dense layer except the first that is dropped in training.
    """

    stages: tuple[tuple[int, ...], ...]
    head: tuple[int, ...] = (4096, 4096)
    batch_norm: bool = False
    dropout: float = 0.5


VGG11 = Config(_stages(1, 1, 2, 2, 2))
VGG13 = Config(_stages(2, 2, 2, 2, 2))
VGG16 = Config(_stages(2, 2, 3, 3, 3))
VGG19 = Config(_stages(2, 2, 4, 4, 4))


def build(images: mtf.Tensor, config: Config, *, training: bool = False) -> mtf.Tensor:
    """Return logits [batch, classes] of images [batch, height, width, channels], 32 x 32 x 3 in the registry."""
    layers.check_images(images)
    normalise = layers.normaliser(training=training) if config.batch_norm else None
    x = images
    for stage, convolutions in enumerate(config.stages, 1):
        for number, filters in enumerate(convolutions, 1):
            name = f"conv{stage}_{number}"
            x = layers.conv(x, filters, size=3, name=name, use_bias=not config.batch_norm, normalise=normalise)
        x = layers.pool(x, kind="max", name=f"pool{stage}")

    def drop(y: mtf.Tensor, number: int) -> mtf.Tensor:
        return mtf.dropout(y, is_training=training, rate=config.dropout, name=f"dropout{number}")

    batch = images.shape.dims[:-3]
    return layers.classifier(x, config.head, config, batch=batch, drop=drop)
