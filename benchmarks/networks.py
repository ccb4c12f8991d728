"""The networks as plain data, for the frameworks that mtf's models are compared with. Nothing is imported here.

Initial values are drawn with NumPy, so that every framework trains the same network from the same weights.
"""

import dataclasses
import math
from collections.abc import Mapping, Sequence
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
    """A chain of layers; what the first dense layer gets is flattened, rows first, channels last."""

    model: str  # its name in models.MODELS
    image_shape: tuple[int, int, int]  # (height, width, channels)
    layers: tuple[Layer, ...]
    config: Mapping[str, Any] = dataclasses.field(default_factory=dict)  # keyword arguments of the model's build

    @property
    def classes(self) -> int:
        """Number of classes."""
        last = self.layers[-1]
        assert isinstance(last, Dense)
        return last.units


def _head(*units: int) -> tuple[Layer, ...]:
    return tuple(Dense(n, relu=i < len(units) - 1) for i, n in enumerate(units))


def _stages(stages: Sequence[Sequence[int]], head: Sequence[int], *, use_bias: bool) -> tuple[Layer, ...]:
    """Stages of convolutions of 3 x 3, each with a pool, and a head."""
    layers: list[Layer] = []
    for stage in stages:
        layers += [*(Conv(3, filters, use_bias) for filters in stage), MaxPool()]
    return (*layers, *_head(*head))


_PAPER_STAGES = tuple((filters, filters) for filters in (60, 120, 240, 480))
_TOY_STAGES = ((4, 6),)
_VGG_STAGES = {
    "vgg11": ((64,), (128,), (256,) * 2, (512,) * 2, (512,) * 2),
    "vgg16": ((64,) * 2, (128,) * 2, (256,) * 3, (512,) * 3, (512,) * 3),
    "vgg19": ((64,) * 2, (128,) * 2, (256,) * 4, (512,) * 4, (512,) * 4),
}


def _vgg(model: str, edge: int = 32, **config: Any) -> Network:
    """Return a VGG on images of so many pixels along each edge; config: changed arguments of the model's build."""
    stages, head = config.get("stages", _VGG_STAGES[model]), config.get("head", (4096, 4096))
    return Network(model, (edge, edge, 3), _stages(stages, (*head, 10), use_bias=True), {**config, "dropout": 0.0})


_MNIST_LAYERS = (Conv(7, 60, False), Conv(5, 120, False), Conv(3, 240, False), AvgPool(), *_head(128, 10))
_MARQUES_LAYERS = (Conv(5, 500, True), MaxPool(), Conv(5, 1500, True), MaxPool(), *_head(10))
_TOY_CONFIG = {"stages": (((3, 4), (3, 6)),), "units": 8}

NETWORKS: Mapping[str, Network] = MappingProxyType(
    {
        "paper_cifar": Network("paper_cifar", (32, 32, 3), _stages(_PAPER_STAGES, (256, 10), use_bias=False)),
        "vgg16": _vgg("vgg16"),
        "vgg11_4096": _vgg("vgg11"),
        "vgg19": _vgg("vgg19"),
        "vgg11": _vgg("vgg11", head=(512,)),
        "paper_mnist": Network("paper_mnist", (28, 28, 1), _MNIST_LAYERS),
        "marques": Network("marques", (32, 32, 3), _MARQUES_LAYERS),
        "toy_vgg": _vgg("vgg16", 8, stages=_TOY_STAGES, head=(8, 8)),
        "toy": Network("paper_cifar", (8, 8, 3), _stages(_TOY_STAGES, (8, 10), use_bias=False), _TOY_CONFIG),
    }
)


def _kernel(rng: np.random.Generator, shape: tuple[int, ...], gain: float) -> np.ndarray:
    """Return normal numbers of variance gain / inputs, those beyond two standard deviations drawn again."""
    values = rng.standard_normal(shape, np.float32)
    while (beyond := np.abs(values) > 2).any():
        values[beyond] = rng.standard_normal(int(beyond.sum()), np.float32)
    return values * np.float32(math.sqrt(gain / math.prod(shape[:-1])))


def initial_values(network: Network, seed: int) -> list[np.ndarray]:
    """Kernel and bias of each layer in turn, as models.layers draws them (He et al. 2015, for relu): float32 arrays.

    Those of convolutions are [height, width, channels, filters], of dense layers [inputs, units]; biases are zero.
    """
    rng = np.random.default_rng(seed)
    height, width, channels = network.image_shape
    inputs = None  # of the next dense layer
    values = []
    for layer in network.layers:
        if isinstance(layer, (MaxPool, AvgPool)):
            height, width = height // 2, width // 2
        elif isinstance(layer, Conv):
            values.append(_kernel(rng, (layer.size, layer.size, channels, layer.filters), 2))
            values += [np.zeros(layer.filters, np.float32)] if layer.use_bias else []
            channels = layer.filters
        else:
            inputs = height * width * channels if inputs is None else inputs
            values += [_kernel(rng, (inputs, layer.units), 2 if layer.relu else 1), np.zeros(layer.units, np.float32)]
            inputs = layer.units
    return values


def batch(network: Network, batch_size: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Return fixed random images, float32 [batch, height, width, channels], and labels, int32 [batch]."""
    rng = np.random.default_rng([seed, batch_size])
    images = rng.standard_normal((batch_size, *network.image_shape), np.float32)
    return images, rng.integers(0, network.classes, batch_size, dtype=np.int32)


@dataclasses.dataclass(frozen=True)
class Staged:
    """A network whose layers are placed on devices: a Transformer, or one of keras.applications on square images.

    Args:
      batch_size: examples of a step.
      size: height and width of an image; 0 for a Transformer.
      layers: of a Transformer: pairs of attention and two dense layers.
      width: of a token.
      hidden: units between two dense layers.
      heads: of attention.
      length: tokens of an example.
      classes: of an image or a token.
    """

    batch_size: int
    size: int = 0
    layers: int = 0
    width: int = 0
    hidden: int = 0
    heads: int = 0
    length: int = 0
    classes: int = 1000

    def batch(self, seed: int) -> tuple[Any, Any]:
        """Return inputs and labels."""
        rng = np.random.default_rng(seed)
        if self.size:
            images = rng.standard_normal([self.batch_size, self.size, self.size, 3], dtype="float32")
            return images, rng.integers(0, self.classes, self.batch_size, dtype="int32")
        shape = self.batch_size, self.length
        return rng.integers(0, self.classes, shape, dtype="int32"), rng.integers(0, self.classes, shape, dtype="int32")


STAGED: Mapping[str, Staged] = MappingProxyType(
    {
        "VGG16": Staged(64, size=32),
        "ResNet50": Staged(32, size=64),
        "Transformer": Staged(8, layers=12, width=448, hidden=1792, heads=7, length=64, classes=512),  # 29 million
        "toy": Staged(8, layers=2, width=16, hidden=32, heads=2, length=4, classes=8),
    }
)
