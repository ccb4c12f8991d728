"""A step on devices of unequal speed: its session, its variables, and the values that go in and out."""

import contextlib
import functools
import itertools
import types
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np

from mtf_hetero import placement
from mtf_hetero._compat import mtf, tf
from mtf_hetero._support import garbage, interrupts
from mtf_hetero.cluster import UnreachableWorkerError
from mtf_hetero.cluster.session import MayLeave, always
from mtf_hetero.data import batches
from mtf_hetero.importer import guarding, tracing
from mtf_hetero.importer import step as step_lib
from mtf_hetero.importer.comparing import Devices
from mtf_hetero.importer.lowered import Lowered, lower
from mtf_hetero.importer.program import Program
from mtf_hetero.importer.report import Undivided, report, warn
from mtf_hetero.importer.staging import Loads
from mtf_hetero.importer.step import Step
from mtf_hetero.importer.tracing import Traced
from mtf_hetero.importer.verifying import Verification
from mtf_hetero.layout import Layout
from mtf_hetero.placement.placing import sizes_on_devices
from mtf_hetero.training.changes import Row
from mtf_hetero.training.runtime import Runtime, Trace
from mtf_hetero.training.steps import Changes, ElasticSteps

_Result = TypeVar("_Result")
_NONE: Mapping = types.MappingProxyType({})
_LOSS = "a step; the tf.Variables have the values of the last pull"
Place = Callable[[Callable[[], mtf.Graph], mtf.Graph], placement.Placement]


