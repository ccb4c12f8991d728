"""Make TensorFlow's operations for a lowering, with each small constant made once per device.

TensorFlow makes a new constant operation for each shape, box or axis that is a list of numbers. On a mesh of many
processors these constants are a third of the graph, and more than a third of the time to build it.
"""

import functools
from collections.abc import Hashable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from mtf_hetero._compat import tf

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

_CONSTANTS = "constants"


def graph_cache(graph: tf.Graph, what: str) -> dict[Any, Any]:
    """Return a dict that lives as long as a graph."""
    name = f"_mtf_hetero_{what}"
    if not hasattr(graph, name):
        setattr(graph, name, {})
    return getattr(graph, name)


def device_key() -> tuple[Hashable, ...]:
    """Return a key of the device of new operations: names and functions, from the outermost on."""
    stack = tf.get_default_graph()._device_function_stack
    return tuple(spec._device_name_or_function for spec in stack.peek_objs())


def create(
    kind: str,
    inputs: Sequence[tf.Tensor],
    dtypes: Sequence[tf.DType],
    name: str,
    attributes: Mapping[str, tf.AttrValue],
) -> tf.Operation:
    """Create an operation from known types and attributes, three times as fast as by its function.

    tf.Graph.create_op does the same, but spends half of its time on the search for a deprecated argument.

    Args:
      kind: its type, "Relu" for instance.
      inputs: its input tensors.
      dtypes: of its outputs.
      name: its name, in the current scope; a name that ends with a slash is used unchanged.
      attributes: {name: AttrValue}.
    """
    return tf.get_default_graph()._create_op_internal(kind, inputs, dtypes, name=name, attrs=attributes)


def attribute(value: tf.DType | tf.TensorShape | int | str) -> tf.AttrValue:
    """Return a tf.DType, a tf.TensorShape, an int or a string as the attribute of an operation."""
    if isinstance(value, tf.DType):
        return tf.AttrValue(type=value.as_datatype_enum)
    if isinstance(value, tf.TensorShape):
        return tf.AttrValue(shape=value.as_proto())
    return tf.AttrValue(i=value) if isinstance(value, int) else tf.AttrValue(s=value.encode())


def _make(
    kind: str, inputs: Mapping[str, tf.Tensor | list[tf.Tensor]], dtype: tf.DType, **attributes: tf.DType | int
) -> tf.Tensor:
    """Return the output of an operation with inputs {name: tensor, or a list of tensors}."""
    if tf.executing_eagerly():
        return getattr(tf.raw_ops, kind)(**inputs)
    flat = []
    for x in inputs.values():
        flat += x if isinstance(x, list) else [x]
    flat = [x if isinstance(x, tf.Tensor) else tf.convert_to_tensor(x) for x in flat]  # an input may be a variable
    protos = {name: attribute(value) for name, value in attributes.items()}
    return create(kind, flat, [dtype], kind, {"T": attribute(dtype), **protos}).outputs[0]


def constant(value: "ArrayLike", dtype: tf.DType = tf.int32) -> tf.Tensor:
    """Return a small constant on the current device, which is made once.

    Args:
      value: a number, or a nested list or tuple of numbers.
      dtype: its type.
    """
    array = np.asarray(value, dtype.as_numpy_dtype)
    graph = tf.get_default_graph()
    # A constant from outside of a loop loses its shape in the loop
    if tf.executing_eagerly() or graph._get_control_flow_context() is not None:
        return tf.constant(array, dtype)
    made = graph_cache(graph, _CONSTANTS)
    key = (array.tobytes(), array.shape, dtype, device_key())
    if key not in made:
        with tf.control_dependencies(None):
            attributes = _constant_attributes(array.tobytes(), array.shape, dtype)
            (made[key],) = create("Const", [], [dtype], "Const", attributes).outputs
        made[made[key].op.name] = array, dtype
    return made[key]


@functools.lru_cache(maxsize=4096)
def _constant_attributes(content: bytes, shape: tuple[int, ...], dtype: tf.DType) -> Mapping[str, tf.AttrValue]:
    """Return the attributes of a constant, cached because many devices need them."""
    array = np.frombuffer(content, dtype.as_numpy_dtype).reshape(shape)
    return {"value": tf.AttrValue(tensor=tf.make_tensor_proto(array, dtype)), "dtype": attribute(dtype)}


