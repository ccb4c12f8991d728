"""Steps that outlive the workers on which they are taken, and whose sizes follow the speed of the devices.

This process has a copy of the training's state, and the inputs of the steps since then.
"""

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Protocol, TypeVar

import numpy as np

from mtf_hetero._compat import mtf, tf
from mtf_hetero._support.free_memory import free_bytes
from mtf_hetero._support.numbers import check_number, parse_rebalance, parse_wait
from mtf_hetero.checkpoint.pace import CopyPace
from mtf_hetero.cluster import UnreachableWorkerError
from mtf_hetero.cost.machines import Machines
from mtf_hetero.placement import Placement
from mtf_hetero.placement.placing import shown_sizes
from mtf_hetero.planner.resizing import Resizer
from mtf_hetero.training.changes import Row, Split
from mtf_hetero.training.course import Course, Stage
from mtf_hetero.training.elastic import MEMORY, Elastic
from mtf_hetero.training.meter import Meter
from mtf_hetero.training.runtime import Runtime, Trace

_Result = TypeVar("_Result")
_Values = Sequence[tuple[tf.Variable, np.ndarray]]
_Row = Sequence[Sequence[object]]  # the inputs of the steps of one call
_MEMORY_SHARE = 0.25  # of the memory that is free, which inputs may take


@dataclasses.dataclass(frozen=True)
class Policy:
    """The rules by which the place of a training changes.

    Args:
      wait_seconds: that training waits for a lost worker; infinity: forever; None: its loss is an error.
      min_workers: training waits on if fewer workers are left.
      rebalance_seconds: at least between two changes of the shares; None: they stay.
      log: gets a row for each change.
    """

    wait_seconds: float | None = None
    min_workers: int = 1
    rebalance_seconds: float | None = None
    log: list[Row] = dataclasses.field(default_factory=list)

    @classmethod
    def parse(cls, wait_for_workers: float | str | bool, min_workers: int, rebalance: float | str) -> "Policy":
        """Return the rules that a user asked for: `fit` has the same arguments.

        Raises:
          ValueError: an argument is none of those.
        """
        check_number(min_workers, "min_workers", none=False)
        return cls(
            parse_wait(wait_for_workers, "wait_for_workers"), min_workers, parse_rebalance(rebalance, "rebalance")
        )


@dataclasses.dataclass(frozen=True)
class Changes:
    """The changes of a training's place.

    Args:
      policy: the rules for them.
      without: returns where the step lies on the devices that are left, given the indices of all lost workers, a
        function that builds the step, and a graph that it built. Without a lost one, it is where training would begin.
      steps: of the training; None: it is not known.
    """

    policy: Policy
    without: Callable[[Collection[int], Callable[[], mtf.Graph], mtf.Graph], Placement]
    steps: int | None = None


class Step(Protocol):
    """A step on devices, as importer.Divided is."""

    @property
    def runtime(self) -> Runtime:
        """The session of its variables, and where it is."""
        ...

    @property
    def graph(self) -> mtf.Graph:
        """The mtf.Graph of the first kind of inputs."""
        ...

    def build(self) -> mtf.Graph:
        """Build the step anew, in TensorFlow's default graph."""
        ...

    def writes(self, inputs: Sequence[object]) -> bool:
        """Return whether a step changes a variable on the devices, as far as it was built."""
        ...

    def run_row(self, row: _Row, trace: Trace = None) -> Sequence[object]:
        """Take steps in one call, of which a lost worker leaves all or none; returns what each returns."""
        ...

    def move(self, placed: Placement, values: Mapping[str, np.ndarray], inputs: Sequence[object]) -> None:
        """Continue at another place, with values of all variables."""
        ...

    def values(self) -> dict[str, np.ndarray]:
        """Return the values of the tf.Variables by name."""
        ...

    def read_values(self) -> dict[str, np.ndarray]:
        """Return the values on the devices by name."""
        ...


@dataclasses.dataclass(frozen=True, eq=False)
class _Site:
    """A step on the devices of a placement."""

    placed: Placement
    step: Step
    machines: Machines | None  # figures of the first devices

    @property
    def split(self) -> Split:
        placed = self.placed
        return Split(placed.layout, placed.devices, shown_sizes(self.step.graph, placed.layout))

    def resizer(self) -> Resizer:
        return self.placed.resizer(self.step.build, self.machines)

    def at(self, placed: Placement) -> "_Site":
        return dataclasses.replace(self, placed=placed)


