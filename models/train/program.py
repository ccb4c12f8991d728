"""A model and its task as an mtf program: loss, gradients, updates, sums of a test; and the model_fn that lowers it."""

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import mtf_hetero
import mtf_hetero.layers
from mtf_hetero import Layout, mtf, tf
from mtf_hetero._support import graphs
from mtf_hetero.estimator import EstimatorSpec, ModeKeys
from mtf_hetero.estimator.summaries import add_scalar_summary
from mtf_hetero.lowering import names
from mtf_hetero.models.train.tasks import EXAMPLES, LOSS, Classification, Task
from mtf_hetero.variables import initial_value_feed

BATCH = ("outer_batch", "batch")  # names of the batch's dimensions, the last of them where there are fewer
IMAGE = ("depth", "height", "width", "channels")  # those of a volume, the last three of an image
_MOMENTUM = 0.9
_LEARNING_RATES = {"adam": 1e-3, "momentum": 0.01, "sgd": 0.05}  # Adafactor works out its own
_CLASSES = Classification(0)  # its loss needs no number of classes


@dataclasses.dataclass(frozen=True, eq=False)
class Built:
    """A graph of mtf operations: outputs [*batch, ...], the loss and the updates of training, or the sums of a test."""

    graph: mtf.Graph
    mesh: mtf.Mesh
    outputs: mtf.Tensor
    labels: mtf.Tensor = None
    loss: mtf.Tensor = None
    updates: tuple[mtf.Operation, ...] = ()
    sums: Mapping[str, mtf.Tensor] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class Optimizer:
    """An optimizer and its learning rate.

    Args:
      name: one of models.config.OPTIMIZERS.
      learning_rate: None: the optimizer's own.
      decay_steps: the step at which the rate reaches zero; None: it stays.
      decay: "linear", or "cosine": as half a wave of a cosine (Loshchilov and Hutter 2017).
    """

    name: str
    learning_rate: float | None = None
    decay_steps: int | None = None
    decay: str = "linear"

    def make(self, mesh: mtf.Mesh) -> mtf.optimize.Optimizer:
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

    def rate(self) -> tf.Tensor:
        """The learning rate of the step, a scalar tensor, to be looked at: Adafactor's own too."""
        rate = self._rate()
        if rate is None:
            rate = _adafactor_rate(tf.cast(tf.train.get_global_step(), tf.float32))
        return tf.convert_to_tensor(rate, tf.float32)

    def _rate(self) -> tf.Tensor:
        rate = _LEARNING_RATES.get(self.name) if self.learning_rate is None else self.learning_rate
        if self.decay_steps is None:
            return rate
        step = tf.cast(tf.train.get_global_step(), tf.float32)
        if rate is None:
            rate = _adafactor_rate(step)
        left = tf.maximum(1.0 - step / self.decay_steps, 0.0)
        return rate * (0.5 - 0.5 * tf.cos(math.pi * left) if self.decay == "cosine" else left)


def _adafactor_rate(step: tf.Tensor) -> tf.Tensor:
    """Adafactor's own (Shazeer and Stern 2018), as mtf has it."""
    return tf.minimum(tf.math.rsqrt(step + 1.0), 0.01)


def batch_shape(sizes: Sequence[int]) -> dict[str, int]:
    """{name: size} of the batch's dimensions.

    Example:
      >>> batch_shape([8, 32])
      {'outer_batch': 8, 'batch': 32}
    """
    return dict(zip(BATCH[-len(sizes) :], sizes, strict=True))


@dataclasses.dataclass(frozen=True, eq=False)
class _Importer:
    """Makes mtf.Tensors [*batch, ...] of tensors [examples, ...], or of the slices of them that the processors have.

    Args:
      mesh: mtf.Mesh.
      batch: {name: size} of the batch's dimensions.
      image: the same of the images'.
    """

    mesh: mtf.Mesh
    batch: Mapping[str, int]
    image: Mapping[str, int]

    @classmethod
    def of(
        cls, mesh: mtf.Mesh, image: tf.Tensor, batch: Sequence[int] | None, image_shape: Sequence[int] | None
    ) -> "_Importer":
        """One for images, whose sizes it reads off them where they are not given."""
        sizes: list[int] = (image[0] if isinstance(image, tuple) else image).shape.as_list()
        examples = batch_shape(sizes[:1] if batch is None else batch)
        sizes = sizes[len(examples) if isinstance(image, tuple) else 1 :] if image_shape is None else list(image_shape)
        return cls(mesh, examples, dict(zip(IMAGE[-len(sizes) :], sizes, strict=True)))

    def __call__(self, value: Any, names: Sequence[str] = ()) -> mtf.Tensor:
        """An mtf.Tensor [*batch, *names]."""
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
    image: Any,
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


