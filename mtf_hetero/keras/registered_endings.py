"""What a model ends in: a softmax, which a loss of logits does without, or something else."""

from collections.abc import Mapping
from typing import Any

from mtf_hetero.keras import registry, walk
from mtf_hetero.keras._keras import keras

_LOGITS = (None, keras.activations.linear, keras.activations.log_softmax)  # the softmax of these is that of logits
_AS_IT_IS = (
    keras.layers.Dropout,
    keras.layers.Flatten,
    keras.layers.Identity,
    keras.layers.Permute,
    keras.layers.Reshape,
)


def softmax_of(model: Any, programs: Mapping[int, walk.Program]) -> Any:
    """The layer that makes probabilities of logits at the end of a model; None where it gives logits.

    Args:
      model: the keras.Model, which has one output.
      programs: {id of a model: its calls}, of it and of those in it.

    Raises:
      ValueError: the model ends in another activation, has several outputs, calls that layer elsewhere too, or has
        layers after it.
    """
    layer, calls, after = _last(model, programs)
    activation = _activation_of(layer)
    if activation in _LOGITS:
        return None
    if activation is not keras.activations.softmax:
        name = activation if isinstance(activation, str) else getattr(activation, "__name__", type(activation).__name__)
        raise ValueError(
            f"model {model.name!r} ends in layer {layer.name!r}, whose activation is {name}; end it in a softmax over "
            "the classes, or in logits"
        )
    if calls > 1 or after is not None:
        why = f"before layer {after.name!r}" if after is not None else "which it calls elsewhere too"
        raise ValueError(
            f"model {model.name!r} ends in the softmax of layer {layer.name!r}, {why}; make the softmax a separate "
            "last layer"
        )
    return layer


def _activation_of(layer: Any) -> Any:
    """A layer's activation, or its name; None where it has none."""
    if isinstance(layer, keras.layers.Softmax):
        is_last = layer.axis in (-1, (-1,), [-1])
        return keras.activations.softmax if is_last else f"a softmax over axis {layer.axis}"
    activation = getattr(layer, "activation", None)
    return _activation_of(activation) if isinstance(activation, keras.Layer) else activation


def _last(model: Any, programs: Mapping[int, walk.Program]) -> tuple[Any, int, Any]:
    """The last layer that computes something, how often it is called, and the layer after it, if there is one."""
    program, after = programs[id(model)], None
    if program.several:
        raise ValueError(
            f"model {model.name!r} has {len(program.outputs)} outputs; logits=True needs a model with one output"
        )
    makers = {place: step for step in program.steps for place in step.outputs}
    step = makers.get(program.outputs[0])
    while step is not None and isinstance(step.layer, _AS_IT_IS) and step.args and step.args[0] in makers:
        step, after = makers[step.args[0]], after or step.layer
    if step is None:
        return model, 1, None  # it gives its input
    layer = step.layer
    calls = sum(other.layer is layer for other in program.steps)
    if id(layer) in programs and registry.find(type(layer)) is None:
        inner, more, within = _last(layer, programs)
        return inner, calls * more, within or after
    return layer, calls, after
