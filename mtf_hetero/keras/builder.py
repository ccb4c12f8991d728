"""`build`: from a Keras model to a builder of mtf graphs. The model's own call is traced, and imported."""

import functools
import math
import weakref
from collections.abc import Hashable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from mtf_hetero._compat import eagerly, mtf, tf
from mtf_hetero._support.ops import zeros
from mtf_hetero.importer import inference, insertion
from mtf_hetero.importer.emitter import Axes
from mtf_hetero.importer.insertion import Differentiated, Inserted, Source
from mtf_hetero.importer.program import Value, Variable
from mtf_hetero.keras import endings, weights
from mtf_hetero.keras._keras import keras
from mtf_hetero.keras.checks import check_strategy
from mtf_hetero.keras.weights import Weight
from mtf_hetero.layers import update_average
from mtf_hetero.mesh import get_variable

if TYPE_CHECKING:
    from mtf_hetero._compat import ConcreteFunction

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

    def __init__(self, model: keras.Model, *, starts: bool = True, logits: bool = False) -> None:
        if not tf.executing_eagerly():
            raise ValueError(
                f"model {getattr(model, 'name', model)!r} is built in a tf.Graph, where Keras has no weights; call "
                "mtf_hetero.keras.build before `with tf.Graph().as_default():`, and call its builder inside"
            )
        _check(model)
        self.model = model
        self.variables: dict[str, Weight] = {}
        self._starts, self._logits = starts, logits
        self._traced: dict[Hashable, Source] = {}
        self._axes: dict[str, inference.Axes] = {}  # of variables, which all graphs share
        self._inserted: weakref.WeakKeyDictionary[mtf.Graph, Inserted] = weakref.WeakKeyDictionary()  # its last call
        self._owned: weakref.WeakKeyDictionary[mtf.Graph, set[str]] = weakref.WeakKeyDictionary()
        self._arrays = {id(variable): np.asarray(variable.numpy()) for variable in model.variables if starts}

    def __call__(self, inputs: Any, training: bool | None = None, *, is_staged: bool = False) -> Any:
        """Build the model.

        Args:
          inputs: mtf.Tensor [batch, ...]; of a model with several inputs, a list of them in `model.inputs`' order, or
            the structure that the model takes. The batch may have several dimensions.
          training: as of `model(inputs, training)`: whether dropout drops, and batch norm normalises by the batch and
            moves its averages (run the operations of `mtf_hetero.layers.batch_norm_updates` with each step). None: only
            in layers that the model calls with training=True, such as a dropout that samples in inference.
          is_staged: whether the batch has another name in each stage of the model, "stage1/batch" after the first cut,
            for layouts that place stages on devices.

        Returns:
          mtf.Tensor [batch, ...], or several in the structure that the model gives. The batch is the inputs' own.

        Raises:
          ValueError: inputs that the model does not take.
          NotImplementedError: operations that are not followed, all by name and the line of the program.
        """
        given = [(x, _input_axes(self.model, number, x)) for number, x in enumerate(keras.tree.flatten(inputs))]
        _check_inputs(self.model, given)
        traced = self._trace(inputs, given, training, is_staged)
        mesh, batch = given[0][0].mesh, given[0][1][0]
        of_keras = {id(v.value): v for v in self.model.variables}
        make, again = (
            functools.partial(self._variable, mesh, of_keras),
            lambda: self._differentiated(traced.forward, is_staged),
        )
        found, inserted = insertion.insert(traced, again, given, make, self._axes, self.model.name)
        self._axes |= inserted.axes
        self._inserted[mesh.graph] = inserted
        for variable, moved in inserted.updates():
            _update(mesh.graph, variable, moved)
        outputs = [_output(y, axes, batch, f"output{i}") for i, (y, axes) in enumerate(found)]
        return keras.tree.pack_sequence_as(traced.forward.structured_outputs, outputs)

    def differentiated(self, graph: mtf.Graph) -> Differentiated | None:
        """Return the model's last call in a graph with its gradients; None: these were not asked for."""
        return self._inserted[graph].step if graph in self._inserted else None

    def _trace(
        self, structure: object, given: Sequence[tuple[mtf.Tensor, Axes]], training: bool | None, is_staged: bool
    ) -> Source:
        """Return the model as it is traced for inputs of these sizes and types."""
        shapes = tuple(tuple(math.prod(dim.size for dim in axis) for axis in axes) for _, axes in given)
        form = repr(keras.tree.map_structure(lambda _: None, structure))
        trained = tuple(v.trainable for v in self.model.variables)
        key = training, form, shapes, tuple(x.dtype for x, _ in given), trained, is_staged
        if key in self._traced:
            return self._traced[key]

        def forward(*tensors: tf.Tensor) -> object:
            own = getattr(self.model, "_inputs_struct", structure)
            outputs = self.model(keras.tree.pack_sequence_as(own, list(tensors)), training=training)
            return endings.find_logits(outputs, self.model.name) if self._logits else outputs

        specs = [tf.TensorSpec(shape, x.dtype) for shape, (x, _) in zip(shapes, given, strict=True)]
        with eagerly():
            concrete = tf.compat.v2.function(forward, autograph=False).get_concrete_function(*specs)
        traced = None if training else insertion.read(concrete, self._variables_by_name())
        if traced is None or traced.has_state:  # outputs and gradients are to have the same random numbers
            traced = self._differentiated(concrete, is_staged)
        traced.program.is_staged = is_staged
        return self._traced.setdefault(key, traced)

    def _differentiated(self, forward: "ConcreteFunction", is_staged: bool) -> Source:
        trained = {id(v.value) for v in self.model.trainable_variables}
        source = insertion.differentiate(forward, self._variables_by_name(), lambda v: id(v) in trained)
        source.program.is_staged = is_staged
        return source

    def _variables_by_name(self) -> dict[str, tf.Variable]:
        return {name: variable.value for name, variable in weights.name_weights(self.model).items()}

    def _array(self, variable: "keras.Variable") -> np.ndarray | None:
        """Return the initial value of a variable; None for zeros."""
        if id(variable) not in self._arrays and self._starts:  # it was made when the model was traced
            with eagerly():
                self._arrays[id(variable)] = np.asarray(variable.numpy())
        return self._arrays.get(id(variable))

    def _variable(
        self, mesh: mtf.Mesh, of_keras: Mapping[int, "keras.Variable"], variable: Variable, axes: Axes
    ) -> mtf.Tensor:
        """Make a variable, or random numbers of the state of a random generator: other ones in each step.

        Raises:
          ValueError: the graph has another variable of this name.
        """
        value = variable.before
        if weights.is_seed(variable.variable):
            return self._random(mesh, value, axes)
        own: Any = of_keras.get(id(variable.variable), variable.variable)
        dims = [axis or [mtf.Dimension(f"{value.name}/{i}", 1)] for i, axis in enumerate(axes)]
        shape = mtf.Shape([dim for axis in dims for dim in axis])
        sizes, full_name = shape.to_integer_list, _full_name(value)
        owned = self._owned.setdefault(mesh.graph, set())
        before = self.variables.get(full_name) if full_name in owned else None
        if full_name in mesh.graph.name_to_variable and (before is None or before.variable is not own):
            raise ValueError(
                f"the graph has another variable {full_name!r}; give layers and weights different names, and build "
                "each model in its own tf.variable_scope"
            )
        array = self._array(own)

        def initial(*_: object, **__: object) -> tf.Tensor:
            return zeros(sizes, value.dtype) if array is None else tf.constant(array.reshape(sizes), value.dtype)

        trainable = own is not variable.variable and own.trainable  # Keras trains only what it knows
        options = {"dtype": value.dtype, "initializer": initial, "trainable": trainable}
        tensor = get_variable(mesh, value.name, shape, **options)
        owned.add(full_name)
        self.variables[full_name] = Weight(own, tuple(sizes))
        return tensor

    def _random(self, mesh: mtf.Mesh, value: Value, axes: Axes) -> mtf.Tensor:
        shape = mtf.Shape([dim for axis in axes for dim in axis])
        with tf.variable_scope(self.model.name):
            numbers = mtf.random_uniform(mesh, shape, maxval=_MOST_SEED, dtype=tf.int32, name=value.name)
        return mtf.cast(numbers, value.dtype)


