"""The course of a training by Keras's loop: it outlives workers, and gives devices other shares.

This process has a copy of the training's state, and the batches since then.
"""

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TypeVar

import numpy as np

from mtf_hetero._compat import mtf, tf
from mtf_hetero._support.free_memory import free_bytes
from mtf_hetero.checkpoint.pace import CopyPace
from mtf_hetero.cluster import UnreachableWorkerError
from mtf_hetero.cluster.claim import find_free
from mtf_hetero.cluster.probe import describe_workers
from mtf_hetero.estimator import Elastic, Event, changes
from mtf_hetero.estimator.changes import Split
from mtf_hetero.estimator.elastic import MEMORY
from mtf_hetero.estimator.metrics_log import Values
from mtf_hetero.importer import Divided
from mtf_hetero.keras.balancing import Balancing
from mtf_hetero.placement import Placement
from mtf_hetero.placement.placing import shown_sizes

_Result = TypeVar("_Result")
_Values = Sequence[tuple[tf.Variable, np.ndarray]]
_MEMORY_SHARE = 0.25  # of the memory that is free, which batches may take


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
    log: list[Values] = dataclasses.field(default_factory=list)


@dataclasses.dataclass(frozen=True)
class Changes:
    """The changes of a training's place.

    Args:
      policy: the rules for them.
      without: returns where the step lies on the devices that are left, given the indices of all lost workers, a
        function that builds the step, and a graph that it built.
      steps: of the training; None: it is not known.
    """

    policy: Policy
    without: Callable[[Collection[int], Callable[[], mtf.Graph], mtf.Graph], Placement]
    steps: int | None


