"""Replicas of variables, which are set with their primaries, and updated after a restore.

A program may run both in one call of a session, tf.group(tf.global_variables_initializer(),
tf.local_variables_initializer()) for instance. TensorFlow then runs them in any order, and no edge can say "after that
one, if it is run at all". So a lock keeps the two apart. The initializer of a primary sets its replicas as well. What
brings replicas up to date does nothing for a primary without a value. Either order gives the same.
"""

import functools
from collections.abc import Sequence

from mtf_hetero._compat import tf
from mtf_hetero._support.ops import attribute, create, graph_cache

_NAME = "_mtf_hetero_locks"
_MUTEX, _INITIALIZE, _COPY = "mutex", "initialize", "copy"


class Reads:
    """Reads of variables. While one of the variables has no value, TensorFlow skips what depends on a read.

    Args:
      variables: in a graph; not in eager execution.
    """

    def __init__(self, variables: Sequence[tf.Variable]) -> None:
        self._device = variables[0].device
        self._read: dict[str, tf.Tensor] = {}
        with tf.init_scope():
            flags = [_on(v.device, "VarIsInitializedOp", [v.handle], [tf.bool]).outputs[0] for v in variables]
            for flag in flags:
                flag.op._add_control_input(_lock(_COPY, self._device).op)
            with tf.device(self._device):
                self._ready = functools.reduce(tf.logical_and, flags)
            self._if_missing, self._if_ready = self._switch(self._ready, self._device)

    def _switch(self, x: tf.Tensor, device: str) -> list[tf.Tensor]:
        """Return the tensor twice: for when a variable has no value, and for when all have one."""
        return _on(device, "Switch", [x, self._ready], [x.dtype] * 2, T=x.dtype).outputs

    def of(self, variable: tf.Variable) -> tf.Tensor:
        """Return the value of one of the variables, read once."""
        if variable.name not in self._read:
            with tf.init_scope():
                _, handle = self._switch(variable.handle, variable.device)
                dtype = variable.dtype.base_dtype
                (value,) = _on(variable.device, "ReadVariableOp", [handle], [dtype], dtype=dtype).outputs
                value.set_shape(variable.shape)
            self._read[variable.name] = value
        return self._read[variable.name]

    def after(self, operations: Sequence[tf.Operation]) -> tf.Operation:
        """Return an operation that waits for others, which depend on the reads. It runs where those are skipped too."""
        with tf.init_scope():
            done = _on(self._device, "Identity", [self._if_ready], [tf.bool], T=tf.bool)
            done._add_control_inputs(operations)
            inputs = [self._if_missing, done.outputs[0]]
            end = _on(self._device, "Merge", inputs, [tf.bool, tf.int32], T=tf.bool, N=len(inputs))
        return _unlock(_COPY, [end])


def link(
    sources: Sequence[tf.Variable], copies: Sequence[tf.Variable], values: Sequence[tf.Tensor], reads: Reads
) -> tf.Operation:
    """Have the initializers of variables set their replicas too; returns what brings the replicas up to date.

    Args:
      sources: the variables.
      copies: their replicas, whose own initial values are made of `reads`.
      values: of each replica, what it is when the sources have their initial values.
      reads: of the sources.
    """
    up_to_date = reads.after([copy.initializer for copy in copies])
    sets = []
    for copy, value in zip(copies, values, strict=True):
        with tf.init_scope():
            sets.append(_on(copy.device, "AssignVariableOp", [copy.handle, value], [], dtype=value.dtype))
            sets[-1]._add_control_input(_lock(_INITIALIZE, sources[0].device).op)
        copy._initializer_op = up_to_date
    _set_initializer(sources, _unlock(_INITIALIZE, [*(source.initializer for source in sources), *sets]))
    return up_to_date


def wait_for(operations: Sequence[tf.Operation], device: str) -> tf.Operation:
    """Return an operation that waits for others. tf.group would change those, which a session may have run already."""
    with tf.init_scope():
        last = _on(device, "NoOp", [], [])
    last._add_control_inputs(operations)
    return last


def _set_initializer(variables: Sequence[tf.Variable], initializer: tf.Operation) -> None:
    for variable in variables:
        variable._initializer_op = initializer
        variable.load = functools.partial(_load, variable)  # tf.Variable's looks for the value among its initializer's


def _load(variable: tf.Variable, value: object, session: tf.Session | None = None) -> None:
    """Set a variable and its replicas in a session, as tf.Variable.load does."""
    (session or tf.get_default_session()).run(variable.initializer, {variable.initial_value: value})


def _lock(kind: str, device: str) -> tf.Tensor:
    """Holder of the graph's lock, for all initializers or all copies, until the last of them releases it."""
    locks = graph_cache(tf.get_default_graph(), "locks")
    if kind not in locks:
        with tf.control_dependencies(None), tf.name_scope(""):
            if _MUTEX not in locks:
                cpu = tf.DeviceSpec.from_string(device).replace(device_type="CPU", device_index=0).to_string()
                (locks[_MUTEX],) = _on(cpu, "MutexV2", [], [tf.resource], container="", shared_name=_NAME).outputs
            mutex = locks[_MUTEX]
            (locks[kind],) = _on(mutex.device, "MutexLock", [mutex], [tf.variant]).outputs
    return locks[kind]


def _unlock(kind: str, operations: Sequence[tf.Operation]) -> tf.Operation:
    """Return an operation that waits for others and then lets go of the graph's lock."""
    with tf.init_scope():
        lock = _lock(kind, "")
        last = _on(lock.device, "ConsumeMutexLock", [lock], [])
    last._add_control_inputs(operations)
    return last


def _on(
    device: str, kind: str, inputs: Sequence[tf.Tensor], dtypes: Sequence[tf.DType], **attributes: tf.DType | int | str
) -> tf.Operation:
    protos = {name: attribute(value) for name, value in attributes.items()}
    with tf.device(device):
        return create(kind, inputs, dtypes, kind, protos)
