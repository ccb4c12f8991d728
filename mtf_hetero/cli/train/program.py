"""Build a model and its task as an mtf program: loss, gradients, updates, sums of a test. Its model_fn lowers it."""

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

import mtf_hetero
import mtf_hetero.layers
from mtf_hetero._compat import mtf, tf
from mtf_hetero.cli.train.tasks import EXAMPLES, LOSS, Classification, Task
from mtf_hetero.estimator import EstimatorSpec, ModeKeys
from mtf_hetero.estimator.summaries import add_scalar_summary
from mtf_hetero.graph.names import dimension_sizes
from mtf_hetero.layout import Layout
from mtf_hetero.lowering import names
from mtf_hetero.mesh import create_master, initial_value_feed

if TYPE_CHECKING:
    from mtf_hetero.keras.first_step import FirstStep

Given = tf.Tensor | tuple[tf.Tensor, ...]  # a tensor, or its slices on the processors
BATCH = ("outer_batch", "batch")  # names of the batch's dimensions; a single one is "batch"
IMAGE = ("depth", "height", "width", "channels")  # names of a volume's dimensions, the last three for an image
_MOMENTUM = 0.9
_LEARNING_RATES = {"adam": 1e-3, "momentum": 0.01, "sgd": 0.05}  # Adafactor computes its own
_CLASSES = Classification(0)  # its loss needs no number of classes


@dataclasses.dataclass(frozen=True, eq=False)
class Built:
    """A built mtf graph: outputs [*batch, ...], the loss and the updates of training, or the sums of a test."""

    graph: mtf.Graph
    mesh: mtf.Mesh
    outputs: mtf.Tensor
    labels: mtf.Tensor | None = None
    loss: mtf.Tensor | None = None
    updates: tuple[mtf.Operation, ...] = ()
    sums: Mapping[str, mtf.Tensor] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class Optimizer:
    """An optimizer and its learning rate.

    Args:
      name: one of models.config.OPTIMIZERS.
      learning_rate: None: the optimizer's own.
      decay_steps: the step at which the rate reaches zero; None: the rate is constant.
      decay: "linear", or "cosine": half a wave of a cosine (Loshchilov and Hutter 2017).
    """

    name: str
    learning_rate: float | None = None
    decay_steps: int | None = None
    decay: str = "linear"

    def make(self, mesh: mtf.Mesh) -> mtf.optimize.Optimizer:
        """Return the mtf optimizer, for variables of a mesh."""
        rate = self._rate()
        if isinstance(rate, tf.Tensor):
            rate = mtf.import_fully_replicated(mesh, rate, mtf.Shape([]))
        if self.name == "adafactor":
            return mtf.optimize.AdafactorOptimizer(learning_rate=rate)
        assert rate is not None
        if self.name == "adam":
            return mtf.optimize.AdamWeightDecayOptimizer(rate)
        if self.name == "momentum":
            return mtf.optimize.MomentumOptimizer(rate, _MOMENTUM)
        return mtf.optimize.SgdOptimizer(rate)

    def rate(self) -> tf.Tensor:
        """Return the learning rate of the step, also Adafactor's own, as a scalar tensor for logs."""
        rate = self._rate()
        if rate is None:
            rate = _adafactor_rate(tf.cast(tf.train.get_global_step(), tf.float32))
        return tf.convert_to_tensor(rate, tf.float32)

    def _rate(self) -> tf.Tensor | float | None:
        rate = _LEARNING_RATES.get(self.name) if self.learning_rate is None else self.learning_rate
        if self.decay_steps is None:
            return rate
        step = tf.cast(tf.train.get_global_step(), tf.float32)
        if rate is None:
            rate = _adafactor_rate(step)
        left = tf.maximum(1.0 - step / self.decay_steps, 0.0)
        return rate * (0.5 - 0.5 * tf.cos(math.pi * left) if self.decay == "cosine" else left)


def _adafactor_rate(step: tf.Tensor) -> tf.Tensor:
    """Return Adafactor's own rate (Shazeer and Stern 2018), as in mtf."""
    return tf.minimum(tf.math.rsqrt(step + 1.0), 0.01)


