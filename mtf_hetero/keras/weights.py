"""The weights of a Keras model as mtf variables: which is which, and how an array of the one is made of the other's."""

import dataclasses
import itertools
import math
import re
from collections.abc import Sequence
from typing import Any

import numpy as np


@dataclasses.dataclass(frozen=True, eq=False)
class Weight:
    """A variable of a Keras model, and the shape of the mtf variable that it is.

    Args:
      variable: the keras.Variable.
      split: the shape that its array is given first.
      axes: the order in which the mtf variable has these dimensions.
    """

    variable: Any
    split: tuple[int, ...]
    axes: tuple[int, ...]

    def to_mtf(self, array: np.ndarray) -> np.ndarray:
        """The mtf variable's array, of the Keras variable's."""
        return np.reshape(array, self.split).transpose(self.axes)

    def to_keras(self, array: np.ndarray) -> np.ndarray:
        """The Keras variable's array, of the mtf variable's."""
        back = np.argsort(self.axes)
        return np.reshape(np.transpose(array, back), self.variable.shape)

    def put_back(self, array: np.ndarray) -> None:
        """Gives the Keras variable the value that the mtf variable has."""
        self.variable.assign(self.to_keras(array))


def named(model: Any) -> dict[str, Any]:
    """Name the weights of a model after its layers, "tower/conv/kernel" for a layer of a model that is in it.

    Returns:
      {name: keras.Variable}, in the order of `model.weights`.
    """
    names: dict[int, str] = {}
    taken: set[str] = set()

    def name(layer: Any, scope: str) -> None:
        for inner in layer._flatten_layers(include_self=False, recursive=False):
            name(inner, f"{scope}{plain(inner.name)}/")
        for variable in layer.weights:
            if id(variable) not in names:
                wanted = f"{scope}{plain(variable.name)}"
                numbered = (f"{wanted}_{number}" if number else wanted for number in itertools.count())
                names[id(variable)] = free = next(each for each in numbered if each not in taken)
                taken.add(free)

    name(model, "")
    return {names[id(variable)]: variable for variable in model.weights}


def plain(name: str) -> str:
    """Return a layer's name without what mtf's layout strings and TensorFlow's scopes cannot hold."""
    name = re.sub(r"[^A-Za-z0-9_\-/]", "_", name)
    return name if name[:1].isalnum() else f"layer{name}"


def is_seed(variable: Any) -> bool:
    """Return whether a tf.Variable is the state of a random generator of Keras."""
    return "seed_generator_state" in variable.name


def weight(
    variable: Any, shape: Sequence[int], split: Sequence[int] | None = None, axes: Sequence[int] | None = None
) -> Weight:
    """A Weight whose mtf variable has a shape.

    Args:
      variable: the keras.Variable.
      shape: of the mtf variable.
      split: the shape that the array is given first; None: the mtf variable's.
      axes: the order in which the mtf variable has the dimensions of `split`; None: that one.

    Raises:
      ValueError: the Keras variable does not have as many elements.
    """
    split = tuple(shape if split is None else split)
    axes = tuple(range(len(split)) if axes is None else axes)
    if math.prod(split) != math.prod(variable.shape) or [split[axis] for axis in axes] != list(shape):
        raise ValueError(
            f"Keras variable {variable.path!r} has shape {list(variable.shape)}, which cannot be reshaped to "
            f"{list(shape)}; give dimensions with the same number of elements"
        )
    return Weight(variable, split, axes)
