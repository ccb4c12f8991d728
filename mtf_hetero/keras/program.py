"""A step of a compiled Keras model as an mtf program: forward, loss, gradients and updates, on batches that are fed."""

import contextlib
import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

import mtf_hetero.layers
from mtf_hetero._compat import mtf, tf
from mtf_hetero._support import garbage
from mtf_hetero.keras import losses, optimizers
from mtf_hetero.keras._keras import keras
from mtf_hetero.keras.compiled import Objective
from mtf_hetero.keras.registered import Activity, Builder
from mtf_hetero.keras.weights import Weight

_IMAGE = {1: ("channels",), 2: ("length", "channels"), 3: ("height", "width", "channels")}
_VOLUME = ("depth", "height", "width", "channels")
BATCH = "batch"


@dataclasses.dataclass(frozen=True, eq=False)
class Batch:
    """Examples as Keras's data gives them, and as they are fed.

    Args:
      x: inputs, in Keras's structure.
      y: targets, the same.
      sample_weight: weights, the same; None: there are none.
      inputs: arrays, in the order of `model.inputs`.
      targets: arrays.
      weights: arrays.
    """

    x: Any
    y: Any
    sample_weight: Any
    inputs: tuple[np.ndarray, ...]
    targets: tuple[np.ndarray, ...]
    weights: tuple[np.ndarray, ...]

    @property
    def examples(self) -> int:
        """How many there are."""
        return len(self.inputs[0])

    @property
    def arrays(self) -> tuple[np.ndarray, ...]:
        """All that is fed."""
        return self.inputs + self.targets + self.weights

    @property
    def kind(self) -> tuple[Any, ...]:
        """Return the key of the program: shapes, types, and the places of targets and weights in their structures."""
        paths = tuple(tuple(path for path, _ in keras.tree.flatten_with_path(x)) for x in (self.y, self.sample_weight))
        groups = (self.inputs, self.targets, self.weights)
        return paths, tuple(tuple((x.shape, x.dtype.name) for x in group) for group in groups)


def batch_of(model: Any, data: Any) -> Batch:
    """A batch of what a Keras data set gives.

    Raises:
      ValueError: a batch without targets, or with inputs that the model does not take.
    """
    x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(data)
    if y is None:
        raise ValueError(f"the data of model {model.name!r} have no targets; give (inputs, targets)")
    inputs = [_fitting(model, a, tensor) for a, tensor in zip(_in_order(model, x), model.inputs, strict=True)]
    targets, weights = (tuple(map(np.asarray, keras.tree.flatten(part))) for part in (y, sample_weight))
    return Batch(x, y, sample_weight, tuple(inputs), targets, () if sample_weight is None else weights)


def _in_order(model: Any, x: Any) -> list[Any]:
    """Return the inputs in the order of `model.inputs`, found as Keras finds them.

    A dict goes by the keys of the dict that the model was made with; where it was made with one input or a list of
    them, by the names of the inputs.
    """
    made_with = getattr(model, "input", model.inputs)
    names = [tensor.name for tensor in model.inputs]
    keys = names
    if isinstance(made_with, dict):
        keys = list(made_with)
        if not isinstance(x, dict) and keys != sorted(keys):
            raise ValueError(
                f"model {model.name!r} has inputs with the keys {', '.join(keys)}; give a dict with these keys"
            )
    if isinstance(x, dict):
        missing = [key for key in keys if key not in x]
        if missing:
            raise ValueError(
                f"the data of model {model.name!r} have no {missing[0]!r} among {', '.join(x)}; give {', '.join(keys)}"
            )
        x = {key: x[key] for key in keys} if isinstance(made_with, dict) else [x[key] for key in keys]
    flat = keras.tree.flatten(x)
    if len(flat) != len(names):
        raise ValueError(f"model {model.name!r} has {len(names)} inputs, {', '.join(names)}, but got {len(flat)}")
    return flat


