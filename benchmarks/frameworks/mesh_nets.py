"""An mtf program on one device: lowered by mtf_hetero, or by stock Mesh-TensorFlow."""

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from benchmarks import flops
from benchmarks.frameworks.trainer import LEARNING_RATE, Trainer
from mtf_hetero import Layout, mtf, tf, trace
from mtf_hetero.models.registry import MODELS
from mtf_hetero.models.train import program as network


def build_training(
    net: Any, image: Any, label: Any, batch: Sequence[int] | None = None, config: Mapping[str, Any] | None = None
) -> network.Built:
    """The mtf graph of a network's training step.

    Args:
      net: a benchmarks.networks.Network.
      image: as in models.network.build_training, and so are `label` and `batch`.
      label: integers.
      batch: sizes of the dimensions of the whole batch.
      config: keyword arguments of the model's build, beside the network's own.
    """
    if net.model not in MODELS:
        raise ValueError(f"model {net.model!r} is not in models.MODELS, which has {', '.join(MODELS)}")
    build = functools.partial(MODELS[net.model].build, **{"classes": net.classes, **net.config, **(config or {})})
    optimizer = network.Optimizer("sgd", LEARNING_RATE)
    return network.build_training(image, label, build=build, optimizer=optimizer, batch=batch)


def lower_stock(built: network.Built, layout: Layout, devices: Sequence[str]) -> Any:
    """Lowers a graph by mesh-tensorflow alone."""
    mesh_shape, rules = mtf.Shape([mtf.Dimension(*axis) for axis in layout.mesh_shape]), mtf.LayoutRules(layout.rules)
    mesh_impl = mtf.placement_mesh_impl.PlacementMeshImpl(mesh_shape, rules, list(devices))
    return mtf.Lowering(built.graph, {built.mesh: mesh_impl})


class MeshTrainer(Trainer):
    """Trains in a graph-mode session."""

    def build(self, values: list[Any], *, stock: bool = False) -> int:
        """As in Trainer; `stock`: by mesh-tensorflow alone."""
        with tf.Graph().as_default():
            return self._build(values, lower_stock if stock else network.lower)

    def _build(self, values: list[Any], lower: Callable[..., Any]) -> int:
        image = tf.placeholder(tf.float32, self.images.shape)
        label = tf.placeholder(tf.int32, self.labels.shape)
        built = build_training(self.network, image, label)
        variables = list(built.graph.trainable_variables)
        masters = [variable.get_master() for variable in variables]  # stacking, below, makes others
        shapes = [variable.shape.to_integer_list for variable in variables]
        self._flops_per_step = flops.of_step(built)
        lowering = lower(built, Layout("all:1", ""), ["cpu:0"])
        loss = lowering.export_to_tf_tensor(built.loss)
        updates = [lowering.lowered_operation(op) for op in built.updates]
        with tf.control_dependencies(updates):
            self._fetches = [loss, tf.no_op()]
        self._feed = {image: self.images, label: self.labels}
        self._session = tf.Session(config=tf.ConfigProto(device_count={"GPU": 0}))
        initial = {m.initial_value: v.reshape(s) for m, v, s in zip(masters, values, shapes, strict=True)}
        self._session.run(tf.global_variables_initializer(), initial)
        self._session.run([tf.local_variables_initializer(), lowering.copy_masters_to_slices()])
        return sum(variable.shape.size for variable in variables)

    def step(self) -> float:
        return self._session.run(self._fetches, self._feed)[0]

    def account(self) -> dict[str, Any]:
        """Traces a step: its seconds, how many operations it ran, and the seconds of each kind of operation."""
        metadata = tf.RunMetadata()
        self._session.run(self._fetches, self._feed, options=trace.run_options(), run_metadata=metadata)
        events = trace.read(metadata)
        return {
            "step_seconds": max(event.end_seconds for event in events),
            "operations": len(events),
            "kinds": trace.totals(events, lambda event: event.kind),
        }

    def describe(self) -> dict[str, Any]:
        return {**super().describe(), "flops_per_step": self._flops_per_step}