class Divided:
    """A step that runs on several devices. A context manager, which at its end gives the tf.Variables their values.

    The devices have values of their own: `pull` and `push` bring them to the tf.Variables and back.

    Args:
      traced: the step.
      place: returns where it runs, given a function that builds the step, and a graph that the function built.
      inputs: arguments, of the first kind.
      owner: names the step in errors.
      loss: the rest of the sentence that says which values are left after a worker was lost.
      rescues: whether `rescue` is called after the loss of a worker.
      wait_seconds: to wait for a worker that is lost before the first step; 0: its loss is an error at once.
      may_leave: as of WaitingSessionCreator.
      verification: compares first steps; None: nothing is compared. It may be replaced by another one.

    Attributes:
      runtime: the session of the step's variables, and where it is.
      changes: a dict for each change of the shares, and of the workers.
    """

    def __init__(
        self,
        traced: Traced,
        place: Place,
        inputs: Sequence[object],
        *,
        owner: str = "the step",
        loss: str = _LOSS,
        rescues: bool = False,
        wait_seconds: float = 0.0,
        may_leave: MayLeave = always,
        verification: Verification | None = None,
    ) -> None:
        self.verification = verification
        self._traced, self._place, self._stack = traced, place, contextlib.ExitStack()
        self.runtime = Runtime(owner, loss, rescues=rescues)
        self.runtime.wait_seconds, self.runtime.may_leave = wait_seconds, may_leave
        self._lowered: dict[Hashable, Lowered] = {}
        self._loads = Loads(self.runtime)
        self._first: Step | None = None
        self._variables: dict[str, tf.Variable] = {}
        self._shapes: dict[str, list[int]] = {}
        self._present: set[str] = set()  # the variables of the session
        self._known: dict[str, np.ndarray] = {}  # values that both sides have
        self._is_open = True
        self._elastic: ElasticSteps | None = None
        self.changes: Sequence[Row] = ()
        self._sizes: tuple[placement.Placement, dict[str, dict[str, int]]] | None = None
        self._begin(inputs)
        self._open_first(inputs)
        self._stack.callback(self.runtime.close)
        self._stack.callback(self._loads.close)
        warn(self.step.program)

    def __call__(self, *inputs: object) -> Any:
        """Run one step; returns what the step returns."""
        return self.take([inputs])[0]

    def take(self, row: Sequence[Sequence[object]]) -> list[object]:
        """Run steps, in as few calls of the session as possible; returns what each returns."""
        run = self.run_row if self._elastic is None else self._elastic.take
        return [result for part in self._calls(row) for result in run(part)]

    def _calls(self, row: Sequence[Sequence[object]]) -> Iterator[Sequence[Sequence[object]]]:
        """Yield the inputs of each call: of one step, or of several of a kind."""
        for key, group in itertools.groupby(row, self._key):
            left, lowered = list(group), self._lowered.get(key)
            count = 1 if lowered is None else lowered.fit(len(left))
            count = 1 if self.verification is not None and self.verification.is_due(key[0]) else count
            while left:
                count = count if count <= len(left) else 1
                yield left[:count]
                left = left[count:]

    @contextlib.contextmanager
    def outliving(
        self,
        inputs: Sequence[object],
        changes: Changes,
        *,
        lost: Mapping[int, str] = _NONE,
        began: Callable[[], object] = lambda: None,
    ) -> Iterator[None]:
        """Outlive workers, and follow the speed of devices, until the end of the context.

        Args:
          inputs: of the first step.
          changes: of the place that are possible.
          lost: {index: "host:port"} of workers that were lost before.
          began: called when the tf.Variables have the values with which training begins again.
        """
        if not self.runtime.has_workers and self.layout.size == 1:
            yield
            return
        self.changes = changes.policy.log
        self._elastic = ElasticSteps(self, inputs, self._traced.hosted, changes, began, lost)
        try:
            with self._elastic.looking():
                yield
        finally:
            self._elastic.end()
            self._elastic = None

    def describe_speed(self) -> str:
        """Return how fast the last steps were and how busy the devices, in one line; "" if it was not measured."""
        return "" if self._elastic is None else self._elastic.describe_speed()

    def _outlive(self, work: Callable[[], _Result]) -> _Result:
        return work() if self._elastic is None else self._elastic.outlive(work)

    def run_row(self, row: Sequence[Sequence[object]], trace: Trace = None) -> list[object]:
        """Run steps of one kind in one call, which is not repeated if a worker is lost; returns what each returns."""
        lowered = self.prepare(row[0])
        found = self._run(lowered.repeated(len(row)), row, trace) if row[1:] else [self.run(row[0], trace)[1]]
        return [lowered.pack(results) for results in found]

    def run(self, inputs: Sequence[object], trace: Trace = None) -> tuple[Program, list[np.ndarray]]:
        """Run one step, and compare it with TensorFlow's if it is the first one; returns its program, and the results.

        Raises:
          StepDiffersError: it is not TensorFlow's.
        """
        lowered = self.prepare(inputs)
        program, take = lowered.step.program, lambda: self._run(lowered, [inputs], trace)[0]
        if self.verification is None or not self.verification.is_due(kind := self._traced.kind(inputs)):
            return program, take()
        arrays = batches.values(inputs)
        on_gpu = any("gpu" in device.lower() for device in self.runtime.placement.devices)
        where = {"on_workers": self.runtime.has_workers, "on_gpu": on_gpu}
        devices = Devices(program, self._traced.drawn, functools.partial(self._observe, arrays), **where)
        return program, self.verification.take(kind, devices, arrays, take, self)

    def _run(self, lowered: Lowered, row: Sequence[Sequence[object]], trace: Trace) -> list[list[np.ndarray]]:
        """Run steps in one call; returns the results of each, flat."""
        feed = lowered.feed([_leaves(inputs) for inputs in row], self._loads)
        for name in lowered.written:
            self._known.pop(name, None)
        with interrupts.defer(), guarding.explain_guards(lowered.step.program.guards):
            found = self.runtime.run_steps(len(row) if lowered.written else 0, lowered.fetches, feed, trace)
            return lowered.take_results(found)

    def _observe(self, inputs: Sequence[object], tensors: Sequence[tf.Tensor]) -> tuple[Program, list[np.ndarray]]:
        """Take a step elsewhere, with tensors of its trace among the results; returns its program, and the results."""
        traced, placed = self._traced.observing(tensors, inputs, self._first), self.runtime.placement
        with contextlib.closing(Divided(traced, lambda build, graph: placed, inputs)) as observer:
            return observer.run(inputs)

    def _key(self, inputs: Sequence[object]) -> tuple[Hashable, ...]:
        """Return what decides how a step is lowered: its trace, and where its input is made."""
        loaders = [batch.loader for batch in batches.batches_in(inputs)] if self.runtime.has_workers else []
        return self._traced.kind(inputs), tuple(loaders)

    def prepare(self, inputs: Sequence[object]) -> Lowered:
        """Build the step for inputs of a kind, unless it was built."""
        if not self._is_open:
            raise ValueError("the divided step is closed; call mtf_hetero.function again")
        key = self._key(inputs)
        if key not in self._lowered:
            self._make_room(inputs)
        return self._lowered.get(key) or self._lower(inputs)

    def find(self, inputs: Sequence[object]) -> Lowered | None:
        """Return the step for inputs of a kind; None: it was not built."""
        return self._lowered.get(self._key(inputs))

    def pull(self) -> None:
        """Give the tf.Variables the values that they have on the devices."""
        self._outlive(self._pull)

    def _pull(self) -> None:
        written = [name for name in self._present if name not in self._known]
        for name, array in self.runtime.read(written).items():
            self._variables[name].assign(array.reshape(self._variables[name].shape.as_list()))
            self._known[name] = array

    def push(self) -> None:
        """Give the devices the values of the tf.Variables, which were changed, restored or loaded."""
        self._push(lambda: self._present)

    def push_pulled(self) -> None:
        """Give the devices the values of the tf.Variables that were changed since they were pulled, and no others."""
        self._push(lambda: self._known)

    def _push(self, names: Callable[[], Iterable[str]]) -> None:
        if self._elastic is not None:
            self._elastic.note_changed()
        self._outlive(lambda: self._put_changed(names()))

    def values(self) -> dict[str, np.ndarray]:
        """Return the values of the tf.Variables by name."""
        return self._values(self._present)

    def read_values(self) -> dict[str, np.ndarray]:
        """Return the values on the devices by name; the tf.Variables stay as they are."""
        known = {name: self._known[name] for name in self._present & self._known.keys()}
        return known | self.runtime.read([name for name in self._present if name not in known])

    def writes(self, inputs: Sequence[object]) -> bool:
        """Return whether a step on inputs of this kind changes a variable on the devices, as far as it was built."""
        lowered = self.find(inputs)
        return lowered is not None and bool(lowered.written)

    def build(self) -> mtf.Graph:
        """Build the first step anew, in TensorFlow's default graph."""
        return step_lib.build(self.step.program).graph

    def move(self, placed: placement.Placement, values: Mapping[str, np.ndarray], inputs: Sequence[object]) -> None:
        """Continue at another place, in a new session, and give the tf.Variables the values that it begins with.

        Args:
          placed: the place.
          values: {name of a variable: value}, as `read_values` returned them.
          inputs: of a step that is built at once.

        Raises:
          UnreachableWorkerError: a worker there was lost.
        """
        self.runtime.close()
        self.runtime.placement = placed
        for name, array in values.items():
            self._variables[name].assign(array.reshape(self._variables[name].shape.as_list()))
        self._begin(inputs)
        self._open()

    def _put_changed(self, names: Iterable[str]) -> None:
        values, known = self._values(names), self._known
        changed = {n: x for n, x in values.items() if n not in known or not np.array_equal(x, known[n])}
        self.runtime.put(changed)
        self._known |= changed

    def on_close(self, function: Callable[[], object]) -> None:
        """Have a function called at the end of the session."""
        self._stack.callback(function)

    def close(self) -> None:
        """End the session; values that were not pulled are lost."""
        self._is_open = False
        self._stack.close()

    def __enter__(self) -> "Divided":
        return self

    def __exit__(self, error: type[BaseException] | None, *_: object) -> None:
        try:
            if error is None:
                self.pull()
        finally:
            self.close()

    @property
    def variables(self) -> Iterable[tf.Variable]:
        """The tf.Variables whose values the devices have."""
        return [self._variables[name] for name in self._present]

    @property
    def layout(self) -> Layout:
        """The layout: mesh shape, rules and sizes."""
        return self.runtime.placement.layout

    @property
    def sizes(self) -> dict[str, dict[str, int]]:
        """The sizes of all dimensions that are split: {dimension: {device: its size}}."""
        placed = self.runtime.placement
        if self._sizes is None or self._sizes[0] is not placed:
            self._sizes = placed, sizes_on_devices(self.graph, placed.layout, placed.devices)
        return self._sizes[1]

    @property
    def step(self) -> Step:
        """The step of the first kind of inputs: its program, its graph, and the dimensions of its work."""
        assert self._first is not None
        return self._first

    @property
    def graph(self) -> mtf.Graph:
        """The mtf.Graph of the first kind of inputs."""
        return self.step.graph

    @property
    def undivided(self) -> Undivided:
        """The replicated work, to be printed."""
        return report(self.step.work, self.layout, self.step.program.operations)

    @property
    def verified(self) -> str:
        """The first steps that were compared with TensorFlow's own, one line each."""
        return "" if self.verification is None else "\n".join(self.verification.lines)

    @property
    def effects(self) -> tuple[tf.Operation, ...]:
        """The tf.Operations without a result, such as Print and Assert, which are left out."""
        return tuple(self.step.program.effects)

    def _values(self, names: Iterable[str]) -> dict[str, np.ndarray]:
        """Return the arrays of some variables, in their shapes on the devices."""
        return {name: self._variables[name].numpy().reshape(self._shapes[name]) for name in names}

    def _begin(self, inputs: Sequence[object]) -> None:
        """Begin a graph, with the step of a kind of inputs in it."""
        self._lowered, self._present = {}, set()
        self._loads.forget()
        self.runtime.begin_graph(seed=0)
        self._lower(inputs)

    def _open(self) -> None:
        """Open the session, in which variables have the values of the tf.Variables."""
        self._known = self._values(self._present)
        self.runtime.open(self._known)

    def _open_first(self, inputs: Sequence[object]) -> None:
        """Open the first session, again if a worker was lost meanwhile and has returned.

        Raises:
          UnreachableWorkerError: it has not returned in time.
        """
        while True:
            try:
                return self._open()
            except UnreachableWorkerError as error:
                if not self.runtime.wait_seconds:
                    raise
                self.runtime.await_workers(error.workers)
                self._begin(inputs)

    def _make_room(self, inputs: Sequence[object]) -> None:
        """Begin a new session if the graph has grown too large."""
        if self.runtime.is_full(len(self._lowered)):
            self.pull()
            self.runtime.close()
            self._begin(inputs)
            self._open()

    @garbage.without_collection()
    def _lower(self, inputs: Sequence[object]) -> Lowered:
        is_first = not self._lowered
        program = self._traced.program(inputs, self._first)
        with self.runtime.graph.as_default() as graph:
            already_run = len(graph.get_operations())  # by steps of other kinds
            step = step_lib.build(program, self._first)
        if self._first is None:
            self.runtime.placement = self._place(lambda: step_lib.build(program).graph, step.graph)
        leaves = _leaves(inputs) if self.runtime.has_workers and program.prepare is None else []
        new = step.variables.keys() - self._present
        with graph.as_default():
            lowered = lower(step, leaves, self.runtime, is_first=is_first, new=new, already_run=already_run)
        self._first = self._first or step
        self._variables |= step.variables
        self._present |= step.variables.keys()
        self._shapes |= {name: [n for axis in axes for _, n in axis] for name, axes in step.axes.items()}
        if not is_first and new:
            values = self._values(new)
            self.runtime.put(values)
            self._known |= values
        return self._lowered.setdefault(self._key(inputs), lowered)


def _leaves(inputs: Sequence[object]) -> list[object]:
    """Return the tensors among arguments, flat."""
    return [x for x in tf.nest.flatten(inputs, expand_composites=True) if tracing.is_tensor(x)]
