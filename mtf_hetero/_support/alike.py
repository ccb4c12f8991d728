"""Build the operations of a function once for each kind of slice, and copy them for equal slices.

TensorFlow builds an operation from its arguments three times more slowly than from known types and attributes. On a
mesh of many processors, most slices differ only in their place. So the operations of the first slice are copied.
"""

import dataclasses
from collections.abc import Callable, Hashable, Sequence
from typing import Any, TypeVar

import numpy as np

from mtf_hetero._compat import mtf, tf
from mtf_hetero._support import deadline
from mtf_hetero._support.ops import constant, create, device_key, graph_cache, shared_value
from mtf_hetero._support.sameness import function_key

_NUMBERS = "numbers"
_MOST_SHARED = 64  # elements: larger constants would take the memory of a device for one use
T = TypeVar("T")


class Processor(int):
    """The number of a processor, for a function with the same result on all processors of one kind.

    Args:
      pnum: the number.
      kind: the value that decides the result, for comparison; None: the number itself.
      device: its device.
    """

    kind: Hashable
    device: str

    def __new__(cls, pnum: int, kind: Hashable = None, device: str = "") -> "Processor":
        processor = super().__new__(cls, pnum)
        processor.kind = pnum if kind is None else kind
        processor.device = device
        return processor


def is_cpu(device: str) -> bool:
    """Return whether a device is a CPU, by its name."""
    return "cpu" in device.lower()


def parallel(devices: Sequence[str], fn: Callable[..., T], *args: Sequence[object]) -> list[T]:
    """Return the result of a function on each device, like mtf.parallel.

    Args:
      devices: one per processor.
      fn: as for `call_each`.
      *args: one list per argument of `fn`, of one value per processor.
    """
    return call_each(devices, fn, list(zip(*args, strict=True)))


def call_each(devices: Sequence[str], fn: Callable[..., T], calls: Sequence[Sequence[object]]) -> list[T]:
    """Call a function on each device, once for processors of one device that have the same arguments.

    It is called once for each kind of device, CPU or other, and of arguments: tensors of the same types and shapes, and
    other arguments that are equal. What it makes is copied where nothing but these arguments enters it; elsewhere it is
    called for each device. A function whose `function_key` is known is called once in a graph.

    Args:
      devices: one per processor.
      fn: a function of tensors, or of other values, to a tensor or a structure of tensors.
      calls: the arguments for each processor.

    Raises:
      deadline.OutOfTimeError: a time limit has passed.

    Example:
      Slices of 42, 42 and 15 filters: the function is called for the first and the third. The second gets a copy of the
      first one's operations, on its own device and with its own inputs.
    """
    graph = tf.get_default_graph()
    if tf.executing_eagerly() or graph._get_control_flow_context() is not None:
        return mtf.parallel(list(devices), lambda call: fn(*call), list(calls))
    kinds = [_kind((is_cpu(device), *call)) for device, call in zip(devices, calls, strict=True)]
    copies, is_kept = _cached_copies(fn, calls[0], graph)
    results: list[T] = []
    made: dict[Hashable, T] = {}
    users: dict[Hashable, list[int]] = {}
    for pnum, (device, call, kind) in enumerate(zip(devices, calls, kinds, strict=True)):
        deadline.check()  # one operation on 64 slots may take 15 s: each draws its own part of a dropout's mask
        key = pnum if kind is None else (device, kind, *(id(x) for x in call if isinstance(x, tf.Tensor)))
        copy = copies.get(kind)
        if key not in made and copy is not None:
            made[key] = copy.make(call, device, f"parallel_{pnum}")
        elif key not in made:
            with tf.device(device), tf.variable_scope(f"parallel_{pnum}"):  # as mtf does
                made[key] = fn(*call)
                if kind not in copies:
                    copies[kind] = _try_copy(call, made[key]) if is_kept or kind in kinds[pnum + 1 :] else None
        results.append(made[key])
        users.setdefault(key, []).append(pnum)
    if len(set(devices)) < len(devices):
        for key, (pnum, *others) in users.items():
            if not others:
                _note_slot(devices[:pnum].count(devices[pnum]), calls[pnum], made[key])
    return results


