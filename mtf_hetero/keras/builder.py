"""`build`: from a Keras model to a builder of mtf graphs. The model's own call is traced, and imported."""

import math
import weakref
from collections.abc import Hashable, Sequence
from typing import Any

import numpy as np

from mtf_hetero._compat import eagerly, mtf, tf
from mtf_hetero._support.ops import zeros
from mtf_hetero.importer import inference, insertion
from mtf_hetero.importer.emitter import Axes
from mtf_hetero.importer.insertion import Traced
from mtf_hetero.importer.program import Variable
from mtf_hetero.keras import endings, weights
from mtf_hetero.keras._keras import keras
from mtf_hetero.keras.weights import Weight
from mtf_hetero.layers import update_average
from mtf_hetero.variables import get_variable

_MOST_SEED = 2**31 - 1


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
        _check(model)
        self.model = model
        self.variables: dict[str, Weight] = {}
        self._starts, self._logits = starts, logits
        self._traced: dict[Hashable, Traced] = {}
        self._axes: dict[str, inference.Axes] = {}  # of variables, which all graphs share
        self._owned: weakref.WeakKeyDictionary[mtf.Graph, set[str]] = weakref.WeakKeyDictionary()
        self._arrays = {id(variable): np.asarray(variable.numpy()) for variable in model.variables if starts}

    def __call__(self, inputs: Any, training: bool | None = None) -> Any:
        """Builds the model.

        Args:
          inputs: mtf.Tensor [batch, ...]; of a model with several inputs, a list of them in `model.inputs`' order, or
            the structure that the model takes. The batch may have several dimensions.
          training: as of `model(inputs, training)`: whether dropout drops, and batch norm normalises by the batch and
            moves its averages (run the operations of `mtf_hetero.layers.batch_norm_updates` with each step). None: only
            in layers that the model calls with training=True, such as a dropout that samples in inference.

        Returns:
          mtf.Tensor [batch, ...], or several in the structure that the model gives. The batch is the inputs' own.

        Raises:
          ValueError: inputs that the model does not take.
          NotImplementedError: an operation that is not followed, by name and the line of the program.
        """
        given = [(x, _axes_of(self.model, number, x)) for number, x in enumerate(keras.tree.flatten(inputs))]
        _check_inputs(self.model, given)
        traced = self._trace(inputs, given, training)
        graph = _Graph(self, given[0][0].mesh)
        inserted = insertion.insert(
            traced, lambda: self._differentiated(traced.forward), given, graph.variable, self._axes, self.model.name
        )
        self._axes |= inserted.axes
        for number, moved in inserted.updates.items():
            graph.update(traced.program.variables[number], moved)
        batch = given[0][1][0]
        outputs = [_output(y, axes, batch, f"output{i}") for i, (y, axes) in enumerate(inserted.outputs)]
        return keras.tree.pack_sequence_as(traced.forward.structured_outputs, outputs)

    def _trace(self, structure: Any, given: Sequence[tuple[mtf.Tensor, Axes]], training: bool | None) -> Traced:
        """Return the model as it is traced for inputs of these sizes and types."""
        shapes = tuple(tuple(math.prod(dim.size for dim in axis) for axis in axes) for _, axes in given)
        form = repr(keras.tree.map_structure(lambda _: None, structure))
        trained = tuple(v.trainable for v in self.model.variables)
        key = training, form, shapes, tuple(x.dtype for x, _ in given), trained
        if key in self._traced:
            return self._traced[key]

        def forward(*tensors: tf.Tensor) -> Any:
            own = getattr(self.model, "_inputs_struct", structure)
            outputs = self.model(keras.tree.pack_sequence_as(own, list(tensors)), training=training)
            return endings.logits_of(outputs, self.model.name) if self._logits else outputs

        specs = [tf.TensorSpec(shape, x.dtype) for shape, (x, _) in zip(shapes, given, strict=True)]
        with eagerly():
            concrete = tf.compat.v2.function(forward, autograph=False).get_concrete_function(*specs)
        traced = None if training else insertion.read(concrete, self._named())
        if traced is None or traced.has_state:  # outputs and gradients are to have the same random numbers
            traced = self._differentiated(concrete)
        return self._traced.setdefault(key, traced)

    def _differentiated(self, forward: Any) -> Traced:
        trained = {id(v.value) for v in self.model.trainable_variables}
        return insertion.differentiate(forward, self._named(), lambda v: id(v) in trained)

    def _named(self) -> dict[str, Any]:
        return {name: variable.value for name, variable in weights.named(self.model).items()}

    def _array(self, variable: Any) -> np.ndarray | None:
        """Return the initial value of a variable; None for zeros."""
        if id(variable) not in self._arrays and self._starts:  # it was made when the model was traced
            with eagerly():
                self._arrays[id(variable)] = np.asarray(variable.numpy())
        return self._arrays.get(id(variable))