def batch_shape(sizes: Sequence[int]) -> dict[str, int]:
    """{name: size} of the batch's dimensions.

    Example:
      >>> batch_shape([8, 32])
      {'outer_batch': 8, 'batch': 32}
    """
    return dict(zip(BATCH[-len(sizes) :], sizes, strict=True))


def blank(task: Task, image_shape: Sequence[int], batch_size: int) -> tuple[tf.Tensor, tf.Tensor]:
    """Return a batch of zeros, (image, label), to build a graph."""
    names = IMAGE[-len(image_shape) :]
    (count,) = task.config.values()
    extents = {**dict(zip(names, image_shape, strict=True)), "targets": count}
    label_shape = [extents[name] for name in task.label_names(names[:-1])]
    return tf.zeros([batch_size, *image_shape]), tf.zeros([batch_size, *label_shape], task.label_dtype)


@dataclasses.dataclass(frozen=True, eq=False)
class _Importer:
    """Makes mtf.Tensors [*batch, ...] from tensors [examples, ...], or from their slices on the processors.

    Args:
      mesh: mtf.Mesh.
      batch: {name: size} of the batch's dimensions.
      image: the same for the images.
    """

    mesh: mtf.Mesh
    batch: Mapping[str, int]
    image: Mapping[str, int]

    @classmethod
    def of(
        cls, mesh: mtf.Mesh, image: Given, batch: Sequence[int] | None, image_shape: Sequence[int] | None
    ) -> "_Importer":
        """Return an importer for images, whose sizes are read from the tensor if `image_shape` is None."""
        sizes: list[int] = (image[0] if isinstance(image, tuple) else image).shape.as_list()
        examples = batch_shape(sizes[:1] if batch is None else batch)
        sizes = sizes[len(examples) if isinstance(image, tuple) else 1 :] if image_shape is None else list(image_shape)
        return cls(mesh, examples, dict(zip(IMAGE[-len(sizes) :], sizes, strict=True)))

    def __call__(self, value: Given, names: Sequence[str] = ()) -> mtf.Tensor:
        """Return an mtf.Tensor [*batch, *names]."""
        slices = isinstance(value, tuple)
        last: list[int] = (value[0] if slices else value).shape.as_list()
        rest = [self.image.get(name, size) for name, size in zip(names, last[len(last) - len(names) :], strict=True)]
        dims = {**self.batch, **dict(zip(names, rest, strict=True))}
        shape = mtf.Shape([mtf.Dimension(name, size) for name, size in dims.items()])
        if slices:
            laid_out = mtf_hetero.UnevenMeshImpl.LaidOutTensor(list(value))
            return mtf.import_laid_out_tensor(self.mesh, laid_out, shape)
        whole = tf.reshape(value, shape.to_integer_list) if len(self.batch) > 1 else value
        return mtf.import_tf_tensor(self.mesh, whole, shape)


def _build_outputs(
    image: Given,
    build: Callable[..., mtf.Tensor],
    *,
    training: bool,
    batch: Sequence[int] | None,
    image_shape: Sequence[int] | None,
) -> tuple[Built, _Importer]:
    graph = mtf.Graph()
    mesh = mtf.Mesh(graph, "mesh")
    importer = _Importer.of(mesh, image, batch, image_shape)
    images = importer(image, list(importer.image))
    return Built(graph, mesh, build(images, training=training)), importer


def computing_in(dtype: str, build: Callable[..., mtf.Tensor]) -> Callable[..., mtf.Tensor]:
    """Return a function that builds a network in another type, between images and outputs of their type."""

    def build_in_dtype(images: mtf.Tensor, **options: object) -> mtf.Tensor:
        return mtf.cast(build(mtf.cast(images, tf.as_dtype(dtype)), **options), images.dtype)

    return build_in_dtype


