"""The session that trains a Keras model: variables in slices on the devices, steps of batches, weights in and out."""

import contextlib
import dataclasses
import random
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from mtf_hetero import traffic
from mtf_hetero._compat import tf
from mtf_hetero._support import logs
from mtf_hetero.cluster import Cluster, UnreachableWorkerError, WaitingSessionCreator, WorkerWatch
from mtf_hetero.keras import compiled, program
from mtf_hetero.keras.builder import Builder
from mtf_hetero.keras.placing import Placement, fitted
from mtf_hetero.keras.program import Batch, Program
from mtf_hetero.keras.weights import Weight
from mtf_hetero.keras.wrong_data import explain_wrong_data
from mtf_hetero.lowering import Lowering
from mtf_hetero.mesh_impl import UnevenMeshImpl
from mtf_hetero.variables import initial_value_feed

_LEAST_KINDS = 8  # of batches that a session has room for, however large the model
_MOST_OPERATIONS = 100_000  # of TensorFlow in a session of more kinds: about 10 kB each
_AT_ONCE_BYTES = 2**27  # of weights that one call takes to the devices, or back: protobuf has no more than 2**31


@dataclasses.dataclass(frozen=True)
class Result:
    """What came of a batch.

    Args:
      loss: of the batch.
      values: each loss by itself.
      outputs: the model's, where they were asked for.
    """

    loss: np.ndarray
    values: tuple[np.ndarray, ...]
    outputs: tuple[np.ndarray, ...]


@dataclasses.dataclass(frozen=True, eq=False)
class _Lowered:
    """A program that was lowered, and what is fetched of it."""

    program: Program
    fetches: tuple[Any, ...]


class _Plain(tf.train.SessionCreator):
    """Makes a session of the default graph, which may still grow."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    def create_session(self) -> tf.Session:
        """A tf.Session."""
        config = self._cluster.session_config()
        # Else TensorFlow places and optimises the whole graph again for each new kind of batch. On CPUs, steps are as
        # fast without its optimiser; on GPUs the optimiser chooses how images lie in memory.
        config.graph_options.place_pruned_graph = not any("gpu" in name.lower() for name in self._cluster.devices)
        return tf.Session(self._cluster.target, config=config)


class _Interrupted:
    """What a WorkerWatch asks to stop where a worker is lost: the session's own interruption does that."""

    def request_stop(self, error: BaseException) -> None:
        """Nothing."""


