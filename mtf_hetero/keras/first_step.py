"""Compares the first step of a training with Keras: what the imported model gives in it, and its gradients."""

import time
from collections.abc import Sequence

import numpy as np

import mtf_hetero
from mtf_hetero._compat import eagerly, mtf, tf
from mtf_hetero.importer.comparing import Comparison, Devices, Side
from mtf_hetero.importer.insertion import Differentiated
from mtf_hetero.importer.verifying import Verification, Verify
from mtf_hetero.keras.builder import Builder

_KIND = "train"
AUTO, ON, OFF = "auto", "on", "off"
_MODES: dict[str, Verify] = {AUTO: "auto", ON: True, OFF: False}


class FirstStep:
    """Makes the hooks that compare the first step of a training program with Keras.

    Args:
      builder: of the model.
      mode: AUTO, ON or OFF.
      steps: number of steps of the training.
      announces: whether the result is printed.
    """

    def __init__(self, builder: Builder, mode: str, steps: int, *, announces: bool) -> None:
        self._builder = builder
        flags = f"--verify={ON}", f"--verify={OFF}"
        self._verification = Verification(_MODES[mode], steps, announces=announces, flags=flags)

    def __call__(
        self, graph: mtf.Graph, lowering: "mtf_hetero.Lowering", devices: Sequence[str]
    ) -> list[tf.train.SessionRunHook]:
        """Return the hooks for a lowered graph; none if its model was compared before, at another place."""
        step = self._builder.differentiated(graph)
        if step is None or not self._verification.is_due(_KIND):
            return []
        return [FirstStepHook(step, lowering, self._verification, devices)]


class FirstStepHook(tf.train.SessionRunHook):
    """Fetches inputs, weights, outputs and gradients of an imported model in the first step, and compares them.

    TensorFlow runs the model on this host, from the same weights and on the same batch. The gradients of the outputs
    are those of the training's loss.

    Args:
      step: outputs and gradients in the mtf graph.
      lowering: of the graph.
      verification: decides whether they are compared.
      devices: one per processor.
    """

    def __init__(
        self,
        step: Differentiated,
        lowering: "mtf_hetero.Lowering",
        verification: Verification,
        devices: Sequence[str],
    ) -> None:
        self._values, self._program = list(step.values), step.source.program
        self._tensors = [lowering.export_to_tf_tensor(tensor) for tensor in step.values.values()]
        on_gpu, on_workers = (any(word in device.lower() for device in devices) for word in ("gpu", "worker"))
        self._devices = Devices(self._program, on_workers=on_workers, on_gpu=on_gpu)
        self._verification, self._begin = verification, 0.0

    def before_run(self, run_context: tf.train.SessionRunContext) -> tf.train.SessionRunArgs | None:
        self._begin = time.monotonic()
        return tf.train.SessionRunArgs(self._tensors) if self._verification.is_due(_KIND) else None

    def after_run(self, run_context: tf.train.SessionRunContext, run_values: tf.train.SessionRunValues) -> None:
        if not run_values.results:
            return
        seconds, program = time.monotonic() - self._begin, self._program
        arrays = zip(self._values, run_values.results, strict=True)
        known = {value: np.reshape(array, value.shape) for value, array in arrays}
        inputs = [known.get(feed, np.zeros(feed.shape, feed.dtype.as_numpy_dtype)) for feed in program.feeds]
        before = {v.before.name: known[v.before] for v in program.variables}
        moved = {
            v.before.name: known[v.after] for v in program.variables if v.after is not v.before and v.after in known
        }
        found = Side([known.get(value) for value in program.results], moved)
        with eagerly():
            comparison = Comparison(self._devices, before, inputs)
            self._verification.compare(_KIND, comparison, found, seconds)
