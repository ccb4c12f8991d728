"""A session in which steps run: variables lie in slices on the devices, and their values go in and out as arrays."""

import contextlib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from mtf_hetero._compat import mtf, tf
from mtf_hetero._support import logs
from mtf_hetero._support.grouping import group_by_bytes
from mtf_hetero.checkpoint import State
from mtf_hetero.cluster import Cluster, UnreachableWorkerError, WorkerWatch
from mtf_hetero.cluster.probe import ask_all
from mtf_hetero.cluster.session import MayLeave, WaitingSessionCreator, always
from mtf_hetero.cluster.watch import describe_wait
from mtf_hetero.lowering import Lowering
from mtf_hetero.mesh import initial_value_feed
from mtf_hetero.mesh.commits import Commits
from mtf_hetero.mesh.mesh_impl import UnevenMeshImpl
from mtf_hetero.mesh.tensors import LaidOutTensor
from mtf_hetero.placement.placing import Placement, resize_layout

_LEAST_KINDS = 8  # of batches that a session has room for, however large the step
_MOST_OPERATIONS = 100_000  # of TensorFlow in a session of more kinds: about 10 kB each
Run = Callable[[object, Mapping[tf.Tensor, object]], Any]  # operations, what is fed -> their values
Trace = tuple[tf.RunOptions, tf.RunMetadata] | None  # of a step; None: it is not traced
_ASK_SECONDS = 3.0  # for the reason why a worker was lost
_AT_ONCE_BYTES = 2**27  # of variables that one call takes to the devices, or back: protobuf has no more than 2**31