def slot_of_operations(graph: tf.Graph) -> dict[tf.Operation, int]:
    """Return which slot of its device an operation computes for, of those that compute for one alone."""
    return graph_cache(graph, "slots")


def join_slot(op: tf.Operation, member: tf.Operation) -> None:
    """Note an operation as one of the slot of another, if that computes for one alone."""
    slots = slot_of_operations(op.graph)
    if member in slots:
        slots[op] = slots[member]


def _note_slot(slot: int, call: Sequence[object], result: object) -> None:
    """Note the operations between a call's arguments and its result as those of a slot."""
    noted = slot_of_operations(tf.get_default_graph())
    given = {x.op for x in call if isinstance(x, tf.Tensor)}
    left = [x.op for x in tf.nest.flatten(result) if isinstance(x, tf.Tensor)]
    while left:
        op = left.pop()
        if op not in given and op not in noted and op.inputs:  # constants are shared
            noted[op] = slot
            left += [x.op for x in op.inputs]


def _cached_copies(
    fn: Callable[..., object], call: Sequence[object], graph: tf.Graph
) -> "tuple[dict[Hashable, _Copy | None], bool]":
    """Return {kind of a call: the copy of its operations}, and whether the graph keeps it for later calls."""
    key = None if any(isinstance(x, Processor) for x in call) else function_key(fn)  # kinds of one layout
    if key is None:
        return {None: None}, False
    return graph_cache(graph, "copies").setdefault(key, {None: None}), True


def _kind(call: Sequence[object]) -> Hashable:
    """Return a key of the operations that a function makes from these arguments; None if it cannot be compared."""
    first: dict[int, int] = {}
    kind = []
    for i, x in enumerate(call):
        if isinstance(x, tf.Tensor):
            is_known = x.op.type == "Const"  # a function may look at its value
            shape = None if x.shape.rank is None else tuple(x.shape.as_list())
            kind.append((x.dtype, shape, first.setdefault(id(x), i), id(x) if is_known else None))
        else:
            kind.append(x.kind if isinstance(x, Processor) else (type(x), x))
    try:
        hash(tuple(kind))
    except TypeError:
        return None
    return tuple(kind)


class _UnknownError(Exception):
    """An operation that cannot be copied."""


def _try_copy(call: Sequence[object], result: object) -> "_Copy | None":
    """Return a copy that makes a result from other arguments; None if it depends on more than the arguments."""
    inputs: dict[int, int] = {}
    for i, x in enumerate(call):
        inputs.setdefault(id(x), i)
    copy = _Copy(inputs, tf.get_default_graph().get_name_scope() + "/", constant(0).device)
    try:
        copy.result = tf.nest.map_structure(lambda x: None if x is None else copy.find_source(x), result)
    except _UnknownError:
        return None
    return copy


@dataclasses.dataclass(frozen=True)
class _Step:
    """One operation: its type, name within the scope, attributes, and where its inputs come from."""

    kind: str
    name: str
    attributes: dict[str, tf.AttrValue]
    dtypes: list[tf.DType]
    sources: list["_Source"]
    key: Hashable  # of a scalar operation, which is made once for equal arguments; None: made each time


def _scalar_key(op: tf.Operation) -> Hashable:
    """Return a key of a scalar operation, for comparison; None if an input or output is no scalar.

    An optimizer calculates the same factors for each weight.
    """
    if not op.inputs or any(x.shape.rank != 0 for x in [*op.inputs, *op.outputs]):
        return None
    return op.type, *sorted((name, value.SerializeToString()) for name, value in op.node_def.attr.items())


def _make(step: _Step, inputs: Sequence[tf.Tensor]) -> Sequence[tf.Tensor]:
    return create(step.kind, inputs, step.dtypes, step.name, step.attributes).outputs


