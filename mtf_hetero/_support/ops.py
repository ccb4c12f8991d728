"""TensorFlow's operations as a lowering makes them by the ten thousand: small constants are made once for a device.

A shape, a box or an axis is a constant operation of its own each time that TensorFlow is given a list of numbers. On a
mesh of many processors that is a third of the graph, and more of the time that it takes to build it.
"""

import functools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from mtf_hetero._compat import tf

PYTHON_OPERATIONS = frozenset({"PyFunc", "PyFuncStateless", "EagerPyFunc"})  # types of those that call Python
_CONSTANTS = "constants"


def kept(graph: tf.Graph, what: str) -> dict[Any, Any]:
    """A dict that lives and dies with a graph."""
    name = f"_mtf_hetero_{what}"
    if not hasattr(graph, name):
        setattr(graph, name, {})
    return getattr(graph, name)


def device_key() -> tuple[Any, ...]:
    """What decides the device of an operation that is made now: names, and functions, from the outermost on."""
    stack = tf.get_default_graph()._device_function_stack
    return tuple(spec._device_name_or_function for spec in stack.peek_objs())


def create(
    kind: str, inputs: Sequence[tf.Tensor], dtypes: Sequence[tf.DType], name: str, attributes: Mapping[str, Any]
) -> tf.Operation:
    """An operation of which all is known, three times as fast as by its function.

    tf.Graph.create_op does the same, and spends as much again on looking for an argument that is deprecated.

    Args:
      kind: its type, "Relu" for instance.
      inputs: what it reads.
      dtypes: of its outputs.
      name: its name; one that ends with a slash is taken as it is, any other in the current scope.
      attributes: {name: AttrValue}.
    """
    return tf.get_default_graph()._create_op_internal(kind, inputs, dtypes, name=name, attrs=attributes)


def attribute(value: Any) -> Any:
    """A tf.DType, a tf.TensorShape, a whole number or a string as the attribute of an operation."""
    if isinstance(value, tf.DType):
        return tf.AttrValue(type=value.as_datatype_enum)
    if isinstance(value, tf.TensorShape):
        return tf.AttrValue(shape=value.as_proto())
    return tf.AttrValue(i=value) if isinstance(value, int) else tf.AttrValue(s=value.encode())


def _make(kind: str, inputs: Mapping[str, Any], dtype: tf.DType, **attributes: Any) -> tf.Tensor:
    """The output of an operation of which all is known: {name: tensor, or a list of them}."""
    if tf.executing_eagerly():
        return getattr(tf.raw_ops, kind)(**inputs)
    flat = []
    for x in inputs.values():
        flat += x if isinstance(x, list) else [x]
    flat = [x if isinstance(x, tf.Tensor) else tf.convert_to_tensor(x) for x in flat]  # one may be a variable
    protos = {name: attribute(value) for name, value in attributes.items()}
    return create(kind, flat, [dtype], kind, {"T": attribute(dtype), **protos}).outputs[0]


def constant(value: Any, dtype: tf.DType = tf.int32) -> tf.Tensor:
    """A small constant on the current device; the same one where it was made before.

    Args:
      value: a number, or a nested list or tuple of numbers.
      dtype: its type.
    """
    array = np.asarray(value, dtype.as_numpy_dtype)
    graph = tf.get_default_graph()
    if tf.executing_eagerly() or graph._get_control_flow_context() is not None:  # what enters a loop has no known shape
        return tf.constant(array, dtype)
    made = kept(graph, _CONSTANTS)
    key = (array.tobytes(), array.shape, dtype, device_key())
    if key not in made:
        with tf.control_dependencies(None):
            attributes = _attributes_of(array.tobytes(), array.shape, dtype)
            (made[key],) = create("Const", [], [dtype], "Const", attributes).outputs
        made[made[key].op.name] = array, dtype
    return made[key]


@functools.lru_cache(maxsize=4096)
def _attributes_of(content: bytes, shape: tuple[int, ...], dtype: tf.DType) -> Mapping[str, Any]:
    """Those of a constant, which many devices have."""
    array = np.frombuffer(content, dtype.as_numpy_dtype).reshape(shape)
    return {"value": tf.AttrValue(tensor=tf.make_tensor_proto(array, dtype)), "dtype": attribute(dtype)}


