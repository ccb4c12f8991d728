"""3D U-Net (Cicek et al. 2016, as in Oyama et al., IEEE TPDS 32(7), 2021): a class for every voxel of a volume.

Each level down has two convolutions of 3 x 3 x 3 with batch norm and relu, and a maximum pool of 2 x 2 x 2; each level
up a transposed convolution of 2 x 2 x 2 with stride 2, what the level down had before its pool beside it, and two
convolutions. A convolution of 1 x 1 x 1 gives the classes. Padding is SAME, so that they are as many as the voxels, and
there is no bias.

`build_small` makes a network of the same kind that learns from one scan in minutes on a CPU.
"""

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any

from mtf_hetero import mtf
from mtf_hetero.models import volume_layers
from mtf_hetero.models.layers import rename_last


@dataclasses.dataclass(frozen=True)
class Config:
    """Filters of each convolution, level by level from the top.

    Args:
      down: of the two convolutions of a level on the way down.
      bottom: of the two below all levels.
      up: of the two convolutions of a level on the way up. The transposed one before them has as many filters as its
        input.
      classes: number of classes.
      batch_norm: whether each convolution but the last has batch norm.
      momentum: of its moving averages.
      per: dimensions of the batch each index of which is normalised by itself, as in mtf_hetero.layers.batch_norm.
      recompute: stages that the backward pass computes again, so that their maps need not be kept: "down1", "bottom" or
        "up1" has the convolutions of a level, with the transposed one, and "all" is every one.

    Raises:
      ValueError: there are not as many levels up as down.
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
        """Their names, in the order of the network."""
        levels = range(1, len(self.down) + 1)
        return (*(f"down{level}" for level in levels), "bottom", *(f"up{level}" for level in reversed(levels)))


UNET3D = Config()
SMALL = Config(down=((8, 8), (16, 16)), bottom=(32, 32), up=((8, 8), (16, 16)))


def build(volumes: mtf.Tensor, *, training: bool = False, **config: Any) -> mtf.Tensor:
    """Builds the network; `config` changes `UNET3D`.

    Args:
      volumes: mtf.Tensor [batch, depth, height, width, channels], of which each extent can be halved at every level.
      training: whether to normalise by the batch.
      **config: fields of `Config`.

    Returns:
      Logits, mtf.Tensor [batch, depth, height, width, classes].

    Raises:
      ValueError: volumes that the network cannot take.
    """
    return _build(volumes, dataclasses.replace(UNET3D, **config), training=training)


def build_small(volumes: mtf.Tensor, *, training: bool = False, **config: Any) -> mtf.Tensor:
    """Builds the small network, of two levels; otherwise as `build`. `config` changes `SMALL`."""
    return _build(volumes, dataclasses.replace(SMALL, **config), training=training)


def _build(volumes: mtf.Tensor, network: Config, *, training: bool) -> mtf.Tensor:
    volume_layers.check_volumes(volumes)
    factor = 2 ** len(network.down)
    if any(extent % factor for extent in volume_layers.extents(volumes)):
        raise ValueError(
            f"volumes are of {' x '.join(map(str, volume_layers.extents(volumes)))} voxels; the network halves them "
            f"{len(network.down)} times; give multiples of {factor}"
        )
    again = volume_layers.stages_to_recompute(network.recompute, network.stages)
    normalise = None
    if network.batch_norm:
        normalise = volume_layers.normaliser(training=training, momentum=network.momentum, per=network.per)

    def stage(function: Any, name: str, filters: Sequence[int], *inputs: mtf.Tensor) -> mtf.Tensor:
        bound = functools.partial(function, name=name, filters=filters, normalise=normalise)
        return volume_layers.recomputed(bound, *inputs) if name in again else bound(*inputs)

    x, skips = volumes, []
    for level, filters in enumerate(network.down, 1):
        x = stage(_twice, f"down{level}", filters, x)
        skips.append(x)
        x = volume_layers.pool3d(x, kind="max", size=2, strides=2, name=f"pool{level}")
    x = stage(_twice, "bottom", network.bottom, x)
    for level, filters in reversed(list(enumerate(network.up, 1))):
        x = stage(functools.partial(_up, level=level), f"up{level}", filters, x, skips.pop())
    x = volume_layers.conv3d(x, network.classes, size=1, name="head")
    return rename_last(x, *volumes.shape.dimension_names[:-1], "classes")


def _twice(x: mtf.Tensor, *, filters: Sequence[int], name: str, normalise: Any) -> mtf.Tensor:
    """Two convolutions, NAME/conv1 and NAME/conv2."""
    for number, count in enumerate(filters, 1):
        x = volume_layers.conv3d(
            x, count, size=3, name=f"{name}/conv{number}", normalise=normalise, activation=mtf.relu
        )
    return x


def _up(
    x: mtf.Tensor, skip: mtf.Tensor, *, level: int, filters: Sequence[int], name: str, normalise: Any
) -> mtf.Tensor:
    """The transposed convolution, what the level down had beside it, and two convolutions."""
    x = volume_layers.conv3d_transpose(x, x.shape.dims[-1].size, name=f"transpose{level}")
    return _twice(_beside(x, skip, name=name), filters=filters, name=name, normalise=normalise)


def _beside(x: mtf.Tensor, skip: mtf.Tensor, *, name: str) -> mtf.Tensor:
    """The channels of two volumes of one size: [NAME/batch, NAME/depth, NAME/height, NAME/width, NAME/both]."""
    return mtf.concat([volume_layers.entered(part, name, "both") for part in (x, skip)], f"{name}/both")