def shared_value(x: tf.Tensor) -> tuple[np.ndarray, tf.DType] | None:
    """Return the value and type of a tensor that `constant` made; None for any other tensor."""
    return graph_cache(x.graph, _CONSTANTS).get(x.op.name)


def cut(x: tf.Tensor, begin: Sequence[int], size: Sequence[int]) -> tf.Tensor:
    """Return the box [begin, begin + size) of a tensor, or the tensor itself if the box is all of it."""
    if x.shape.rank is not None and x.shape.as_list() == list(size):
        return x
    return _make("Slice", {"input": x, "begin": constant(begin), "size": constant(size)}, x.dtype, Index=tf.int32)


def reshape(x: tf.Tensor, shape: Sequence[int]) -> tf.Tensor:
    """Call tf.reshape, unless the tensor has that shape."""
    if x.shape.as_list() == list(shape):
        return x
    return _make("Reshape", {"tensor": x, "shape": constant(shape)}, x.dtype, Tshape=tf.int32)


def pad(x: tf.Tensor, paddings: Sequence[Sequence[int]], value: float = 0) -> tf.Tensor:
    """Pad a tensor with zeros or another value, unless all paddings are zero."""
    if not any(map(any, paddings)):
        return x
    if value == 0:
        return _make("Pad", {"input": x, "paddings": constant(paddings)}, x.dtype, Tpaddings=tf.int32)
    inputs = {"input": x, "paddings": constant(paddings), "constant_values": constant(value, x.dtype)}
    return _make("PadV2", inputs, x.dtype, Tpaddings=tf.int32)


def concat(pieces: Sequence[tf.Tensor], axis: int) -> tf.Tensor:
    """Concatenate pieces along a dimension, unless only one exists."""
    if len(pieces) == 1:
        return pieces[0]
    inputs = {"values": list(pieces), "axis": constant(axis)}
    return _make("ConcatV2", inputs, pieces[0].dtype, N=len(pieces), Tidx=tf.int32)


def split(x: tf.Tensor, sizes: Sequence[int], axis: int) -> list[tf.Tensor]:
    """Split a tensor along a dimension, with one operation."""
    if tf.executing_eagerly():
        return tf.split(x, sizes, axis)
    inputs = [x, constant(sizes), constant(axis)]
    attributes = {"T": attribute(x.dtype), "Tlen": attribute(tf.int32), "num_split": attribute(len(sizes))}
    return create("SplitV", inputs, [x.dtype] * len(sizes), "SplitV", attributes).outputs


def cast(x: tf.Tensor, dtype: tf.DType) -> tf.Tensor:
    """Call tf.cast, unless the tensor has that type."""
    return x if x.dtype == dtype else tf.cast(x, dtype)


def identity(x: tf.Tensor) -> tf.Tensor:
    """Call tf.identity, which copies a tensor to the current device."""
    return _make("Identity", {"input": x}, x.dtype)


def binary(kind: str, x: tf.Tensor | float, y: tf.Tensor | float) -> tf.Tensor:
    """Return an element-wise operation of two arguments, such as "AddV2". One argument may be a number."""
    (dtype,) = {a.dtype for a in (x, y) if not isinstance(a, (float, int))}
    x, y = (constant(a, dtype) if isinstance(a, (float, int)) else a for a in (x, y))
    return _make(kind, {"x": x, "y": y}, dtype)


def stack(pieces: Sequence[tf.Tensor]) -> tf.Tensor:
    """Call tf.stack along a new first dimension."""
    return _make("Pack", {"values": list(pieces)}, pieces[0].dtype, N=len(pieces), axis=0)


def unstack(x: tf.Tensor) -> tuple[tf.Tensor, ...]:
    """Call tf.unstack along the first dimension."""
    count = x.shape.as_list()[0]
    if tf.executing_eagerly():
        return tuple(tf.unstack(x))
    attributes = {"T": attribute(x.dtype), "num": attribute(count), "axis": attribute(0)}
    return tuple(create("Unpack", [x], [x.dtype] * count, "Unpack", attributes).outputs)


def zeros(shape: Sequence[int], dtype: tf.DType) -> tf.Tensor:
    """Return a tensor of zeros."""
    return _make("Fill", {"dims": constant(shape), "value": constant(0, dtype)}, dtype, index_type=tf.int32)
