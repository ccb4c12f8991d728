"""3D U-Net (Cicek et al. 2016, as in Oyama et al., IEEE TPDS 32(7), 2021): a class for every voxel of a volume.

Each level down has two convolutions of 3 x 3 x 3 with batch norm and relu, and a maximum pool of 2 x 2 x 2; each level
up a transposed convolution of 2 x 2 x 2 with stride 2, what the level down had before its pool beside it, and two
convolutions. A convolution of 1 x 1 x 1 gives the classes. Padding is SAME, so that they are as many as the voxels, and
there is no bias.
"""

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any

import mtf_hetero.layers
from models import volume_layers
from mtf_hetero import mtf


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

    def __post_init__(self) -> None:
        if len(self.down) != len(self.up):
            raise ValueError(f"there are {len(self.down)} levels down and {len(self.up)} up; give as many of both")


UNET3D = Config()


def build(volumes: Any, *, training: bool = False, **config: Any) -> Any:
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
    network = dataclasses.replace(UNET3D, **config)
    volume_layers.check_volumes(volumes)
    factor = 2 ** len(network.down)
    if any(extent % factor for extent in volume_layers.extents(volumes)):
        raise ValueError(
            f"volumes are of {' x '.join(map(str, volume_layers.extents(volumes)))} voxels; the network halves them "
            f"{len(network.down)} times: give multiples of {factor}"
        )
    normalise = None
    if network.batch_norm:
        normalise = functools.partial(
            mtf_hetero.layers.batch_norm, training=training, momentum=network.momentum, per=network.per
        )
    x, skips = volumes, []
    for level, filters in enumerate(network.down, 1):
        x = _twice(x, filters, name=f"down{level}", normalise=normalise)
        skips.append(x)
        x = volume_layers.pool3d(x, kind="max", size=2, strides=2, name=f"pool{level}")
    x = _twice(x, network.bottom, name="bottom", normalise=normalise)
    for level, filters in reversed(list(enumerate(network.up, 1))):
        x = volume_layers.conv3d_transpose(x, x.shape.dims[-1].size, name=f"transpose{level}")
        x = _beside(x, skips.pop(), name=f"up{level}")
        x = _twice(x, filters, name=f"up{level}", normalise=normalise)
    x = volume_layers.conv3d(x, network.classes, size=1, name="head")
    return volume_layers.rename(x, volumes.shape.dimension_names[-4:-1], "classes")


def _twice(x: Any, filters: Sequence[int], *, name: str, normalise: Any) -> Any:
    """Two convolutions, NAME/conv1 and NAME/conv2."""
    for number, count in enumerate(filters, 1):
        x = volume_layers.conv3d(
            x, count, size=3, name=f"{name}/conv{number}", normalise=normalise, activation=mtf.relu
        )
    return x


def _beside(x: Any, skip: Any, *, name: str) -> Any:
    """The channels of two volumes of one size: [batch, NAME/depth, NAME/height, NAME/width, NAME/both]."""
    return mtf.concat([volume_layers.entered(part, name, "both") for part in (x, skip)], f"{name}/both")