def forget_numbers() -> None:
    """Forget the scalars of the default graph: `traffic.fuse` may make them wait for other operations of their step."""
    graph_cache(tf.get_default_graph(), _NUMBERS).clear()


def _make_once(step: _Step, inputs: Sequence[tf.Tensor]) -> Sequence[tf.Tensor]:
    """Return the outputs of an operation, which is made once for the same arguments on this device."""
    made = graph_cache(tf.get_default_graph(), _NUMBERS)
    key = step.key, device_key(), *map(id, inputs)
    if key not in made:
        made[key] = _make(step, inputs), inputs  # a reference to the inputs: their ids stay valid
    return made[key][0]


class _Source:
    """The source of a tensor. It is a leaf for tf.nest, and a tuple is not.

    Args:
      of: gives the tensor, from the arguments and the outputs of the steps so far.
    """

    def __init__(self, of: Callable[[Sequence[Any], Sequence[Sequence[tf.Tensor]]], tf.Tensor]) -> None:
        self.of = of


class _Copy:
    """The operations between a function's arguments and its result.

    Args:
      inputs: {id of an argument: its index}.
      scope: the name scope in which the function made its operations.
      device: where each of them must be.
    """

    result: Any

    def __init__(self, inputs: dict[int, int], scope: str, device: str) -> None:
        self._inputs, self._scope, self._device = inputs, scope, device
        self._steps: list[_Step] = []
        self._numbers: dict[str, int] = {}  # of the steps, by the operation's name

    def find_source(self, x: object) -> _Source:
        """Return the source of a tensor, and add the steps that make it.

        Raises:
          _UnknownError: the tensor needs more than arguments and constants, or an operation that cannot be copied.
        """
        index = self._inputs.get(id(x))
        if index is not None:
            return _Source(lambda call, made: call[index])
        if not isinstance(x, tf.Tensor):
            raise _UnknownError
        known = shared_value(x) or self._small_constant(x)
        if known is not None:
            value, dtype = known
            return _Source(lambda call, made: constant(value, dtype))
        number, output = self._number_step(x.op), x.value_index
        return _Source(lambda call, made: made[number][output])

    def _small_constant(self, x: tf.Tensor) -> tuple[np.ndarray, tf.DType] | None:
        """Return the value and type of a small constant that the function made; None for any other tensor."""
        is_small = x.op.type == "Const" and x.dtype != tf.string and (x.shape.num_elements() or 0) <= _MOST_SHARED
        if not is_small or x.op.device != self._device or x.op.control_inputs:
            return None
        return tf.make_ndarray(x.op.get_attr("value")), x.dtype

    def _number_step(self, op: tf.Operation) -> int:
        if op.name not in self._numbers:
            attributes = dict(op.node_def.attr)
            if (
                not op.name.startswith(self._scope)
                or op.type == "Placeholder"  # stands for a tensor outside of a function's graph
                or op.device != self._device
                or op.control_inputs
                or op.op_def.is_stateful
                or not attributes.keys().isdisjoint(("_class", "_gradient_op_type"))
                or any(value.HasField("func") for value in attributes.values())
            ):
                raise _UnknownError
            sources = [self.find_source(x) for x in op.inputs]
            name = op.name.removeprefix(self._scope)
            self._numbers[op.name] = len(self._steps)
            self._steps.append(
                _Step(op.type, name, attributes, [y.dtype for y in op.outputs], sources, _scalar_key(op))
            )
        return self._numbers[op.name]

    def make(self, call: Sequence[Any], device: str, scope: str) -> Any:
        """Make the result of other arguments of the same kind, on a device and in a name scope."""
        made: list[Sequence[tf.Tensor]] = []
        if self._steps:
            with tf.device(device), tf.name_scope(scope):
                for step in self._steps:
                    make = _make if step.key is None else _make_once
                    made.append(make(step, [source.of(call, made) for source in step.sources]))
        if isinstance(self.result, _Source):
            return self.result.of(call, made)
        return tf.nest.map_structure(lambda source: source and source.of(call, made), self.result)
