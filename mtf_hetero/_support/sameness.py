"""Recognise functions with equal results, so that the operations of one can be copied for the other."""

import dataclasses
import functools
import types
from collections.abc import Hashable, Iterable, Mapping

from mtf_hetero._compat import tf

_LIBRARIES = {"keras", "mesh_tensorflow", "mtf_hetero", "tensorflow"}  # their functions depend on no state
_PLAIN = (bool, bytes, complex, float, int, str, type(None))


class _UnknownError(Exception):
    """A value that cannot be compared."""


def function_key(function: object) -> Hashable:
    """Return a key of a function's result, for comparison; None if the result may depend on more than its arguments.

    Functions of the modules of TensorFlow, Keras, mesh_tensorflow and this package have a key. They may be in a
    functools.partial with plain values, or be methods of a frozen dataclass of plain values. A nested function has no
    key: it may look at the graph behind its arguments, as tf.gradients does.

    Example:
      >>> along_rows, along_columns = (functools.partial(tf.nn.softmax, axis=axis) for axis in (0, 1))
      >>> function_key(along_rows) == function_key(along_columns)
      False
    """
    try:
        return _key(function)
    except _UnknownError:
        return None


def _key(value: object) -> Hashable:
    if isinstance(value, _PLAIN):
        return type(value), repr(value)  # repr, because 1, 1.0 and True are equal, as are 0.0 and -0.0
    if isinstance(value, types.FunctionType):
        return _key_of_function(value)
    if isinstance(value, functools.partial):
        return functools.partial, _key(value.func), _keys(value.args), _key(value.keywords)
    if isinstance(value, types.MethodType):
        return _key_of_function(value.__func__), _key(value.__self__)
    if isinstance(value, (list, tuple)):
        return type(value), _keys(value)
    if isinstance(value, Mapping):
        return type(value), _keys(value), _keys(value.values())
    if isinstance(value, tf.DType):
        return value
    if dataclasses.is_dataclass(value) and value.__dataclass_params__.frozen:  # pyright: ignore
        return type(value), _key(vars(value))
    raise _UnknownError


def _keys(values: Iterable[object]) -> tuple[Hashable, ...]:
    return tuple(map(_key, values))


def _key_of_function(function: types.FunctionType) -> Hashable:
    if function.__module__.partition(".")[0] not in _LIBRARIES or "<" in function.__qualname__:
        raise _UnknownError
    return function