def _fitting(model: Any, x: Any, tensor: Any) -> np.ndarray:
    """An input in the type and the rank that the model takes."""
    array = np.asarray(x)
    rank = len(tensor.shape)
    if array.ndim == rank - 1 and tensor.shape[-1] == 1:
        array = array[..., None]
    elif array.ndim == rank + 1 and array.shape[-1] == 1:
        array = array[..., 0]
    wanted = tf.as_dtype(tensor.dtype).as_numpy_dtype
    return np.ascontiguousarray(array, wanted)


@dataclasses.dataclass(frozen=True, eq=False)
class Program:
    """A step, or a test, as an mtf graph.

    Args:
      graph: mtf.Graph.
      mesh: mtf.Mesh.
      feeds: placeholders of a batch's arrays.
      rate: placeholder of the learning rate.
      steps: placeholder of the number of steps so far.
      loss: of the batch, with the penalties of regularizers.
      values: each loss by itself.
      outputs: the model's, in the order of `model.outputs`.
      updates: of weights and moving averages; of a test there are none.
      kept: {mtf variable: Weight} of what the optimizer keeps.
    """

    graph: mtf.Graph
    mesh: mtf.Mesh
    feeds: tuple[tf.Tensor, ...]
    rate: tf.Tensor
    steps: tf.Tensor
    loss: mtf.Tensor
    values: tuple[mtf.Tensor, ...]
    outputs: tuple[mtf.Tensor, ...]
    updates: tuple[mtf.Operation, ...]
    kept: dict[str, Weight]


class NotBuiltError(NotImplementedError):
    """A model has a part that is known by its own step alone."""


@contextlib.contextmanager
def refusing_parts() -> Iterator[None]:
    """Raise NotBuiltError for what is not implemented, which is a part of the model, not of the layout."""
    try:
        yield
    except NotImplementedError as error:
        raise NotBuiltError(str(error)) from error


@refusing_parts()
@garbage.uncollected()
def build(builder: Builder, batch: Batch, objective: Objective, *, training: bool) -> Program:
    """Builds the program of a batch in TensorFlow's default graph, where variables of these names are used again.

    Args:
      builder: of the model, which is compiled.
      batch: one that is like those to be fed.
      objective: what is minimised.
      training: whether the model is trained.

    Raises:
      NotBuiltError: what there is not, by name.
    """
    model, graph = builder.model, mtf.Graph()
    mesh = mtf.Mesh(graph, "mesh")
    with tf.device("/cpu:0"):
        feeds = tuple(tf.placeholder(x.dtype, x.shape) for x in batch.arrays)
        rate, steps = tf.placeholder(keras.config.floatx(), []), tf.placeholder(tf.int64, [])
    ends = np.cumsum([len(batch.inputs), len(batch.targets)])
    inputs, targets, weights = feeds[: ends[0]], feeds[ends[0] : ends[1]], feeds[ends[1] :]
    several = len(inputs) > 1
    images = [_imported(mesh, x, _names(x, tensor.name if several else "")) for x, tensor in zip(inputs, model.inputs)]
    with tf.variable_scope(tf.get_variable_scope(), reuse=tf.AUTO_REUSE):
        activities: list[Activity] = []
        outputs = builder.outputs(images, training, activities)
        values = []
        for number, term in enumerate(objective.terms):
            name = f"loss{number}"
            dtype = tf.as_dtype(term.loss.dtype)
            target = _imported_as(mesh, targets[term.target], dtype, f"{name}/target")
            weight = total = None
            if term.weight is not None:
                weight = _imported_as(mesh, weights[term.weight], dtype, f"{name}/weight")
                total = _scalar(mesh, tf.reduce_sum(tf.cast(weights[term.weight], dtype)))
            values.append(losses.value_of(term, outputs[term.output], target, weight, total, name))
        loss = _total(graph, builder, objective, values, activities)
        operations, kept = [], {}
        if training:
            operations, kept = _updates(model, graph, builder, loss, _scalar(mesh, rate), _scalar(mesh, steps))
    return Program(
        graph,
        mesh,
        feeds,
        rate,
        steps,
        loss,
        tuple(values),
        tuple(output.tensor for output in outputs),
        tuple(operations),
        kept,
    )


