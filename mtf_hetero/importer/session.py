"""A session in which steps run: their variables lie in slices on the devices, their values go in and out as arrays."""

import contextlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from mtf_hetero._compat import mtf, tf
from mtf_hetero._support import logs
from mtf_hetero.cluster import Cluster, UnreachableWorkerError, WaitingSessionCreator, WorkerWatch
from mtf_hetero.lowering import Lowering
from mtf_hetero.mesh_impl import UnevenMeshImpl
from mtf_hetero.placement import fitted
from mtf_hetero.variables import initial_value_feed

_LEAST_KINDS = 8  # of batches that a session has room for, however large the step
_MOST_OPERATIONS = 100_000  # of TensorFlow in a session of more kinds: about 10 kB each
_AT_ONCE_BYTES = 2**27  # of variables that one call takes to the devices, or back: protobuf has no more than 2**31


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
    """Stands in for the coordinator that a WorkerWatch asks to stop: the session's own interruption does that."""

    def request_stop(self, error: BaseException) -> None:
        """Nothing."""


class Session:
    """Runs steps on devices, all on the same variables.

    Args:
      owner: names the steps in errors, "model 'resnet'" for instance.
      loss: the rest of the sentence that says which values are left after a worker was lost.

    Attributes:
      placement: where they run; None until the first step is built.
    """

    def __init__(self, owner: str, loss: str) -> None:
        self._owner, self._loss = owner, loss
        self.placement: Any = None
        self._stack = contextlib.ExitStack()
        self._session: Any = None
        self._slices: dict[str, list[tuple[Any, tf.Tensor]]] = {}
        self.graph = tf.Graph()

    # --- the graph

    def begin_graph(self, seed: int) -> None:
        """Begin a new graph, without steps."""
        self.graph, self._slices = tf.Graph(), {}
        with self.graph.as_default():
            tf.set_random_seed(seed)

    def is_full(self, kinds: int) -> bool:
        """Return whether the graph has grown too large: TensorFlow keeps all that a session ran."""
        return kinds >= _LEAST_KINDS and len(self.graph.get_operations()) >= _MOST_OPERATIONS

    def lower(
        self, graph: mtf.Graph, mesh: mtf.Mesh, *, is_first: bool, examples: int, new: Collection[str] = ()
    ) -> Lowering:
        """Lower an mtf graph beside those that were, on the same variables. The graph is the default one.

        Args:
          graph: mtf.Graph.
          mesh: its mtf.Mesh.
          is_first: whether it is the first one, which makes the variables.
          examples: the size of its batch, for an error.
          new: names of the variables that no graph before it had.

        Raises:
          NotImplementedError: the layout splits a variable in another way than in the first graph.
        """
        mesh_impl = UnevenMeshImpl.from_layout(fitted(self.placement.layout, graph), self.placement.devices)
        before = {id(variable) for variable in _variables()}
        # a smaller batch may be too small to be divided
        with contextlib.nullcontext() if is_first else logs.verbosity(tf.logging.ERROR):
            lowering = Lowering(graph, {mesh: mesh_impl})
        made = {_full_name(variable) for variable in _variables() if id(variable) not in before}
        if not is_first and made - set(new):
            raise NotImplementedError(
                f"the layout splits a weight of {self._owner} differently for a batch of {examples} than for the first "
                "batch; give batches of one size"
            )
        return lowering

    def end_graph(self) -> None:
        """Make what reads the variables, after the first step was lowered."""
        with self.graph.as_default():
            self._slices = _slices_of_variables()

    # --- the session

    def open(self, values: Mapping[str, np.ndarray], *more: tf.Operation) -> None:
        """Open a session of the graph.

        Args:
          values: {variable: array}.
          *more: operations to run first.
        """
        cluster = self.placement.cluster
        workers = cluster.workers_in_use
        with self._stack, self.graph.as_default(), self.explaining_loss():
            if workers:
                self._session = WaitingSessionCreator(_Plain(cluster), workers, waits=False).create_session()
            else:
                self._session = _Plain(cluster).create_session()
            self._stack.callback(self._session.close)
            watch = self._stack.enter_context(WorkerWatch(workers, report=_say_nothing))
            watch.after_create_session(self._session, _Interrupted())  # pyright: ignore[reportArgumentType]
            self.put(values, *more)
            self._stack = self._stack.pop_all()

    def close(self) -> None:
        """Close the session, if it is open."""
        self._stack.close()

    def run(self, fetches: Any, feed: Any = None) -> Any:
        """Run operations, as tf.Session.run does."""
        with self.explaining_loss():
            return self._session.run(fetches, feed)

    def put(self, values: Mapping[str, np.ndarray], *more: tf.Operation) -> None:
        """Give variables, and the copies of them, values."""
        with self.graph.as_default():
            for group in _groups({name: value.nbytes for name, value in values.items()}):
                feed = initial_value_feed({name: values[name] for name in group})
                self.run([slice_.initializer for name in group for slice_, _ in self._slices[name]], feed)
            if more:
                self.run(list(more))

    def read(self, names: Sequence[str]) -> dict[str, np.ndarray]:
        """Return the values of variables, put together of their slices in this process's memory."""
        values = {}
        sizes = {name: sum(v.shape.num_elements() * v.dtype.size for v, _ in self._slices[name]) for name in names}
        for group in _groups(sizes):
            found = self.run({name: [read for _, read in self._slices[name]] for name in group})
            for name in group:
                values[name] = _joined([variable for variable, _ in self._slices[name]], found[name])
        return values

    @contextlib.contextmanager
    def explaining_loss(self) -> Iterator[None]:
        """Say in one line which worker was lost, where that is why TensorFlow raises an error."""
        try:
            yield
        except tf.errors.OpError as error:
            cluster = self.placement.cluster
            if not cluster.workers_in_use:
                raise
            try:
                cluster.check_reachable()
            except UnreachableWorkerError as lost:
                raise UnreachableWorkerError(f"a worker was lost during {self._loss}; {lost}") from error
            if isinstance(error, (tf.errors.UnavailableError, tf.errors.AbortedError)):
                raise UnreachableWorkerError(
                    f"a worker was lost or restarted during {self._loss}; {str(error.message).splitlines()[0]}"
                ) from error
            raise


def _say_nothing(line: str) -> None:
    """Nothing."""


def _variables() -> list[Any]:
    return [*tf.global_variables(), *tf.local_variables()]


def _full_name(variable: Any) -> str:
    """Return the name of the variable that a slice is of."""
    info = variable._save_slice_info
    return info.full_name if info else variable.op.name


def _slices_of_variables() -> dict[str, list[tuple[Any, tf.Tensor]]]:
    """{name of a variable: (each of its slices, the read that was made with it)} of the default graph."""
    slices: dict[str, list[tuple[Any, tf.Tensor]]] = {}
    for variable in tf.global_variables():
        slices.setdefault(_full_name(variable), []).append((variable, variable.graph.as_graph_element(variable)))
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
