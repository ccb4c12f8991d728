"""Build a model and its task as an mtf program: loss, gradients, updates, sums of a test. Its model_fn lowers it."""

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

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


def computing_in(dtype: str, build: Callable[..., mtf.Tensor]) -> Callable[..., mtf.Tensor]:
    """Return a function that builds a network in another type, between images and outputs of their type."""

    def build_in_dtype(images: mtf.Tensor, **options: object) -> mtf.Tensor:
        return mtf.cast(build(mtf.cast(images, tf.as_dtype(dtype)), **options), images.dtype)

    return build_in_dtype


def lower(built: Built, layout: Layout, devices: Sequence[str], wire_dtype: str | None = None) -> mtf_hetero.Lowering:
    """Lower a graph to TensorFlow on the processors of a layout."""
    layout = names.keep(layout, dimension_sizes(built.graph.operations))
    sent = None if wire_dtype is None else tf.as_dtype(wire_dtype)
    mesh_impl = mtf_hetero.UnevenMeshImpl.from_layout(layout, devices, sent)
    return mtf_hetero.Lowering(built.graph, {built.mesh: mesh_impl})


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


@dataclasses.dataclass(frozen=True, eq=False)
class Program:
    """A network with its task, of which the graphs of a training, a test and predictions are built.

    Images and labels are tf.Tensors [batch, ...], or tuples of slices [*batch, ...], one per processor.

    Args:
      build: returns the task's outputs from an mtf.Tensor of images, and `training`.
      optimizer: of a training.
      task: the prediction for each example.
      batch: sizes of the dimensions of a complete batch; None: one dimension, and no slices.
      image_shape: sizes of the other dimensions of complete images; None: those of the images that are given.
    """

    build: Callable[..., mtf.Tensor]
    optimizer: Optimizer
    task: Task = _CLASSES
    batch: Sequence[int] | None = None
    image_shape: Sequence[int] | None = None

    def _build_outputs(self, image: Given, *, training: bool) -> tuple[Built, _Importer]:
        graph = mtf.Graph()
        mesh = mtf.Mesh(graph, "mesh")
        importer = _Importer.of(mesh, image, self.batch, self.image_shape)
        images = importer(image, list(importer.image))
        return Built(graph, mesh, self.build(images, training=training)), importer

    def build_training(self, image: Given, label: Given) -> Built:
        """Build the model, the mean loss of the batch, its gradients and one step of the optimizer.

        The step updates the averages of batch norms too.
        """
        built, importer = self._build_outputs(image, training=True)
        labels = importer(label, self.task.label_names(list(importer.image)[:-1]))
        loss = mtf.reduce_mean(self.task.losses(built.outputs, labels))
        variables = built.graph.trainable_variables
        gradients = mtf.gradients([loss], [v.outputs[0] for v in variables])
        with tf.variable_creator_scope(create_master):  # slots of momentum in a third of their time
            updates = self.optimizer.make(built.mesh).apply_grads(gradients, variables)
        updates += mtf_hetero.layers.batch_norm_updates(built.graph)
        return dataclasses.replace(built, labels=labels, loss=loss, updates=tuple(updates))

    def build_test(self, features: Mapping[str, Given], label: Given) -> Built:
        """Build the model and the task's sums over the batch, of the features "image" and "weight", [batch]."""
        built, importer = self._build_outputs(features["image"], training=False)
        labels = importer(label, self.task.label_names(list(importer.image)[:-1]))
        weights = mtf.cast(importer(features["weight"]), built.outputs.dtype)
        return dataclasses.replace(built, sums=self.task.sums(built.outputs, labels, weights))

    def build_blank(self, batch_size: int, *, training: bool = True) -> Built:
        """Build a training step, or a test, of blank images of `image_shape` in TensorFlow's default graph."""
        assert self.image_shape is not None
        image, label = blank(self.task, self.image_shape, batch_size)
        if not training:
            return self.build_test({"image": image, "weight": tf.ones([batch_size])}, label)
        tf.train.create_global_step()
        return self.build_training(image, label)

    def lower_outputs(self, image: Given, layout: Layout, devices: Sequence[str]) -> tf.Tensor:
        """Return the lowered outputs of the network for a batch: tf.Tensor [examples, ...]."""
        built, importer = self._build_outputs(image, training=False)
        outputs = lower(built, layout, devices).export_to_tf_tensor(built.outputs)
        return tf.reshape(outputs, [-1, *outputs.shape.as_list()[len(importer.batch) :]])

    def model_fn(
        self,
        features: Mapping[str, Given],
        labels: Given,
        mode: str,
        *,
        layout: Layout,
        devices: Sequence[str],
        wire_dtype: str | None = None,
        initial: Mapping[str, np.ndarray] | None = None,
        check: "FirstStep | None" = None,
    ) -> EstimatorSpec:
        """Build the EstimatorSpec for mtf_hetero.Estimator, with keyword arguments bound before.

        In a test the outputs stay on the mesh, and only the task's sums leave it.

        Args:
          features: {"image": [batch, ...], "weight": [batch]}, or their slices.
          labels: [batch, ...] in the form of the task, or their slices.
          mode: one of mtf_hetero.estimator.ModeKeys.
          layout: how the tensors lie on the mesh.
          devices: one per processor.
          wire_dtype: as in mtf_hetero.UnevenMeshImpl, for training; the counts of a test exceed half precision.
          initial: {variable: array}, initial values; other variables start with the network's own.
          check: makes hooks of training that compare its first step; None: nothing is compared.
        """
        if mode == ModeKeys.TRAIN:
            built = self.build_training(features["image"], labels)
            assert built.labels is not None and built.loss is not None
            accuracy = self.task.training_accuracy(built.outputs, built.labels)
            lowering = lower(built, layout, devices, wire_dtype)
            if accuracy is not None:
                add_scalar_summary("accuracy", lowering.export_to_tf_tensor(accuracy))
            rate = self.optimizer.rate()
            add_scalar_summary("learning_rate", rate)
            with tf.control_dependencies([rate, *(lowering.lowered_operation(op) for op in built.updates)]):
                train_op = tf.assign_add(tf.train.get_global_step(), 1).op  # last: the optimizer reads the step
            scaffold = None if not initial else tf.train.Scaffold(init_feed_dict=initial_value_feed(initial))
            loss = lowering.export_to_tf_tensor(built.loss)
            hooks = [] if check is None else check(built.graph, lowering, devices)
            return EstimatorSpec(mode, loss=loss, train_op=train_op, scaffold=scaffold, training_hooks=hooks)
        if mode == ModeKeys.PREDICT:
            outputs = self.lower_outputs(features["image"], layout, devices)
            return EstimatorSpec(mode, predictions=self.task.predictions(outputs))
        built = self.build_test(features, labels)
        lowering = lower(built, layout, devices)
        sums = {name: lowering.export_to_tf_tensor(value) for name, value in built.sums.items()}
        totals, update = _over_all_batches(sums, (features, labels))
        metrics = {name: (value, update) for name, value in self.task.metrics(totals).items()}
        return EstimatorSpec(mode, loss=sums[LOSS] / sums[EXAMPLES], eval_metric_ops=metrics)
