"""`function`: divides a tf.function of the user over devices of unequal speed."""

import contextlib
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from mtf_hetero import placement
from mtf_hetero._compat import mtf, tf
from mtf_hetero._support import garbage, interrupts
from mtf_hetero.cluster import WorkerClaim
from mtf_hetero.cost import traffic
from mtf_hetero.importer import control, guarding, tracing
from mtf_hetero.importer import step as step_lib
from mtf_hetero.importer.nodes import user_line
from mtf_hetero.importer.program import within
from mtf_hetero.importer.report import Undivided, report
from mtf_hetero.importer.session import Session, Trace
from mtf_hetero.importer.step import Step
from mtf_hetero.importer.tracing import Traced
from mtf_hetero.layout import Layout
from mtf_hetero.placement.request import LayoutLike, SpeedLike

_LOSS = "a step; the tf.Variables have the values of the last pull"


def function(
    step: Callable[..., object],
    example_inputs: object,
    *,
    devices: str | Sequence[str] | None = None,
    workers: str | Sequence[str] | None = None,
    layout: LayoutLike = "auto",
    list_speed: SpeedLike = None,
    measure_seconds: float | None = None,
    progress: bool = False,
    steps: int | None = None,
) -> "Divided":
    """Split a step over devices of unequal speed: a tf.function, whose state is its tf.Variables.

    The step is traced once for each kind of inputs, and each of its operations is followed. A layout changes no result.
    A dimension is named after the tf.Variable or the argument that has it first: "dense/kernel/1", "x/2"; the first
    dimension of the first argument is "batch".

    Args:
      step: a tf.function, or a Python function to be traced as one, of tensors.
      example_inputs: its arguments, a tuple of arrays, tensors, tf.TensorSpecs or structures of them. Anything but a
        tuple is the only argument.
      devices: "gpu:0", "cpu:0", "worker:1/gpu:0", one per processor. None: all GPUs, else "cpu:0"; of workers, all.
      workers: "host:port,host:port" of `mtf_hetero.cluster.worker` on other machines; None: none.
      layout: "auto": planned for the devices as they are measured; "batch", "filters" or another name of
        mtf_hetero.layouts; rules such as "dense/kernel/1:all"; a Layout; a Plan, or the path of one, "plan.json".
      list_speed: of a named layout or rules, one number per device; None: they are alike; "auto": measured.
      measure_seconds: that "auto" may take before the first step; None: 30.
      progress: whether to show how "auto" gets on, and to print what it chose.
      steps: number of steps to come, for "auto", which measures nothing if they are few; None: many.

    Returns:
      A Divided, which is called as the step is.

    Raises:
      ValueError: arguments that do not fit together, in one line.
      NotImplementedError: an operation that is not followed, by name and the line of the program.

    Example:
      >>> divided = mtf_hetero.function(step, (x, y), devices=["gpu:0", "cpu:0"], layout="batch", list_speed=[3, 1])
      >>> loss = divided(x, y)
    """
    if not callable(step):
        raise ValueError(f"step is {step!r}; give a tf.function or a function of tensors")
    if not tf.executing_eagerly():
        raise ValueError("eager execution is off, so tf.Variables have no values; leave out tf.disable_eager_execution")
    request = placement.load(
        placement.Request(layout, list_speed, devices=devices, workers=workers, measure_seconds=measure_seconds)
    )
    cluster = placement.requested_cluster(request)
    inputs = example_inputs if isinstance(example_inputs, tuple) else (example_inputs,)
    traced = Traced(step)
    traced.program(inputs)  # what cannot be followed is an error before a worker is claimed
    with contextlib.ExitStack() as stack:
        stack.enter_context(WorkerClaim(cluster.workers_in_use))
        search = placement.Search(steps, progress=progress)

        def place(build: Callable[[], mtf.Graph], graph: mtf.Graph) -> placement.Placement:
            placed = placement.place(request, cluster, build, graph=graph, search=search)
            placed.report(announces=progress)
            return placed

        divided = Divided(traced, place, inputs)
        divided.on_close(stack.pop_all().close)
        return divided


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
    ) -> None:
        self._traced, self._place, self._stack = traced, place, contextlib.ExitStack()
        self._session = Session(owner, loss, rescues=rescues)
        self._lowered: dict[Hashable, _Lowered] = {}
        self._first: Step | None = None
        self._variables: dict[str, tf.Variable] = {}
        self._shapes: dict[str, list[int]] = {}
        self._present: set[str] = set()  # the variables of the session
        self._known: dict[str, np.ndarray] = {}  # values that both sides have
        self._is_open = True
        self._begin(inputs)
        self._open()
        self._stack.callback(self._session.close)
        self._warn()

    def _warn(self) -> None:
        """Warn of what the step leaves out, and of random numbers that may be others than TensorFlow's."""
        if self.effects:
            kinds = sorted({f"{effect.type} ({user_line(effect)})" for effect in self.effects})
            tf.logging.warning("left out of the divided step, which has no use for them: %s", ", ".join(kinds))
        drawing = [op for op in within(self.step.program.operations) if op.type in control.DRAWS]
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
        lowered = self.prepare(inputs)
        leaves = [x for x in tf.nest.flatten(inputs, expand_composites=True) if tracing.is_tensor(x)]
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
        values = iter(results)
        structure = program.concrete.structured_outputs
        leaves = tf.nest.flatten(structure, expand_composites=True)
        flat = [None if x is None else tf.constant(next(values)) for x in leaves]
        return tf.nest.pack_sequence_as(structure, flat, expand_composites=True)

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
        return report(self.step.work, self.layout)

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