class ElasticSteps:
    """Takes steps on devices that may be lost, or may become slower.

    If a worker is lost, training continues elsewhere from the copy, and takes the steps since then again. The caller
    sees each step once. A lost worker that answers again is taken in after the present step.

    Args:
      step: has just begun, or continues.
      inputs: of the step.
      hosted: returns the tf.Variables that stay in this process.
      options: the changes of the place that are possible.
      began: called when hosted variables and weights have the values with which training begins again.
      lost: {index: "host:port"} of workers that were lost before.
    """

    def __init__(
        self,
        step: Step,
        inputs: Sequence[object],
        hosted: Callable[[], Sequence[tf.Variable]],
        options: Changes,
        began: Callable[[], object],
        lost: Mapping[int, str],
    ) -> None:
        policy, runtime = options.policy, step.runtime
        self._step, self._hosted, self._changes, self._began = step, hosted, options, began
        self._outlives = runtime.has_workers and policy.wait_seconds is not None
        self._steps = self._examples = 0
        self._inputs = inputs  # of the last step
        self._since: list[tuple[_Row, _Values]] = []  # calls since the copy: inputs, hosted variables
        here = _Site(runtime.placement, step, runtime.placement.measured_machines)
        first = here.at(options.without((), step.build, step.graph)) if lost else here
        course_options = {"outlives": self._outlives, "min_workers": policy.min_workers}
        self._course = Course(first, self._without, self._report, **course_options)
        self._course.begin_without(lost, here)
        if self._outlives:
            assert policy.wait_seconds is not None
            runtime.wait_seconds, runtime.may_leave = policy.wait_seconds, self._elastic.may_leave
            values = step.values()
            self._pace = CopyPace(sum(value.nbytes for value in values.values()))
            self._keep(values)
        self._meter: Meter | None = None
        is_split = len(here.placed.devices) > 1 and not here.placed.layout.slots  # slots keep their sizes
        if policy.rebalance_seconds is not None and is_split:
            self._meter = Meter(here.placed.devices, here.placed.cluster.workers)
            balance_options = {"total_steps": options.steps, "pause_seconds": runtime.pause_seconds}
            hook = self._course.balance(self._meter.load, policy.rebalance_seconds, **balance_options)
            self._meter.begin_session(hook)

    @property
    def _elastic(self) -> Elastic:
        return self._course.elastic

    def end(self) -> None:
        """Note what the next training in this session needs to know."""
        if self._meter is not None:
            self._step.runtime.pause_seconds = self._meter.pause_seconds

    def describe_speed(self) -> str:
        """Return how fast the last steps were and how busy the devices, in one line; "" if it was not measured."""
        if self._meter is None:
            return ""
        steps = max(self._steps, 1)
        return self._meter.describe_speed(self._examples / steps, self._step.runtime.waited_seconds / steps)

    def take(self, row: _Row) -> Sequence[object]:
        """Take steps in one call; returns what each returns."""
        self._inputs, trains = row[-1], self._step.writes(row[-1])
        if trains and self._elastic.is_wanted:
            self._move()
        hosted = self._present() if self._outlives else []
        meter = self._meter if trains else None
        if meter is None:
            results = self.outlive(lambda: self._step.run_row(row))
        else:
            run = functools.partial(self._step.run_row, row)
            results = self.outlive(lambda: meter.measure(run, steps=len(row)))
        if trains or self._step.writes(row[-1]):  # the first step of a kind was built only now
            self._end_row(row, hosted)
        elif self._meter is not None:
            self._meter.skip()
        return results

    def _end_row(self, row: _Row, hosted: _Values) -> None:
        """Note steps that have changed variables, given the hosted ones before them."""
        for inputs in row:
            self._elastic.end_step(self._steps)
            self._steps, self._examples = self._steps + 1, self._examples + _count_examples(inputs)
        if not self._outlives:
            return
        row = [_copied(inputs) for inputs in row]
        self._since.append((row, hosted))
        self._since_bytes += sum(map(_bytes, row))
        if self._pace.is_due or self._since_bytes > self._most_bytes:
            with self._pace.measure():
                self._keep(self.outlive(self._step.read_values))

    def outlive(self, work: Callable[[], _Result]) -> _Result:
        """Return what a function returns, which is called again if a worker is lost meanwhile."""
        while True:
            try:
                return work()
            except UnreachableWorkerError as error:
                self._continue(error)

    def note_changed(self) -> None:
        """Note that the tf.Variables, which were pulled, have other values now, which the devices will get."""
        if self._outlives:
            self._keep(self._step.values())

    def _keep(self, values: Mapping[str, np.ndarray]) -> None:
        self._values, self._values_hosted = values, self._present()
        self._since, self._since_bytes = [], 0
        self._most_bytes = _MEMORY_SHARE * free_bytes()
        self._pace.wait()

    def _present(self) -> _Values:
        return [(variable, variable.numpy()) for variable in self._hosted()]

    def looking(self) -> contextlib.AbstractContextManager[None]:
        """Look for lost workers that answer again, until the end of the context."""
        return self._elastic.looking()

    def _without(self, lost: Collection[int]) -> _Site:
        return self._course.site.at(self._changes.without(lost, self._step.build, self._step.graph))

    def _report(self, line: str, step: int, row: Row) -> None:
        tf.logging.warning("%s", line)
        self._changes.policy.log.append({"step": step, **row})

    def _move(self) -> None:
        """Continue at the place that is wanted, with the values of the last step."""
        self._elastic.pause()
        values = self.outlive(self._step.read_values)
        if not self._elastic.is_wanted:  # a worker was lost meanwhile
            return
        if self._outlives:
            self._keep(values)
        try:
            self._begin_at(self._elastic.begin_move(None, MEMORY).place, values)
        except UnreachableWorkerError as error:
            self._continue(error)

    def _begin_at(self, stage: Stage[_Site], values: Mapping[str, np.ndarray]) -> None:
        """Begin a session at a place, which may be the present one."""
        self._began()
        stage.begin()
        if self._meter is not None:
            self._meter.begin_session()
        self._step.move(self._course.site.placed, values, self._inputs)

    def _continue(self, error: UnreachableWorkerError) -> None:
        """Bring the devices, here or elsewhere, to the end of the last step."""
        if not self._outlives:
            raise error
        present = self._present()
        if self._since and (values := self._step.runtime.rescue()) is not None:
            self._keep(values)
        while True:
            stage = self._await(error)
            try:
                _assign(self._values_hosted)
                self._begin_at(stage, self._values)
                self._take_again()
                _assign(present)
                return
            except UnreachableWorkerError as again:
                error = again

    def _await(self, error: UnreachableWorkerError) -> Stage[_Site]:
        """Return where training continues: here, once all workers answer, or without the lost ones."""
        here = self._course.stay()
        try:
            self._step.runtime.await_workers(error.workers)
        except UnreachableWorkerError as lost:
            move = self._elastic.leave(lost.workers, here, MEMORY)
            if move is None:
                raise
            return move.place
        return here

    def _take_again(self) -> None:
        number = self._steps - sum(len(row) for row, _ in self._since)
        for row, hosted in self._since:
            _assign(hosted)
            self._step.run_row(row)
            number += len(row)
            self._elastic.end_step(number - 1)


def _assign(values: _Values) -> None:
    for variable, value in values:
        variable.assign(value)


def _copied(inputs: Sequence[object]) -> Sequence[object]:
    """Return inputs that stay as they are: the caller may write the next batch into the same arrays."""
    copied = [np.array(x) if isinstance(x, np.ndarray) else x for x in tf.nest.flatten(inputs, expand_composites=True)]
    return tf.nest.pack_sequence_as(inputs, copied, expand_composites=True)


def _count_examples(inputs: Sequence[object]) -> int:
    """Return the number of examples in a batch."""
    leaves = tf.nest.flatten(inputs, expand_composites=True)
    return next((x.shape[0] for x in leaves if hasattr(x, "dtype") and len(x.shape)), 0)


def _bytes(inputs: Sequence[object]) -> float:
    leaves = tf.nest.flatten(inputs, expand_composites=True)
    tensors = (x for x in leaves if isinstance(x, tf.Tensor))
    return sum(x.dtype.size * x.shape.num_elements() for x in tensors) + sum(getattr(x, "nbytes", 0) for x in leaves)
