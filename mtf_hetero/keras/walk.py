"""A Keras model as a list of calls, by Keras's public means: a clone whose layers only say how they are called."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from mtf_hetero.keras._keras import keras


@dataclasses.dataclass(frozen=True)
class Place:
    """Stands for a tensor in the arguments of a call: what was made so many tensors after the first."""

    number: int


@dataclasses.dataclass(frozen=True, eq=False)
class Step:
    """One call of one layer.

    Args:
      layer: the keras.Layer or keras.Operation.
      args: its arguments, with a Place for each tensor.
      kwargs: its keyword arguments, the same.
      outputs: where what it gives is put.
    """

    layer: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    outputs: tuple[Place, ...]


@dataclasses.dataclass(frozen=True, eq=False)
class Program:
    """A model's calls in an order in which they can be made.

    Args:
      steps: the calls. Of inputs, the first places.
      outputs: the places of the model's outputs.
      inputs: the shapes of the inputs, without the batch.
      several: whether the model gives a list.
    """

    steps: tuple[Step, ...]
    outputs: tuple[Place, ...]
    inputs: tuple[tuple[int | None, ...], ...]
    several: bool


class _Called(keras.Operation):
    """Stands in for a layer in a clone: it has the shapes of its outputs, and nothing else."""

    def __init__(self, of: Any) -> None:
        super().__init__()
        self.of = of

    def call(self, *args: Any, **kwargs: Any) -> Any:
        """Never called with numbers."""
        raise NotImplementedError

    def compute_output_spec(self, *args: Any, **kwargs: Any) -> Any:
        """Keras tensors, of the shapes that the layer gives."""
        return self.of.compute_output_spec(*args, **kwargs)


def is_graph(layer: Any) -> bool:
    """Whether a layer is a model that Keras knows as a graph of layers: a functional or sequential one, unchanged."""
    if not isinstance(layer, keras.Model) or "call" in vars(layer):
        return False
    names = [kind.__name__ for kind in type(layer).__mro__ if "call" in vars(kind)]
    return bool(names) and names[0] in ("Functional", "Sequential")


def program_of(model: Any) -> Program:
    """The calls of a functional or sequential model, which is left as it is.

    Raises:
      ValueError: the model does not know its inputs yet.
      NotImplementedError: the model is a class of the user's own, whose calls Keras does not know.
    """
    if "call" in vars(model):
        raise NotImplementedError(
            f"model {model.name!r} has its own call, set on the instance, which mtf_hetero.keras does not run; "
            "make the model of keras.Input and layers"
        )
    if not is_graph(model):
        raise NotImplementedError(
            f"model {model.name!r} is a {type(model).__name__}, whose own code calls its layers; make the model of "
            "keras.Input and layers, as keras.Model(inputs, outputs), or train it with model.fit"
        )
    if not getattr(model, "inputs", None):
        raise ValueError(f"model {model.name!r} is not built; give its first layer a keras.Input, or call it once")
    places: dict[int, Place] = {}
    kept: list[Any] = []  # so that no other object gets its id
    steps: list[Step] = []

    def place_of(tensor: Any) -> Place:
        kept.append(tensor)
        return places.setdefault(id(tensor), Place(len(places)))

    def placed(value: Any) -> Any:
        return place_of(value) if isinstance(value, keras.KerasTensor) else value

    def record(layer: Any, *args: Any, **kwargs: Any) -> Any:
        given, options = keras.tree.map_structure(placed, (args, kwargs))
        outputs = _Called(layer)(*args, **kwargs)
        steps.append(Step(layer, given, options, tuple(place_of(x) for x in keras.tree.flatten(outputs))))
        return outputs

    plain = keras.Model(model.inputs, model.outputs)  # not compiled, and a list of inputs whatever the model takes
    inputs = [keras.Input(batch_shape=x.shape, dtype=x.dtype) for x in plain.inputs]
    for tensor in inputs:
        place_of(tensor)
    clone = keras.models.clone_model(
        plain, input_tensors=inputs, clone_function=lambda layer: layer, call_function=record
    )
    outputs = tuple(place_of(tensor) for tensor in clone.outputs)
    shapes = tuple(tuple(x.shape[1:]) for x in inputs)
    return Program(tuple(steps), outputs, shapes, len(outputs) > 1)


def filled(value: Any, tensors: Mapping[int, Any]) -> Any:
    """Arguments with the tensors in their places."""
    return keras.tree.map_structure(lambda x: tensors[x.number] if isinstance(x, Place) else x, value)