class Session:
    """Trains a compiled Keras model on devices. A context manager.

    Args:
      builder: of the model.
      placement: where it lies.
      batch: the first one; its training step is built and lowered.
    """

    def __init__(self, builder: Builder, placement: Placement, batch: Batch) -> None:
        self._builder, self._placement, self._batch = builder, placement, batch
        self._stack = contextlib.ExitStack()
        self._known: dict[str, np.ndarray] = {}
        self._first_step = self._steps_given = 0
        self._session: Any = None
        self._begin_graph()

    def _begin_graph(self) -> None:
        """Makes a graph, with the training step of the first batch in it."""
        self._graph = tf.Graph()
        self._lowered: dict[Any, _Lowered] = {}
        self._kept: dict[str, Weight] = {}
        seed = _seed(self._iterations())
        with self._graph.as_default():
            tf.set_random_seed(seed)
            with tf.device("/cpu:0"):
                steps = tf.get_variable("steps", [], tf.int64, tf.zeros_initializer(), use_resource=True)
                self._counter, self._steps = steps, steps.read_value()
        self._lower(self._batch, training=True)
        with self._graph.as_default():
            self._slices = _slices_of_variables()
        self._weights = {**self._builder.variables, **self._kept}

    def __enter__(self) -> "Session":
        values = {name: weight.to_mtf(np.asarray(weight.variable)) for name, weight in self._weights.items()}
        self._steps_given = self._iterations()
        self._begin_session(values)
        self._known = values
        return self

    def _begin_session(self, values: Mapping[str, np.ndarray]) -> None:
        """Opens a session of the graph, in which variables have these values."""
        cluster = self._placement.cluster
        workers = cluster.workers_in_use
        self._first_step = self._iterations()
        with self._stack, self._graph.as_default(), self._lost_is_said():
            if workers:
                creator = WaitingSessionCreator(_Plain(cluster), workers, waits=False)
                self._session = creator.create_session()
            else:
                self._session = _Plain(cluster).create_session()
            self._stack.callback(self._session.close)
            watch = self._stack.enter_context(WorkerWatch(workers, report=_say_nothing))
            watch.after_create_session(self._session, _Interrupted())  # pyright: ignore[reportArgumentType]
            self._put(values, self._counter.initializer)
            self._stack = self._stack.pop_all()

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def _iterations(self) -> int:
        return int(self._builder.model.optimizer._iterations.numpy())

    def _make_room(self) -> None:
        """Begins a new session where the graph has grown too large: TensorFlow keeps all that a session ran."""
        if len(self._lowered) < _LEAST_KINDS or len(self._graph.get_operations()) < _MOST_OPERATIONS:
            return
        values = self._read()
        self._stack.close()
        self._begin_graph()
        self._begin_session(values)

    def train(self, batch: Batch, *, outputs: bool) -> Result:
        """Takes a step.

        Args:
          batch: the examples.
          outputs: whether the model's outputs are wanted.
        """
        self._known = {}
        optimizer = self._builder.model.optimizer
        feed = [np.asarray(optimizer.learning_rate), np.asarray(optimizer._iterations)]
        result = self._of_batch(batch, feed, training=True, outputs=outputs)
        optimizer._iterations.assign_add(1)
        return result

    def test(self, batch: Batch, *, outputs: bool) -> Result:
        """What the model gives for a batch, in inference, and its losses."""
        return self._of_batch(batch, [], training=False, outputs=outputs)

    def _of_batch(self, batch: Batch, scalars: Sequence[np.ndarray], *, training: bool, outputs: bool) -> Result:
        lowered = self._lowered.get((training, batch.kind))
        if lowered is None:
            self._make_room()
            lowered = self._lower(batch, training=training)
        built = lowered.program
        feed = dict(zip(built.feeds, batch.arrays, strict=True))
        feed.update(zip([built.rate, built.steps], scalars, strict=False))
        loss, values, tensors, *_ = lowered.fetches
        fetches = (loss, values, tensors if outputs else (), *lowered.fetches[3:])
        with self._lost_is_said(), explain_wrong_data(built.graph):
            found = self._session.run(fetches, feed)
        return Result(found[0], tuple(found[1]), tuple(found[2]))

    def give_back(self) -> None:
        """Gives the Keras model and its optimizer the values that their variables have here."""
        values = self._read()
        for name, value in values.items():
            self._weights[name].put_back(value)
        with self._lost_is_said():
            steps = int(self._session.run(self._steps))
        self._steps_given = self._first_step + steps
        self.forget_steps()
        self._known = values

    def forget_steps(self) -> None:
        """Has the optimizer count the steps until the model was given its values back, and none after them."""
        self._builder.model.optimizer._iterations.assign(self._steps_given)

    def take_changed(self) -> None:
        """Takes over what was changed in the Keras model since it was given its values back."""
        if not self._known:  # a step was taken since
            return
        changed = {}
        for name, known in self._known.items():
            weight = self._weights[name]
            value = weight.to_mtf(np.asarray(weight.variable))
            if not np.array_equal(value, known):
                changed[name] = value
        if changed:
            self._put(changed)
            self._known |= changed
        iterations = self._iterations()
        self._first_step += iterations - self._steps_given
        self._steps_given = iterations

    def _lower(self, batch: Batch, *, training: bool) -> _Lowered:
        """A program of such a batch, lowered beside those that there are, on the same variables."""
        objective = compiled.objective(self._builder.model, batch.y, batch.sample_weight)
        with self._graph.as_default():
            built = program.build(self._builder, batch, objective, training=training)
            self._lowered[training, batch.kind] = lowered = self._lower_program(built, batch, training=training)
        return lowered

    def _lower_program(self, built: Program, batch: Batch, *, training: bool) -> _Lowered:
        first = not self._lowered
        layout = fitted(self._placement.layout, built.graph)
        mesh_impl = UnevenMeshImpl.from_layout(layout, self._placement.devices)
        before = len(tf.global_variables()) + len(tf.local_variables())
        # a smaller batch may be too small to be divided
        quiet = contextlib.nullcontext() if first else logs.verbosity(tf.logging.ERROR)
        with quiet:
            lowering = Lowering(built.graph, {built.mesh: mesh_impl})
        if not first and len(tf.global_variables()) + len(tf.local_variables()) != before:
            raise NotImplementedError(
                f"the layout splits a weight of model {self._builder.model.name!r} differently for a batch of "
                f"{batch.examples} than for the first batch; give batches of one size"
            )
        export = lowering.export_to_tf_tensor
        fetches: list[Any] = [export(built.loss), [export(value) for value in built.values]]
        fetches.append([export(output) for output in built.outputs])
        if training:
            with tf.control_dependencies([lowering.lowered_operation(op) for op in built.updates]):
                fetches.append(self._counter.assign_add(1).op)
        if first:
            traffic.arrange([fetches[0], *fetches[3:]])
            self._kept = built.kept
        return _Lowered(built, tuple(fetches))

    def _put(self, values: Mapping[str, np.ndarray], *more: tf.Operation) -> None:
        """Gives variables, and the copies of them, values."""
        with self._graph.as_default():
            for group in _groups({name: value.nbytes for name, value in values.items()}):
                feed = initial_value_feed({name: values[name] for name in group})
                operations = [slice_.initializer for name in group for slice_, _ in self._slices[name]]
                self._run([*operations, *more], feed)

    def _read(self) -> dict[str, np.ndarray]:
        """The values of all variables, put together of their slices in this process's memory."""
        values = {}
        sizes = {
            name: sum(v.shape.num_elements() * v.dtype.size for v, _ in self._slices[name]) for name in self._weights
        }
        for group in _groups(sizes):
            found = self._run({name: [read for _, read in self._slices[name]] for name in group})
            for name in group:
                values[name] = _joined([variable for variable, _ in self._slices[name]], found[name])
        return values

    def _run(self, fetches: Any, feed: Any = None) -> Any:
        with self._lost_is_said():
            return self._session.run(fetches, feed)

    @contextlib.contextmanager
    def _lost_is_said(self) -> Iterator[None]:
        """Says in one line which worker was lost, where that is why TensorFlow raises an error."""
        try:
            yield
        except tf.errors.OpError as error:
            cluster = self._placement.cluster
            if not cluster.workers_in_use:
                raise
            try:
                cluster.check_reachable()
            except UnreachableWorkerError as lost:
                raise UnreachableWorkerError(
                    f"a worker was lost during training; the model has the weights of the last complete epoch; {lost}"
                ) from error
            if isinstance(error, (tf.errors.UnavailableError, tf.errors.AbortedError)):
                raise UnreachableWorkerError(
                    "a worker was lost or restarted during training; the model has the weights of the last complete "
                    f"epoch; {str(error.message).splitlines()[0]}"
                ) from error
            raise


