"""An mtf program on one device, lowered by mtf_hetero or by stock Mesh-TensorFlow; and what the machine can do."""

import functools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from benchmarks import flops
from benchmarks.frameworks.steps import lower_step, start_session
from benchmarks.frameworks.trainer import LEARNING_RATE, Trainer
from mtf_hetero import Layout, mtf, tf
from mtf_hetero.cli.train import program
from mtf_hetero.cost import trace
from mtf_hetero.models.registry import MODELS

_MATMUL_SIZE = 4096
_CONV = {"images": 64, "pixels": 32, "channels": 128, "filters": 128, "kernel": 3}


def build_training(
    net: Any, image: Any, label: Any, batch: Sequence[int] | None = None, config: Mapping[str, Any] | None = None
) -> program.Built:
    """Return the mtf graph of a network's training step.

    Args:
      net: a benchmarks.networks.Network.
      image: as in `Program.build_training`, and so is `label`.
      label: integers.
      batch: sizes of the dimensions of the whole batch.
      config: keyword arguments of the model's build, beside the network's own.
    """
    if net.model not in MODELS:
        raise ValueError(f"model {net.model!r} is not in models.MODELS, which has {', '.join(MODELS)}")
    build = functools.partial(MODELS[net.model].build, **{"classes": net.classes, **net.config, **(config or {})})
    optimizer = program.Optimizer("sgd", LEARNING_RATE)
    return program.Program(build, optimizer, batch=batch).build_training(image, label)


def lower_stock(built: program.Built, layout: Layout, devices: Sequence[str]) -> Any:
    """Lowers a graph by mesh-tensorflow alone."""
    mesh_shape, rules = mtf.Shape([mtf.Dimension(*axis) for axis in layout.mesh_shape]), mtf.LayoutRules(layout.rules)
    mesh_impl = mtf.placement_mesh_impl.PlacementMeshImpl(mesh_shape, rules, list(devices))
    return mtf.Lowering(built.graph, {built.mesh: mesh_impl})


class _SessionTrainer(Trainer):
    """Trains in a graph-mode session of the CPU."""

    _session: Any
    _fetches: Any
    _flops_per_step: int
    _feed: Mapping[Any, Any] | None = None

    def step(self) -> float:
        return self._session.run(self._fetches, self._feed)[0]

    def describe(self) -> dict[str, Any]:
        return {**super().describe(), "flops_per_step": self._flops_per_step}


class MeshTrainer(_SessionTrainer):
    """Trains the mtf program."""

    def build(self, values: list[Any], *, stock: bool = False) -> int:
        """Take Trainer's arguments; `stock`: by mesh-tensorflow alone."""
        with tf.Graph().as_default():
            image, label = tf.placeholder(tf.float32, self.images.shape), tf.placeholder(tf.int32, self.labels.shape)
            built = build_training(self.network, image, label)
            self._flops_per_step = flops.of_step(built)
            step = lower_step(built, Layout("all:1", ""), ["cpu:0"], lower_stock if stock else program.lower)
            self._fetches, self._feed = step.fetches, {image: self.images, label: self.labels}
            self._session = tf.Session(config=tf.ConfigProto(device_count={"GPU": 0}))
            start_session(self._session, step.lowering, step.initial_values(values))
        return sum(variable.shape.size for variable in built.graph.trainable_variables)

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


class Peak(_SessionTrainer):
    """A "step" is one large float32 product of square matrices, or one large forward convolution, in TensorFlow."""

    def build(self, values: list[Any], *, operation: str) -> int:
        """Take Trainer's arguments; `operation`: "matmul" or "conv"; the initial values are not used."""
        with tf.Graph().as_default():
            self._fetches = [tf.reduce_max(self._result(operation))]  # so that little is copied out
            self._session = tf.Session(config=tf.ConfigProto(device_count={"GPU": 0}))
            self._session.run(tf.global_variables_initializer())
        return 0

    def _result(self, operation: str) -> Any:
        rng = np.random.default_rng(0)

        def variable(*shape: int) -> Any:
            return tf.Variable(rng.standard_normal(shape, np.float32), use_resource=True)

        if operation == "matmul":
            n = _MATMUL_SIZE
            self._flops_per_step = 2 * n**3
            return tf.matmul(variable(n, n), variable(n, n))
        images, pixels, channels, filters, kernel = _CONV.values()
        self._flops_per_step = 2 * images * pixels**2 * kernel**2 * channels * filters
        x, w = variable(images, pixels, pixels, channels), variable(kernel, kernel, channels, filters)
        return tf.nn.conv2d(x, w, strides=1, padding="SAME")
