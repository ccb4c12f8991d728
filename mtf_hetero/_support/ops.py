"""TensorFlow's operations as a lowering makes them by the ten thousand: small constants are made once for a device.

A shape, a box or an axis is a constant operation of its own each time that TensorFlow is given a list of numbers. On a
mesh of many processors that is a third of the graph, and more of the time that it takes to build it.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from mtf_hetero._compat import tf

_MADE = "_mtf_hetero_constants"  # of a graph, which they live and die with


def _device_of(graph: tf.Graph) -> tuple[Any, ...]:
    """What decides the device of an operation that is made now: names, and functions, from the outermost on."""
    return tuple(spec._device_name_or_function for spec in graph._device_function_stack.peek_objs())


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
    if not hasattr(graph, _MADE):
        setattr(graph, _MADE, {})
    made = getattr(graph, _MADE)
    key = (array.tobytes(), array.shape, dtype, _device_of(graph))
    if key not in made:
        with tf.control_dependencies(None):
            made[key] = tf.constant(array, dtype)
    return made[key]


def cut(x: tf.Tensor, begin: Sequence[int], size: Sequence[int]) -> tf.Tensor:
    """The box [begin, begin + size) of a tensor; the tensor itself where that is all of it."""
    if x.shape.rank is not None and x.shape.as_list() == list(size):
        return x
    return tf.raw_ops.Slice(input=x, begin=constant(begin), size=constant(size))


def reshape(x: tf.Tensor, shape: Sequence[int]) -> tf.Tensor:
    """tf.reshape; the tensor itself where it has that shape."""
    return x if x.shape.as_list() == list(shape) else tf.raw_ops.Reshape(tensor=x, shape=constant(shape))


def pad(x: tf.Tensor, paddings: Sequence[Sequence[int]], value: Any = 0) -> tf.Tensor:
    """The tensor with zeros, or another value, around it; itself where there are none to add."""
    if not any(map(any, paddings)):
        return x
    if value == 0:
        return tf.raw_ops.Pad(input=x, paddings=constant(paddings))
    return tf.raw_ops.PadV2(input=x, paddings=constant(paddings), constant_values=constant(value, x.dtype))


def concat(pieces: Sequence[tf.Tensor], axis: int) -> tf.Tensor:
    """The pieces, joined along a dimension; a piece itself where it is the only one."""
    return pieces[0] if len(pieces) == 1 else tf.raw_ops.ConcatV2(values=list(pieces), axis=constant(axis))


def zeros(shape: Sequence[int], dtype: tf.DType) -> tf.Tensor:
    """A tensor of zeros."""
    return tf.raw_ops.Fill(dims=constant(shape), value=constant(0, dtype))
