"""Names of dimensions: each layer has its own, `LAYER/height`, and gives them to what comes in."""

import dataclasses
import re
from collections.abc import Iterable, Sequence

from mtf_hetero._compat import mtf

SPACE = {1: ("length",), 2: ("height", "width"), 3: ("depth", "height", "width")}


@dataclasses.dataclass(frozen=True, eq=False)
class Flattened:
    """A tensor of which all dimensions but the first count as one: what a Flatten layer gives to a dense one.

    Really flattened, it could not be split along the channels.

    Args:
      tensor: mtf.Tensor [batch, ...].
    """

    tensor: mtf.Tensor

    @property
    def mesh(self) -> mtf.Mesh:
        """The tensor's mesh."""
        return self.tensor.mesh

    def materialise(self, name: str) -> mtf.Tensor:
        """mtf.Tensor [batch, NAME/flat]."""
        batch, *others = self.tensor.shape.dims
        return mtf.reshape(self.tensor, [batch, mtf.Dimension(f"{name}/flat", mtf.Shape(others).size)])


def plain(name: str) -> str:
    """A layer's name without what mtf's layout strings and TensorFlow's scopes cannot hold."""
    name = re.sub(r"[^A-Za-z0-9_\-/]", "_", name)
    return name if name[:1].isalnum() else f"layer{name}"


def local(dim: mtf.Dimension) -> str:
    """What a dimension is called within its layer: "height" of "conv1/height"."""
    return dim.name.rpartition("/")[2]


def unique(names: Iterable[str]) -> list[str]:
    """The names, those that were there before with a number."""
    result: list[str] = []
    for name in names:
        candidates = [name, *(f"{name}_{number}" for number in range(len(result) + 1))]
        result.append(next(candidate for candidate in candidates if candidate not in result))
    return result


def renamed(x: mtf.Tensor, names: Sequence[str]) -> mtf.Tensor:
    """The tensor, with other names for its last dimensions."""
    kept, changed = x.shape.dims[: x.shape.ndims - len(names)], x.shape.dims[x.shape.ndims - len(names) :]
    return mtf.reshape(x, [*kept, *(mtf.Dimension(name, dim.size) for name, dim in zip(names, changed, strict=True))])


def entered(x: mtf.Tensor, layer: str, *last: str) -> mtf.Tensor:
    """What comes into a layer, with the layer's names.

    Args:
      x: mtf.Tensor [batch, ...].
      layer: the layer's name.
      *last: what the layer calls the last dimensions; the others are called what they were before.

    Returns:
      mtf.Tensor [LAYER/batch, ..., LAYER/LAST].
    """
    count = x.shape.ndims - len(last)
    before = ["batch", *map(local, x.shape.dims[1:count])] if count else []
    names = reversed(unique(reversed([*before, *last])))  # the last names are to stay as they are
    return renamed(x, [f"{layer}/{name}" for name in names])


def spatial(x: mtf.Tensor, layer: str, rank: int) -> mtf.Tensor:
    """An image [batch, ..., channels] as it comes into a layer that has windows.

    Returns:
      mtf.Tensor [LAYER/batch, LAYER/depth, LAYER/height, LAYER/width, LAYER/channels], of the last `rank` in space.
    """
    return entered(x, layer, *SPACE[rank], "channels")