def build_training(
    image: Given,
    label: Given,
    *,
    build: Callable[..., mtf.Tensor],
    optimizer: Optimizer,
    task: Task = _CLASSES,
    batch: Sequence[int] | None = None,
    image_shape: Sequence[int] | None = None,
) -> Built:
    """Build the model, the mean loss of the batch, its gradients and one step of the optimizer.

    The step updates the averages of batch norms too.

    Args:
      image: tf.Tensor [batch, height, width, channels] or [batch, depth, height, width, channels], or a tuple of slices
        [*batch, ...], one per processor.
      label: tf.Tensor [batch, ...] in the form of the task, or a tuple of slices [*batch, ...].
      build: returns the task's outputs from such an mtf.Tensor of images, with `training=True`.
      optimizer: the optimizer.
      task: the prediction for each example.
      batch: sizes of the dimensions of the complete batch; None: one dimension, and no slices.
      image_shape: sizes of the other dimensions of the complete images; None: the sizes of `image`.
    """
    built, importer = _build_outputs(image, build, training=True, batch=batch, image_shape=image_shape)
    labels = importer(label, task.label_names(list(importer.image)[:-1]))
    loss = mtf.reduce_mean(task.losses(built.outputs, labels))
    variables = built.graph.trainable_variables
    gradients = mtf.gradients([loss], [v.outputs[0] for v in variables])
    with tf.variable_creator_scope(create_master):  # slots of momentum in a third of their time
        updates = optimizer.make(built.mesh).apply_grads(gradients, variables)
    updates += mtf_hetero.layers.batch_norm_updates(built.graph)
    return dataclasses.replace(built, labels=labels, loss=loss, updates=tuple(updates))


def build_test(
    features: Mapping[str, Given],
    label: Given,
    *,
    build: Callable[..., mtf.Tensor],
    task: Task,
    batch: Sequence[int] | None = None,
    image_shape: Sequence[int] | None = None,
) -> Built:
    """Build the model and the task's sums over the batch.

    Args:
      features: {"image": as in `build_training`, "weight": tf.Tensor [batch], or a tuple of slices [*batch]}.
      label: as in `build_training`.
      build: from an mtf.Tensor of images to outputs.
      task: what is predicted for each example.
      batch: as in `build_training`.
      image_shape: as in `build_training`.
    """
    built, importer = _build_outputs(features["image"], build, training=False, batch=batch, image_shape=image_shape)
    labels = importer(label, task.label_names(list(importer.image)[:-1]))
    weights = mtf.cast(importer(features["weight"]), built.outputs.dtype)
    return dataclasses.replace(built, sums=task.sums(built.outputs, labels, weights))


def lower(built: Built, layout: Layout, devices: Sequence[str], wire_dtype: str | None = None) -> mtf_hetero.Lowering:
    """Lower a graph to TensorFlow on the processors of a layout."""
    layout = names.keep(layout, dimension_sizes(built.graph.operations))
    sent = None if wire_dtype is None else tf.as_dtype(wire_dtype)
    mesh_impl = mtf_hetero.UnevenMeshImpl.from_layout(layout, devices, sent)
    return mtf_hetero.Lowering(built.graph, {built.mesh: mesh_impl})


def build_outputs(
    image: Given,
    build: Callable[..., mtf.Tensor],
    layout: Layout,
    devices: Sequence[str],
    batch: Sequence[int] | None = None,
    image_shape: Sequence[int] | None = None,
) -> tf.Tensor:
    """Return the lowered outputs of a network for a batch: tf.Tensor [examples, ...].

    Args:
      image: as in `build_training`.
      build: from an mtf.Tensor of images to outputs.
      layout: how the tensors lie on the mesh.
      devices: one per processor.
      batch: as in `build_training`.
      image_shape: as in `build_training`.
    """
    built, importer = _build_outputs(image, build, training=False, batch=batch, image_shape=image_shape)
    outputs = lower(built, layout, devices).export_to_tf_tensor(built.outputs)
    return tf.reshape(outputs, [-1, *outputs.shape.as_list()[len(importer.batch) :]])


