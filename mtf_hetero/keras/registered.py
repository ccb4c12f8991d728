"""`build`: from a Keras model to a builder of mtf graphs, which knows no layout."""

import dataclasses
import weakref
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from mtf_hetero._compat import mtf, tf
from mtf_hetero.keras import dims, known, registry, walk
from mtf_hetero.keras import registered_endings as endings
from mtf_hetero.keras._keras import keras
from mtf_hetero.keras.call import Before, Building, Call, move_averages
from mtf_hetero.keras.weights import Weight

known.load()


@dataclasses.dataclass(frozen=True, eq=False)
class Output:
    """What a model gives.

    Args:
      tensor: mtf.Tensor [batch, ...].
      before: what a softmax or a sigmoid made it of, if one did.
    """

    tensor: mtf.Tensor
    before: Before | None


@dataclasses.dataclass(frozen=True, eq=False)
class Activity:
    """What a layer gives that regularizes it.

    Args:
      name: the layer's.
      layer: of Keras.
      tensor: mtf.Tensor [batch, ...].
    """

    name: str
    layer: Any
    tensor: mtf.Tensor


class Builder:
    """Builds a Keras model into mtf graphs. Made by `build`.

    Args:
      model: the keras.Model.
      starts: whether the variables start from the weights that the model has; False: from zeros, to be fed.
      logits: whether a softmax at its end is left out.

    Attributes:
      model: the same.
      variables: {name of an mtf variable: Weight}, of those that were built so far, by which what was trained can be
        put back into the model.
    """

    def __init__(self, model: Any, *, starts: bool = True, logits: bool = False) -> None:
        if not tf.executing_eagerly():
            raise ValueError(
                f"model {getattr(model, 'name', model)!r} is built in a tf.Graph, where Keras has no weights; call "
                "mtf_hetero.keras.build before `with tf.Graph().as_default():`, and call its builder inside"
            )
        self.model = model
        self.variables: dict[str, Weight] = {}
        self._programs: dict[int, walk.Program] = {}
        self._owned: weakref.WeakKeyDictionary[mtf.Graph, set[str]] = weakref.WeakKeyDictionary()
        self._learn(model)
        _check_variables(model)
        self._without = endings.softmax_of(model, self._programs) if logits else None
        variables = model.variables if starts else ()
        self._arrays = {id(variable): np.asarray(variable.numpy()) for variable in variables}

    def __call__(self, images: Any, training: bool | None = None) -> Any:
        """Builds the model.

        Args:
          images: mtf.Tensor [batch, ...]; a list of them where the model has several inputs, in `model.inputs`' order.
          training: as of `model(images, training)`: whether dropout drops, and batch norm normalises by the batch and
            moves its averages (run the operations of `mtf_hetero.layers.batch_norm_updates` with each step). None: only
            in layers that the model calls with training=True, such as a dropout that samples in inference.

        Returns:
          mtf.Tensor [batch, ...], or a list of them where the model has several outputs. The batch is the images' own.

        Raises:
          ValueError: inputs that the model does not take.
          NotImplementedError: a layer with an option that there is not, by name.
        """
        outputs = [output.tensor for output in self.outputs(images, training)]
        return outputs if self._programs[id(self.model)].several else outputs[0]

    def outputs(self, images: Any, training: bool | None, activities: list[Activity] | None = None) -> list[Output]:
        """Builds the model; returns each of its outputs with what is before its activation.

        What layers give that regularize it is added to `activities`.
        """
        inputs = list(images) if isinstance(images, (list, tuple)) else [images]
        program = self._programs[id(self.model)]
        _check_inputs(self.model, program, inputs)
        mesh = inputs[0].mesh
        owned = self._owned.setdefault(mesh.graph, set())
        building = Building(mesh, training, self._arrays, self.variables, owned, self._apply, self._without)
        tensors = [_flat(y, f"output{i}") for i, y in enumerate(self._run(program, building, "", inputs))]
        move_averages(building)
        batch = inputs[0].shape.dims[0]
        if activities is not None:
            activities += [Activity(n, layer, _flat(y, f"{n}/activity")) for n, layer, y in building.regularized]
        outputs = []
        for y in tensors:
            before = building.activated.get(y)
            if y.shape.ndims and y.shape.dims[0].size == batch.size:
                y = mtf.reshape(y, [batch, *y.shape.dims[1:]])
            outputs.append(Output(y, before))
        return outputs

    def _learn(self, model: Any) -> None:
        """Reads the calls of a model and of those in it, and whether each layer is known."""
        if id(model) in self._programs:
            return
        program = self._programs[id(model)] = walk.program_of(model)
        for step in program.steps:
            _check_layer(step.layer)
        for step in program.steps:
            if walk.is_graph(step.layer) and registry.find(type(step.layer)) is None:
                self._learn(step.layer)
            else:
                _function_of(step.layer)

    def _run(self, program: walk.Program, building: Building, scope: str, inputs: Sequence[Any]) -> list[Any]:
        tensors = dict(enumerate(inputs))
        for step in program.steps:
            args, kwargs = (walk.filled(value, tensors) for value in (step.args, step.kwargs))
            name = f"{scope}{dims.plain(step.layer.name)}"
            outputs = keras.tree.flatten(self._apply(building, step.layer, name, args, kwargs))
            tensors.update({place.number: y for place, y in zip(step.outputs, outputs, strict=True)})
        return [tensors[place.number] for place in program.outputs]

    def _apply(self, building: Building, layer: Any, name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """What a layer gives, as a registered function or a model's calls have it."""
        name = building.names.setdefault(id(layer), name)
        training = kwargs.get("training")
        if building.training is None and training is not None:  # what the model is called with wins, as in Keras
            building = dataclasses.replace(building, training=bool(training))
        if registry.find(type(layer)) is None and id(layer) in self._programs:
            given = [x for x in keras.tree.flatten((args, dict(kwargs))) if isinstance(x, (mtf.Tensor, dims.Flattened))]
            program = self._programs[id(layer)]
            outputs = self._run(program, building, f"{name}/", given)
            return outputs if program.several else outputs[0]
        function = _function_of(layer)
        if kwargs.get("mask") is not None:
            raise NotImplementedError(
                f"layer {layer.name!r} is called with a mask, which mtf_hetero.keras does not support"
            )
        options = {key: value for key, value in kwargs.items() if key not in ("training", "mask")}
        if not args and "inputs" in options:
            args = [options.pop("inputs")]
        given = _called(function, Call(layer, name, building), args, options)
        if getattr(layer, "activity_regularizer", None) is not None:
            building.regularized += [(name, layer, y) for y in keras.tree.flatten(given)]
        return given


def build(model: Any, *, logits: bool = False) -> Builder:
    """A builder of mtf graphs from a Keras model, which knows no layout.

    Each layer owns its dimensions: a layer `conv1` has `conv1/batch`, `conv1/height`, `conv1/channels`,
    `conv1/filters` and so on, and variables `conv1/kernel` and `conv1/bias`, whose initial values are the weights that
    the model has now.

    Args:
      model: a functional or sequential keras.Model, with such models in it, or layers that are called twice.
      logits: whether a softmax at the end of the model is left out, so that a loss takes what comes before it.

    Returns:
      Builder: `builder(images, training=False)` takes an mtf.Tensor [batch, ...] and returns one; lists of them where
      the model has several inputs or outputs.

    Raises:
      ValueError: the model does not know its inputs yet, or has images with their channels first, or TensorFlow does
        not execute eagerly; or logits are asked for, and the model ends in another activation.
      NotImplementedError: a layer that is not known, by name and class.

    Example:
      >>> builder = mtf_hetero.keras.build(keras.applications.ResNet50(weights=None))
      >>> logits = builder(images)  # images: mtf.Tensor [batch=8, height=224, width=224, channels=3]
    """
    return Builder(model, logits=logits)


def _function_of(layer: Any) -> registry.Function:
    """What builds a layer. Raises unless it is known."""
    function = registry.find(type(layer))
    if function is None:
        raise NotImplementedError(
            f"layer {layer.name!r} is a {type(layer).__name__}, which mtf_hetero.keras does not support; register it "
            "with mtf_hetero.keras.register"
        )
    return function


def _check_layer(layer: Any) -> None:
    """Raises, by what the user wrote, where a layer was given an option that no registered function has."""
    name = f"layer {layer.name!r}"
    if "call" in vars(layer):
        raise NotImplementedError(
            f"{name} has its own call, set on the instance, which mtf_hetero.keras does not run; make a subclass with "
            "this call, and register it with mtf_hetero.keras.register"
        )
    if getattr(layer, "mask_zero", False) or isinstance(layer, keras.layers.Masking):
        what = "has mask_zero=True" if getattr(layer, "mask_zero", False) else "is a Masking"
        raise NotImplementedError(f"{name} {what}, but mtf_hetero.keras does not support masks; remove the mask")
    if getattr(layer, "lora_enabled", False):
        raise NotImplementedError(
            f"{name} has LoRA (enable_lora), which mtf_hetero.keras does not support; make the model without it"
        )
    if getattr(layer, "quantization_mode", None):
        raise NotImplementedError(
            f"{name} is quantized ({layer.quantization_mode}), which mtf_hetero.keras does not support; make the "
            "model without quantize"
        )
    if getattr(layer, "data_format", None) == "channels_first":
        raise ValueError(f"{name} has data_format='channels_first'; mtf_hetero.keras supports only 'channels_last'")


def _check_variables(model: Any) -> None:
    for variable in model.variables:
        if isinstance(variable.value, tf.compat.v2.distribute.DistributedValues):
            raise NotImplementedError(
                f"model {model.name!r} was made in the scope of a tf.distribute strategy, which copies its weights; "
                "make the model outside of the scope, because mtf_hetero distributes it"
            )


def _check_inputs(model: Any, program: walk.Program, inputs: Sequence[Any]) -> None:
    wanted = [f"[batch, {', '.join('any' if n is None else str(n) for n in shape)}]" for shape in program.inputs]
    if len(inputs) != len(program.inputs):
        raise ValueError(
            f"model {model.name!r} has {len(program.inputs)} inputs, but got {len(inputs)}; give {', '.join(wanted)}"
        )
    for x, shape, text in zip(inputs, program.inputs, wanted, strict=True):
        found = x.shape.to_integer_list[1:]
        if len(found) != len(shape) or any(n not in (None, m) for n, m in zip(shape, found, strict=True)):
            raise ValueError(f"model {model.name!r} needs {text}, but got {x.shape.to_string}")


def _flat(x: Any, name: str) -> Any:
    return x.materialise(name) if isinstance(x, dims.Flattened) else x


def _called(function: registry.Function, call: Call, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """What a registered function gives, of what comes as it takes it: of the layer's type, and flattened if need be."""
    whole = [x for x in args if isinstance(x, dims.Flattened)]
    if whole and registry.is_elementwise(function, call.layer) and args[0] is whole[0] and len(args) == 1:
        return dims.Flattened(_called(function, call, [whole[0].tensor], kwargs))
    keep = registry.takes_flattened(function)

    def taken(x: Any) -> Any:
        if isinstance(x, dims.Flattened) and not keep:
            x = x.materialise(call.name)
        if isinstance(x, dims.Flattened):
            return dims.Flattened(_cast(x.tensor, call))
        return _cast(x, call) if isinstance(x, mtf.Tensor) else x

    args, kwargs = keras.tree.map_structure(taken, (tuple(args), dict(kwargs)))
    return function(call, *args, **kwargs)


def _cast(x: mtf.Tensor, call: Call) -> mtf.Tensor:
    """Floating-point numbers in the type that the layer computes in, as Keras has them."""
    if not x.dtype.is_floating or not getattr(call.layer, "autocast", False):
        return x
    return mtf.cast(x, call.dtype)
