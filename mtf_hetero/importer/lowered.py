"""A step that was lowered: what is fed to it, and what it gives."""

import functools
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TypeVar

import numpy as np

from mtf_hetero._compat import mtf, tf
from mtf_hetero._support.alike import parallel
from mtf_hetero._support.ops import reshape
from mtf_hetero.data.batches import AHEAD, Part, batches_in
from mtf_hetero.importer import guarding, work
from mtf_hetero.importer.program import Program
from mtf_hetero.importer.repeating import Carried, Copy, Row
from mtf_hetero.importer.staging import Loads, Stage
from mtf_hetero.importer.step import Step
from mtf_hetero.mesh import traffic
from mtf_hetero.mesh.mesh_impl import UnevenMeshImpl
from mtf_hetero.mesh.tensors import LaidOutTensor
from mtf_hetero.training.runtime import Runtime

_T = TypeVar("_T")
_MOST_OPERATIONS = 20_000  # of TensorFlow in a row of steps: 10 kB each
_PREPARATION_SECONDS = 0.0005  # of an operation: until TensorFlow has run it for the first time
_MOST_BYTES = 2**28  # of the batches in a row, which lie on the devices before it begins, as those of the next row do


class _Given:
    """The slices that a step gets: of its batches, and of the variables that stay in this process.

    Args:
      step: the step.
      leaves: its arguments, flat.

    Attributes:
      stages: of the batches.
      hosted: the slices of each variable of this process.
    """

    def __init__(self, step: Step, leaves: Sequence[object]) -> None:
        self._step, self._leaves = step, leaves
        self.stages: list[Stage] = []
        self.hosted: list[list[tf.Tensor]] = []

    def make(self, mesh_impl: UnevenMeshImpl) -> Mapping[mtf.Tensor, LaidOutTensor]:
        """Make them in TensorFlow's default graph; returns the slices of tensors."""
        given: dict[mtf.Tensor, LaidOutTensor] = {}
        feeds = self._step.program.feeds
        fed = [x for x, value in zip(self._leaves, feeds) if value.dtype != tf.string]
        for batch in batches_in(self._leaves):
            parts = ((x, tensor) for x, tensor in zip(fed, self._step.fed) if isinstance(x, Part) and x.batch is batch)
            tensors = {part.number: tensor for part, tensor in parts}
            stage = Stage(batch, tensors, mesh_impl)
            given |= {tensor: stage.slices[number] for number, tensor in tensors.items()}
            self.stages.append(stage)
        pairs = _hosted(list(zip(self._step.feeds, self._step.fed, strict=True)), self._step.program)
        for feed, tensor in pairs:
            whole = mesh_impl.make_slices(reshape(feed, tensor.shape.to_integer_list), tensor.shape)
            slices = parallel(mesh_impl.devices, tf.identity, whole)  # where the next step of a row finds its values
            self.hosted.append(slices)
            given[tensor] = LaidOutTensor(list(slices))
        return given


def _hosted(inputs: Sequence[_T], program: Program) -> Sequence[_T]:
    """Return what belongs to the variables of this process, of things in the order of the inputs."""
    return inputs[len(inputs) - len(program.hosted) :]


def lower(
    step: Step,
    leaves: Sequence[object],
    runtime: Runtime,
    *,
    is_first: bool,
    new: Collection[str],
    already_run: int,
) -> "Lowered":
    """Lower a step in TensorFlow's default graph, that of a session.

    Args:
      step: the step.
      leaves: its arguments, flat, where they may be batches that the workers load; else none.
      runtime: the session.
      is_first: whether it is the first step of the graph, which makes the variables.
      new: names of the variables that no step before it had.
      already_run: number of the graph's operations that the session may have run.
    """
    program, given = step.program, _Given(step, leaves)
    sizes = [value.shape[0] for value in program.feeds if value.shape]
    options = {"is_first": is_first, "examples": sizes[0] if sizes else 1, "new": new}
    lowering = runtime.lower(step.graph, step.mesh, give=given.make, **options)
    results = [lowering.export_to_tf_tensor(tensor) for tensor in step.results]
    done = tf.group([lowering.lowered_operation(op) for op in step.updates])
    guarding.check_before_updates(program.guards, results[len(results) - len(program.guards) :], done)
    runtime.hold(done, is_open=not is_first)
    traffic.arrange([*results, done], already_run=already_run)
    after = step.results[len(program.results) : len(program.results) + len(program.hosted)]
    slices = (lowering.tensors[tensor].to_laid_out_tensor().tensor_list for tensor in after)
    carried = [Carried(before, list(found)) for before, found in zip(given.hosted, slices, strict=True)]
    first = Copy(results, done, {x: x for x in (*step.feeds, *(stage.key for stage in given.stages))})
    # on any layout, so that a row that was begun elsewhere is a row here
    is_repeated = not program.guards and [x.shape for x in after] == [x.shape for x in _hosted(step.fed, program)]
    return Lowered(step, [first], given.stages, Row(first, carried) if is_repeated else None)


