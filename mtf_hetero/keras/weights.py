"""The weights of a Keras model as mtf variables: which is which, and how an array of the one is made of the other's."""

import dataclasses
import itertools
import math
import re
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from mtf_hetero._compat import tf
    from mtf_hetero.keras._keras import keras


@dataclasses.dataclass(frozen=True, eq=False)
class Weight:
    """A variable of a Keras model, and the shape of the mtf variable that it is.

    Args:
      variable: the keras.Variable.
      shape: of the mtf variable, which has the same elements in the same order.

    Raises:
      ValueError: the Keras variable does not have as many elements.
    """

    variable: "keras.Variable"
    shape: tuple[int, ...]

    def __post_init__(self) -> None:
        if math.prod(self.shape) != math.prod(self.variable.shape):
            raise ValueError(
                f"Keras variable {self.variable.path!r} has shape {list(self.variable.shape)}, which cannot be "
                f"reshaped to {list(self.shape)}; give dimensions with the same number of elements"
            )

    def to_mtf(self, array: np.ndarray) -> np.ndarray:
        """Return the mtf variable's array, of the Keras variable's."""
        return np.reshape(array, self.shape)

    def to_keras(self, array: np.ndarray) -> np.ndarray:
        """Return the Keras variable's array, of the mtf variable's."""
        return np.reshape(array, self.variable.shape)

    def put_back(self, array: np.ndarray) -> None:
        """Give the Keras variable the value that the mtf variable has."""
        self.variable.assign(self.to_keras(array))


def name_weights(model: "keras.Model") -> dict[str, "keras.Variable"]:
    """Name the weights of a model after its layers, "tower/conv/kernel" for a layer of a model that is in it.

    Returns:
      {name: keras.Variable}, in the order of `model.weights`.
    """
    names: dict[int, str] = {}
    taken: set[str] = set()

    def name(layer: "keras.Layer", scope: str) -> None:
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


def is_seed(variable: "tf.Variable") -> bool:
    """Return whether a tf.Variable is the state of a random generator of Keras."""
    return "seed_generator_state" in variable.name
