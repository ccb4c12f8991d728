"""CosmoFlow (Oyama et al., IEEE TPDS 32(7), 2021): four cosmological parameters of a cube of the universe.

Seven convolutions of 3 x 3 x 3, the fourth with stride 2. An average pool of 3 x 3 x 3 and stride 2 follows while the
map is larger than 2 x 2 x 2: after the first five for cubes of 128, six for 256 and seven for 512, as in the paper.
Smaller cubes follow the same rule: four pools for 64, and three for 32. So all have the same number of parameters.

`SMALL` is a network of the same kind that learns from some hundred cubes in minutes on a CPU.
"""

import dataclasses
import functools
from collections.abc import Sequence

from mtf_hetero import mtf
from mtf_hetero.models import layers, recomputing

_LAST = 2  # voxels along each edge of the last map


@dataclasses.dataclass(frozen=True)
class Config:
    """Convolutions with pools, and a dense head.

    Args:
      filters: filters of each convolution.
      strided: number, from 1 on, of the convolution with stride 2.
      averaged: whether the dense layers read the mean of the last map's voxels, with batch norm, and not the map.
      head: units of the hidden dense layers.
      outputs: number of outputs.
      dropout: share of the inputs of each dense layer that is dropped in training.
      batch_norm: whether each convolution has batch norm.
      momentum: of its moving averages.
      per: dimensions of the batch with separate statistics for each index, as in mtf_hetero.layers.batch_norm.
      recompute: stages that the backward pass computes again, to save the memory of their maps: "conv1" is the first
        convolution with all layers up to the next, and "all" is every stage.

    Raises:
      ValueError: the strided convolution does not exist.
    """

    filters: tuple[int, ...] = (16, 32, 64, 128, 256, 256, 256)
    strided: int = 4
    averaged: bool = False
    head: tuple[int, ...] = (2048, 256)
    outputs: int = 4
    dropout: float = 0.2
    batch_norm: bool = False
    momentum: float = 0.999
    per: tuple[str, ...] = ()
    recompute: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not 1 <= self.strided <= len(self.filters):
            raise ValueError(
                f"strided is {self.strided}, which is not a convolution; give a number from 1 to {len(self.filters)}"
            )

    @property
    def largest(self) -> int:
        """The edge of the largest cube: a pool after each convolution."""
        return _LAST * 2 ** (len(self.filters) + 1)

    def pools(self, extents: Sequence[int]) -> int:
        """Return the number of convolutions with a pool, so that the last map has 2 x 2 x 2 voxels.

        Args:
          extents: depth, height and width of the volumes.

        Raises:
          ValueError: the volumes do not fit the network.
        """
        edge = extents[0]
        if len(set(extents)) > 1 or edge & (edge - 1) or not 2 * _LAST <= edge <= self.largest:
            raise ValueError(
                f"volumes are of {' x '.join(map(str, extents))} voxels; give cubes whose edge is a power of two from "
                f"{2 * _LAST} to {self.largest}"
            )
        return (edge // _LAST).bit_length() - 2

    def normaliser(self, *, training: bool) -> layers.Normaliser:
        """Return a function of an mtf.Tensor and a name that applies batch norm."""
        return layers.normaliser(training=training, momentum=self.momentum, per=self.per)


COSMOFLOW = Config()
SMALL = Config(filters=(8, 16, 32, 32), averaged=True, head=(64,), outputs=3, dropout=0.0, momentum=0.9)


def build(volumes: mtf.Tensor, config: Config, *, training: bool = False) -> mtf.Tensor:
    """Return outputs [batch, outputs] of volumes [batch, depth, height, width, channels], cubes of 4, 8, ..., 512.

    Raises:
      ValueError: the volumes do not fit the network.
    """
    layers.check_images(volumes, layers.VOLUME)
    pools = config.pools([dim.size for dim in volumes.shape.dims[-4:-1]])
    names = [f"conv{number}" for number in range(1, len(config.filters) + 1)]
    again = recomputing.stages_to_recompute(config.recompute, names)
    x = volumes
    for number, name in enumerate(names, 1):
        stage = functools.partial(
            _stage,
            name=name,
            filters=config.filters[number - 1],
            strides=2 if number == config.strided else 1,
            normalise=config.normaliser(training=training) if config.batch_norm else None,
            pool=f"pool{number}" if number <= pools else None,
        )
        x = recomputing.recomputed(stage, x) if name in again else stage(x)
    batch = volumes.shape.dims[:-4]
    if config.averaged:
        x = mtf.reduce_mean(x, output_shape=mtf.Shape([*x.shape.dims[: len(batch)], x.shape.dims[-1]]))
        x = config.normaliser(training=training)(x, name="averaged/batch_norm")
    y = _head(x, config, len(batch), training=training)
    return mtf.reshape(y, mtf.Shape([*batch, mtf.Dimension("outputs", config.outputs)]))


def _stage(
    x: mtf.Tensor,
    *,
    name: str,
    filters: int,
    strides: int,
    normalise: layers.Normaliser | None,
    pool: str | None,
) -> mtf.Tensor:
    """Add a convolution, and the layers up to the next one."""
    x = layers.conv(
        x,
        filters,
        size=3,
        rank=3,
        strides=strides,
        name=name,
        initializer=layers.glorot_uniform,
        normalise=normalise,
        activation=layers.leaky_relu,
    )
    return x if pool is None else layers.pool(x, kind="avg", size=(3,) * 3, strides=2, padding=1, name=pool)


def _head(x: mtf.Tensor, config: Config, batch_dims: int, *, training: bool) -> mtf.Tensor:
    last = len(config.head) + 1
    for number, units in enumerate([*config.head, config.outputs], 1):
        x = mtf.dropout(x, is_training=training, rate=config.dropout, name=f"dropout{number}")
        x = layers.dense(
            x,
            units,
            batch_dims=batch_dims,
            name=f"dense{number}",
            initializer=layers.GLOROT,
            bias=0.1,
            activation=layers.leaky_relu if number < last else None,
        )
    return x