class Lowered:
    """A step that was lowered, or a row of such steps.

    Args:
      step: the step.
      copies: of the step, in their order.
      stages: of its batches, in their order; none: all is fed.
      row: makes more copies; None: it is a row.

    Attributes:
      fetches: for a session.
      written: names of the variables that it writes.
    """

    def __init__(self, step: Step, copies: Sequence[Copy], stages: Sequence[Stage], row: Row | None = None) -> None:
        self.step, self._copies, self._stages, self._row = step, copies, stages, row
        self.fetches = [copy.results for copy in copies], copies[-1].done
        self.written = [v.before.name for v in step.program.variables if v.after is not v.before]
        self._asked: set[int] = set()  # numbers of steps
        self._rows: dict[int, Lowered] = {}

    @functools.cached_property
    def most_steps(self) -> int:
        """The most steps that one call may take; 1: they are taken one by one."""
        if self._row is None or not self._row.is_possible:
            return 1
        fed = sum(map(work.size_bytes, self.step.program.inputs))
        return max(min(_MOST_OPERATIONS // self._row.size, _MOST_BYTES // max(fed, 1)), 1)

    @property
    def made_bytes(self) -> int:
        """The bytes of all that a step makes: two steps of a call may be on a device at a time."""
        return work.made_bytes(self.step.program)

    @property
    def preparation_seconds(self) -> float:
        """The seconds that TensorFlow needs to prepare each step of a call of several ones."""
        return _PREPARATION_SECONDS * (0 if self._row is None else self._row.size)

    def fit(self, count: int) -> int:
        """Return how many steps one call takes, if `count` are to be taken, of which the last ones may be left.

        A row is made at the second request: that takes time, as many steps, and there may be no more of that number.
        """
        lengths = range(1, min(self.most_steps, count) + 1)
        fitting = min(lengths, key=lambda length: count // length + count % length)  # the fewest calls
        if fitting == 1 or fitting in self._asked:
            return fitting
        self._asked.add(fitting)
        return 1

    def repeated(self, count: int) -> "Lowered":
        """Return so many of these steps in a row."""
        if count not in self._rows:
            assert self._row is not None and self._row.is_possible
            self._rows[count] = Lowered(self.step, self._row.repeat(count), self._stages)
        return self._rows[count]

    def feed(self, row: Sequence[Sequence[object]], loads: Loads) -> dict[tf.Tensor, object]:
        """Return what is fed, given the arguments of each step, flat. The batches that come next begin to load."""
        batches = [batches_in(leaves) if self._stages else [] for leaves in row]
        for stage, of_stage in zip(self._stages, zip(*batches, strict=True), strict=True):
            loads.begin(stage, of_stage)
        feed: dict[tf.Tensor, object] = {}
        trains = bool(self.written)
        for number, (leaves, its, copy) in enumerate(zip(row, batches, self._copies, strict=True)):
            arguments = [None if its and isinstance(x, Part) else x for x in leaves]
            arrays = self.step.program.list_fed(arguments, are_hosted_fed=number == 0)  # later steps have the former's
            fed = {place: array for place, array in zip(self.step.feeds, arrays) if array is not None}
            fed |= {stage.key: loads.take(stage, batch, trains=trains) for stage, batch in zip(self._stages, its)}
            feed |= {copy.places[place]: array for place, array in fed.items() if place in copy.places}
        for stage, batch in zip(self._stages, batches[-1]):
            coming = [each for each in batch.coming[: max(AHEAD, len(row))] if each.is_like(batch)]
            for first in range(0, len(coming), len(row)):
                loads.begin(stage, coming[first : first + len(row)])
        return feed

    def pack(self, results: Iterable[np.ndarray]) -> object:
        """Return the results of a step in the structure of what it returns."""
        values, structure = iter(results), self.step.program.concrete.structured_outputs
        leaves = tf.nest.flatten(structure, expand_composites=True)
        flat = [None if x is None else tf.constant(next(values)) for x in leaves]
        return tf.nest.pack_sequence_as(structure, flat, expand_composites=True)

    def take_results(self, found: tuple[Iterable[Iterable[np.ndarray]], None]) -> list[list[np.ndarray]]:
        """Return the results of each step, flat, and give the variables that stay here their values."""
        program = self.step.program
        shaped = [
            [x.reshape(value.shape) for x, value in zip(results, program.fetches, strict=True)]  # with axes of size 1
            for results in found[0]
        ]
        for variable, array in zip(program.hosted, shaped[-1][len(program.results) :]):
            if variable.after is not variable.before:
                variable.variable.assign(array)
        return [each[: len(program.results)] for each in shaped]
