"""Facts on classes of operations, by which readers of a graph find its layers, the roles of dimensions, and the work.

The file of an operation registers them with its rule, so `graph` and `cost` name no class.
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, Generic, NamedTuple, TypeAlias, TypeVar

from mtf_hetero._compat import mtf

Op = TypeVar("Op", bound=mtf.Operation)


class Images(NamedTuple):
    """The two images of an operation with windows.

    Args:
      large: the one over which the windows pass.
      small: the one with a value for each window.
      sizes: of a window, in each dimension of space.
      channel_dims: the number of dimensions after those of space.
    """

    large: mtf.Tensor
    small: mtf.Tensor
    sizes: Sequence[int]
    channel_dims: int = 1

    def space(self, image: mtf.Tensor) -> list[mtf.Dimension]:
        """Return the dimensions of an image over which the windows pass."""
        return image.shape.dims[-len(self.sizes) - self.channel_dims : -self.channel_dims]


@dataclasses.dataclass(frozen=True)
class Traits(Generic[Op]):
    """Facts on a class of operations.

    Args:
      is_layer: whether one with a trainable variable is a layer, in a program as it is written.
      multiplied: of a contraction, the dimensions over which it multiplies and adds, each once.
      rows: of a lookup or its gradient, the table's dimension that a product with a one-hot tensor would sum over.
      images: of an operation with windows.
      leaves_sums: whether its outputs may be partial sums that an all-reduce completes.
      item_bytes: the bytes that it moves per element of each tensor; None: the sizes of their types.
    """

    is_layer: bool = False
    multiplied: Callable[[Op], list[mtf.Dimension]] | None = None
    rows: Callable[[Op], mtf.Dimension] | None = None
    images: Callable[[Op], Images] | None = None
    leaves_sums: bool = False
    item_bytes: Callable[[Op], list[int]] | None = None


AnyTraits: TypeAlias = Traits[Any]
TRAITS: dict[type, AnyTraits] = {}  # each is of operations of its class, and of its subclasses
_UNKNOWN: AnyTraits = Traits()


def find_traits(op: mtf.Operation) -> AnyTraits:
    """Return the facts on an operation; all are absent if its class has none."""
    return next((TRAITS[op_class] for op_class in type(op).__mro__ if op_class in TRAITS), _UNKNOWN)


def is_contraction(op: mtf.Operation) -> bool:
    """Return whether an operation is a convolution or a product, or a gradient of one."""
    return find_traits(op).multiplied is not None


def multiplied_dims(op: mtf.Operation) -> list[mtf.Dimension]:
    """Return the dimensions over which an operation multiplies and adds, each once; none if it is no contraction."""
    multiplied = find_traits(op).multiplied
    return [] if multiplied is None else multiplied(op)


def find_images(op: mtf.Operation) -> Images | None:
    """Return the images of a convolution or pool, or of a gradient of one; None for other operations."""
    images = find_traits(op).images
    return None if images is None else images(op)


def packed_dim(op: mtf.Operation) -> mtf.Dimension | None:
    """Return the dimension of which a device computes several units at a time: the output channels of a convolution.

    They are the last dimension of what it gives: of an image, its filters; of an image's gradient, its channels; of a
    kernel's, its filters. None: of no other operation that is known.
    """
    traits = find_traits(op)
    return op.outputs[0].shape.dims[-1] if traits.multiplied is not None and traits.images is not None else None