def shared_value(x: tf.Tensor) -> tuple[np.ndarray, tf.DType] | None:
    """Value and type of what `constant` made; None for any other tensor."""
    return kept(x.graph, _CONSTANTS).get(x.op.name)


def cut(x: tf.Tensor, begin: Sequence[int], size: Sequence[int]) -> tf.Tensor:
    """The box [begin, begin + size) of a tensor; the tensor itself where that is all of it."""
    if x.shape.rank is not None and x.shape.as_list() == list(size):
        return x
    return _make("Slice", {"input": x, "begin": constant(begin), "size": constant(size)}, x.dtype, Index=tf.int32)


def reshape(x: tf.Tensor, shape: Sequence[int]) -> tf.Tensor:
    """tf.reshape; the tensor itself where it has that shape."""
    if x.shape.as_list() == list(shape):
        return x
    return _make("Reshape", {"tensor": x, "shape": constant(shape)}, x.dtype, Tshape=tf.int32)


def pad(x: tf.Tensor, paddings: Sequence[Sequence[int]], value: Any = 0) -> tf.Tensor:
    """The tensor with zeros, or another value, around it; itself where there are none to add."""
    if not any(map(any, paddings)):
        return x
    if value == 0:
        return _make("Pad", {"input": x, "paddings": constant(paddings)}, x.dtype, Tpaddings=tf.int32)
    inputs = {"input": x, "paddings": constant(paddings), "constant_values": constant(value, x.dtype)}
    return _make("PadV2", inputs, x.dtype, Tpaddings=tf.int32)


def concat(pieces: Sequence[tf.Tensor], axis: int) -> tf.Tensor:
    """The pieces, joined along a dimension; a piece itself where it is the only one."""
    if len(pieces) == 1:
        return pieces[0]
    inputs = {"values": list(pieces), "axis": constant(axis)}
    return _make("ConcatV2", inputs, pieces[0].dtype, N=len(pieces), Tidx=tf.int32)


def split(x: tf.Tensor, sizes: Sequence[int], axis: int) -> list[tf.Tensor]:
    """A tensor in pieces along a dimension, by one operation."""
    if tf.executing_eagerly():
        return tf.split(x, sizes, axis)
    inputs = [x, constant(sizes), constant(axis)]
    attributes = {"T": attribute(x.dtype), "Tlen": attribute(tf.int32), "num_split": attribute(len(sizes))}
    return create("SplitV", inputs, [x.dtype] * len(sizes), "SplitV", attributes).outputs


def cast(x: tf.Tensor, dtype: tf.DType) -> tf.Tensor:
    """tf.cast; the tensor itself where it has that type."""
    return x if x.dtype == dtype else tf.cast(x, dtype)


def identity(x: tf.Tensor) -> tf.Tensor:
    """tf.identity: the tensor on the current device."""
    return _make("Identity", {"input": x}, x.dtype)


def binary(kind: str, x: Any, y: Any) -> tf.Tensor:
    """An element-wise operation of two arguments, "AddV2" for instance. One of them may be a number."""
    dtype = y.dtype if isinstance(x, (float, int)) else x.dtype
    x, y = (constant(a, dtype) if isinstance(a, (float, int)) else a for a in (x, y))
    return _make(kind, {"x": x, "y": y}, dtype)


def stack(pieces: Sequence[tf.Tensor]) -> tf.Tensor:
    """tf.stack along a new first dimension."""
    return _make("Pack", {"values": list(pieces)}, pieces[0].dtype, N=len(pieces), axis=0)


def unstack(x: tf.Tensor) -> tuple[tf.Tensor, ...]:
    """tf.unstack along the first dimension."""
    count = x.shape.as_list()[0]
    if tf.executing_eagerly():
        return tuple(tf.unstack(x))
    attributes = {"T": attribute(x.dtype), "num": attribute(count), "axis": attribute(0)}
    return tuple(create("Unpack", [x], [x.dtype] * count, "Unpack", attributes).outputs)


def zeros(shape: Sequence[int], dtype: tf.DType) -> tf.Tensor:
    """A tensor of zeros."""
    return _make("Fill", {"dims": constant(shape), "value": constant(0, dtype)}, dtype, index_type=tf.int32)
