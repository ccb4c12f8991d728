"""A step that was lowered: what is fed to it, and what it gives."""

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from mtf_hetero._compat import mtf, tf
from mtf_hetero.data.batches import Part, batches_in
from mtf_hetero.importer.staging import Loads, Stage
from mtf_hetero.importer.step import Step
from mtf_hetero.mesh.mesh_impl import UnevenMeshImpl
from mtf_hetero.mesh.tensors import LaidOutTensor


class Stages:
    """The stages of a step's batches, of which its graph gets the slices.

    Args:
      step: the step.
      leaves: its arguments, flat.
    """

    def __init__(self, step: Step, leaves: Sequence[object]) -> None:
        self._step, self._leaves = step, leaves
        self.made: list[Stage] = []

    def make(self, mesh_impl: UnevenMeshImpl) -> Mapping[mtf.Tensor, LaidOutTensor]:
        """Make them in TensorFlow's default graph; returns the slices of tensors that they give."""
        given: dict[mtf.Tensor, LaidOutTensor] = {}
        feeds = self._step.program.feeds
        fed = [x for x, value in zip(self._leaves, feeds) if value.dtype != tf.string]
        for batch in batches_in(self._leaves):
            parts = ((x, tensor) for x, tensor in zip(fed, self._step.fed) if isinstance(x, Part) and x.batch is batch)
            tensors = {part.number: tensor for part, tensor in parts}
            stage = Stage(batch, tensors, mesh_impl)
            given |= {tensor: stage.slices[number] for number, tensor in tensors.items()}
            self.made.append(stage)
        return given


class Lowered:
    """A step that was lowered.

    Args:
      step: the step.
      results: tensors of its fetches.
      done: runs its updates.
      stages: of its batches, in their order; none: all is fed.

    Attributes:
      fetches: for a session.
      written: names of the variables that it writes.
    """

    def __init__(self, step: Step, results: Sequence[tf.Tensor], done: tf.Operation, stages: Sequence[Stage]) -> None:
        self.step, self.fetches, self._stages = step, (results, done), stages
        self.written = [v.before.name for v in step.program.variables if v.after is not v.before]

    def feed(self, leaves: Sequence[object], loads: Loads) -> dict[tf.Tensor, object]:
        """Return what is fed, given the arguments, flat. The batches that come next begin to load."""
        batches = batches_in(leaves) if self._stages else []
        arrays = self.step.program.list_fed([None if batches and isinstance(x, Part) else x for x in leaves])
        feed: dict[tf.Tensor, object] = {
            placeholder: array for placeholder, array in zip(self.step.feeds, arrays, strict=True) if array is not None
        }
        pairs = list(zip(self._stages, batches, strict=True))
        feed |= {stage.key: loads.take(stage, batch, trains=bool(self.written)) for stage, batch in pairs}
        for stage, batch in pairs:
            for coming in batch.coming:
                if coming.is_like(batch):
                    loads.begin(stage, coming)
        return feed

    def take_results(self, found: Iterable[np.ndarray]) -> list[np.ndarray]:
        """Return the results of the step, flat, and give the variables that stay here their values."""
        program = self.step.program
        pairs = zip(found, program.fetches, strict=True)
        left = iter([x.reshape(value.shape) for x, value in pairs])  # with axes of size 1
        results = [next(left) for _ in program.results]
        for variable in program.hosted:
            array = next(left)
            if variable.after is not variable.before:
                variable.variable.assign(array)
        return results
