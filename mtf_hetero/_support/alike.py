"""A function of slices, built once for each kind of slice and copied for the processors whose slices are alike.

TensorFlow takes three times as long to build an operation from its arguments as to make one of which all is known. On
a mesh of many processors most differ only in where their slices are, so that what a function makes for the first of a
kind says what it makes for the others.
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

from mtf_hetero._compat import mtf, tf
from mtf_hetero._support.ops import constant, create, device_key, kept, shared_value
from mtf_hetero._support.sameness import function_key

_NUMBERS = "numbers"
_MOST_SHARED = 64  # elements of a constant that is made once for a device


class Processor(int):
    """The number of a processor, for a function that gives the same on all processors of one kind.

    Args:
      pnum: the number.
      kind: all that the function makes of it, to compare; None: the number itself.
    """

    kind: Any

    def __new__(cls, pnum: int, kind: Any = None) -> "Processor":
        processor = super().__new__(cls, pnum)
        processor.kind = pnum if kind is None else kind
        return processor


def is_cpu(device: str) -> bool:
    """Whether a device is a CPU, by its name."""
    return "cpu" in device.lower()


def parallel(devices: Sequence[str], fn: Callable[..., Any], *args: Sequence[Any]) -> list[Any]:
    """As mtf.parallel: what a function gives on each device.

    It is called once for each kind of device, CPU or other, and of arguments: tensors of the same types and shapes, and
    other arguments that are equal. What it makes is copied where nothing but these arguments enters it; elsewhere it is
    called for each device. A function whose `function_key` is known is called once in a graph.

    Args:
      devices: one per processor.
      fn: a function of tensors, or of other values, to a tensor or a structure of tensors.
      *args: one list per argument of `fn`, of one value per processor.
    """
    graph = tf.get_default_graph()
    if tf.executing_eagerly() or graph._get_control_flow_context() is not None:
        return mtf.parallel(list(devices), fn, *map(list, args))
    calls = list(zip(*args, strict=True))
    kinds = [_kind((is_cpu(device), *call)) for device, call in zip(devices, calls, strict=True)]
    copies, is_kept = _copies_of(fn, calls[0], graph)
    results = []
    for pnum, (device, call, kind) in enumerate(zip(devices, calls, kinds, strict=True)):
        copy = copies.get(kind)
        if copy is not None:
            results.append(copy.make(call, device, f"parallel_{pnum}"))
            continue
        with tf.device(device), tf.variable_scope(f"parallel_{pnum}"):  # as mtf does
            results.append(fn(*call))
            if kind not in copies:
                copies[kind] = _copy_of(call, results[-1]) if is_kept or kind in kinds[pnum + 1 :] else None
    return results


def _copies_of(fn: Callable[..., Any], call: Sequence[Any], graph: tf.Graph) -> "tuple[dict[Any, _Copy | None], bool]":
    """{kind of a call: how to copy what a function makes}, and whether the graph keeps it for later calls."""
    key = None if any(isinstance(x, Processor) for x in call) else function_key(fn)  # kinds of one layout
    if key is None:
        return {None: None}, False
    return kept(graph, "copies").setdefault(key, {None: None}), True


def _kind(call: Sequence[Any]) -> Any:
    """What decides which operations a function makes of these arguments; None where that cannot be compared."""
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


def _copy_of(call: Sequence[Any], result: Any) -> "_Copy | None":
    """How to make a result again from other arguments; None where it depends on more than these."""
    inputs: dict[int, int] = {}
    for i, x in enumerate(call):
        inputs.setdefault(id(x), i)
    copy = _Copy(inputs, tf.get_default_graph().get_name_scope() + "/", constant(0).device)
    try:
        copy.result = tf.nest.map_structure(lambda x: None if x is None else copy.source_of(x), result)
    except _UnknownError:
        return None
    return copy


@dataclasses.dataclass(frozen=True)
class _Step:
    """One operation: its type, name within the scope, attributes, and where its inputs come from."""

    kind: str
    name: str
    attributes: dict[str, Any]
    dtypes: list[tf.DType]
    sources: list[Any]
    key: Any  # of an operation of one number, which is made once of the same arguments; None: each time


def _key_of(op: tf.Operation) -> Any:
    """Return a key of what a scalar operation does, for comparison; None if it reads or gives more than one number.

    An optimizer works out the same factors for each weight.
    """
    if not op.inputs or any(x.shape.rank != 0 for x in [*op.inputs, *op.outputs]):
        return None
    return op.type, *sorted((name, value.SerializeToString()) for name, value in op.node_def.attr.items())


def _make(step: _Step, inputs: Sequence[tf.Tensor]) -> Sequence[tf.Tensor]:
    return create(step.kind, inputs, step.dtypes, step.name, step.attributes).outputs


def forget_numbers() -> None:
    """Has the default graph make numbers anew: `traffic.fuse` may make those of a step wait for others of it."""
    kept(tf.get_default_graph(), _NUMBERS).clear()


def _make_once(step: _Step, inputs: Sequence[tf.Tensor]) -> Sequence[tf.Tensor]:
    """The outputs of an operation; of the same one where it was made before, of the same arguments on this device."""
    made = kept(tf.get_default_graph(), _NUMBERS)
    key = step.key, device_key(), *map(id, inputs)
    if key not in made:
        made[key] = _make(step, inputs), inputs  # which live as long as their ids are used
    return made[key][0]


class _Source:
    """Where a tensor comes from. A leaf of a structure, as a tuple is not.

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

    def source_of(self, x: Any) -> _Source:
        """Where a tensor comes from; adds the steps that make it.

        Raises:
          _UnknownError: not from the arguments and constants alone, or by an operation that cannot be made again.
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
        number, output = self._number_of(x.op), x.value_index
        return _Source(lambda call, made: made[number][output])

    def _small_constant(self, x: tf.Tensor) -> tuple[Any, tf.DType] | None:
        """Value and type of a small constant that the function made; None for any other tensor."""
        is_small = x.op.type == "Const" and x.dtype != tf.string and (x.shape.num_elements() or 0) <= _MOST_SHARED
        if not is_small or x.op.device != self._device or x.op.control_inputs:
            return None
        return tf.make_ndarray(x.op.get_attr("value")), x.dtype

    def _number_of(self, op: tf.Operation) -> int:
        if op.name not in self._numbers:
            attributes = dict(op.node_def.attr)
            if (
                not op.name.startswith(self._scope)
                or op.type == "Placeholder"  # by which a function's graph stands for what is outside of it
                or op.device != self._device
                or op.control_inputs
                or op.op_def.is_stateful
                or not attributes.keys().isdisjoint(("_class", "_gradient_op_type"))
                or any(value.HasField("func") for value in attributes.values())
            ):
                raise _UnknownError
            sources = [self.source_of(x) for x in op.inputs]
            name = op.name.removeprefix(self._scope)
            self._numbers[op.name] = len(self._steps)
            self._steps.append(_Step(op.type, name, attributes, [y.dtype for y in op.outputs], sources, _key_of(op)))
        return self._numbers[op.name]

    def make(self, call: Sequence[Any], device: str, scope: str) -> Any:
        """The result of other arguments of the same kind, made on a device, in a name scope."""
        made: list[Sequence[tf.Tensor]] = []
        if self._steps:
            with tf.device(device), tf.name_scope(scope):
                for step in self._steps:
                    make = _make if step.key is None else _make_once
                    made.append(make(step, [source.of(call, made) for source in step.sources]))
        if isinstance(self.result, _Source):
            return self.result.of(call, made)
        return tf.nest.map_structure(lambda source: source and source.of(call, made), self.result)
