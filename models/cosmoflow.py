"""CosmoFlow (Oyama et al., IEEE TPDS 32(7), 2021): four cosmological parameters of a cube of the universe.

Seven convolutions of 3 x 3 x 3, the fourth with stride 2, each with an average pool of 3 x 3 x 3 and stride 2 after it
for as long as the map is larger than 2 x 2 x 2: after the first five for cubes of 128, six of 256 and seven of 512, as
in the paper. Smaller cubes are treated alike: of 64, the first four have a pool, and of 32, the first three. So the
number of parameters is the same for all.

`build_small` makes a network of the same kind that learns from some hundred cubes in minutes on a CPU.
"""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

from mtf_hetero import mtf
from mtf_hetero.models import volume_layers

_LAST = 2  # voxels along each edge of the last map


@dataclasses.dataclass(frozen=True)
class Config:
    """Convolutions with pools, and a dense head.

    Args:
      filters: per convolution, its filters.
      strided: number, from 1 on, of the convolution with stride 2.
      averaged: whether the dense layers take the mean of the last map's voxels, with batch norm, in place of the map.
      head: units of the hidden dense layers.
      outputs: number of outputs.
      dropout: share of the inputs of each dense layer that is dropped in training.
      batch_norm: whether each convolution has batch norm.
      momentum: of its moving averages.
      per: dimensions of the batch each index of which is normalised by itself, as in mtf_hetero.layers.batch_norm.
      recompute: stages that the backward pass computes again, so that their maps need not be kept: "conv1" is the first
        convolution with all up to the next, and "all" is every one.

    Raises:
      ValueError: the strided convolution is none of them.
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
        """How many of the convolutions have a pool after them, for the last map to be of 2 x 2 x 2.

        Args:
          extents: depth, height and width of the volumes.

        Raises:
          ValueError: volumes that the network cannot take.
        """
        edge = extents[0]
        if len(set(extents)) > 1 or edge & (edge - 1) or not 2 * _LAST <= edge <= self.largest:
            raise ValueError(
                f"volumes are of {' x '.join(map(str, extents))} voxels; give cubes whose edge is a power of two from "
                f"{2 * _LAST} to {self.largest}"
            )
        return (edge // _LAST).bit_length() - 2

    def normaliser(self, *, training: bool) -> Callable[..., Any]:
        """Batch norm, of an mtf.Tensor and under a name."""
        return volume_layers.normaliser(training=training, momentum=self.momentum, per=self.per)


COSMOFLOW = Config()
SMALL = Config(filters=(8, 16, 32, 32), averaged=True, head=(64,), outputs=3, dropout=0.0, momentum=0.9)


def build(volumes: mtf.Tensor, *, training: bool = False, **config: Any) -> mtf.Tensor:
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
    return _build(volumes, dataclasses.replace(COSMOFLOW, **config), training=training)


def build_small(volumes: mtf.Tensor, *, training: bool = False, **config: Any) -> mtf.Tensor:
    """Builds the small network, for cubes of up to 64 voxels; otherwise as `build`. `config` changes `SMALL`."""
    return _build(volumes, dataclasses.replace(SMALL, **config), training=training)


def _build(volumes: mtf.Tensor, network: Config, *, training: bool) -> mtf.Tensor:
    volume_layers.check_volumes(volumes)
    pools = network.pools(volume_layers.extents(volumes))
    names = [f"conv{number}" for number in range(1, len(network.filters) + 1)]
    again = volume_layers.stages_to_recompute(network.recompute, names)
    x = volumes
    for number, name in enumerate(names, 1):
        stage = functools.partial(
            _stage,
            name=name,
            filters=network.filters[number - 1],
            strides=2 if number == network.strided else 1,
            normalise=network.normaliser(training=training) if network.batch_norm else None,
            pool=f"pool{number}" if number <= pools else None,
        )
        x = volume_layers.recomputed(stage, x) if name in again else stage(x)
    batch = volumes.shape.dims[:-4]
    if network.averaged:
        x = mtf.reduce_mean(x, output_shape=mtf.Shape([*x.shape.dims[: len(batch)], x.shape.dims[-1]]))
        x = network.normaliser(training=training)(x, name="averaged/batch_norm")
    y = _head(x, network, len(batch), training=training)
    return mtf.reshape(y, mtf.Shape([*batch, mtf.Dimension("outputs", network.outputs)]))


def _stage(x: mtf.Tensor, *, name: str, filters: int, strides: int, normalise: Any, pool: str | None) -> mtf.Tensor:
    """A convolution, and what there is up to the next."""
    x = volume_layers.conv3d(
        x,
        filters,
        size=3,
        strides=strides,
        name=name,
        initializer=volume_layers.glorot_uniform,
        normalise=normalise,
        activation=volume_layers.leaky_relu,
    )
    return x if pool is None else volume_layers.pool3d(x, kind="avg", size=3, strides=2, padding=1, name=pool)


def _head(x: mtf.Tensor, network: Config, batch_dims: int, *, training: bool) -> mtf.Tensor:
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