def _full_name(value: Value) -> str:
    """Return the name of a variable in the present scope."""
    scope = tf.get_variable_scope().name
    return f"{scope}/{value.name}" if scope else value.name


def _update(graph: mtf.Graph, variable: Variable, moved: mtf.Tensor) -> None:
    """Have `mtf_hetero.layers.batch_norm_updates` find the new value of a variable."""
    if not weights.is_seed(variable.variable):
        full_name = _full_name(variable.before)
        made = graph.name_to_variable[full_name]
        update_average(made, mtf.reshape(moved, made.outputs[0].shape), name=f"{full_name}/update")


def build(model: keras.Model, *, logits: bool = False) -> Builder:
    """Return a builder of mtf graphs from a Keras model, which knows no layout.

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


def _check(model: keras.Model) -> None:
    """Raise an error for a model that cannot be built."""
    if isinstance(model, keras.Sequential) and not model.built:
        raise ValueError(f"model {model.name!r} is not built; give its first layer a keras.Input, or call it once")
    check_strategy(model)


def _input_axes(model: keras.Model, number: int, x: mtf.Tensor) -> Axes:
    """Return the dimensions of each axis of an input; those that the model does not count are the batch's."""
    shapes = getattr(model, "inputs", None) or ()
    rank = len(shapes[number].shape) if number < len(shapes) else x.shape.ndims
    count = max(x.shape.ndims - rank + 1, 1)
    return [x.shape.dims[:count], *([dim] for dim in x.shape.dims[count:])]


def _check_inputs(model: keras.Model, given: Sequence[tuple[mtf.Tensor, Axes]]) -> None:
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
