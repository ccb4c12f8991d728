"""What a model ends in: a softmax, which a loss of logits does without, or something else."""

from collections.abc import Mapping
from typing import Any

from mtf_hetero.keras import registry, walk
from mtf_hetero.keras._keras import keras

_LOGITS = (None, keras.activations.linear, keras.activations.log_softmax)  # the softmax of these is that of logits


def softmax_of(model: Any, programs: Mapping[int, walk.Program]) -> Any:
    """The layer that makes probabilities of logits at the end of a model; None where it gives logits.

    Args:
      model: the keras.Model, which has one output.
      programs: {id of a model: its calls}, of it and of those in it.

    Raises:
      ValueError: the model ends in another activation, has several outputs, or calls that layer elsewhere too.
    """
    layer, calls = _last(model, programs)
    if isinstance(layer, keras.layers.Softmax):
        is_last = layer.axis in (-1, (-1,), [-1])
        activation: Any = keras.activations.softmax if is_last else f"a softmax over axis {layer.axis}"
    else:
        activation = getattr(layer, "activation", None)
    if activation in _LOGITS:
        return None
    if activation is not keras.activations.softmax:
        name = activation if isinstance(activation, str) else getattr(activation, "__name__", type(activation).__name__)
        raise ValueError(
            f"model {model.name!r} ends in layer {layer.name!r}, whose activation is {name}; end it in a softmax over "
            "the classes, or in none"
        )
    if calls > 1:
        raise ValueError(
            f"model {model.name!r} ends in the softmax of layer {layer.name!r}, which it calls elsewhere too; give the "
            "end a layer of its own"
        )
    return layer


def _last(model: Any, programs: Mapping[int, walk.Program]) -> tuple[Any, int]:
    """The layer that gives a model's output, and how often it is called."""
    program, calls = programs[id(model)], 1
    if program.several:
        raise ValueError(f"model {model.name!r} has {len(program.outputs)} outputs; logits are of a model with one")
    found = [step.layer for step in program.steps if program.outputs[0] in step.outputs]
    if not found:
        return model, calls  # it gives its input
    layer = found[0]
    calls = sum(step.layer is layer for step in program.steps)
    if id(layer) in programs and registry.find(type(layer)) is None:
        inner, more = _last(layer, programs)
        return inner, calls * more
    return layer, calls
