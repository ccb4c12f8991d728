"""Run training steps under a layout as a trial: timed, or traced to the operations of mtf that they come from.

The input of a trial is zeros that each processor has, since input pipelines do not decide between layouts.
"""

import concurrent.futures
import contextlib
import contextvars
import dataclasses
import functools
import threading
import time
from collections.abc import Callable, Collection, Hashable, Iterator, Mapping, Sequence
from typing import Self

from mtf_hetero._compat import mtf, tf
from mtf_hetero._support import deadline, graphs
from mtf_hetero.cluster import Cluster
from mtf_hetero.cost import limited, trace
from mtf_hetero.graph import walk
from mtf_hetero.layout import Layout
from mtf_hetero.lowering import Lowering
from mtf_hetero.mesh import traffic
from mtf_hetero.mesh.mesh_impl import UnevenMeshImpl
from mtf_hetero.mesh.tensors import LaidOutTensor, Slices


class AloneMesh(UnevenMeshImpl):
    """A mesh whose processors all-reduce nothing."""

    def allreduce(self, x: Slices, mesh_axes: Sequence[int], reduction_fn_string: str) -> LaidOutTensor:
        return x.to_laid_out_tensor()

    def join(self, x: LaidOutTensor, mesh_axes: Sequence[int], function: object) -> LaidOutTensor:
        return x


class _TrialLowering(Lowering):
    """A Lowering with inputs of zeros, which keeps the name scope of each operation of mtf."""

    def __init__(self, graph: mtf.Graph, mesh: mtf.Mesh, mesh_impl: UnevenMeshImpl) -> None:
        self.scopes: dict[str, mtf.Operation] = {}
        super().__init__(graph, {mesh: mesh_impl}, autostack=False)

    def autostack(self) -> None:
        super().autostack()
        for op in self.graph.operations:
            lower = functools.partial(_own_zeros, op) if isinstance(op, mtf.ImportOperation) else op.lower
            op.lower = functools.partial(self._lower_recorded, op, lower)

    def _lower_recorded(self, op: mtf.Operation, lower: Callable[[mtf.Lowering], None], _: mtf.Lowering) -> None:
        self.scopes[tf.get_default_graph().get_name_scope()] = op
        lower(self)


def _own_zeros(op: mtf.Operation, lowering: Lowering) -> None:
    """Give each processor its slice of an input, of zeros, in a variable."""
    mesh_impl, (output,) = lowering.uneven(op), op.outputs
    slices = []
    for pnum, device in enumerate(mesh_impl.devices):
        with tf.device(device):
            slices.append(_zeros(mesh_impl.slice_shape(output.shape, pnum), output.dtype))
    lowering.set_tensor_lowering(output, LaidOutTensor(slices))


def _zeros(shape: Sequence[int], dtype: tf.DType) -> tf.Tensor:
    """Return zeros in a variable, which TensorFlow cannot fold."""
    make, local = functools.partial(tf.zeros, shape, dtype), [tf.GraphKeys.LOCAL_VARIABLES]
    return tf.Variable(make, trainable=False, collections=local, use_resource=True, dtype=dtype).read_value()


def _full_name(device: str) -> str:
    """Return a device's name as TensorFlow's operations have it."""
    with tf.device(device):
        return tf.no_op().device


def _cut_off(step: tf.Operation, devices: Sequence[str]) -> None:
    """Let each device read zeros in place of tensors of other devices."""
    names = dict.fromkeys(map(_full_name, devices))
    zeros: dict[Hashable, tf.Tensor] = {}
    for op in graphs.operations_to_run([step]):
        for number, x in enumerate(op.inputs):
            if op.device not in names or x.op.device not in names or op.device == x.op.device:
                continue
            key = op.device, tuple(x.shape.as_list()), x.dtype
            if key not in zeros:
                with tf.device(op.device):
                    zeros[key] = _zeros(*key[1:])
            op._update_input(number, zeros[key])


