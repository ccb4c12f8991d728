"""The networks as plain data, for the frameworks that mtf's models are compared with. Nothing is imported here.

Initial values are drawn with NumPy, so that every framework trains the same network from the same weights.
"""

import dataclasses
import math
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import numpy as np


@dataclasses.dataclass(frozen=True)
class Conv:
    """A convolution (SAME, stride 1) with a relu: height and width of the kernel, filters, whether it has a bias."""

    size: int
    filters: int
    use_bias: bool


@dataclasses.dataclass(frozen=True)
class MaxPool:
    """A max pool of 2 x 2 windows."""


@dataclasses.dataclass(frozen=True)
class AvgPool:
    """An average pool of 2 x 2 windows."""


@dataclasses.dataclass(frozen=True)
class Dense:
    """A dense layer with a bias: units, and whether a relu follows."""

    units: int
    relu: bool


Layer = Conv | MaxPool | AvgPool | Dense


@dataclasses.dataclass(frozen=True)
class Network:
    """A chain of layers.

    Args:
      model: its name in models.MODELS.
      image_shape: (height, width, channels).
      layers: the layers; what the first dense layer gets is flattened, rows first, channels last.
      config: keyword arguments of the model's build.
    """

    model: str
    image_shape: tuple[int, int, int]
    layers: tuple[Layer, ...]
    config: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    @property
    def classes(self) -> int:
        """Number of classes."""
        last = self.layers[-1]
        assert isinstance(last, Dense)
        return last.units


def _stages(stages: tuple[tuple[int, ...], ...], *, use_bias: bool) -> tuple[Layer, ...]:
    layers: list[Layer] = []
    for stage in stages:
        layers += [Conv(3, filters, use_bias) for filters in stage]
        layers.append(MaxPool())
    return tuple(layers)


def _head(*units: int) -> tuple[Layer, ...]:
    return tuple(Dense(n, relu=i < len(units) - 1) for i, n in enumerate(units))


_PAPER_STAGES = tuple((filters, filters) for filters in (60, 120, 240, 480))
_VGG16_STAGES = ((64,) * 2, (128,) * 2, (256,) * 3, (512,) * 3, (512,) * 3)
_VGG19_STAGES = ((64,) * 2, (128,) * 2, (256,) * 4, (512,) * 4, (512,) * 4)
_VGG11_STAGES = ((64,), (128,), (256,) * 2, (512,) * 2, (512,) * 2)
_TOY = (4, 6)

NETWORKS: Mapping[str, Network] = MappingProxyType(
    {
        "paper_cifar": Network("paper_cifar", (32, 32, 3), _stages(_PAPER_STAGES, use_bias=False) + _head(256, 10)),
        "vgg16": Network(
            "vgg16", (32, 32, 3), _stages(_VGG16_STAGES, use_bias=True) + _head(4096, 4096, 10), {"dropout": 0.0}
        ),
        "vgg11_4096": Network(
            "vgg11", (32, 32, 3), _stages(_VGG11_STAGES, use_bias=True) + _head(4096, 4096, 10), {"dropout": 0.0}
        ),
        "vgg19": Network(
            "vgg19", (32, 32, 3), _stages(_VGG19_STAGES, use_bias=True) + _head(4096, 4096, 10), {"dropout": 0.0}
        ),
        "vgg11": Network(
            "vgg11",
            (32, 32, 3),
            _stages(_VGG11_STAGES, use_bias=True) + _head(512, 10),
            {"head": (512,), "dropout": 0.0},
        ),
        "paper_mnist": Network(
            "paper_mnist",
            (28, 28, 1),
            (Conv(7, 60, False), Conv(5, 120, False), Conv(3, 240, False), AvgPool(), *_head(128, 10)),
        ),
        "marques": Network(
            "marques",
            (32, 32, 3),
            (Conv(5, 500, True), MaxPool(), Conv(5, 1500, True), MaxPool(), *_head(10)),
        ),
        "toy_vgg": Network(
            "vgg16",
            (8, 8, 3),
            _stages((_TOY,), use_bias=True) + _head(8, 8, 10),
            {"stages": (_TOY,), "head": (8, 8), "dropout": 0.0},
        ),
        "toy": Network(
            "paper_cifar",
            (8, 8, 3),
            _stages((_TOY,), use_bias=False) + _head(8, 10),
            {"stages": (tuple((3, filters) for filters in _TOY),), "units": 8},
        ),
    }
)


def _truncated_normal(rng: np.random.Generator, shape: tuple[int, ...], stddev: float) -> np.ndarray:
    """Normal numbers, those beyond two standard deviations drawn again."""
    values = rng.standard_normal(shape, np.float32)
    while (beyond := np.abs(values) > 2).any():
        values[beyond] = rng.standard_normal(int(beyond.sum()), np.float32)
    return values * np.float32(stddev)


def initial_values(network: Network, seed: int) -> list[np.ndarray]:
    """Kernel and bias of each layer in turn, as models.layers draws them (He et al. 2015, for relu).

    Returns:
      float32 arrays: convolutions [height, width, channels, filters], dense layers [inputs, units], biases zero.
    """
    rng = np.random.default_rng(seed)
    height, width, channels = network.image_shape
    inputs = None  # of the next dense layer
    values = []
    for layer in network.layers:
        if isinstance(layer, (MaxPool, AvgPool)):
            height, width = height // 2, width // 2
        elif isinstance(layer, Conv):
            stddev = math.sqrt(2 / (layer.size**2 * channels))
            values.append(_truncated_normal(rng, (layer.size, layer.size, channels, layer.filters), stddev))
            if layer.use_bias:
                values.append(np.zeros(layer.filters, np.float32))
            channels = layer.filters
        else:
            inputs = height * width * channels if inputs is None else inputs
            stddev = math.sqrt((2 if layer.relu else 1) / inputs)
            values += [_truncated_normal(rng, (inputs, layer.units), stddev), np.zeros(layer.units, np.float32)]
            inputs = layer.units
    return values


def batch(network: Network, batch_size: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Fixed random images, float32 [batch, height, width, channels], and labels, int32 [batch]."""
    rng = np.random.default_rng([seed, batch_size])
    images = rng.standard_normal((batch_size, *network.image_shape), np.float32)
    return images, rng.integers(0, network.classes, batch_size, dtype=np.int32)
