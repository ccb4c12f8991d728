"""3D U-Net (Cicek et al. 2016, as in Oyama et al., IEEE TPDS 32(7), 2021): a class for every voxel of a volume.

Each level down has two convolutions of 3 x 3 x 3 with batch norm and relu, and a max pool of 2 x 2 x 2. Each level up
has a transposed convolution of 2 x 2 x 2 with stride 2, concatenates the level down before its pool, and has two
convolutions. A convolution of 1 x 1 x 1 gives the classes. Padding is SAME, so that each voxel has a class. No
convolution has a bias.

`SMALL` is a network of the same kind that learns from one scan in minutes on a CPU.
"""

import dataclasses
import functools
from collections.abc import Callable, Sequence

from mtf_hetero import mtf
from mtf_hetero.models import layers, recomputing


@dataclasses.dataclass(frozen=True)
class Config:
    """Filters of each convolution, level by level from the top.

    Args:
      down: filters of a level's two convolutions on the way down.
      bottom: filters of the two convolutions below all levels.
      up: filters of a level's two convolutions on the way up. The transposed one before them has as many filters as
        its input.
      classes: number of classes.
      batch_norm: whether each convolution but the last has batch norm.
      momentum: of its moving averages.
      per: dimensions of the batch with separate statistics for each index, as in mtf_hetero.layers.batch_norm.
      recompute: stages that the backward pass computes again, to save the memory of their maps: "down1", "bottom" or
        "up1" is a level with all its convolutions, and "all" is every level.

    Raises:
      ValueError: the numbers of levels up and down differ.
    """

    down: tuple[tuple[int, int], ...] = ((32, 64), (64, 128), (128, 256))
    bottom: tuple[int, int] = (256, 512)
    up: tuple[tuple[int, int], ...] = ((64, 64), (128, 128), (256, 256))
    classes: int = 3
    batch_norm: bool = True
    momentum: float = 0.9
    per: tuple[str, ...] = ()
    recompute: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if len(self.down) != len(self.up):
            raise ValueError(f"down has {len(self.down)} levels and up has {len(self.up)}; give the same number")

    @property
    def stages(self) -> tuple[str, ...]:
        """Names of the stages, in the order of the config."""
        levels = range(1, len(self.down) + 1)
        return (*(f"down{level}" for level in levels), "bottom", *(f"up{level}" for level in reversed(levels)))


UNET3D = Config()
SMALL = Config(down=((8, 8), (16, 16)), bottom=(32, 32), up=((8, 8), (16, 16)))


def build(volumes: mtf.Tensor, config: Config, *, training: bool = False) -> mtf.Tensor:
    """Return logits [batch, depth, height, width, classes] of volumes [batch, depth, height, width, channels].

    Raises:
      ValueError: a level cannot halve the volumes, or they do not fit in another way.
    """
    layers.check_images(volumes, layers.VOLUME)
    factor, extents = 2 ** len(config.down), [dim.size for dim in volumes.shape.dims[-4:-1]]
    if any(extent % factor for extent in extents):
        raise ValueError(
            f"volumes are of {' x '.join(map(str, extents))} voxels; the network halves them "
            f"{len(config.down)} times; give multiples of {factor}"
        )
    again = recomputing.stages_to_recompute(config.recompute, config.stages)
    normalise = None
    if config.batch_norm:
        normalise = layers.normaliser(training=training, momentum=config.momentum, per=config.per)

    def stage(
        function: Callable[..., mtf.Tensor], name: str, filters: Sequence[int], *inputs: mtf.Tensor
    ) -> mtf.Tensor:
        bound = functools.partial(function, name=name, filters=filters, normalise=normalise)
        return recomputing.recomputed(bound, *inputs) if name in again else bound(*inputs)

    x, skips = volumes, []
    for level, filters in enumerate(config.down, 1):
        x = stage(_twice, f"down{level}", filters, x)
        skips.append(x)
        x = layers.pool(x, kind="max", size=(2,) * 3, padding="VALID", name=f"pool{level}")
    x = stage(_twice, "bottom", config.bottom, x)
    for level, filters in reversed(list(enumerate(config.up, 1))):
        x = stage(functools.partial(_up, level=level), f"up{level}", filters, x, skips.pop())
    x = layers.conv(x, config.classes, size=1, rank=3, name="head", activation=None)
    return layers.rename_last(x, *volumes.shape.dimension_names[:-1], "classes")


def _twice(x: mtf.Tensor, *, filters: Sequence[int], name: str, normalise: layers.Normaliser | None) -> mtf.Tensor:
    """Add two convolutions, NAME/conv1 and NAME/conv2."""
    for number, count in enumerate(filters, 1):
        x = layers.conv(x, count, size=3, rank=3, name=f"{name}/conv{number}", normalise=normalise)
    return x


def _up(
    x: mtf.Tensor,
    skip: mtf.Tensor,
    *,
    level: int,
    filters: Sequence[int],
    name: str,
    normalise: layers.Normaliser | None,
) -> mtf.Tensor:
    """Add a level on the way up: the transposed convolution, the concatenated level down, and two convolutions."""
    x = layers.conv3d_transpose(x, x.shape.dims[-1].size, name=f"transpose{level}")
    return _twice(_beside(x, skip, name=name), filters=filters, name=name, normalise=normalise)


def _beside(x: mtf.Tensor, skip: mtf.Tensor, *, name: str) -> mtf.Tensor:
    """Concatenate the channels of two volumes: [NAME/batch, NAME/depth, NAME/height, NAME/width, NAME/both]."""
    return mtf.concat([layers.rename_input(part, name, "both") for part in (x, skip)], f"{name}/both")