def _over_all_batches(sums: Mapping[str, tf.Tensor], inputs: object) -> tuple[dict[str, tf.Tensor], tf.Operation]:
    """Return float64 sums over the batches so far, and the operation that adds the sums of one batch.

    The operation runs the pipelines of all inputs, so that all advance together.
    """
    totals = {
        name: tf.get_variable(
            f"test/{name}",
            value.shape,
            tf.float64,
            tf.zeros_initializer(),
            trainable=False,
            collections=[tf.GraphKeys.LOCAL_VARIABLES],
            use_resource=True,
        )
        for name, value in sums.items()
    }
    with tf.control_dependencies(tf.nest.flatten(inputs)):
        added = [tf.assign_add(totals[name], tf.cast(value, tf.float64)) for name, value in sums.items()]
    return {name: total.read_value() for name, total in totals.items()}, tf.group(*added)


def model_fn(
    features: Mapping[str, Given],
    labels: Given,
    mode: str,
    *,
    build: Callable[..., mtf.Tensor],
    optimizer: Optimizer,
    task: Task,
    layout: Layout,
    devices: Sequence[str],
    batch: Sequence[int],
    image_shape: Sequence[int] | None = None,
    wire_dtype: str | None = None,
    initial: Mapping[str, np.ndarray] | None = None,
    check: "FirstStep | None" = None,
) -> EstimatorSpec:
    """Build the EstimatorSpec for mtf_hetero.Estimator, with keyword arguments bound before.

    In a test the outputs stay on the mesh, and only the task's sums leave it.

    Args:
      features: {"image": [batch, ...], "weight": [batch]}; each may be a tuple of slices [*batch, ...], one per
        processor.
      labels: [batch, ...] in the form of the task, or a tuple of slices too.
      mode: one of mtf_hetero.estimator.ModeKeys.
      build: returns the task's outputs from an mtf.Tensor of images, and `training`.
      optimizer: the optimizer.
      task: what is predicted for each example.
      layout: how the tensors lie on the mesh.
      devices: one per processor.
      batch: sizes of the dimensions of a complete batch.
      image_shape: sizes of the other dimensions of complete images; None: the sizes of the features.
      wire_dtype: as in mtf_hetero.UnevenMeshImpl, for training; the counts of a test exceed half precision.
      initial: {variable: array}, initial values; other variables start with the network's own.
      check: makes hooks of training that compare its first step; None: nothing is compared.
    """
    sizes: Any = {"batch": batch, "image_shape": image_shape}
    if mode == ModeKeys.TRAIN:
        built = build_training(features["image"], labels, build=build, optimizer=optimizer, task=task, **sizes)
        assert built.labels is not None and built.loss is not None
        accuracy = task.training_accuracy(built.outputs, built.labels)
        lowering = lower(built, layout, devices, wire_dtype)
        if accuracy is not None:
            add_scalar_summary("accuracy", lowering.export_to_tf_tensor(accuracy))
        rate = optimizer.rate()
        add_scalar_summary("learning_rate", rate)
        with tf.control_dependencies([rate, *(lowering.lowered_operation(op) for op in built.updates)]):
            train_op = tf.assign_add(tf.train.get_global_step(), 1).op  # last: the optimizer reads the step
        scaffold = None if not initial else tf.train.Scaffold(init_feed_dict=initial_value_feed(initial))
        loss = lowering.export_to_tf_tensor(built.loss)
        hooks = [] if check is None else check(built.graph, lowering, devices)
        return EstimatorSpec(mode, loss=loss, train_op=train_op, scaffold=scaffold, training_hooks=hooks)
    if mode == ModeKeys.PREDICT:
        outputs = build_outputs(features["image"], build, layout, devices, **sizes)
        return EstimatorSpec(mode, predictions=task.predictions(outputs))
    built = build_test(features, labels, build=build, task=task, **sizes)
    lowering = lower(built, layout, devices)
    sums = {name: lowering.export_to_tf_tensor(value) for name, value in built.sums.items()}
    totals, update = _over_all_batches(sums, (features, labels))
    metrics = {name: (value, update) for name, value in task.metrics(totals).items()}
    return EstimatorSpec(mode, loss=sums[LOSS] / sums[EXAMPLES], eval_metric_ops=metrics)
