"""The values of variables after the last finished step, read on the devices that outlive a worker.

A lost worker cuts off a step: on other devices, it has changed some variables and not others. So the updates of a step
wait, on each device, until all values that the device writes are there. A counter is raised before the first update.
A device whose counter has the number of finished steps has changed nothing since.
"""

import collections
import concurrent.futures
import itertools
from collections.abc import Callable, Collection, Mapping, Sequence

import numpy as np

from mtf_hetero._compat import tf
from mtf_hetero._support import facts, graphs, threads
from mtf_hetero._support.grouping import group_by_bytes

_MOST_BYTES = 2**30  # of the values that wait on a device: they take memory
_AT_ONCE_BYTES = 2**27  # that one call reads
_COUNT_SECONDS, _READ_SECONDS, _BYTES_PER_SECOND = 5.0, 10.0, 1e7
_GRACE_SECONDS = 1.0  # for the counters of other devices, once the first one has answered


class Commits:
    """Counters of the steps of a session, one per device.

    Example:
      >>> commits = Commits()
      >>> commits.hold(train_op)  # before the session is made, which runs tf.local_variables_initializer()
      >>> ...  # a session runs 7 steps, and loses a worker in the eighth
      >>> values = commits.rescue(session, 7)
    """

    def __init__(self) -> None:
        self.counters: dict[str, tf.Variable] = {}
        self._reads: dict[str, tf.Tensor] = {}
        self._late: set[str] = set()  # names of variables whose updates do not wait
        self._is_held = True

    def hold(self, *step: tf.Operation) -> None:
        """Have the updates of a step wait, and raise the counters. If that cannot be done, nothing is ever rescued.

        Args:
          *step: operations of the default graph that run all updates.
        """
        found = _find_updates(step)
        if found is None:
            self._is_held = False
            return
        updates, late = found
        self._late |= late
        of_device: dict[str, list[tf.Operation]] = {}
        for op in updates:
            of_device.setdefault(op.inputs[0].op.device, []).append(op)
        for device, its_updates in of_device.items():
            begin = self._counter(device).assign_add(1, read_value=False)
            begin._add_control_inputs([op.inputs[1].op for op in its_updates])
            for op in its_updates:
                op._add_control_input(begin)

    def _counter(self, device: str) -> tf.Variable:
        if device not in self.counters:
            with tf.device(device), tf.control_dependencies(None):
                counter = tf.Variable(
                    np.int64(0),
                    name="finished_steps",
                    trainable=False,
                    collections=[tf.GraphKeys.LOCAL_VARIABLES],
                    use_resource=True,
                )
                self.counters[device], self._reads[device] = counter, counter.value()
        return self.counters[device]

    def rescue(
        self, session: tf.Session, steps: int, known: Mapping[str, np.ndarray | np.generic] | None = None
    ) -> dict[str, np.ndarray] | None:
        """Return the values of the global variables after the last finished step.

        Args:
          session: has lost a worker.
          steps: number of finished steps since the variables of this session were initialized.
          known: values that need not be read.

        Returns:
          {name of a tf.Variable's operation: array}; None if there is a slice that no device has as it was.
        """
        if not self._is_held:
            return None
        values = {name: np.asarray(value) for name, value in (known or {}).items()}
        sources = self._sources(session.graph, values.keys(), self._at(session, self._reads, steps))
        if sources is None:
            return None
        tensors: dict[str, dict[str, tf.Tensor]] = {}
        for name, source in sources.items():
            tensors.setdefault(source.device, {})[name] = session.graph.as_graph_element(source)
        read = {device: list(of_device.values()) for device, of_device in tensors.items()}
        seconds = _READ_SECONDS + sum(map(_size_bytes, itertools.chain(*read.values()))) / _BYTES_PER_SECOND
        found = _run_apart(session, read, seconds)
        counters = {device: self._reads[device] for device in tensors}
        if found.keys() != tensors.keys() or self._at(session, counters, steps) != tensors.keys():
            return None
        for device, of_device in tensors.items():
            values |= zip(of_device, found[device], strict=True)
        return values

    def _at(self, session: tf.Session, reads: Mapping[str, tf.Tensor], steps: int) -> set[str]:
        """Return the devices that have begun so many updates, of those that answer."""
        counters = {device: [read] for device, read in reads.items()}
        found = _run_apart(session, counters, _COUNT_SECONDS, _GRACE_SECONDS)
        return {device for device, (count,) in found.items() if count == steps}

    def _sources(self, graph: tf.Graph, known: Collection[str], devices: set[str]) -> dict[str, tf.Variable] | None:
        """Return a variable on one of the devices for each one that is not known; None if one is on no device."""
        primaries, others = (
            graph.get_collection(key) for key in (tf.GraphKeys.GLOBAL_VARIABLES, tf.GraphKeys.LOCAL_VARIABLES)
        )
        there: dict[tuple[object, ...], tf.Variable] = {}
        for variable in (*primaries, *others):
            if variable.device in devices and variable.op.name not in self._late and not variable.dtype._is_ref_dtype:
                there.setdefault(_key(variable), variable)
        wanted = [variable for variable in primaries if variable.op.name not in known]
        if any(_key(variable) not in there for variable in wanted):
            return None
        return {variable.op.name: there[_key(variable)] for variable in wanted}