def _seed(iterations: int) -> int:
    """Draw a seed that follows from keras.utils.set_random_seed and the steps so far, and leave Python's numbers alone.

    A generator of batches that shuffles by `random` gives the same batches as under model.fit.
    """
    state = random.getstate()
    seed = random.getrandbits(64)
    random.setstate(state)
    return random.Random(f"{seed} {iterations}").getrandbits(31)


def _say_nothing(line: str) -> None:
    """The error says it."""


def _slices_of_variables() -> dict[str, list[tuple[Any, tf.Tensor]]]:
    """{name of a variable: (each of its slices, what reads it)} of the default graph."""
    slices: dict[str, list[tuple[Any, tf.Tensor]]] = {}
    for variable in tf.global_variables():
        info = variable._save_slice_info
        with tf.device(variable.device):
            slices.setdefault(info.full_name if info else variable.op.name, []).append(
                (variable, variable.read_value())
            )
    return slices


def _groups(sizes: Mapping[str, int]) -> Iterator[list[str]]:
    """Names in groups of so many bytes."""
    group: list[str] = []
    total = 0
    for name, size in sizes.items():
        if group and total + size > _AT_ONCE_BYTES:
            yield group
            group, total = [], 0
        group.append(name)
        total += size
    if group:
        yield group


def _joined(variables: Sequence[Any], parts: Sequence[np.ndarray]) -> np.ndarray:
    """A variable, of its slices."""
    info = variables[0]._save_slice_info
    if info is None:
        return parts[0]
    whole = np.empty(info.full_shape, parts[0].dtype)
    for variable, part in zip(variables, parts, strict=True):
        info = variable._save_slice_info
        whole[tuple(slice(b, b + n) for b, n in zip(info.var_offset, info.var_shape, strict=True))] = part
    return whole