class _Plain(tf.train.SessionCreator):
    """Makes a session of the default graph, which may still grow."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    def create_session(self) -> tf.Session:
        """Return a tf.Session."""
        config = self._cluster.session_config()
        # Else TensorFlow places and optimises the whole graph again for each new kind of batch. On CPUs, steps are as
        # fast without its optimiser; on GPUs the optimiser chooses how images lie in memory.
        config.graph_options.place_pruned_graph = not any("gpu" in name.lower() for name in self._cluster.devices)
        return tf.Session(self._cluster.target, config=config)


class Runtime:
    """Runs steps on devices, all on the same variables.

    Args:
      owner: names the steps in errors, "model 'resnet'" for instance.
      loss: the rest of the sentence that says which values are left after a worker was lost.
      rescues: whether `rescue` is called after the loss of a worker.

    Attributes:
      placement: where they run, which is set before the first step is lowered.
      steps: number of steps that have changed variables since the session was opened.
      is_torn: whether a call of several such steps has failed: the values of variables may be of different steps.
      wait_seconds: that `await_workers` waits for lost workers; infinity: forever.
      may_leave: as of WaitingSessionCreator.
      waited_seconds: for batches that workers read, or that were sent to them, in steps of training.
      pause_seconds: that another session like this one is believed to take to begin; 0: nothing is known.
    """

    placement: Placement

    def __init__(self, owner: str, loss: str, *, rescues: bool = False) -> None:
        self._owner, self._loss, self._rescues = owner, loss, rescues
        self.wait_seconds, self.pause_seconds, self.waited_seconds = 0.0, 0.0, 0.0
        self.may_leave: MayLeave = always
        self._stack = contextlib.ExitStack()
        self._session: tf.Session | None = None
        self._watch: WorkerWatch | None = None
        self.graph, self._commits = tf.Graph(), Commits()
        self.steps, self.is_torn = 0, False

    # --- the graph

    def begin_graph(self, seed: int) -> None:
        """Begin a new graph, without steps."""
        self.graph, self._commits = tf.Graph(), Commits()
        with self.graph.as_default():
            tf.set_random_seed(seed)

    def is_full(self, kinds: int) -> bool:
        """Return whether the graph has grown too large: TensorFlow keeps all that a session ran."""
        return kinds >= _LEAST_KINDS and len(self.graph.get_operations()) >= _MOST_OPERATIONS

    def lower(
        self,
        graph: mtf.Graph,
        mesh: mtf.Mesh,
        *,
        is_first: bool,
        examples: int,
        new: Collection[str] = (),
        give: Callable[[UnevenMeshImpl], Mapping[mtf.Tensor, LaidOutTensor]] = lambda mesh_impl: {},
    ) -> Lowering:
        """Lower an mtf graph beside those that were, on the same variables. The graph is the default one.

        Args:
          graph: mtf.Graph.
          mesh: its mtf.Mesh.
          is_first: whether it is the first one, which makes the variables.
          examples: the size of its batch, for an error.
          new: names of the variables that no graph before it had.
          give: makes slices of imported tensors, which are not cut of what was imported.

        Raises:
          NotImplementedError: the layout splits a variable in another way than in the first graph.
        """
        mesh_impl = UnevenMeshImpl.from_layout(resize_layout(self.placement.layout, graph), self.placement.devices)
        before = {id(variable) for variable in _variables()}
        # a smaller batch may be too small to be divided
        with contextlib.nullcontext() if is_first else logs.log_level(tf.logging.ERROR):
            lowering = Lowering(graph, {mesh: mesh_impl}, given=give(mesh_impl))
        made = {_full_name(variable) for variable in _variables() if id(variable) not in before}
        if not is_first and made - set(new):
            raise NotImplementedError(
                f"the layout splits a weight of {self._owner} differently for a batch of {examples} than for the first "
                "batch; give batches of one size"
            )
        return lowering

    def hold(self, updates: tf.Operation, *, is_open: bool) -> None:
        """Have the updates of a step wait for each other, so that they can be rescued. The graph is the default one.

        Args:
          updates: runs all updates.
          is_open: whether the session is open. A device that no earlier step has written counts from now on.
        """
        if not self._rescues or not self.has_workers:
            return
        counted = set(self._commits.counters)
        self._commits.hold(updates)
        new = [counter for device, counter in self._commits.counters.items() if device not in counted]
        if is_open and new:
            self.run([counter.assign(self.steps).op for counter in new])

    # --- the session

    def open(self, values: Mapping[str, np.ndarray], *more: tf.Operation) -> None:
        """Open a session of the graph.

        Args:
          values: {variable: array}.
          *more: operations to run first.

        Raises:
          UnreachableWorkerError: a worker does not answer.
        """
        cluster = self.placement.cluster
        workers = cluster.workers_in_use
        with self._stack, self.graph.as_default(), self.explaining_loss():
            if workers:
                self._session = WaitingSessionCreator(_Plain(cluster), workers, wait_seconds=0.0).create_session()
            else:
                self._session = _Plain(cluster).create_session()
            self._stack.callback(self._session.close)
            self._watch = self._stack.enter_context(WorkerWatch(workers, report=lambda line: None))
            self._watch.after_create_session(self._session, tf.train.Coordinator())  # a run that waits ends
            self.put(values, *more)
            self.run([counter.initializer for counter in self._commits.counters.values()])
            self.steps, self.is_torn = 0, False
            self._stack = self._stack.pop_all()

    @property
    def has_workers(self) -> bool:
        """Return whether a device of a worker is in use."""
        return bool(self.placement.cluster.workers_in_use)

    def await_workers(self, lost: Mapping[int, str]) -> None:
        """Return once all workers answer, and say which ones do not.

        Args:
          lost: {index: "host:port"} of those that were lost.

        Raises:
          UnreachableWorkerError: one does not answer, and this has waited for it.
        """
        for index, answer in ask_all(lost, _ASK_SECONDS).items():
            if answer.failure:
                tf.logging.warning("%s", describe_wait(index, lost[index], answer.failure, self.wait_seconds))
        cluster, options = self.placement.cluster, {"wait_seconds": self.wait_seconds, "may_leave": self.may_leave}
        WaitingSessionCreator(_Plain(cluster), cluster.workers_in_use, **options).await_workers()
        tf.logging.warning("all workers answer again; training continues")

    def close(self) -> None:
        """Close the session, if it is open."""
        self._stack.close()

    def run(self, fetches: object, feed: Mapping[tf.Tensor, object] | None = None, trace: Trace = None) -> Any:
        """Run operations, as tf.Session.run does."""
        assert self._session is not None
        with self.explaining_loss():
            if self._watch is not None:
                self._watch.before_run(None)
            result = self._session.run(fetches, feed, *(trace or (None, None)))
            if self._watch is not None:
                self._watch.after_run(None, None)
            return result

    def run_steps(self, count: int, fetches: object, feed: Mapping[tf.Tensor, object], trace: Trace = None) -> Any:
        """Run steps in one call, so many of which change variables."""
        self.is_torn = count > 1
        result = self.run(fetches, feed, trace)
        self.steps, self.is_torn = self.steps + count, False
        return result

    def run_beside(self) -> Run:
        """Return what runs operations of no step in the present session, on another thread while a step runs."""
        assert self._session is not None
        return self._session.run

    def put(self, values: Mapping[str, np.ndarray], *more: tf.Operation) -> None:
        """Give variables, and the copies of them, values."""
        with self.graph.as_default():
            slices = _slices_of_variables()
            for group in group_by_bytes(values, lambda name: values[name].nbytes, _AT_ONCE_BYTES):
                feed = initial_value_feed({name: values[name] for name in group})
                self.run([slice_.initializer for name in group for slice_, _ in slices[name]], feed)
            if more:
                self.run(list(more))

    def read(self, names: Sequence[str]) -> dict[str, np.ndarray]:
        """Return the values of variables, put together of their slices in this process's memory."""
        values = {}
        with self.graph.as_default():
            slices = _slices_of_variables()
        sizes = {name: sum(v.shape.num_elements() * v.dtype.size for v, _ in slices[name]) for name in names}
        for group in group_by_bytes(sizes, sizes.__getitem__, _AT_ONCE_BYTES):
            of_group = [slice_ for name in group for slice_ in slices[name]]
            found = State.from_slices([v for v, _ in of_group], self.run([read for _, read in of_group]))
            values |= {name: found.value(name) for name in group}
        return values

    def rescue(self) -> dict[str, np.ndarray] | None:
        """Return the values of variables after the last step, of which a worker was lost; None: some are lost."""
        if self._session is None or not self._commits.counters:
            return None
        found = self._commits.rescue(self._session, self.steps)
        if found is None:
            return None
        state = State.from_values(self.graph, found)
        return {name: state.value(name) for name in state.names}

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
                raise UnreachableWorkerError(f"a worker was lost during {self._loss}; {lost}", lost.workers) from error
            if isinstance(error, (tf.errors.UnavailableError, tf.errors.AbortedError)):
                raise UnreachableWorkerError(
                    f"a worker was lost or restarted during {self._loss}; {str(error.message).splitlines()[0]}"
                ) from error
            raise


def _variables() -> list[tf.Variable]:
    return [*tf.global_variables(), *tf.local_variables()]


def _full_name(variable: tf.Variable) -> str:
    """Return the name of the variable that a slice is of."""
    info = variable._save_slice_info
    return info.full_name if info else variable.op.name


def _slices_of_variables() -> dict[str, list[tuple[tf.Variable, tf.Tensor]]]:
    """{name of a variable: (each of its slices, the read that was made with it)} of the default graph."""
    slices: dict[str, list[tuple[tf.Variable, tf.Tensor]]] = {}
    for variable in tf.global_variables():
        slices.setdefault(_full_name(variable), []).append((variable, variable.graph.as_graph_element(variable)))
    return slices