def build_training(
    image: Any,
    label: Any,
    *,
    build: Callable[..., mtf.Tensor],
    optimizer: Optimizer,
    task: Task = _CLASSES,
    batch: Sequence[int] | None = None,
    image_shape: Sequence[int] | None = None,
) -> Built:
    """Builds the model, the mean loss of the batch, its gradients and one step of the optimizer.

    The step moves the averages of batch norms too.

    Args:
      image: tf.Tensor [batch, height, width, channels] or [batch, depth, height, width, channels], or a tuple of slices
        [*batch, ...], one per processor.
      label: tf.Tensor [batch, ...] as the task has them, or a tuple of slices [*batch, ...].
      build: from such an mtf.Tensor of images, with `training=True`, to what the task calls outputs.
      optimizer: the optimizer.
      task: what is predicted for each example.
      batch: sizes of the dimensions of the whole batch; None: it has one, and nothing is in slices.
      image_shape: sizes of the other dimensions of the whole images; None: those of what is given.
    """
    built, importer = _build_outputs(image, build, training=True, batch=batch, image_shape=image_shape)
    labels = importer(label, task.label_names(list(importer.image)[:-1]))
    loss = mtf.reduce_mean(task.losses(built.outputs, labels))
    variables = built.graph.trainable_variables
    gradients = mtf.gradients([loss], [v.outputs[0] for v in variables])
    updates = optimizer.make(built.mesh).apply_grads(gradients, variables)
    updates += mtf_hetero.layers.batch_norm_updates(built.graph)
    return dataclasses.replace(built, labels=labels, loss=loss, updates=tuple(updates))


def build_test(
    features: Mapping[str, Any],
    label: Any,
    *,
    build: Callable[..., mtf.Tensor],
    task: Task,
    batch: Sequence[int] | None = None,
    image_shape: Sequence[int] | None = None,
) -> Built:
    """Builds the model and the task's sums over the batch.

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
    """Lowers a graph to TensorFlow on the processors of a layout, which may be that of its training."""
    layout = names.keep(layout, graphs.mtf_sizes(built.graph))
    mesh_impl = mtf_hetero.UnevenMeshImpl.from_layout(layout, devices, wire_dtype)
    return mtf_hetero.Lowering(built.graph, {built.mesh: mesh_impl})


def build_outputs(
    image: Any,
    build: Callable[..., mtf.Tensor],
    layout: Layout,
    devices: Sequence[str],
    batch: Sequence[int] | None = None,
    image_shape: Sequence[int] | None = None,
) -> tf.Tensor:
    """What a network says to a batch, lowered: tf.Tensor [examples, ...].

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


def _over_all_batches(sums: Mapping[str, tf.Tensor], inputs: Any) -> tuple[dict[str, Any], Any]:
    """Sums over the batches so far, float64, and the operation that adds those over one batch.

    The operation runs the pipelines of all the inputs, so that none of them falls behind, whoever needs it.
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
    features: Any,
    labels: Any,
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
    initial: Mapping[str, Any] | None = None,
) -> EstimatorSpec:
    """What mtf_hetero.Estimator calls, once the keyword arguments are bound.

    A test leaves the outputs where they are: what leaves the mesh are the task's sums.

    Args:
      features: {"image": [batch, ...], "weight": [batch]}; each may be a tuple of slices [*batch, ...], one per
        processor.
      labels: [batch, ...] as the task has them; the same.
      mode: one of mtf_hetero.estimator.ModeKeys.
      build: from an mtf.Tensor of images, and `training`, to what the task calls outputs.
      optimizer: the optimizer.
      task: what is predicted for each example.
      layout: how the tensors lie on the mesh.
      devices: one per processor.
      batch: sizes of the dimensions of a whole batch.
      image_shape: sizes of the other dimensions of whole images; None: those of what is given.
      wire_dtype: as in mtf_hetero.UnevenMeshImpl, in training; a test counts beyond what half precision holds.
      initial: {variable: array} of those that training starts from; the others start as the network has them.
    """
    sizes: Any = {"batch": batch, "image_shape": image_shape}
    if mode == ModeKeys.TRAIN:
        built = build_training(features["image"], labels, build=build, optimizer=optimizer, task=task, **sizes)
        accuracy = task.training_accuracy(built.outputs, built.labels)
        lowering = lower(built, layout, devices, wire_dtype)
        if accuracy is not None:
            add_scalar_summary("accuracy", lowering.export_to_tf_tensor(accuracy))
        rate = optimizer.rate()
        add_scalar_summary("learning_rate", rate)
        with tf.control_dependencies([rate, *(lowering.lowered_operation(op) for op in built.updates)]):
            train_op = tf.assign_add(tf.train.get_global_step(), 1).op  # the optimizer reads the step: count it last
        scaffold = None if not initial else tf.train.Scaffold(init_feed_dict=initial_value_feed(initial))
        loss = lowering.export_to_tf_tensor(built.loss)
        return EstimatorSpec(mode, loss=loss, train_op=train_op, scaffold=scaffold)
    if mode == ModeKeys.PREDICT:
        outputs = build_outputs(features["image"], build, layout, devices, **sizes)
        return EstimatorSpec(mode, predictions=task.predictions(outputs))
    built = build_test(features, labels, build=build, task=task, **sizes)
    lowering = lower(built, layout, devices)
    sums = {name: lowering.export_to_tf_tensor(value) for name, value in built.sums.items()}
    totals, update = _over_all_batches(sums, (features, labels))
    metrics = {name: (value, update) for name, value in task.metrics(totals).items()}
    return EstimatorSpec(mode, loss=sums[LOSS] / sums[EXAMPLES], eval_metric_ops=metrics)