def _find_updates(step: Sequence[tf.Operation]) -> tuple[list[tf.Operation], set[str]] | None:
    """Return the updates of a step that can wait, and the names of other variables that it writes.

    The value of another one depends on an update, such as a global step that counts when all else is done.

    Returns:
      None if the step writes variables by other operations, or the values take too much memory.
    """
    waiting, late, sizes = [], set(), collections.Counter[str]()
    updates_or_after = set[tf.Operation]()
    for op in graphs.operations_to_run(step):
        is_after = any(x in updates_or_after for x in graphs.before(op))
        if op.type in facts.VARIABLE_WRITES:
            handle, value = op.inputs
            if op._get_control_flow_context() is not None:
                return None
            if value.op in updates_or_after or not handle.op.device:  # TensorFlow chooses the device
                late.add(handle.op.name)
            else:
                waiting.append(op)
                sizes[handle.op.device] += _size_bytes(value)
        elif op.type not in facts.VARIABLE_READS and any(x.op.type == "VarHandleOp" for x in op.inputs):
            return None
        if is_after or op.type in facts.VARIABLE_WRITES:
            updates_or_after.add(op)
    return None if max(sizes.values(), default=0) > _MOST_BYTES else (waiting, late)


def _key(variable: tf.Variable) -> tuple[object, ...]:
    """Return what variables with the same value share."""
    info = variable._save_slice_info
    return (info.full_name, tuple(info.var_offset), tuple(info.var_shape)) if info else (variable.op.name,)


def _size_bytes(tensor: tf.Tensor) -> int:
    return (tensor.shape.num_elements() or 0) * tensor.dtype.size


def _run_apart(
    session: tf.Session, tensors: Mapping[str, Sequence[tf.Tensor]], seconds: float, grace_seconds: float | None = None
) -> dict[str, list[np.ndarray]]:
    """Return the values of each device's tensors, of the devices that answer in time: a lost one never does.

    Args:
      session: has lost a worker.
      tensors: {device: its tensors}.
      seconds: for the first answer.
      grace_seconds: for the others after it; None: as for the first one.
    """

    def read(of_device: Sequence[tf.Tensor]) -> Callable[[], list[np.ndarray]]:
        groups = group_by_bytes(of_device, _size_bytes, _AT_ONCE_BYTES)
        return lambda: [np.array(value) for group in groups for value in session.run(group)]

    begun = {device: threads.begin(read(of_device), "survivor_reader") for device, of_device in tensors.items()}
    if grace_seconds is not None:
        concurrent.futures.wait(begun.values(), seconds, concurrent.futures.FIRST_COMPLETED)
    done = concurrent.futures.wait(begun.values(), seconds if grace_seconds is None else grace_seconds).done
    return {device: read.result() for device, read in begun.items() if read in done and read.exception() is None}