class _Graph:
    """Makes the variables of a model in an mtf graph.

    Args:
      builder: of the model.
      mesh: mtf.Mesh of the graph.
    """

    def __init__(self, builder: Builder, mesh: mtf.Mesh) -> None:
        self._builder, self._mesh = builder, mesh
        self._owned = builder._owned.setdefault(mesh.graph, set())
        self._of_keras = {id(v.value): v for v in builder.model.variables}
        self._names: dict[str, str] = {}

    def variable(self, variable: Variable, axes: Axes) -> mtf.Tensor:
        """Make a variable, or random numbers of the state of a random generator: other ones in each step.

        Raises:
          ValueError: the graph has another variable of this name.
        """
        value, own = variable.before, self._of_keras.get(id(variable.variable), variable.variable)
        if weights.is_seed(variable.variable):
            return self._random(value.name, axes, value.dtype)
        dims = [axis or [mtf.Dimension(f"{value.name}/{i}", 1)] for i, axis in enumerate(axes)]
        shape = mtf.Shape([dim for axis in dims for dim in axis])
        sizes, builder, scope = shape.to_integer_list, self._builder, tf.get_variable_scope().name
        full_name = f"{scope}/{value.name}" if scope else value.name
        before = builder.variables.get(full_name) if full_name in self._owned else None
        if full_name in self._mesh.graph.name_to_variable and (before is None or before.variable is not own):
            raise ValueError(
                f"the graph has another variable {full_name!r}; give layers and weights different names, and build "
                "each model in its own tf.variable_scope"
            )
        array = builder._array(own)

        def initial(*_: Any, **__: Any) -> tf.Tensor:
            return zeros(sizes, value.dtype) if array is None else tf.constant(array.reshape(sizes), value.dtype)

        trainable = own is not variable.variable and own.trainable  # Keras trains only what it knows
        options = {"dtype": value.dtype, "initializer": initial, "trainable": trainable}
        tensor = get_variable(self._mesh, value.name, shape, **options)
        self._owned.add(full_name)
        self._names[value.name] = full_name
        builder.variables[full_name] = weights.weight(own, sizes)
        return tensor

    def _random(self, name: str, axes: Axes, dtype: tf.DType) -> mtf.Tensor:
        shape = mtf.Shape([dim for axis in axes for dim in axis])
        with tf.variable_scope(self._builder.model.name):
            numbers = mtf.random_uniform(self._mesh, shape, maxval=_MOST_SEED, dtype=tf.int32, name=name)
        return mtf.cast(numbers, dtype)

    def update(self, variable: Variable, moved: mtf.Tensor) -> None:
        """Have `mtf_hetero.layers.batch_norm_updates` find the new value of a variable."""
        if full_name := self._names.get(variable.before.name):
            made = self._mesh.graph.name_to_variable[full_name]
            update_average(made, mtf.reshape(moved, made.outputs[0].shape), name=f"{full_name}/update")


def build(model: Any, *, logits: bool = False) -> Builder:
    """A builder of mtf graphs from a Keras model, which knows no layout.

    Each operation of the model's own call is followed, so all layers do what Keras does. Dimensions are named after the
    inputs and the weights that have them: "batch", "conv1/kernel/3" for the filters of a layer `conv1`. Variables are
    named after layers, "conv1/kernel". Their initial values are the weights that the model has now.

    Args:
      model: the keras.Model.
      logits: whether a softmax at the end of the model is left out, so that a loss takes what comes before it.

    Returns:
      Builder: `builder(images, training=False)` takes an mtf.Tensor [batch, ...] and returns one; lists of them where
      the model has several inputs or outputs.

    Raises:
      ValueError: the model does not know its inputs yet, or TensorFlow does not execute eagerly.

    Example:
      >>> builder = mtf_hetero.keras.build(keras.applications.ResNet50(weights=None))
      >>> logits = builder(images)  # images: mtf.Tensor [batch=8, height=224, width=224, channels=3]
    """
    return Builder(model, logits=logits)


def _check(model: Any) -> None:
    """Raise an error for a model that cannot be built."""
    if isinstance(model, keras.Sequential) and not model.built:
        raise ValueError(f"model {model.name!r} is not built; give its first layer a keras.Input, or call it once")
    for variable in model.variables:
        if isinstance(variable.value, tf.compat.v2.distribute.DistributedValues):
            raise NotImplementedError(
                f"model {model.name!r} was made in the scope of a tf.distribute strategy, which copies its weights; "
                "make the model outside of the scope, because mtf_hetero distributes it"
            )


def _axes_of(model: Any, number: int, x: mtf.Tensor) -> Axes:
    """Return the dimensions of each axis of an input; those that the model does not count are the batch's."""
    shapes = getattr(model, "inputs", None) or ()
    rank = len(shapes[number].shape) if number < len(shapes) else x.shape.ndims
    count = max(x.shape.ndims - rank + 1, 1)
    return [x.shape.dims[:count], *([dim] for dim in x.shape.dims[count:])]


def _check_inputs(model: Any, given: Sequence[tuple[mtf.Tensor, Axes]]) -> None:
    if not getattr(model, "inputs", None):
        return
    shapes = [tuple(x.shape[1:]) for x in model.inputs]
    wanted = [f"[batch, {', '.join('any' if n is None else str(n) for n in shape)}]" for shape in shapes]
    if len(given) != len(shapes):
        raise ValueError(
            f"model {model.name!r} has {len(shapes)} inputs, but got {len(given)}; give {', '.join(wanted)}"
        )
    for (x, axes), shape, text in zip(given, shapes, wanted, strict=True):
        found = [dim.size for axis in axes[1:] for dim in axis]
        if len(found) != len(shape) or any(n not in (None, m) for n, m in zip(shape, found, strict=True)):
            raise ValueError(f"model {model.name!r} needs {text}, but got {x.shape.to_string}")


def _output(y: mtf.Tensor, axes: Axes, batch: Sequence[mtf.Dimension], name: str) -> mtf.Tensor:
    """Return an output with the batch's dimensions, and one dimension for each other axis."""
    sizes = [math.prod(dim.size for dim in axis) for axis in axes]
    dims = [
        axis[0] if len(axis) == 1 else mtf.Dimension(f"{name}/{i}", n)
        for i, (axis, n) in enumerate(zip(axes, sizes, strict=True))
    ]
    if sizes and sizes[0] == math.prod(dim.size for dim in batch):
        dims = [*batch, *dims[1:]]
    return y if y.shape.dims == dims else mtf.reshape(y, mtf.Shape(dims))