def _total(
    graph: mtf.Graph,
    builder: Builder,
    objective: Objective,
    values: Sequence[mtf.Tensor],
    activities: Sequence[Activity],
) -> mtf.Tensor:
    """The sum of the losses, by their factors, and of the penalties of regularizers."""
    dtype = tf.as_dtype(keras.config.floatx())
    scaled = [
        mtf.cast(value, dtype) if term.factor == 1 else mtf.cast(value, dtype) * term.factor
        for term, value in zip(objective.terms, values, strict=True)
    ]
    names = {id(weight.variable): name for name, weight in builder.variables.items()}
    for penalty in objective.penalties:
        name = names[id(penalty.variable)]
        value = graph.name_to_variable[name].value
        scaled.append(mtf.cast(losses.penalty_of(penalty.l1, penalty.l2, value, name), dtype))
    for activity in activities:
        factors = objective.activities[id(activity.layer)]
        if any(factors):
            value = losses.penalty_of(*factors, activity.tensor, f"{activity.name}/activity")
            scaled.append(mtf.cast(value, dtype) / activity.tensor.shape.dims[0].size)
    return sum(scaled[1:], scaled[0])


def _updates(
    model: Any, graph: mtf.Graph, builder: Builder, loss: mtf.Tensor, rate: mtf.Tensor, steps: mtf.Tensor
) -> tuple[list[mtf.Operation], dict[str, Weight]]:
    """A step of the optimizer, and of the moving averages."""
    variables = graph.trainable_variables
    if model.optimizer.loss_scale_factor:
        loss *= model.optimizer.loss_scale_factor
    gradients = mtf.gradients([loss], [variable.value for variable in variables])
    trained = [
        (variable, builder.variables[variable.name], gradient)
        for variable, gradient in zip(variables, gradients, strict=True)
        if gradient is not None
    ]
    if model.optimizer.use_ema and len(trained) < len(variables):
        name = next(v.name for v, gradient in zip(variables, gradients, strict=True) if gradient is None)
        raise NotImplementedError(
            f"the optimizer has use_ema, and weight {name!r} has no gradient; set trainable=False for its layer"
        )
    if not trained:
        raise ValueError(f"model {model.name!r} has no weight to train; make a layer trainable, and compile it again")
    operations, kept = optimizers.updates(model.optimizer, trained, rate, steps)
    return [*operations, *mtf_hetero.layers.batch_norm_updates(graph)], kept


def _names(x: tf.Tensor, prefix: str) -> list[str]:
    rank = x.shape.rank - 1
    names = _IMAGE.get(rank) or _VOLUME
    names = names if rank == len(names) else tuple(f"dim{axis}" for axis in range(1, rank + 1))
    return [f"{prefix}/{name}" if prefix else name for name in names]


def _imported(mesh: mtf.Mesh, x: tf.Tensor, names: Sequence[str]) -> mtf.Tensor:
    dims = [mtf.Dimension(name, size) for name, size in zip([BATCH, *names], x.shape.as_list(), strict=True)]
    return mtf.import_tf_tensor(mesh, x, mtf.Shape(dims))


def _imported_as(mesh: mtf.Mesh, x: tf.Tensor, dtype: tf.DType, name: str) -> mtf.Tensor:
    with tf.device(x.device):
        x = tf.cast(x, dtype)
    return _imported(mesh, x, [f"{name}/dim{axis}" for axis in range(1, x.shape.rank)])


def _scalar(mesh: mtf.Mesh, x: tf.Tensor) -> mtf.Tensor:
    return mtf.import_tf_tensor(mesh, x, mtf.Shape([]))
