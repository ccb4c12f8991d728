"""A classifier around a model, as an mtf program: loss, gradients, updates; and the model_fn that lowers it."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import mtf_hetero
import mtf_hetero.layers
from mtf_hetero import Layout, mtf, tf
from mtf_hetero.estimator import EstimatorSpec, ModeKeys

BATCH = ("outer_batch", "batch")  # names of the batch's dimensions, the last of them where there are fewer
_MOMENTUM = 0.9
_LEARNING_RATES = {"adam": 1e-3, "momentum": 0.01, "sgd": 0.05}  # Adafactor works out its own


@dataclasses.dataclass(frozen=True, eq=False)
class Built:
    """A graph of mtf operations: logits [*batch, classes], and in training the loss and the updates."""

    graph: Any
    mesh: Any
    logits: Any
    loss: Any = None
    updates: tuple[Any, ...] = ()


@dataclasses.dataclass(frozen=True)
class Optimizer:
    """An optimizer and its learning rate.

    Args:
      name: one of models.config.OPTIMIZERS.
      learning_rate: None: the optimizer's own.
      decay_steps: the step at which the rate, falling linearly, reaches zero; None: it stays.
    """

    name: str
    learning_rate: float | None = None
    decay_steps: int | None = None

    def make(self, mesh: Any) -> Any:
        """The mtf optimizer, for variables of a mesh."""
        rate = self._rate()
        if isinstance(rate, tf.Tensor):
            rate = mtf.import_fully_replicated(mesh, rate, mtf.Shape([]))
        if self.name == "adafactor":
            return mtf.optimize.AdafactorOptimizer(learning_rate=rate)
        if self.name == "adam":
            return mtf.optimize.AdamWeightDecayOptimizer(rate)
        if self.name == "momentum":
            return mtf.optimize.MomentumOptimizer(rate, _MOMENTUM)
        return mtf.optimize.SgdOptimizer(rate)

    def _rate(self) -> Any:
        rate = _LEARNING_RATES.get(self.name) if self.learning_rate is None else self.learning_rate
        if self.decay_steps is None:
            return rate
        step = tf.cast(tf.train.get_global_step(), tf.float32)
        if rate is None:  # Adafactor's own (Shazeer and Stern 2018)
            rate = tf.minimum(tf.math.rsqrt(step + 1.0), 0.01)
        return rate * tf.maximum(1.0 - step / self.decay_steps, 0.0)


def batch_shape(sizes: Sequence[int]) -> dict[str, int]:
    """{name: size} of the batch's dimensions.

    Example:
      >>> batch_shape([8, 32])
      {'outer_batch': 8, 'batch': 32}
    """
    return dict(zip(BATCH[-len(sizes) :], sizes, strict=True))


def _import(mesh: Any, value: Any, names: Sequence[str], batch: Sequence[int] | None) -> Any:
    """An mtf.Tensor [*batch, *names] of a tensor [batch, *names], or of the slices of it that the processors have."""
    slices = isinstance(value, tuple)
    first = value[0] if slices else value
    rest = first.shape.as_list()[first.shape.rank - len(names) :]
    examples: list[int] = first.shape.as_list()[:1] if batch is None else list(batch)
    dims = {**batch_shape(examples), **dict(zip(names, rest, strict=True))}
    shape = mtf.Shape([mtf.Dimension(name, size) for name, size in dims.items()])
    if slices:
        laid_out = mtf_hetero.UnevenMeshImpl.LaidOutTensor(list(value))
        return mtf.import_laid_out_tensor(mesh, laid_out, shape)
    return mtf.import_tf_tensor(mesh, tf.reshape(value, shape.to_integer_list) if len(examples) > 1 else value, shape)


def build_logits(
    image: Any, build: Callable[..., Any], *, training: bool = False, batch: Sequence[int] | None = None
) -> Built:
    """Builds the model alone.

    Args:
      image: tf.Tensor [batch, height, width, channels], or a tuple of slices [*batch, height, width, channels], one per
        processor.
      build: from such an mtf.Tensor, and whether it is for training, to logits [batch, classes].
      training: passed on to `build`.
      batch: sizes of the dimensions of the whole batch; None: it has one, and the image is not in slices.
    """
    graph = mtf.Graph()
    mesh = mtf.Mesh(graph, "mesh")
    images = _import(mesh, image, ("height", "width", "channels"), batch)
    return Built(graph, mesh, build(images, training=training))


def build_training(
    image: Any, label: Any, *, build: Callable[..., Any], optimizer: Optimizer, batch: Sequence[int] | None = None
) -> Built:
    """Builds the model, the mean softmax cross entropy of the batch, its gradients and one step of the optimizer.

    The step moves the averages of batch norms too.

    Args:
      image: tf.Tensor [batch, height, width, channels], or a tuple of slices [*batch, height, width, channels], one per
        processor.
      label: tf.Tensor [batch] of integers, or a tuple of slices [*batch].
      build: from such an mtf.Tensor, with `training=True`, to logits [*batch, classes].
      optimizer: the optimizer.
      batch: sizes of the dimensions of the whole batch; None: it has one, and nothing is in slices.
    """
    built = build_logits(image, build, training=True, batch=batch)
    classes = built.logits.shape.dims[-1]
    labels = _import(built.mesh, label, (), batch)
    targets = mtf.one_hot(labels, classes, dtype=built.logits.dtype)
    loss = mtf.reduce_mean(mtf.layers.softmax_cross_entropy_with_logits(built.logits, targets, classes))
    variables = built.graph.trainable_variables
    gradients = mtf.gradients([loss], [v.outputs[0] for v in variables])
    updates = optimizer.make(built.mesh).apply_grads(gradients, variables)
    updates += mtf_hetero.layers.batch_norm_updates(built.graph)
    return dataclasses.replace(built, loss=loss, updates=tuple(updates))


def lower(built: Built, layout: Layout, devices: Sequence[str], wire_dtype: str | None = None) -> mtf_hetero.Lowering:
    """Lowers a graph to TensorFlow on the processors of a layout."""
    mesh_impl = mtf_hetero.UnevenMeshImpl.from_layout(layout, devices, wire_dtype)
    return mtf_hetero.Lowering(built.graph, {built.mesh: mesh_impl})


def model_fn(
    features: Any,
    labels: Any,
    mode: str,
    *,
    build: Callable[..., Any],
    optimizer: Optimizer,
    layout: Layout,
    devices: Sequence[str],
    batch: Sequence[int],
    wire_dtype: str | None = None,
) -> EstimatorSpec:
    """What mtf_hetero.Estimator calls, once the keyword arguments are bound.

    Args:
      features: {"image": [batch, height, width, channels], "weight": [batch]}; in training, each may be a tuple of
        slices [*batch, ...], one per processor.
      labels: integers [batch]; the same.
      mode: one of mtf_hetero.estimator.ModeKeys.
      build: from an mtf.Tensor of images, and `training`, to logits [batch, classes].
      optimizer: the optimizer.
      layout: how the tensors lie on the mesh.
      devices: one per processor.
      batch: sizes of the dimensions of a whole batch.
      wire_dtype: as in mtf_hetero.UnevenMeshImpl.
    """
    if mode == ModeKeys.TRAIN:
        built = build_training(features["image"], labels, build=build, optimizer=optimizer, batch=batch)
        lowering = lower(built, layout, devices, wire_dtype)
        with tf.control_dependencies([lowering.lowered_operation(op) for op in built.updates]):
            train_op = tf.assign_add(tf.train.get_global_step(), 1).op  # the optimizer reads the step: count it last
        return EstimatorSpec(mode, loss=lowering.export_to_tf_tensor(built.loss), train_op=train_op)
    built = build_logits(features["image"], build, batch=batch)
    logits = lower(built, layout, devices, wire_dtype).export_to_tf_tensor(built.logits)
    logits = tf.reshape(logits, [-1, built.logits.shape.dims[-1].size])
    predictions = {"class": tf.argmax(logits, axis=1), "probabilities": tf.nn.softmax(logits)}
    if mode == ModeKeys.PREDICT:
        return EstimatorSpec(mode, predictions=predictions)
    weights = features["weight"]
    loss = tf.losses.sparse_softmax_cross_entropy(labels, logits, weights=weights)
    accuracy = tf.metrics.accuracy(labels, predictions["class"], weights=weights)
    return EstimatorSpec(mode, predictions=predictions, loss=loss, eval_metric_ops={"accuracy": accuracy})