def _on_device(step: tf.Operation, device: str) -> list[tf.Operation]:
    """Return the operations of a device for which a group waits, directly or through other groups."""
    name = _full_name(device)
    found, left = [], [step]
    while left:
        op = left.pop()
        if op.type == "NoOp":
            left += op.control_inputs
        elif op.device == name:
            found.append(op)
    return found


class Trial:
    """A training step under a layout, in a session of its own that is open until `close`.

    Args:
      build: builds the program in TensorFlow's default graph, a new one, and returns its mtf.Graph.
      layout: how its tensors lie on the mesh.
      devices: one per processor.
      cluster: where they are.
      alone: whether the processors send and all-reduce nothing: each does its part of the work, with wrong results.

    Raises:
      ValueError: the graph assigns no variable, or the layout does not fit it or the devices.
      CannotSplitError: the layout splits what an operation needs whole.
      deadline.OutOfTimeError: a time limit has passed, here or in a step.
    """

    def __init__(
        self,
        build: Callable[[], mtf.Graph],
        layout: Layout,
        devices: Sequence[str],
        cluster: Cluster,
        *,
        alone: bool = False,
    ) -> None:
        deadline.check()
        cluster = dataclasses.replace(cluster, devices=tuple(devices))  # a worker that was left out may be lost
        self.layout, self.devices = layout, tuple(devices)
        graph = tf.Graph()
        with graph.as_default():
            self.graph = build()
            updates = walk.updates(self.graph)
            if not updates:
                raise ValueError("the graph assigns no variable, so it has no training step; apply an optimizer")
            mesh_class = AloneMesh if alone else UnevenMeshImpl
            lowering = _TrialLowering(self.graph, updates[0].mesh, mesh_class.from_layout(layout, devices))
            self._scopes: Mapping[str, mtf.Operation] = lowering.scopes
            self._step = tf.group([lowering.lowered_operation(op) for op in updates])
            if alone:
                _cut_off(self._step, devices)
            traffic.arrange(self._step)
            self._parts = [_on_device(self._step, device) for device in devices] if alone else []
            initializers = [tf.global_variables_initializer(), tf.local_variables_initializer()]
        self._session = tf.Session(cluster.target, graph=graph, config=cluster.session_config())
        try:
            for initializer in initializers:  # replicas are local, and come from the global variables
                limited.run(self._session, initializer)
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the session."""
        self._session.close()

    def run(self) -> float:
        """Run a step; return its seconds."""
        begin = time.perf_counter()
        limited.run(self._session, self._step)
        return time.perf_counter() - begin

    def run_traced(self) -> tuple[trace.Event, ...]:
        """Run a step; return its events."""
        return self._traced(self._step)

    def run_traced_on(self, pnum: int) -> tuple[trace.Event, ...]:
        """Run one device's part of a step whose processors send nothing; return its events."""
        return self._traced(self._parts[pnum])

    def _traced(self, fetches: object) -> tuple[trace.Event, ...]:
        metadata = tf.RunMetadata()
        limited.run(self._session, fetches, options=trace.run_options(), metadata=metadata)
        return trace.read(metadata)

    @contextlib.contextmanager
    def busy(self, pnums: Collection[int]) -> Iterator[None]:
        """Keep these devices busy with their parts of steps."""
        stop = threading.Event()

        def work(pnum: int) -> None:
            while not stop.is_set():
                limited.run(self._session, self._parts[pnum])

        with concurrent.futures.ThreadPoolExecutor(max(len(pnums), 1)) as pool:
            running = [pool.submit(contextvars.copy_context().run, work, pnum) for pnum in pnums]  # with its deadline
            try:
                yield
            finally:
                stop.set()
        for future in running:
            future.result()  # raises its error

    def find_operation(self, name: str) -> mtf.Operation | None:
        """Return the operation of mtf to which one of TensorFlow belongs, by its name; None without one."""
        while name and name not in self._scopes:
            name = name.rpartition("/")[0]
        return self._scopes.get(name)
