"""A step on devices of unequal speed: its session, its variables, and the values that go in and out."""

import contextlib
import functools
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from mtf_hetero import placement
from mtf_hetero._compat import mtf, tf
from mtf_hetero._support import facts, garbage, interrupts
from mtf_hetero.cluster import UnreachableWorkerError
from mtf_hetero.cluster.session import MayLeave, always
from mtf_hetero.cost import traffic
from mtf_hetero.importer import guarding, moments, normalization, tracing
from mtf_hetero.importer import step as step_lib
from mtf_hetero.importer.comparing import Devices
from mtf_hetero.importer.nodes import user_line
from mtf_hetero.importer.program import Program, within
from mtf_hetero.importer.report import Undivided, report
from mtf_hetero.importer.session import Session, Trace
from mtf_hetero.importer.step import Step
from mtf_hetero.importer.tracing import Traced
from mtf_hetero.importer.verifying import Verification
from mtf_hetero.layout import Layout
from mtf_hetero.placement.placing import sizes_on_devices

_LOSS = "a step; the tf.Variables have the values of the last pull"


Place = Callable[[Callable[[], mtf.Graph], mtf.Graph], placement.Placement]


class _Lowered:
    """A step that was lowered, and what is fetched of it."""

    def __init__(self, step: Step, fetches: object) -> None:
        self.step, self.fetches = step, fetches
        self.written = [v.before.name for v in step.program.variables if v.after is not v.before]


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
        self._session = Session(owner, loss, rescues=rescues)
        self._session.wait_seconds, self._session.may_leave = wait_seconds, may_leave
        self._lowered: dict[Hashable, _Lowered] = {}
        self._first: Step | None = None
        self._variables: dict[str, tf.Variable] = {}
        self._shapes: dict[str, list[int]] = {}
        self._present: set[str] = set()  # the variables of the session
        self._known: dict[str, np.ndarray] = {}  # values that both sides have
        self._is_open = True
        self._sizes: tuple[placement.Placement, dict[str, dict[str, int]]] | None = None
        self._begin(inputs)
        self._open_first(inputs)
        self._stack.callback(self._session.close)
        self._warn()

    def _warn(self) -> None:
        """Warn of what the step leaves out, and of random numbers that may be others than TensorFlow's."""
        if self.effects:
            kinds = sorted({f"{effect.type} ({user_line(effect)})" for effect in self.effects})
            tf.logging.warning("left out of the divided step, which has no use for them: %s", ", ".join(kinds))
        drawing = [op for op in within(self.step.program.operations) if op.type in facts.DRAWS]
        lines = sorted({f"{op.type} ({op.line})" for op in drawing if op.attr("seed") or op.attr("seed2")})
        if lines:
            tf.logging.warning(
                "random numbers from a seed begin again with each new size of a batch, training and change of the "
                "shares; use a stateless function of tf.random in place of: %s",
                ", ".join(lines),
            )

    def __call__(self, *inputs: object) -> Any:
        """Run one step; returns what the step returns."""
        return self.take(inputs)

    def take(self, inputs: Sequence[object], trace: Trace = None) -> Any:
        """Run one step, and perhaps trace it; returns what the step returns."""
        program, results = self.run(inputs, trace)
        values, structure = iter(results), program.concrete.structured_outputs
        leaves = tf.nest.flatten(structure, expand_composites=True)
        flat = [None if x is None else tf.constant(next(values)) for x in leaves]
        return tf.nest.pack_sequence_as(structure, flat, expand_composites=True)

    def run(self, inputs: Sequence[object], trace: Trace = None) -> tuple[Program, list[np.ndarray]]:
        """Run one step, and compare it with TensorFlow's if it is the first one; returns its program, and the results.

        Raises:
          StepDiffersError: it is not TensorFlow's.
        """
        lowered, key = self.prepare(inputs), self._traced.kind(inputs)
        leaves = [x for x in tf.nest.flatten(inputs, expand_composites=True) if tracing.is_tensor(x)]
        program, take = lowered.step.program, functools.partial(self._run, lowered, leaves, trace)
        if self.verification is None or not self.verification.is_due(key):
            return program, take()
        observe = functools.partial(self._observe, inputs)
        assert self._session.placement is not None
        on_gpu = any("gpu" in device.lower() for device in self._session.placement.devices)
        where = {"on_workers": self._session.has_workers, "on_gpu": on_gpu}
        devices = Devices(program, self._traced.drawn, observe, **where)
        return program, self.verification.take(key, devices, inputs, take, self)

    def _run(self, lowered: _Lowered, leaves: Sequence[np.ndarray], trace: Trace) -> list[np.ndarray]:
        """Run one step on inputs, flat; returns its results, flat."""
        program = lowered.step.program
        arrays = program.list_fed(leaves)
        for name in lowered.written:
            self._known.pop(name, None)
        with interrupts.defer(), guarding.explain_guards(program.guards):
            feed = dict(zip(lowered.step.feeds, arrays, strict=True))
            found, _ = self._session.run(lowered.fetches, feed, trace)
            self._session.steps += bool(lowered.written)
            found = [
                x.reshape(value.shape) for x, value in zip(found, program.fetches, strict=True)
            ]  # with axes of size 1
            left = iter(found)
            results = [next(left) for _ in program.results]
            for variable in program.hosted:
                array = next(left)
                if variable.after is not variable.before:
                    variable.variable.assign(array)
        return results

    def _observe(self, inputs: Sequence[object], tensors: Sequence[tf.Tensor]) -> tuple[Program, list[np.ndarray]]:
        """Take a step elsewhere, with tensors of its trace among the results; returns its program, and the results."""
        traced, placed = self._traced.observing(tensors, inputs, self._first), self._session.placement
        assert placed is not None
        observer = Divided(traced, lambda build, graph: placed, inputs)
        with contextlib.closing(observer):
            return observer.run(inputs)

    def prepare(self, inputs: Sequence[object]) -> _Lowered:
        """Build the step for inputs of a kind, unless it was built."""
        if not self._is_open:
            raise ValueError("the divided step is closed; call mtf_hetero.function again")
        if not self.knows(inputs):
            self._make_room(inputs)
        return self._lowered.get(self._traced.kind(inputs)) or self._lower(inputs)

    def knows(self, inputs: Sequence[object]) -> bool:
        """Return whether the step for inputs of a kind was built."""
        return self._traced.kind(inputs) in self._lowered

    def pull(self) -> None:
        """Give the tf.Variables the values that they have on the devices."""
        written = [name for name in self._present if name not in self._known]
        for name, array in self._session.read(written).items():
            self._variables[name].assign(array.reshape(self._variables[name].shape.as_list()))
            self._known[name] = array

    def push(self) -> None:
        """Give the devices the values of the tf.Variables, which were changed, restored or loaded."""
        self._put_changed(self._present)

    def push_pulled(self) -> None:
        """Give the devices the values of the tf.Variables that were changed since they were pulled, and no others."""
        self._put_changed(self._known)

    def values(self) -> dict[str, np.ndarray]:
        """Return the values of the tf.Variables by name."""
        return self._values(self._present)

    def read_values(self) -> dict[str, np.ndarray]:
        """Return the values on the devices by name; the tf.Variables stay as they are."""
        known = {name: self._known[name] for name in self._present & self._known.keys()}
        return known | self._session.read([name for name in self._present if name not in known])

    def rescue(self) -> dict[str, np.ndarray] | None:
        """Return the values after the last step by name, although a worker was lost; None: some are lost with it."""
        return self._session.rescue()

    def writes(self, *inputs: object) -> bool:
        """Return whether a step on inputs of this kind changes a variable on the devices, as far as it was built."""
        lowered = self._lowered.get(self._traced.kind(inputs))
        return lowered is not None and bool(lowered.written)

    def placed(self, place: Place) -> placement.Placement:
        """Return where the first step would lie."""
        return place(self.build, self.graph)

    def build(self) -> mtf.Graph:
        """Build the first step anew, in TensorFlow's default graph."""
        return step_lib.build(self.step.program).graph

    def move(self, placed: placement.Placement, values: Mapping[str, np.ndarray], *inputs: object) -> None:
        """Continue at another place, in a new session, and give the tf.Variables the values that it begins with.

        Args:
          placed: the place.
          values: {name of a variable: value}, as `read_values` returned them.
          *inputs: of a step that is built at once.

        Raises:
          UnreachableWorkerError: a worker there was lost.
        """
        self._session.close()
        self._session.placement = placed
        for name, array in values.items():
            self._variables[name].assign(array.reshape(self._variables[name].shape.as_list()))
        self._begin(inputs)
        self._open()

    def _put_changed(self, names: Iterable[str]) -> None:
        known = self._known
        values = self._values(names)
        changed = {n: x for n, x in values.items() if n not in known or not np.array_equal(x, known[n])}
        self._session.put(changed)
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
    def session(self) -> Session:
        """The session, and where it is."""
        return self._session

    @property
    def layout(self) -> Layout:
        """The layout: mesh shape, rules and sizes."""
        assert self._session.placement is not None
        return self._session.placement.layout

    @property
    def sizes(self) -> dict[str, dict[str, int]]:
        """The sizes of all dimensions that are split: {dimension: {device: its size}}."""
        placed = self._session.placement
        assert placed is not None
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
        operations = self.step.program.operations
        unjoined = [*moments.find_unjoined(operations), *normalization.find_unjoined(operations)]
        return report(self.step.work, self.layout, unjoined)

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
        self._session.begin_graph(seed=0)
        self._lower(inputs)

    def _open(self) -> None:
        """Open the session, in which variables have the values of the tf.Variables."""
        self._known = self._values(self._present)
        self._session.open(self._known)

    def _open_first(self, inputs: Sequence[object]) -> None:
        """Open the first session, again if a worker was lost meanwhile and has returned.

        Raises:
          UnreachableWorkerError: it has not returned in time.
        """
        while True:
            try:
                return self._open()
            except UnreachableWorkerError as error:
                if not self._session.wait_seconds:
                    raise
                self._session.await_workers(error.workers)
                self._begin(inputs)

    def _make_room(self, inputs: Sequence[object]) -> None:
        """Begin a new session if the graph has grown too large."""
        if self._session.is_full(len(self._lowered)):
            self.pull()
            self._session.close()
            self._begin(inputs)
            self._open()

    @garbage.without_collection()
    def _lower(self, inputs: Sequence[object]) -> _Lowered:
        is_first = not self._lowered
        program = self._traced.program(inputs, self._first)
        with self._session.graph.as_default() as graph:
            already_run = len(graph.get_operations())  # by steps of other kinds
            step = step_lib.build(program, self._first)
        if self._first is None:
            self._session.placement = self._place(lambda: step_lib.build(program).graph, step.graph)
        with graph.as_default():
            new = step.variables.keys() - self._present
            sizes = [value.shape[0] for value in step.program.feeds if value.shape]
            options = {"is_first": is_first, "examples": sizes[0] if sizes else 1, "new": new}
            lowering = self._session.lower(step.graph, step.mesh, **options)
            results = [lowering.export_to_tf_tensor(tensor) for tensor in step.results]
            done = tf.group([lowering.lowered_operation(op) for op in step.updates])
            chosen = results[len(results) - len(program.guards) :]
            guarding.check_before_updates(program.guards, chosen, done)
            self._session.hold(done, is_open=not is_first)
            traffic.arrange([*results, done], already_run=already_run)
        self._first = self._first or step
        self._variables |= step.variables
        self._present |= step.variables.keys()
        self._shapes |= {name: [n for axis in axes for _, n in axis] for name, axes in step.axes.items()}
        if not is_first and new:
            values = self._values(new)
            self._session.put(values)
            self._known |= values
        lowered = self._lowered[self._traced.kind(inputs)] = _Lowered(step, (results, done))
        return lowered