class Course:
    """Takes steps on devices that may be lost, or may become slower.

    If a worker is lost, training continues elsewhere from the copy, and takes the steps since then again. Keras sees
    each step once. A lost worker that answers again is taken in after the present step.

    Args:
      divided: the step, which has just begun.
      inputs: of the step.
      hosted: returns the tf.Variables that stay in this process.
      options: the changes of the place that are possible.
      began: called when hosted variables and weights have the values with which training begins again.
      lost: {index: "host:port"} of workers that were lost before.
    """

    def __init__(
        self,
        divided: Divided,
        inputs: Sequence[object],
        hosted: Callable[[], Sequence[tf.Variable]],
        options: Changes,
        began: Callable[[], None],
        lost: Mapping[int, str],
    ) -> None:
        self._divided, self._hosted, self._changes, self._began = divided, hosted, options, began
        self._outlives = divided.session.has_workers and options.policy.wait_seconds is not None
        self._proposed: Placement | None = None
        self._proposed_gain = 0.0
        self._gain: float | None = None  # of the last change, if it was one of the shares
        self._lost = dict(lost)
        self._steps = self._examples = 0
        self._inputs: Sequence[object] = inputs  # of the last step
        self._since: list[tuple[Sequence[object], _Values]] = []  # steps since the copy: inputs, hosted variables
        self._elastic = self._made_elastic()
        self._split = self._present_split()
        self._balancing = self._made_balancing()
        if self._outlives:
            values = divided.values()
            self._pace = CopyPace(sum(value.nbytes for value in values.values()))
            self._keep(values)

    def _made_elastic(self) -> Elastic[Placement]:
        policy, session = self._changes.policy, self._divided.session
        if policy.wait_seconds is None or not self._outlives:
            return Elastic(report=self._report)
        options = {"without": self._without, "within": self._within, "min_workers": policy.min_workers}
        elastic: Elastic[Placement] = Elastic(report=self._report, unused=self._unused, **options)
        session.wait_seconds, session.may_leave = policy.wait_seconds, elastic.may_leave
        return elastic

    def _made_balancing(self) -> Balancing | None:
        placed, seconds = self._placement, self._changes.policy.rebalance_seconds
        if seconds is None or len(placed.devices) < 2:
            return None
        options = {"steps": self._changes.steps, "pause_seconds": self._divided.session.pause_seconds}
        return Balancing(placed, self._divided.build, self._switch, seconds=seconds, **options)

    def end(self) -> None:
        """Note what the next training in this session needs to know."""
        if self._balancing is not None:
            self._divided.session.pause_seconds = self._balancing.pause_seconds

    def describe_speed(self) -> str:
        """Return how fast the last steps were and how busy the devices, in one line; "" if it was not measured."""
        return "" if self._balancing is None else self._balancing.describe_speed(self._examples / max(self._steps, 1))

    @property
    def _placement(self) -> Placement:
        placed = self._divided.session.placement
        assert placed is not None
        return placed

    def step(self, *inputs: object) -> object:
        """Take a step; returns what it returns."""
        self._inputs, trains = inputs, self._divided.writes(*inputs)
        if trains and self._elastic.is_wanted:
            self._move()
        hosted = self._present() if self._outlives else []
        balancing = self._balancing if trains else None
        if balancing is None:
            result = self.outlive(lambda: self._divided(*inputs))
        else:
            result = self.outlive(lambda: balancing.measure(lambda trace: self._divided.take(inputs, trace)))
        if trains or self._divided.writes(*inputs):  # the first step of a kind was built only now
            self._end_step(inputs, hosted)
        elif self._balancing is not None:
            self._balancing.skip()
        return result

    def _end_step(self, inputs: Sequence[object], hosted: _Values) -> None:
        """Note a step that has changed variables, given the hosted ones before it."""
        self._elastic.end_step(self._steps)
        self._steps, self._examples = self._steps + 1, self._examples + _count_examples(inputs)
        if not self._outlives:
            return
        self._since.append((inputs, hosted))
        self._since_bytes += _bytes(inputs)
        if self._pace.is_due or self._since_bytes > self._most_bytes:
            with self._pace.measure():
                self._keep(self.outlive(self._divided.read_values))

    def outlive(self, work: Callable[[], _Result]) -> _Result:
        """Return what a function returns, which is called again if a worker is lost meanwhile."""
        while True:
            try:
                return work()
            except UnreachableWorkerError as error:
                self._continue(error)

    def take_changed(self) -> None:
        """Give the devices what was changed in the tf.Variables, which were pulled before."""
        if self._outlives:
            self._keep(self._divided.values())
        self.outlive(self._divided.push_pulled)

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

    def _without(self, lost: Mapping[int, str]) -> Placement:
        self._lost = {**self._lost, **lost}
        return self._place(self._lost)

    def _unused(self) -> int:
        return len(self._placement.cluster.workers_not_in_use.keys() - self._lost.keys())

    def _within(self) -> tuple[Placement, str] | None:
        lost = self._lost
        back = find_free(lost)
        if not back:
            return None
        place = self._place(lost.keys() - back.keys())
        return place, describe_workers(back, "answers again", "answer again")

    def _place(self, lost: Collection[int]) -> Placement:
        return self._divided.placed(functools.partial(self._changes.without, lost))

    def _switch(self, place: Placement, why: str, gain: float) -> None:
        self._proposed, self._proposed_gain = place, gain
        self._elastic.move(place, why)

    def _report(self, event: Event) -> None:
        """Log a change of the place in one line, and in one row."""
        before, self._split = self._split, self._present_split()
        if self._balancing is not None:
            self._balancing.end_switch(event.seconds)
        tf.logging.warning("%s", changes.describe(event, self._split, self._gain))
        self._changes.policy.log.append({"step": event.step, **changes.row(event, before, self._split, self._gain)})

    def _present_split(self) -> Split:
        placed = self._placement
        return Split(placed.layout, placed.devices, shown_sizes(self._divided.graph, placed.layout))

    def _move(self) -> None:
        """Continue at the place that is wanted, with the values of the last step."""
        self._elastic.pause()
        values = self.outlive(self._divided.read_values)
        if not self._elastic.is_wanted:  # a worker was lost meanwhile
            return
        if self._outlives:
            self._keep(values)
        place = self._elastic.begin_move(None, MEMORY).place
        self._lost = _absent(self._lost, place)
        try:
            self._begin_at(place, values, self._proposed_gain if place is self._proposed else None)
        except UnreachableWorkerError as error:
            self._continue(error)

    def _begin_at(self, place: Placement, values: Mapping[str, np.ndarray], gain: float | None) -> None:
        """Begin a session at a place; `gain` is predicted of a change of the shares."""
        self._gain = gain
        self._began()
        if self._balancing is not None:
            self._balancing.arrive(place)
        self._divided.move(place, values, *self._inputs)

    def _continue(self, error: UnreachableWorkerError) -> None:
        """Bring the devices, here or elsewhere, to the end of the last step."""
        if not self._outlives:
            raise error
        present = self._present()
        if self._since and (values := self._divided.rescue()) is not None:
            self._keep(values)
        while True:
            place = self._await(error)
            try:
                _assign(self._values_hosted)
                self._begin_at(place, self._values, None)
                self._take_again()
                _assign(present)
                return
            except UnreachableWorkerError as again:
                error = again

    def _await(self, error: UnreachableWorkerError) -> Placement:
        """Return the place where training continues: here once all workers answer, or without the lost ones."""
        session, place = self._divided.session, self._placement
        try:
            session.await_workers(error.workers)
        except UnreachableWorkerError as lost:
            move = self._elastic.leave(lost.workers, place, MEMORY)
            if move is None:
                raise
            self._lost = _absent(self._lost, move.place)
            return move.place
        return place

    def _take_again(self) -> None:
        first = self._steps - len(self._since)
        for number, (inputs, hosted) in enumerate(self._since):
            _assign(hosted)
            self._divided(*inputs)
            self._elastic.end_step(first + number)


def _absent(lost: Mapping[int, str], placed: Placement) -> dict[int, str]:
    """Return those of some workers that have no device in a place."""
    return {index: address for index, address in lost.items() if index not in placed.cluster.workers_in_use}


def _assign(values: _Values) -> None:
    for variable, value in values:
        variable.assign(value)


def _count_examples(inputs: Sequence[object]) -> int:
    """Return the number of examples in a batch."""
    leaves = tf.nest.flatten(inputs, expand_composites=True)
    return next((x.shape[0] for x in leaves if isinstance(x, tf.Tensor) and x.shape.rank), 0)


def _bytes(inputs: Sequence[object]) -> int:
    leaves = tf.nest.flatten(inputs, expand_composites=True)
    return sum(x.shape.num_elements() * x.dtype.size for x in leaves if isinstance(x, tf.Tensor))
