"""CosmoFlow (Oyama et al., IEEE TPDS 32(7), 2021): four cosmological parameters of a cube of the universe.

Seven convolutions of 3 x 3 x 3, the fourth with stride 2, each with an average pool of 3 x 3 x 3 and stride 2 after it
for as long as the map is larger than 2 x 2 x 2: after the first five for cubes of 128, six of 256 and seven of 512, as
in the paper. Smaller cubes are treated alike: of 64, the first four have a pool, and of 32, the first three. So the
number of parameters is the same for all.
"""

import dataclasses
import functools
from typing import Any

import mtf_hetero.layers
from models import volume_layers
from mtf_hetero import mtf

_LAST = 2  # voxels along each edge of the last map


@dataclasses.dataclass(frozen=True)
class Config:
    """Convolutions with pools, and a dense head.

    Args:
      filters: per convolution, its filters.
      strided: number, from 1 on, of the convolution with stride 2.
      head: units of the hidden dense layers.
      outputs: number of outputs.
      dropout: share of the inputs of each dense layer that is dropped in training.
      batch_norm: whether each convolution has batch norm.
      momentum: of its moving averages.
      per: dimensions of the batch each index of which is normalised by itself, as in mtf_hetero.layers.batch_norm.

    Raises:
      ValueError: the strided convolution is none of them.
    """

    filters: tuple[int, ...] = (16, 32, 64, 128, 256, 256, 256)
    strided: int = 4
    head: tuple[int, ...] = (2048, 256)
    outputs: int = 4
    dropout: float = 0.2
    batch_norm: bool = False
    momentum: float = 0.999
    per: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not 1 <= self.strided <= len(self.filters):
            raise ValueError(
                f"strided is {self.strided}, but there are {len(self.filters)} convolutions; give the number of one"
            )

    @property
    def largest(self) -> int:
        """The edge of the largest cube: a pool after each convolution."""
        return _LAST * 2 ** (len(self.filters) + 1)


COSMOFLOW = Config()


def build(volumes: Any, *, training: bool = False, **config: Any) -> Any:
    """Builds the network; `config` changes `COSMOFLOW`.

    Args:
      volumes: mtf.Tensor [batch, depth, height, width, channels], cubes of an edge of 4, 8, ..., 512 voxels.
      training: whether to drop, and to normalise by the batch.
      **config: fields of `Config`.

    Returns:
      mtf.Tensor [batch, outputs].

    Raises:
      ValueError: volumes that the network cannot take.
    """
    network = dataclasses.replace(COSMOFLOW, **config)
    volume_layers.check_volumes(volumes)
    pools = _pools(volume_layers.extents(volumes), network)
    normalise = None
    if network.batch_norm:
        normalise = functools.partial(
            mtf_hetero.layers.batch_norm, training=training, momentum=network.momentum, per=network.per
        )
    x = volumes
    for number, filters in enumerate(network.filters, 1):
        x = volume_layers.conv3d(
            x,
            filters,
            size=3,
            strides=2 if number == network.strided else 1,
            name=f"conv{number}",
            initializer=volume_layers.glorot_uniform,
            normalise=normalise,
            activation=volume_layers.leaky_relu,
        )
        if number <= pools:
            x = volume_layers.pool3d(x, kind="avg", size=3, strides=2, padding=1, name=f"pool{number}")
    batch = volumes.shape.dims[:-4]
    y = _head(x, network, len(batch), training=training)
    return mtf.reshape(y, mtf.Shape([*batch, mtf.Dimension("outputs", network.outputs)]))


def _pools(extents: tuple[int, ...], network: Config) -> int:
    """How many of the convolutions have a pool after them, for the last map to be of 2 x 2 x 2."""
    edge = extents[0]
    if len(set(extents)) > 1 or edge & (edge - 1) or not 2 * _LAST <= edge <= network.largest:
        raise ValueError(
            f"volumes are of {' x '.join(map(str, extents))} voxels; give cubes whose edge is a power of two from "
            f"{2 * _LAST} to {network.largest}"
        )
    return (edge // _LAST).bit_length() - 2


def _head(x: Any, network: Config, batch_dims: int, *, training: bool) -> Any:
    last = len(network.head) + 1
    for number, units in enumerate([*network.head, network.outputs], 1):
        x = mtf.dropout(x, is_training=training, rate=network.dropout, name=f"dropout{number}")
        x = volume_layers.dense(
            x,
            units,
            batch_dims=batch_dims,
            name=f"dense{number}",
            bias=0.1,
            activation=volume_layers.leaky_relu if number < last else None,
        )
    return x
